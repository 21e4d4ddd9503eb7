"""Two experiments share an identity only if they have the same numbers."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from codid_lightning.errors import RunError
from codid_lightning.training import build, fit, identity, resolve
from codid_lightning.training.identity import config_hash, difference, flatten

TOY = ["-c", "configs/toy/base.yaml"]
OBSERVING = [
    "codid_lightning.training.callbacks.snapshots.Snapshots",
    "codid_lightning.analysis.dashboard.callback.Dashboard",
    "codid_lightning.training.callbacks.progress.ProgressBar",
    "TQDMProgressBar",
    "LearningRateMonitor",
    "ModelCheckpoint",
]
CHANGING = ["EarlyStopping", "GradientAccumulationScheduler"]
ARGUMENTS = {
    "EarlyStopping": '{"monitor": "val/acc"}',
    "GradientAccumulationScheduler": '{"scheduling": {"0": 2}}',
}


def callback(name: str) -> str:
    return f'--trainer.callbacks+={{"class_path": "{name}", "init_args": {ARGUMENTS.get(name, "{}")}}}'


@pytest.mark.parametrize("name", CHANGING)
def test_a_callback_that_changes_training_counts(name):
    plain, changed = resolve(TOY), resolve([*TOY, callback(name)])
    assert config_hash(plain) != config_hash(changed)
    assert f"trainer.callbacks was None, is [{{'class_path': 'lightning.pytorch.callbacks.{name}'" in difference(
        plain, changed
    )


def test_arguments_of_a_callback_count():
    first, second = (
        resolve([*TOY, f'--trainer.callbacks+={{"class_path": "EarlyStopping", "init_args": {{"monitor": "{name}"}}}}'])
        for name in ("val/acc", "val/worst_acc")
    )
    assert config_hash(first) != config_hash(second)


@pytest.mark.parametrize("name", OBSERVING)
def test_a_callback_that_observes_does_not_count(name):
    assert config_hash(resolve([*TOY, callback(name)])) == config_hash(resolve(TOY))
    both = resolve([*TOY, callback(name), callback("EarlyStopping")])
    assert config_hash(both) == config_hash(resolve([*TOY, callback("EarlyStopping")]))


def test_a_callback_of_a_user_counts_whatever_its_name():
    def config(path: str) -> dict:
        return {"trainer": {"callbacks": [{"class_path": path}]}}

    without = config_hash({"trainer": {"callbacks": None}})
    assert config_hash(config("mine.Snapshots")) != without
    assert config_hash(config("lightning.pytorch.callbacks.ModelSummary")) == without


def test_plugins_of_precision_count_and_those_of_files_do_not():
    def config(name: str) -> dict:
        return {"trainer": {"plugins": {"class_path": f"lightning.pytorch.plugins.{name}"}}}

    assert config_hash(config("HalfPrecision")) != config_hash({"trainer": {"plugins": None}})
    assert config_hash(config("AsyncCheckpointIO")) == config_hash({"trainer": {"plugins": None}})
    assert config_hash(config("environments.SLURMEnvironment")) == config_hash({"trainer": {"plugins": None}})


@pytest.mark.parametrize(
    ("path", "counts"),
    [("datamodules.OwnArrays", True), ("datamodules.own.OwnImages", True), ("mine.Recordings", True),
     ("datamodules.Toy", False), ("datamodules.uci_har.UCIHAR", False)],
)  # fmt: skip
def test_the_root_counts_for_own_data(path, counts):
    first, second = ({"data": {"class_path": path, "init_args": {"root": root}}} for root in ("data", "/elsewhere"))
    assert (config_hash(first) != config_hash(second)) == counts


def test_a_run_on_other_data_is_not_resumed(tmp_path):
    """The same file name in two folders: two data sets."""
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        label, other = rng.integers(2, size=(2, 80))
        np.savez(tmp_path / name / "own.npz", x=rng.normal(size=(80, 3)), label=label, other=other)

    def run(folder: str, **more: object):
        data = {"class_path": "OwnArrays", "init_args": {"root": str(tmp_path / folder), "file": "own.npz",
                                                         "attributes": ["label", "other"]}}  # fmt: skip
        keys = {"trainer.max_epochs": 1, "trainer.accelerator": "cpu", "trainer.enable_progress_bar": False}
        config = {"model": {"class_path": "Base", "init_args": {"latent_dim": 4}}, "data": data}
        return build(config, {**keys, "trainer.default_root_dir": str(tmp_path / "runs"), **more})

    first = run("a")
    fit(first)
    again = run("a", resume=True)
    assert again.directory == first.directory
    other = run("b", resume=True)
    assert other.directory != first.directory
    assert other.identity != first.identity
    with pytest.raises(RunError, match=r"another config: data\.init_args\.root was .*a, is .*b"):
        run("b", resume=True, run_dir=str(first.directory))


@pytest.mark.parametrize("name", ["EarlyStopping", "LearningRateMonitor"])
def test_a_flat_config_has_the_identity_of_the_nested_one(name):
    nested = resolve([*TOY, callback(name)])
    assert config_hash(dict(flatten(nested))) == config_hash(nested)


def test_the_documentation_lists_what_is_left_out():
    page = (Path(__file__).parents[2] / "docs" / "benchmark.md").read_text()
    listed = page.partition("## Which runs are the same experiment")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| (`.+`) \| (.+) \|$", listed, re.MULTILINE))
    assert {why: set(re.findall(r"`(.+?)`", keys)) for keys, why in rows.items() if why in identity._LEFT_OUT} == {
        why: set(keys) for why, keys in identity._LEFT_OUT.items()
    }


def test_identity_loads_no_torch():
    code = "import sys; import codid_lightning.training.identity; print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
