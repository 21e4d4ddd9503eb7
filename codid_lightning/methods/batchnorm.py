"""BatchNorm statistics: of the global batch in training, and of the weights that are evaluated."""

from __future__ import annotations

from typing import Any

import torch
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from torch import nn

from codid_lightning.methods.hardware import to_module
from codid_lightning.nn import distributed
from codid_lightning.nn.statistics import over_all_ranks, tracking_layers


def average_over_ranks(*networks: nn.Module | None) -> None:
    """Make the running statistics of networks equal on all ranks: their mean."""
    layers = [layer for network in networks if network is not None for layer in tracking_layers(network)]
    distributed.average_in_place([t for m in layers for t in (m.running_mean, m.running_var) if t is not None])


class SyncBatchNorm(Callback):
    """Lets BatchNorm layers normalise by the global batch where there are several devices.

    Training is then what it would be on one device with the same global batch. `trainer.sync_batchnorm` is not needed:
    the layers that it makes cannot be differentiated twice and are replaced, too.

    Args:
        enabled: False leaves every device to the statistics of its own samples.
    """

    def __init__(self, enabled: bool = True) -> None:
        self.enabled = enabled

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Replace the layers, which keep their parameters and running statistics."""
        if self.enabled and trainer.world_size > 1:
            over_all_ranks(pl_module)


class RecomputeBatchNorm(Callback):
    """Computes the encoder's BatchNorm statistics again at the end of every epoch, with the weights of that moment.

    Running averages lag behind the weights. If an adversary changes the encoder with every batch, they fit no encoder
    at all, and results of an evaluation or a clustering with them are unreliable: on the toy data, the accuracy in the
    worst cell changed between 0 and 0.9 from epoch to epoch while the training losses were smooth.

    Args:
        batches: Number of training batches to average over; 0 keeps the running averages.
    """

    def __init__(self, batches: int = 20) -> None:
        self.batches = batches

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Recompute after the last batch of an epoch, before validation, checkpoint and clustering."""
        data: Any = trainer.datamodule  # type: ignore[attr-defined]
        if self.batches and trainer.is_last_batch and hasattr(data, "some_batches"):
            self.recompute(trainer, pl_module, data)

    @torch.no_grad()
    def recompute(self, trainer: Trainer, pl_module: LightningModule, data: Any) -> None:
        """Average the statistics of some training batches over batches and ranks.

        `torch.optim.swa_utils.update_bn` does the same for all layers of the network that it calls. Here
        representations are those of the whole module, because it may change the encoder's input, but only the encoder's
        layers are reset.
        """
        encoder: Any = pl_module.encoder
        layers = tracking_layers(encoder)
        kept = [(m.momentum, m.num_batches_tracked.clone()) for m in layers if m.num_batches_tracked is not None]
        for m in layers:
            m.reset_running_stats()
            m.momentum = None  # the mean over batches
        for batch in data.some_batches(self.batches):
            pl_module.represent(to_module(trainer, pl_module, batch))  # type: ignore[operator]
        for m, (momentum, count) in zip(layers, kept, strict=True):
            m.momentum, m.num_batches_tracked = momentum, count  # the count is of batches trained on
        if trainer.world_size > 1:
            distributed.average_in_place([t for m in layers for t in (m.running_mean, m.running_var) if t is not None])
