"""Checkpoints whose hyperparameters name something to call: nothing is imported, nothing is called."""

from __future__ import annotations

import contextlib
import importlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from codid_lightning import Base, CoDID
from codid_lightning.errors import CheckpointError
from codid_lightning.methods.base import DisentanglementModule
from codid_lightning.training import load
from datamodules import OwnArrays, Toy
from tests.commands import codid, fit_toy

EVIL = """
from pathlib import Path
Path({mark!r}).touch()
from codid_lightning import Base
class Thing(Base):
    def __init__(self, *args, **kwargs):
        Path({mark!r}).touch()
def call(*args, **kwargs):
    Path({mark!r}).touch()
"""
THING = {"class_path": "evil_module.Thing", "init_args": {}}
SUBPROCESS = {"class_path": "subprocess.Popen", "init_args": {"args": ["touch", "{mark}"]}}
ALLOWED = "lightning.pytorch.cli.instantiate_module"
ARGUMENTS = ("input_shape", "attribute_sizes", "backbone", "latent_dim", "lr", "mode_loss", "splits", "pi", "moded")
# What hyperparameters may hold; Lightning's loaders read all of these keys.
NAMED: dict[str, dict[str, Any]] = {
    "instantiator": {"_instantiator": "evil_module.call"},
    "instantiator of another program": {"_instantiator": "subprocess.call", "_class_path": "codid_lightning.CoDID"},
    "class": {"_instantiator": ALLOWED, "_class_path": "evil_module.Thing"},
    "part": {"_instantiator": ALLOWED, "discovery": THING},
    "part of a part": {"_instantiator": ALLOWED, "discovery": {
        "class_path": "codid_lightning.ModeDiscovery", "init_args": {"clusterer": THING, "source": THING}}},
    "process": {"_instantiator": ALLOWED, "decoding": SUBPROCESS, "alignment": SUBPROCESS},
    "list": {"_instantiator": ALLOWED, "targets": [THING], "test_names": [THING]},
    "every argument": {"_instantiator": ALLOWED, **dict.fromkeys(ARGUMENTS, THING)},
}  # fmt: skip
KEYS = ("hyper_parameters", "hparams", "module_arguments", "datamodule_hyper_parameters")


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file that exists once `evil_module` was imported or called; it can be imported."""
    place, folder = tmp_path / "executed", tmp_path / "path"
    folder.mkdir()
    (folder / "evil_module.py").write_text(EVIL.format(mark=str(place)))
    monkeypatch.syspath_prepend(folder)
    yield place
    sys.modules.pop("evil_module", None)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    quick = ("--model.discovery.start=1", "--model.discovery.every=1", "--model.alignment.steps=1")
    return {
        "base": fit_toy(tmp_path_factory.mktemp("base")),
        "codid": fit_toy(tmp_path_factory.mktemp("codid"), *quick, config="configs/toy/codid.yaml"),
    }


def changed(run: Path, key: str, named: dict[str, Any], file: Path, mark: Path) -> Path:
    """The run's checkpoint with hyperparameters that name something to call, and no parts that replace them."""
    state = torch.load(run / "checkpoints" / "last.ckpt", weights_only=True)
    state[key] = {**state.get(key, {}), **with_mark(named, mark)}
    state["codid"]["parts"] = {}
    torch.save(state, file)
    return file


def with_mark(value: Any, mark: Path) -> Any:
    if isinstance(value, dict):
        return {name: with_mark(inner, mark) for name, inner in value.items()}
    return [with_mark(inner, mark) for inner in value] if isinstance(value, list) else str(value).format(mark=mark)


def test_the_module_is_live(mark: Path) -> None:
    importlib.import_module("evil_module")
    assert mark.exists()


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("named", NAMED)
def test_lightnings_own_loader(named: str, key: str, trained: dict[str, Path], mark: Path, tmp_path: Path) -> None:
    """On our methods and data sets, by path and from an open file."""
    for name, kinds in (("base", (Base, DisentanglementModule)), ("codid", (CoDID, DisentanglementModule))):
        path = changed(trained[name], key, NAMED[named], tmp_path / "evil.ckpt", mark)
        for kind in kinds:
            with pytest.raises(CheckpointError, match="nothing was loaded"):
                kind.load_from_checkpoint(path)
            with path.open("rb") as file, pytest.raises(CheckpointError, match="nothing was loaded"):
                kind.load_from_checkpoint(file)
        for data in (Toy, OwnArrays):
            with contextlib.suppress(Exception):  # data sets keep no hyperparameters: it is the marker that counts
                data.load_from_checkpoint(path)
        assert not mark.exists()


@pytest.mark.parametrize("part", ["discovery", "mode_loss", "alignment", "splits", "decoding"])
def test_parts_of_a_checkpoint(part: str, trained: dict[str, Path], mark: Path, tmp_path: Path) -> None:
    state = torch.load(trained["codid"] / "checkpoints" / "last.ckpt", weights_only=True)
    for named in ("evil_module.Thing", "evil_module.call", "subprocess.Popen", "os.system"):
        state["codid"]["parts"][part] = {"class": named, "settings": {"args": ["touch", str(mark)]}}
        torch.save(state, tmp_path / "evil.ckpt")
        with pytest.raises(CheckpointError, match="import that class"):
            CoDID.load_from_checkpoint(tmp_path / "evil.ckpt")
    assert not mark.exists()


def test_every_command(trained: dict[str, Path], mark: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Commands make the model from the config; what hyperparameters name is no part of it."""
    run = tmp_path / "run"
    shutil.copytree(trained["codid"], run)
    everything = {**NAMED["every argument"], **NAMED["part of a part"], **NAMED["instantiator"]}
    checkpoint = run / "checkpoints" / "last.ckpt"
    for key in KEYS:
        changed(run, key, everything, checkpoint, mark)
    state = torch.load(checkpoint, weights_only=True)
    assert all(state[key]["_instantiator"] == "evil_module.call" for key in KEYS)
    small = ("--trainer.enable_progress_bar=false",)
    for command in ("test", "validate", "predict", "evaluate", "fit"):
        target = ("--run_dir", str(tmp_path / command)) if command in ("predict", "fit") else ()
        more = ("--trainer.max_epochs=3",) if command == "fit" else ()
        assert codid(command, "--ckpt_path", checkpoint, *small, *target, *more) in (0, 1, 2), command
    assert codid("verify", run) in (0, 1)
    assert codid("adapt", run) in (0, 1, 2)
    assert codid("audit", run, "--output", tmp_path / "audit.html") in (0, 1, 2)
    assert codid("report", run) in (0, 1)
    load(run)
    assert "Traceback" not in capfd.readouterr().err
    assert not mark.exists()


def test_what_runs_save_is_loaded(trained: dict[str, Path]) -> None:
    """The check accepts the names that our own checkpoints have."""
    assert type(CoDID.load_from_checkpoint(trained["codid"] / "checkpoints" / "last.ckpt")) is CoDID
    assert type(Base.load_from_checkpoint(trained["base"] / "checkpoints" / "last.ckpt")) is Base
