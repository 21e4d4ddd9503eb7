"""The search spaces name arguments the methods have, and hold the values the configs start from."""

from __future__ import annotations

from pathlib import Path

import pytest

from codid_lightning.experiments.matrix import method_configs
from codid_lightning.training import resolve
from codid_lightning.training.identity import flatten

CONFIGS = Path(__file__).parents[2] / "configs"
BASELINES = sorted(path.stem for path in CONFIGS.glob("baselines/*.yaml"))
CODID = sorted(path.parent.name for path in CONFIGS.glob("*/codid.yaml") if path.parent.name != "spaces")
WITHOUT_DEFAULT = {"cwru", "toy", "toy_four_attributes", "toy_nine_modes"}  # other values than the paper's grid
WITHOUT_PENALTY = ("jtt", "dfr", "lisa", "eiil", "spare", "lff", "mixup", "group_resampling")
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


def config_of(dataset, method):
    return resolve([part for file in method_configs(dataset, method) for part in ("-c", file)])


@pytest.mark.parametrize(("dataset", "method"), [("uci_har", m) for m in BASELINES] + [(d, "codid") for d in CODID])
def test_space_names_arguments_and_holds_the_defaults(dataset, method):
    config = config_of(dataset, method)
    given = dict(flatten(config))
    assert config["space"], "every method of the paper has a search space"
    for key, space in config["space"].items():
        value = given[key]
        assert set(space) - {"entries"} == {"type"} | FIELDS[space["type"]]
        if "low" in space:
            assert space["low"] < space["high"]
        values = value if "entries" in space else [value]
        assert len(values) == space.get("entries", 1)
        if dataset not in {*WITHOUT_DEFAULT, "colored_digits", "canine_bg"}:
            assert all(inside(v, space) for v in values), f"{key} is {value} by default"


@pytest.mark.parametrize("name", [name for name in BASELINES if name not in WITHOUT_PENALTY])
def test_a_baseline_is_tuned_by_its_strength(name):
    space = config_of("uci_har", name)["space"]["model.init_args.strength"]
    assert space["type"] == "log_uniform"
    assert space["low"] > 0


def test_titles_are_those_of_the_paper():
    titles = {method: config_of("cmnist", method)["title"] for method in ("base", "codid", "km_mp", "ide_vc", "wo_sc")}
    assert titles == {"base": "BASE", "codid": "CoDID", "km_mp": "CoDID-km-MP", "ide_vc": "IDE-VC",
                      "wo_sc": "CoDID-w/o-SC"}  # fmt: skip
