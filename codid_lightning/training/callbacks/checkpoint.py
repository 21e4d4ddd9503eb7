"""Checkpoints that are complete or absent, never half written."""

from __future__ import annotations

import os
import pickle
import shutil
import time
from pathlib import Path
from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.utilities.exceptions import SIGTERMException

from codid_lightning.errors import CheckpointError
from codid_lightning.methods.base import DisentanglementModule
from codid_lightning.methods.checkpoints import check_whole
from codid_lightning.training.runs import BEST, LAST, replacing

NO_CANDIDATE = (
    "No epoch can be selected by validation data: all were pre-training (CoDID had no clusters, or its gate had "
    "not decided). Raise trainer.max_epochs, or lower model.discovery.start and model.decoding.epochs."
)


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes to a temporary name in the same directory, syncs, renames; reads with `weights_only=True`."""

    def save_checkpoint(
        self, checkpoint: dict[str, Any], path: str | os.PathLike[str], storage_options: Any = None
    ) -> None:
        """Write the checkpoint to a temporary file, and rename it to `path`."""
        target = Path(path)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            with replacing(target) as part:
                torch.save(checkpoint, part)
        except (OSError, RuntimeError) as error:  # torch reports a full disk as RuntimeError
            raise CheckpointError(
                f"Cannot write the checkpoint {target}: {_reason(error)}. {_free(target)}Free space, or choose another "
                "--run_dir or --trainer.default_root_dir; the checkpoint before it is intact; --resume true continues."
            ) from error

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: bool | None = True) -> dict[str, Any]:
        """Read a checkpoint; code in it is not executed."""
        try:
            check_whole(path)
            checkpoint: dict[str, Any] = torch.load(path, map_location=map_location, weights_only=True)
            if not isinstance(checkpoint["state_dict"], dict):
                raise TypeError("its state_dict is none")
        except FileNotFoundError as error:
            raise CheckpointError(f"There is no checkpoint {path}.") from error
        except pickle.UnpicklingError as error:  # torch's message explains how to load it nevertheless
            raise CheckpointError(
                f"The checkpoint {path} holds more than tensors and plain values, which could run code; it is not read."
            ) from error
        except Exception as error:
            reason = (str(error) or type(error).__name__).splitlines()[0]
            raise CheckpointError(f"The checkpoint {path} is damaged: {reason}") from error
        return checkpoint


def _reason(error: OSError | RuntimeError) -> str:
    """What the system says; torch adds a stack trace of its own."""
    return (error.strerror if isinstance(error, OSError) else None) or str(error).splitlines()[0]


def _free(path: Path) -> str:
    """The free space of the disk as text; empty if the system does not report it."""
    try:
        return f"{shutil.disk_usage(path.parent).free} bytes are free there. "
    except OSError:
        return ""


class LastCheckpoint(ModelCheckpoint):
    """Keeps `last.ckpt`: after every epoch, and when a signal ends the run.

    After an error, for example a loss that is not finite, the checkpoint of the last good epoch remains. Besides the
    model, it holds what the result needs of the epochs so far: their `metrics` and `seconds`.
    """

    def __init__(self, dirpath: Path) -> None:
        super().__init__(
            dirpath=dirpath,
            filename=Path(LAST).stem,
            save_top_k=1,
            enable_version_counter=False,
            save_on_exception=True,
        )
        self.metrics: dict[str, float] = {}
        self._earlier, self._began = 0.0, time.perf_counter()

    @property
    def seconds(self) -> float:
        """Training time so far, over all interruptions."""
        return self._earlier + time.perf_counter() - self._began

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Start counting."""
        super().setup(trainer, pl_module, stage)
        if stage == "fit":
            self._began = time.perf_counter()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save, the epoch's metrics included."""
        self.metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
        super().on_train_epoch_end(trainer, pl_module)

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Save if a signal stopped the run between two batches; not inside of a batch, nor after an error."""
        if isinstance(exception, SIGTERMException):
            super().on_exception(trainer, pl_module, exception)

    def state_dict(self) -> dict[str, Any]:
        """Metrics and time besides what Lightning keeps."""
        return {**super().state_dict(), "metrics": self.metrics, "seconds": self.seconds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore metrics and time of earlier sessions."""
        super().load_state_dict(state_dict)
        self.metrics, self._earlier = state_dict["metrics"], state_dict["seconds"]


class BestCheckpoint(ModelCheckpoint):
    """Keeps `best.ckpt` by a validation metric. Candidates are the epochs in which the method is `selectable`."""

    def __init__(self, dirpath: Path, monitor: str) -> None:
        super().__init__(
            dirpath=dirpath,
            filename=Path(BEST).stem,
            monitor=monitor,
            mode="max",
            save_top_k=1,
            enable_version_counter=False,
        )

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save if the epoch is a candidate and the best so far."""
        if is_selectable(pl_module):
            super().on_train_epoch_end(trainer, pl_module)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Save if the epoch is a candidate and the best so far."""
        if is_selectable(pl_module):
            super().on_validation_end(trainer, pl_module)


def is_selectable(module: LightningModule) -> bool:
    """Whether the epoch is a candidate of model selection; every epoch of a method without `selectable`."""
    return not isinstance(module, DisentanglementModule) or module.selectable()
