"""All that this package needs of Lightning beyond its documented interface, in one place.

`tests/training/test_lightning_adapter.py` calls each function with the installed Lightning and names the attribute
that a new version has removed. `methods/lightning_adapter.py` holds what methods need.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any

from lightning import Trainer
from lightning.pytorch.core.mixins.hparams_mixin import _given_hyperparameters_context


def request_stop(trainer: Trainer, stop: bool) -> None:
    """Let the trainer leave the fit loop after this batch, as it does after SIGTERM, or take that back."""
    trainer._signal_connector.received_sigterm = stop


def batches_of_epoch(trainer: Trainer) -> int:
    """Batches that the current epoch has completed."""
    completed: int = trainer.fit_loop.epoch_loop.batch_progress.current.completed
    return completed


def recorded_hyperparameters(hparams: Mapping[str, Any]) -> AbstractContextManager[None]:
    """Within this context, a new module's `save_hyperparameters` records these values.

    Checkpoints then hold the plain values of the config, not the objects made from them, so that they can be read with
    `weights_only=True` and `load_from_checkpoint` makes the objects again.
    """
    instantiator = "lightning.pytorch.cli.instantiate_module"
    context: AbstractContextManager[None] = _given_hyperparameters_context(dict(hparams), instantiator)
    return context
