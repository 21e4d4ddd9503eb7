"""Every method still learns what it learned before; see `tests.golden.weights` for how to store new numbers."""

from __future__ import annotations

import math

import pytest

from tests.golden import weights

STORED = weights.load()
HEADS_MAY_BE_FEWER = False  # once head networks that nothing uses are no longer built, a subset will do
TOLERANCE = 1e-4  # of robust numbers; that of changes is larger, as weights are larger than their changes
TOLERANCES = {"uci_har/codid": 1e-3}  # other instruction sets differ by 1.2e-4 here, in all other entries by 4e-6


def test_every_method_has_an_entry():
    assert list(STORED["entries"]) == list(weights.ENTRIES)
    assert {entry.method for entry in weights.ENTRIES.values()} == set(weights.methods())


@pytest.mark.parametrize("name", weights.ENTRIES)
def test_robust_numbers_after_the_first_epoch(name):
    """On any machine. The scale of a sum is what it would be without cancellation."""
    found, stored = weights.measure(name)["robust"], STORED["entries"][name]["robust"]
    assert found.keys() == stored.keys()
    tolerance = TOLERANCES.get(name, TOLERANCE)
    for group, numbers in stored.items():
        scale = math.sqrt(numbers["count"] * numbers["squares"])
        assert found[group]["count"] == numbers["count"], group
        assert found[group]["sum"] == pytest.approx(numbers["sum"], rel=tolerance, abs=tolerance * scale), group
        assert found[group]["squares"] == pytest.approx(numbers["squares"], rel=tolerance), group
        assert found[group]["moved"] == pytest.approx(numbers["moved"], rel=100 * tolerance), group


@pytest.mark.parametrize("name", weights.ENTRIES)
def test_bits(name):
    """On the machine, or one like it, that the hashes were stored on."""
    here, there = weights.environment(), STORED["environment"]
    if here != there:
        other = ", ".join(f"{key} is {here[key]}, was {there.get(key)}" for key in here if here[key] != there.get(key))
        pytest.skip(f"bits depend on the environment, which is another one: {other}")
    found, stored = dict(weights.measure(name)), STORED["entries"][name]
    if HEADS_MAY_BE_FEWER and weights.fewer(found["heads"], stored["heads"]):
        same = {key: value for key, value in found["groups"].items() if key != "heads"}
        if "heads" in stored["groups"]:
            same["heads"] = stored["groups"]["heads"]
        found |= {"groups": same, "heads": stored["heads"]}
    assert weights.differences(found, stored) == []


@pytest.mark.parametrize("name", [name for name, entry in weights.ENTRIES.items() if entry.method in weights.GATED])
def test_the_gate_has_spoken(name):
    """Both ways are stored: counterfactuals that are used and counterfactuals that are not."""
    accepted = STORED["entries"][name]["scores"]["1/gate/accepted"]
    assert accepted == float(weights.ENTRIES[name].gate_open)


def test_all_steps_are_taken_in_the_second_epoch():
    entry = STORED["entries"]["colored_digits/codid"]
    steps = ("attribute", "reconstruction", "mode_prediction", "isotropic", "discriminator", "meta", "discrimination")
    assert {f"1/train/{step}" for step in steps} <= entry["losses"].keys()
    assert entry["scores"]["1/modes/proposed"] > 0
    assert STORED["entries"]["colored_digits/codid, merges"]["scores"]["2/modes/accepted"] > 0
    assert STORED["entries"]["colored_digits/wo_sc, splits"]["scores"]["1/modes/accepted"] > 0
