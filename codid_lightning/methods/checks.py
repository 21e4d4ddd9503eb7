"""What methods check: ranges of their arguments, the trainer, and that losses are finite."""

from __future__ import annotations

from lightning import Trainer

from codid_lightning.errors import DivergenceError, RunError
from codid_lightning.methods.hardware import precision_problem, strategy_problem
from codid_lightning.methods.stepping import LossMeter

FINITE_CHECK_INTERVAL = 20  # batches between two checks of the losses: each check waits for the device


def check_ranges(latent_dim: int, lr: float, reconstruction: float, decay_from: float) -> None:
    """Raise if an argument of every method is out of its range."""
    for name, value in {"latent_dim": latent_dim, "lr": lr}.items():
        if value <= 0:
            raise ValueError(f"model.{name} is {value}; it must be positive.")
    if reconstruction < 0:
        raise ValueError(f"model.reconstruction is {reconstruction}; it must not be negative.")
    if not 0 <= decay_from <= 1:
        raise ValueError(f"model.decay_from is {decay_from}; it must be a share of the epochs, from 0 to 1.")


def check_trainer(trainer: Trainer, training: bool) -> None:
    """Raise if methods do not work with the trainer's strategy or precision."""
    precision = precision_problem(trainer.precision, training=training)
    problem = strategy_problem(trainer.strategy) or precision
    if problem is not None:
        raise RunError(problem)


def global_batch_size_notice(trainer: Trainer) -> str | None:
    """That several devices with a batch each take larger steps than one; None if they do not."""
    size = getattr(trainer.datamodule, "batch_size", None)  # type: ignore[attr-defined]
    ranks = trainer.world_size
    chosen = getattr(trainer.datamodule, "global_batch_size", None)  # type: ignore[attr-defined]
    if ranks == 1 or size is None or chosen is not None:
        return None
    return (
        f"{ranks} devices with data.batch_size {size} each: a step uses {ranks * size} samples. To use as many "
        f"as one device, set data.global_batch_size to {size}."
    )


def check_finite(losses: LossMeter, trainer: Trainer) -> None:
    """Raise if a loss is not finite, however many batches ago that began."""
    bad = losses.read()
    if bad is not None:
        name, batch = bad
        checkpoint = getattr(trainer.checkpoint_callback, "best_model_path", "") or "none"
        raise DivergenceError(
            f"The {name} loss is not finite at epoch {trainer.current_epoch}, batch {batch}. "
            f"Last good checkpoint: {checkpoint}. Lower model.lr or the weight of that loss."
        )
