"""Configs and runs of version 0.1 are read as if this version had written them."""

from __future__ import annotations

import importlib
import json
import shutil
import warnings
from pathlib import Path

import pytest
import yaml

from codid_lightning.experiments.matrix import Experiment, method_configs
from codid_lightning.training import build, load, migration, resolve, runs, stages
from codid_lightning.training.config import as_dict, combine
from codid_lightning.training.identity import config_hash, difference
from codid_lightning.training.migration import class_path

GOLDEN = Path(__file__).parents[1] / "golden"
RUN = GOLDEN / "run_0_1"
OLD = json.loads((GOLDEN / "configs_0_1.json").read_text())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("codid_lightning.CoDID", "codid_lightning.CoDID"),
        ("codid_lightning.codid.CoDID", "codid_lightning.methods.codid.module.CoDID"),
        ("codid_lightning.baselines.mmd.MMD", "codid_lightning.methods.baselines.mmd.MMD"),
        ("codid_lightning.baselines.MMD", "codid_lightning.methods.baselines.MMD"),
        ("codid_lightning.callbacks.snapshots.Snapshots", "codid_lightning.training.callbacks.snapshots.Snapshots"),
        ("codid_lightning.callbacks.dashboard.Dashboard", "codid_lightning.analysis.dashboard.callback.Dashboard"),
        ("codid_lightning.callbacks.statistics.SettledStatistics",
         "codid_lightning.methods.batchnorm.RecomputeBatchNorm"),
        ("codid_lightning.loggers.PatientWandb", "codid_lightning.training.loggers.FaultTolerantWandbLogger"),
        ("codid_lightning.clustering.DPGMM", "codid_lightning.clustering.DPGMM"),
        ("lightning.pytorch.loggers.CSVLogger", "lightning.pytorch.loggers.CSVLogger"),
    ],
)  # fmt: skip
def test_class_paths(old, new):
    assert class_path(old) == new
    assert class_path(new) == new
    module, _, name = new.rpartition(".")
    assert hasattr(importlib.import_module(module), name)


def test_a_config_file_of_before_is_read_with_one_warning(tmp_path):
    old = "codid_lightning.baselines.base.Base"
    overlay = tmp_path / "old.yaml"
    (tmp_path / "data.yaml").write_text("{class_path: Toy, init_args: {noise: 0.3}}")
    overlay.write_text(yaml.safe_dump({"data": "data.yaml", "model": {"class_path": old, "init_args": {"lr": 0.5}}}))
    with pytest.warns(UserWarning, match=rf"old.yaml is of an earlier version: {old} is now .*methods\.baselines"):
        config = resolve(["-c", "configs/toy/base.yaml", "-c", str(overlay)])
    assert config["model"]["class_path"] == "codid_lightning.Base", "spelt in one way"
    assert config["model"]["init_args"]["lr"] == 0.5
    assert config["data"]["init_args"]["noise"] == 0.3
    with pytest.warns(UserWarning, match="The given config is of an earlier version"):
        run = build("configs/toy/base.yaml", {"model": {"class_path": old}}, record=False)
    assert type(run.module).__name__ == "Base"


def test_a_current_config_gives_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        resolve(["-c", "configs/toy/codid.yaml"])


def test_a_function_upgrades_arguments_of_a_model(monkeypatch):
    def rename(model):
        arguments = model.get("init_args", {})
        if "learning_rate" in arguments:
            arguments["lr"] = arguments.pop("learning_rate")

    monkeypatch.setattr(migration, "MODEL_UPGRADES", [rename])
    old = {"model": {"class_path": "Base", "init_args": {"learning_rate": 0.5}}}
    assert migration.is_outdated(old)
    assert migration.upgrade(old)["model"]["init_args"] == {"lr": 0.5}
    assert old["model"]["init_args"] == {"learning_rate": 0.5}, "the config given is not changed"


# Counterfactual had no number of clusters. It has one now, inherited from CoDID's config, and does not use it. BASE had
# no learning-rate decay where CoDID has one.
CHANGED = {"colored_digits/counterfactual", "cmnist/base", "cfashion_mnist/base", "uci_har/base"}


@pytest.mark.parametrize("name", sorted(OLD["configs"].keys() - CHANGED))
def test_resolved_configs_of_before_have_the_identity_of_now(name):
    dataset, _, method = name.partition("/")
    entry = OLD["configs"][name]
    trainer = {**OLD["rest"]["trainer"], "max_epochs": entry["max_epochs"]}
    old = {**OLD["rest"], **entry["config"], "trainer": trainer}
    now = resolve([part for file in method_configs(dataset, method) for part in ("-c", file)])
    upgraded = as_dict(combine(migration.upgrade(old)))
    assert config_hash(upgraded) == config_hash(now), difference(upgraded, now)


def test_a_run_of_before_is_loaded_and_tested_alike():
    run = load(RUN)
    assert run.name == "codid on toy"
    checkpoint = RUN / runs.CHECKPOINTS / runs.LAST
    scores = stages.test(build({"ckpt_path": str(checkpoint), "trainer.accelerator": "cpu"}, record=False))
    expected = json.loads((RUN / "expected.json").read_text())
    assert {name: scores[name] for name in expected} == pytest.approx(expected)


def test_a_finished_run_in_a_directory_of_before_is_found(tmp_path):
    key = config_hash(runs.read_config(RUN))
    cell = Experiment("toy", "codid", 0, None, (), key, tmp_path)
    assert not cell.finished
    earlier = tmp_path / "toy" / "codid" / "seed0-0123456789abcdef"
    shutil.copytree(RUN, earlier)
    other = tmp_path / "toy" / "codid" / "seed0-00000000ffffffff"
    shutil.copytree(RUN, other)
    config = yaml.safe_load((other / runs.CONFIG).read_text())
    config["model"]["init_args"]["lr"] = 0.123
    (other / runs.CONFIG).write_text(yaml.safe_dump(config))
    cell = Experiment("toy", "codid", 0, None, (), key, tmp_path)
    assert cell.directory == earlier
    assert cell.finished
    assert str(earlier) in cell.job().command
