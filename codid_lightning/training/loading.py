"""Trained runs, read back for evaluation."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from jsonargparse import Namespace

from codid_lightning.errors import CheckpointError, RunError
from codid_lightning.methods.base import DisentanglementModule
from codid_lightning.methods.codid.adaptation import FILE, Adaptation, fingerprint
from codid_lightning.methods.codid.module import CoDID
from codid_lightning.training import runs
from codid_lightning.training.callbacks.checkpoint import AtomicCheckpointIO
from codid_lightning.training.config import key_arguments, parse
from codid_lightning.training.config_files import read_yaml
from codid_lightning.training.run import build
from datamodules.base import AttributeDataModule
from datamodules.labelled import OwnData

_SILENT = "--trainer.enable_progress_bar=false"


@dataclass(frozen=True)
class LoadedRun:
    """A trained model in evaluation mode, its data, and where it comes from."""

    model: DisentanglementModule
    data: AttributeDataModule
    checkpoint: Path
    settings: Mapping[str, Any]  # the resolved config

    @property
    def directory(self) -> Path | None:
        """The run's directory, if the checkpoint lies in one."""
        return runs.run_of(self.checkpoint)

    @property
    def name(self) -> str:
        """Method and data set."""
        method = self.settings.get("title") or self.settings.get("method") or type(self.model).__name__
        return f"{method} on {self.settings.get('dataset') or type(self.data).__name__}"


def load(directory: str | Path, overrides: Mapping[str, Any] | None = None) -> LoadedRun:
    """The run in a directory, with the epoch that it selected.

    Args:
        directory: A run directory.
        overrides: Dotted keys of the config and other values for them, for example `{"data.init_args.root": "data"}`.
    """
    return load_run([str(directory), *key_arguments(overrides or {})])


def load_run(arguments: Sequence[str], file: Path | None = None) -> LoadedRun:
    """The run in a directory, or the one described by `-c CONFIG --ckpt_path CHECKPOINT`.

    Args:
        arguments: A run directory or arguments as `codid test` takes them; further arguments override the config, for
            example `--data.init_args.root`.
        file: Your own table or arrays, in place of the run's data: its rows become the test set, labelled or not.
    """
    given = list(arguments)
    if given and not given[0].startswith("-"):
        if not Path(given[0]).is_dir():
            raise RunError(f"There is no run directory {given[0]}.")
        given[:1] = ["--ckpt_path", str(selected_checkpoint(Path(given[0])))]
    config = parse([*given, _SILENT])
    if config.ckpt_path is None:
        raise RunError("Name a run directory, or give --ckpt_path with the checkpoint to evaluate.")
    path = Path(config.ckpt_path)
    state = AtomicCheckpointIO().load_checkpoint(path, map_location="cpu")
    if file is not None:
        _read_instead(config, file, state)
    run = build(config, record=False)
    if file is not None:
        _check_shape(file, run.data, state)
    restore(run.module, run.data, state, path)
    _set_up(run.data)
    use_adaptation(run.module, config.adapted, path, state["state_dict"])
    device = run.trainer.strategy.root_device
    return LoadedRun(run.module.eval().to(device), run.data, path, run.config)


def restore(module: DisentanglementModule, data: AttributeDataModule, state: dict[str, Any], path: Path) -> None:
    """Give a model and its data the state of a checkpoint.

    Raises:
        CheckpointError: It does not fit, or an entry is damaged. The message names the file.
    """
    try:
        module.on_load_checkpoint(state)
        module.load_state_dict(state["state_dict"])
        if (names := state.get(type(data).__qualname__)) is not None:
            data.load_state_dict(names)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error
    except RunError:
        raise
    except (AttributeError, IndexError, KeyError, TypeError, RuntimeError) as error:
        raise CheckpointError(f"The checkpoint {path} is damaged: {error!r}") from error


def use_adaptation(
    module: DisentanglementModule, adapted: bool | str, checkpoint: Path, weights: Mapping[str, Any]
) -> None:
    """Let a model predict as adapted to a place of use.

    Args:
        module: The model.
        adapted: Whether to; or the file of the adaptation, by default the one beside the checkpoint.
        checkpoint: The model's checkpoint.
        weights: The checkpoint's state dict.

    Raises:
        RunError: There is no such file, or it belongs to another model.
    """
    if adapted is False:
        return
    path = checkpoint.parent / FILE if adapted is True else Path(adapted)
    if not path.is_file():
        raise RunError(f"There is no adaptation {path}: write it with `codid adapt`, or leave out --adapted.")
    found = Adaptation.load(path)
    if not isinstance(module, CoDID) or found.model != fingerprint(weights):
        raise RunError(
            f"{path} belongs to another model than {checkpoint}, or to an earlier state of it: run `codid adapt` again."
        )
    module.adaptation = found


def load_data(path: Path, keys: Sequence[str] = (), checkpoint: Path | None = None) -> AttributeDataModule:
    """The data of a run directory, a config, or a file with the data section of one, with its splits built.

    Args:
        path: The directory or file.
        keys: Arguments that override the config.
        checkpoint: Read your own data with the names of this checkpoint's labels and inputs.
    """
    file = path / runs.CONFIG if path.is_dir() else path
    if not file.is_file():
        raise RunError(f"{path} is neither a run directory nor a config.")
    content = read_yaml(file)
    section = isinstance(content, dict) and "class_path" in content
    chosen = ["--model=Base", f"--data={file}"] if section else ["-c", str(file)]
    config = parse([*chosen, *keys, _SILENT])
    if checkpoint is not None:
        config.ckpt_path = str(checkpoint)
    data = build(config, record=False).data
    _set_up(data)
    return data


def _read_instead(config: Namespace, file: Path, state: Mapping[str, Any]) -> None:
    """Point a run's config to a file to predict. Arrays for a public data set are taken as they are."""
    if not file.is_file():
        raise RunError(f"There is no file {file}.")
    place = {"file": str(file.resolve()), "protocol": "predict"}
    module, _, name = config.data.class_path.rpartition(".")
    if issubclass(getattr(import_module(module), name), OwnData):
        for key, value in place.items():
            config.data.init_args[key] = value
        return
    names = next(kept for kept in state.values() if isinstance(kept, dict) and "value_names" in kept)
    labels = dict(zip(names["attribute_names"], names["value_names"], strict=True))
    arguments = {**place, "attributes": names["attribute_names"], "labels": labels, "scaling": "none"}
    section = {"class_path": "OwnArrays", "init_args": arguments}
    config.data = parse(["--model=Base", "--data=" + json.dumps(section)]).data


def _check_shape(file: Path, data: AttributeDataModule, state: Mapping[str, Any]) -> None:
    trained = tuple(state["hyper_parameters"]["input_shape"])
    if tuple(data.input_shape) != trained:
        raise RunError(f"{file} has samples of shape {tuple(data.input_shape)}; the model was trained on {trained}.")


def _set_up(data: AttributeDataModule) -> None:
    data.prepare_data()
    data.setup()


def selected_checkpoint(run: Path) -> Path:
    """The checkpoint that was tested: the best one where the run selected by validation data, else the last."""
    by_validation = (run / runs.CONFIG).is_file() and runs.read_config(run).get("selection") != "last"
    selected = run / runs.CHECKPOINTS / (runs.BEST if by_validation else runs.LAST)
    if not selected.is_file():
        raise RunError(f"{run} has no checkpoint {selected.relative_to(run)}: the run has not finished an epoch.")
    return selected
