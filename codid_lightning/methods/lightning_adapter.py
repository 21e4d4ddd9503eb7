"""What methods need of Lightning beyond its public interface. Nothing else in this room reads its internals."""

from __future__ import annotations

import logging

from lightning import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_only

NOTES = logging.getLogger("lightning.pytorch.codid")  # shown where Lightning shows its own
NOTES.setLevel(logging.INFO)


def count_batch(trainer: Trainer) -> None:
    """Let `trainer.global_step` grow by one per batch, whatever the number of optimizers and their steps."""
    progress = trainer.fit_loop.epoch_loop.manual_optimization.optim_step_progress
    progress.increment_ready()
    progress.increment_completed()


def attached_trainer(module: LightningModule) -> Trainer | None:
    """The trainer of a module, or None where it has none."""
    try:
        return module.trainer
    except RuntimeError:
        return None


@rank_zero_only
def inform(note: str) -> None:
    """Log a note about the run, once for all ranks."""
    NOTES.info(note)
