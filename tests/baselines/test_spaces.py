"""The search spaces name arguments the methods have, and hold the values the overlays start from."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from codid_lightning.benchmark import Resolver, method_configs

CONFIGS = Path(__file__).parents[2] / "configs"
SPACES = sorted(CONFIGS.glob("spaces/*.yaml"))
BASELINES = sorted(path.stem for path in CONFIGS.glob("baselines/*.yaml"))
FIELDS = {
    "log_uniform": {"low", "high"},
    "uniform": {"low", "high"},
    "int": {"low", "high", "step"},
    "choice": {"values"},
}


def inside(value, space) -> bool:
    if space["type"] == "choice":
        return value in space["values"]
    on_grid = space["type"] != "int" or (value - space["low"]) % space["step"] == 0
    return space["low"] <= value <= space["high"] and on_grid


@pytest.fixture(scope="module")
def resolver() -> Resolver:
    return Resolver.run([], run=False)


def test_every_method_has_a_space():
    general = {path.stem for path in SPACES if "codid_" not in path.stem}
    assert general == {*BASELINES, "codid"}


@pytest.mark.parametrize("path", SPACES, ids=lambda path: path.stem)
def test_space_names_arguments_and_holds_the_defaults(path, resolver):
    spaces = yaml.safe_load(path.read_text())
    of_codid, _, dataset = path.stem.partition("codid_")  # `codid_mfd` is CoDID's space on one data set
    files = method_configs(dataset or "uci_har", "codid" if dataset else of_codid or "codid")
    arguments = resolver.resolve([part for file in files for part in ("-c", file)])["model"]["init_args"]
    for key, space in spaces.items():
        value = arguments[key.removeprefix("model.init_args.")]
        assert set(space) - {"entries"} == {"type"} | FIELDS[space["type"]]
        values = value if "entries" in space else [value]
        assert len(values) == space.get("entries", 1)
        if "low" in space:
            assert space["low"] < space["high"]
        assert all(inside(v, space) for v in values), f"{key} is {value} by default"


@pytest.mark.parametrize("name", BASELINES)
def test_a_baseline_is_tuned_by_its_strength(name):
    space = yaml.safe_load((CONFIGS / "spaces" / f"{name}.yaml").read_text())["model.init_args.strength"]
    assert space["type"] == "log_uniform"
    assert space["low"] > 0
