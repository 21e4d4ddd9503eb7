"""Random configs: valid ones build and train a step, invalid ones fail with the name of the key."""

from __future__ import annotations

import contextlib
import io
import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from codid_lightning.cli.main import main
from tests.faults.victims import ROOT

DISCOVERY = {
    "n_clusters": st.integers(1, 4) | st.lists(st.integers(1, 4), min_size=2, max_size=2),
    "every": st.integers(1, 3) | st.none(),
    "restart": st.booleans(),
    "reset_heads": st.booleans(),
}
WEIGHTS = {
    "lr": st.floats(1e-5, 1e-2),
    "direction": st.sampled_from(["descend", "ascend"]),
    "scale": st.sampled_from(["cluster", "none"]),
}
ALIGNMENT = {
    "strength": st.floats(0, 3),
    "steps": st.integers(1, 3),
    "sharing": st.sampled_from(["value", "mode", "all"]),
    "weights": st.none() | st.fixed_dictionaries({}, optional=WEIGHTS),
}
MODEL = {
    "latent_dim": st.integers(1, 12),
    "lr": st.floats(1e-5, 1e-1),
    "reconstruction": st.floats(0, 2),
    "max_clusters": st.integers(4, 6),
    "discovery": st.fixed_dictionaries({}, optional=DISCOVERY),
    "mode_loss": st.none() | st.fixed_dictionaries({}, optional={"weight": st.floats(0.01, 1)}),
    "alignment": st.none() | st.fixed_dictionaries({}, optional=ALIGNMENT),
    "splits": st.none() | st.fixed_dictionaries({}, optional={"weight_alignment": st.floats(0, 1)}),
}
DATA = {"batch_size": st.integers(2, 64), "correlation": st.floats(0, 1), "noise": st.floats(0, 1)}
STEP = [
    "fit", "-c", str(ROOT / "configs/toy/codid.yaml"), "--data.init_args.samples_per_mode", "10",
    "--model.init_args.discovery.init_args.start", "0",
    "--trainer.fast_dev_run", "true", "--trainer.accelerator", "cpu",
]  # fmt: skip
FEW = settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))

# What is wrong with a value of each key, and words that do not name one of its choices: all of them are tried, as a
# draw of some would miss a check that is gone.
WRONG = {
    "model.latent_dim": ["0", "-3", "wide", "1.5"],
    "model.lr": ["0", "-1", "fast"],
    "model.reconstruction": ["-1", "much"],
    "model.discovery.n_clusters": ["0", "99", "many"],
    "model.alignment.steps": ["0", "-1", "few"],
    "model.discovery.every": ["0", "often"],
    "model.discovery.start": ["-1", "some"],
    "model.alignment": ["strong", "3"],
    "model.alignment.sharing": ["nobody"],
    "model.backbone": ["resnet9000", "har"],
    "data.batch_size": ["1", "-5", "big"],
    "data.on_bad_values": ["ignore"],
    "trainer.max_epochs": ["soon"],
    "selection": ["luck"],
}


def called(arguments: list[str]) -> tuple[int, str]:
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        code = main(arguments)
    return code, said.getvalue()


def overlay(group: str, values: dict[str, Any]) -> list[str]:
    return [f"--{group}.init_args.{key}={json.dumps(v) if not isinstance(v, str) else v}" for key, v in values.items()]


@pytest.mark.slow
@FEW
@given(model=st.fixed_dictionaries({}, optional=MODEL), data=st.fixed_dictionaries({}, optional=DATA))
def test_valid_configs_train_a_step(model: dict[str, Any], data: dict[str, Any]) -> None:
    code, said = called([*STEP, *overlay("model", model), *overlay("data", data)])
    assert code == 0, said


def check_named(key: str, value: str) -> None:
    """A wrong value ends the command at once, in a few lines with the key."""
    group, name = key.split(".")[0], key.split(".")[-1]
    path = key.replace(".", ".init_args.") if group in ("model", "data") else key
    code, said = called([*STEP, f"--{path}={value}"])
    assert code in (1, 2), said
    assert name in said
    assert len(said.strip().splitlines()) <= 10, said


@pytest.mark.parametrize(("key", "value"), [(key, value) for key, values in WRONG.items() for value in values])
def test_invalid_values_are_named(key: str, value: str) -> None:
    check_named(key, value)


@pytest.mark.slow
@settings(FEW, max_examples=6)
@given(st.sampled_from(sorted(WRONG)), st.text("abcdefghijklmnopqrstuvwxyz", min_size=3, max_size=12))
def test_random_words_are_named(key: str, word: str) -> None:
    check_named(key, f"no_{word}")


@pytest.mark.slow
@settings(FEW, max_examples=3)
@given(st.text("abcdefghijklmnopqrstuvwxyz_", min_size=3, max_size=12))
def test_unknown_keys_are_named(word: str) -> None:
    code, said = called([*STEP, f"--model.init_args.no_{word}=1"])
    assert code == 2, said
    assert f"no_{word}" in said
