"""Trained runs, read back for evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from codid_lightning.errors import RunError
from codid_lightning.methods.base import DisentanglementModule
from codid_lightning.training import runs
from codid_lightning.training.callbacks.checkpoint import AtomicCheckpointIO
from codid_lightning.training.config import key_arguments, parse
from codid_lightning.training.run import build
from datamodules.base import AttributeDataModule

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


def load_run(arguments: Sequence[str]) -> LoadedRun:
    """The run in a directory, or the one described by `-c CONFIG --ckpt_path CHECKPOINT`.

    Args:
        arguments: A run directory or arguments as `codid test` takes them; further arguments override the config, for
            example `--data.init_args.root`.
    """
    given = list(arguments)
    if given and not given[0].startswith("-"):
        if not Path(given[0]).is_dir():
            raise RunError(f"There is no run directory {given[0]}.")
        given[:1] = ["--ckpt_path", str(_selected_checkpoint(Path(given[0])))]
    config = parse([*given, _SILENT])
    if config.ckpt_path is None:
        raise RunError("Name a run directory, or give --ckpt_path with the checkpoint to evaluate.")
    run = build(config, record=False)
    path = Path(config.ckpt_path)
    state = AtomicCheckpointIO().load_checkpoint(path, map_location="cpu")
    run.module.on_load_checkpoint(state)
    run.module.load_state_dict(state["state_dict"])
    if (names := state.get(type(run.data).__qualname__)) is not None:
        run.data.load_state_dict(names)
    _set_up(run.data)
    device = run.trainer.strategy.root_device
    return LoadedRun(run.module.eval().to(device), run.data, path, run.config)


def load_data(path: Path) -> AttributeDataModule:
    """The data of a run directory or of a config, with its splits built."""
    config = path / runs.CONFIG if path.is_dir() else path
    if not config.is_file():
        raise RunError(f"{path} is neither a run directory nor a config.")
    data = build(parse(["-c", str(config), _SILENT]), record=False).data
    _set_up(data)
    return data


def _set_up(data: AttributeDataModule) -> None:
    data.prepare_data()
    data.setup()


def _selected_checkpoint(run: Path) -> Path:
    """The checkpoint that was tested: the best one where the run selected by validation data, else the last."""
    by_validation = (run / runs.CONFIG).is_file() and runs.read_config(run).get("selection") != "last"
    selected = run / runs.CHECKPOINTS / (runs.BEST if by_validation else runs.LAST)
    if not selected.is_file():
        raise RunError(f"{run} has no checkpoint {selected.relative_to(run)}: the run has not finished an epoch.")
    return selected
