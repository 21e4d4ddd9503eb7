"""Checkpoints that are whole or not there."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities.exceptions import SIGTERMException

from codid_lightning.runs import BEST, LAST, replacing


class CheckpointError(RuntimeError):
    """A checkpoint cannot be written or read; the message names the file and the reason."""


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes to a temporary name in the same directory, syncs, renames; reads with `weights_only=True`."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """Replace `path` by the new checkpoint at once."""
        target = Path(path)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with replacing(target) as part:
                torch.save(checkpoint, part)
        except (OSError, RuntimeError) as error:  # torch reports a full disk as RuntimeError
            raise CheckpointError(
                f"Cannot write the checkpoint {target}: {error}. Free space or choose another "
                "trainer.default_root_dir; earlier checkpoints are intact."
            ) from error

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = True) -> dict[str, Any]:
        """Read a checkpoint without ever executing what is in it."""
        try:
            checkpoint: dict[str, Any] = torch.load(path, map_location=map_location, weights_only=True)
        except FileNotFoundError as error:
            raise CheckpointError(f"There is no checkpoint {path}.") from error
        except Exception as error:
            raise CheckpointError(
                f"Cannot read the checkpoint {path}; it is damaged or holds more than tensors and plain values: {error}"
            ) from error
        return checkpoint


class LastCheckpoint(ModelCheckpoint):
    """Keeps `last.ckpt`: after every epoch, and when the run is asked to stop.

    A run that dies of an error (a loss that is not finite, say) keeps the checkpoint of its last good epoch.
    """

    def __init__(self, dirpath: Path) -> None:
        super().__init__(
            dirpath=dirpath,
            filename=Path(LAST).stem,
            save_top_k=1,
            enable_version_counter=False,
            save_on_exception=True,
        )

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Save when interrupted or terminated, not when something is wrong."""
        if isinstance(exception, KeyboardInterrupt | SIGTERMException):
            super().on_exception(trainer, pl_module, exception)


class BestCheckpoint(ModelCheckpoint):
    """Keeps `best.ckpt` by a validation metric."""

    def __init__(self, dirpath: Path, monitor: str) -> None:
        super().__init__(
            dirpath=dirpath,
            filename=Path(BEST).stem,
            monitor=monitor,
            mode="max",
            save_top_k=1,
            enable_version_counter=False,
        )
