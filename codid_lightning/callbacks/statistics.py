"""BatchNorm statistics that belong to the weights they are evaluated with."""

from __future__ import annotations

from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch.nn.modules.batchnorm import _BatchNorm

from codid_lightning import distributed


class SettledStatistics(Callback):
    """Takes the encoder's BatchNorm statistics anew at the end of every epoch, from the weights as they are then.

    Running averages follow the weights with a delay. Where an adversary moves the encoder with every batch, they belong
    to no encoder that ever was, and an evaluation (or a clustering) with them says little: on the toy data the accuracy
    in the worst cell jumped between 0 and 0.9 from epoch to epoch while training went on smoothly.

    Args:
        batches: Training batches to average over; 0 leaves the running averages.
    """

    def __init__(self, batches: int = 20) -> None:
        self.batches = batches

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """After an epoch's last batch, before validation, checkpoint and clustering."""
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        if self.batches and trainer.is_last_batch and hasattr(data, "some_batches"):
            self.settle(trainer, pl_module, data)

    @torch.no_grad()
    def settle(self, trainer: Trainer, pl_module: LightningModule, data: Any) -> None:
        """Average the statistics of some batches; the number of batches trained on stays."""
        encoder: Any = pl_module.encoder
        layers = [m for m in encoder.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
        kept = [(m.momentum, m.num_batches_tracked.clone()) for m in layers if m.num_batches_tracked is not None]
        for m in layers:
            m.reset_running_stats()
            m.momentum = None  # a plain mean over batches
        for batch in data.some_batches(self.batches):
            pl_module(trainer.strategy.batch_to_device(batch, pl_module.device)["x"])
        for m, (momentum, count) in zip(layers, kept, strict=True):
            m.momentum, m.num_batches_tracked = momentum, count
        if trainer.world_size > 1:
            distributed.average_in_place([t for m in layers for t in (m.running_mean, m.running_var) if t is not None])
