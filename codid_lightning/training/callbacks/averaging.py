"""Averaged weights: SWA and EMA, within the epochs that all methods share."""

from __future__ import annotations

from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.trainer.states import TrainerFn
from torch import Tensor

KEY = "averaged_weights"  # in a checkpoint
STATISTICS = ("running_mean", "running_var")  # of BatchNorm


class AveragedWeights(Callback):
    """Validates, tests and saves averages of the weights; training goes on with the weights themselves.

    Without `decay`, the mean of the weights after each of the last epochs (SWA, Izmailov et al., UAI 2018); with it, an
    exponential moving average over steps (EMA). BatchNorm's statistics are averaged with the weights.

    Lightning's `StochasticWeightAveraging` needs automatic optimization and adds an epoch, and its `WeightAveraging`
    also averages buffers, of which CoDID's clusters change their sizes.

    Args:
        start: Share of the epochs before the first that counts.
        decay: Weight of the average so far, per step; null averages epochs.
    """

    def __init__(self, start: float = 0.75, decay: float | None = None) -> None:
        if not 0 <= start < 1:
            raise ValueError(f"AveragedWeights.start is {start}; it must be a share, from 0 to below 1.")
        if decay is not None and not 0 < decay < 1:
            raise ValueError(f"AveragedWeights.decay is {decay}; it must be between 0 and 1, or null.")
        self.start, self.decay = start, decay
        self.average: dict[str, Tensor] = {}
        self.count = 0

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Count the step, if steps are averaged."""
        if self.decay is not None and self._has_begun(trainer):
            self._add(pl_module, 1 - self.decay)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Count the epoch, if epochs are averaged."""
        if self.decay is None and self._has_begun(trainer):
            self._add(pl_module, 1 / (self.count + 1))

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Validate the average."""
        self._swap(pl_module)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Go on with the weights."""
        self._swap(pl_module)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Keep the average."""
        self._swap(pl_module)
        self.average, self.count = {}, 0

    def on_save_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Save the average as the model, and the weights to continue from."""
        if self.average:
            state = checkpoint["state_dict"]
            weights = {name: state[name] for name in self.average}
            checkpoint[KEY] = {"count": self.count, "weights": weights}
            checkpoint["state_dict"] = {**state, **self.average}

    def on_load_checkpoint(self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]) -> None:
        """Continue from the weights, which the checkpoint holds beside their average."""
        if trainer.state.fn == TrainerFn.FITTING and KEY in checkpoint:
            kept = checkpoint[KEY]
            self.count = kept["count"]
            self.average = {name: value.clone() for name, value in kept["weights"].items()}
            self._swap(pl_module)

    def _has_begun(self, trainer: Trainer) -> bool:
        return trainer.current_epoch >= int(self.start * max(trainer.max_epochs or 0, 0))

    @torch.no_grad()
    def _add(self, module: LightningModule, share: float) -> None:
        """Move the average towards the weights; the first weights are the average."""
        now = _weights(module)
        if not self.average:
            self.average = {name: value.clone() for name, value in now.items()}
        for name, value in now.items():
            self.average[name].lerp_(value, share)
        self.count += 1

    @torch.no_grad()
    def _swap(self, module: LightningModule) -> None:
        """Exchange the average, if there is one, and the weights."""
        now = _weights(module)
        for name, value in self.average.items():
            kept = now[name].clone()
            now[name].copy_(value)
            self.average[name] = kept


def _weights(module: LightningModule) -> dict[str, Tensor]:
    """What is averaged: parameters, and BatchNorm's statistics."""
    statistics = {name: value for name, value in module.named_buffers() if name.endswith(STATISTICS)}
    return dict(module.named_parameters()) | statistics
