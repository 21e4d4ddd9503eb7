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
    """Let the trainer leave the fit loop after this batch, as it does after SIGTERM; or cancel this request."""
    trainer._signal_connector.received_sigterm = stop


def batches_of_epoch(trainer: Trainer) -> int:
    """Batches that the current epoch has completed."""
    completed: int = trainer.fit_loop.epoch_loop.batch_progress.current.completed
    return completed


def let_go(trainer: Trainer) -> None:
    """Make a trainer drop module, data and callbacks, if it has trained or tested.

    A trainer and its loops refer to each other. Without this, all that they hold waits for the garbage collector, which
    counts objects and not bytes.
    """
    if trainer.strategy.lightning_module is None:
        return
    trainer.strategy.connect(None)  # type: ignore[arg-type]
    trainer.strategy.optimizers = []
    trainer.datamodule = None  # type: ignore[attr-defined]
    trainer._data_connector._datahook_selector = None
    fit = trainer.fit_loop
    for loop in (fit, fit.epoch_loop.val_loop, trainer.validate_loop, trainer.test_loop, trainer.predict_loop):
        loop._data_source.instance = loop._combined_loader = None
    trainer.callbacks.clear()  # type: ignore[attr-defined]


def recorded_hyperparameters(hparams: Mapping[str, Any]) -> AbstractContextManager[None]:
    """Within this context, a new module's `save_hyperparameters` records these values.

    Checkpoints then hold the plain values of the config, not the objects made from them, so that they can be read with
    `weights_only=True` and `load_from_checkpoint` makes the objects again.
    """
    instantiator = "lightning.pytorch.cli.instantiate_module"
    context: AbstractContextManager[None] = _given_hyperparameters_context(dict(hparams), instantiator)
    return context
