"""LfF: a second network that prefers easy samples shows which samples are hard, and these count more."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from codid_lightning.methods.baselines.base import Base
from codid_lightning.methods.baselines.samples import SampleTable, split_of
from codid_lightning.methods.batchnorm import average_over_ranks
from codid_lightning.nn import distributed
from codid_lightning.nn.backbones import Encoder
from datamodules.base import Batch

EPSILON = 1e-8


class LfF(Base):
    """Weighs the loss of a_1 by the relative difficulty of a sample for a deliberately biased network.

    Nam et al., "Learning from Failure: Training Debiased Classifier from Biased Classifier", NeurIPS 2020, Algorithm 1.
    The biased network minimises the generalised cross-entropy (1 - p_y^q) / q, which prefers samples that it already
    predicts. A sample's weight is CE_biased / (CE_biased + CE), both losses averaged over the epochs and divided by the
    largest of the sample's class, as in the authors' code. Both networks train side by side in all epochs of the
    schedule.

    Args:
        q: Exponent of the generalised cross-entropy; near 0 it is the cross-entropy.
        momentum: Of the exponential moving average of a sample's losses (alpha).
        **kwargs: Of `DisentanglementModule`.
    """

    title = "LfF"

    def __init__(self, q: float = 0.7, momentum: float = 0.7, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not 0 < q <= 1:
            raise ValueError(f"model.q is {q}; it must be above 0 and at most 1.")
        if not 0 <= momentum < 1:
            raise ValueError(f"model.momentum is {momentum}; it must be from 0 to below 1.")
        self.q, self.momentum = q, momentum
        shape = tuple(self.hparams["input_shape"])
        encoder = Encoder(self.hparams.get("backbone", "auto"), shape, 1, self.latent_dim)
        self.biased = nn.Sequential(encoder, nn.Flatten(), nn.Linear(self.latent_dim, self.attribute_sizes[0]))
        self.averages = SampleTable()  # (N, 2) losses of both networks, -1 for samples not seen yet

    def attribute_loss(self, losses: Tensor, batch: Batch) -> Tensor:
        """Weighted loss of a_1, losses of the other attributes, and the loss of the biased network."""
        biased = F.cross_entropy(self.biased(batch["x"]), batch["a"][:, 0], reduction="none")
        generalised = -torch.expm1(-self.q * biased) / self.q
        self.losses.add("biased", generalised.mean())
        weights = self.difficulty(torch.stack([biased, losses[:, 0]], dim=1).detach(), batch["index"])
        return (weights * losses[:, 0]).mean() + losses[:, 1:].sum(1).mean() + generalised.mean()

    def difficulty(self, losses: Tensor, index: Tensor) -> Tensor:
        """Relative difficulty (B,) of samples, given the losses (B, 2) of the biased and the debiased network."""
        labels = split_of(self, "train").a[:, 0].to(losses.device)
        table = self.averages.values
        table = losses.new_full((len(labels), 2), -1.0) if table is None else table.to(losses)
        everywhere, new = distributed.gather(index), distributed.gather(losses)
        old = table[everywhere]
        averaged = torch.where(old < 0, new, self.momentum * old + (1 - self.momentum) * new)
        self.averages.values = table = table.index_copy(0, everywhere, averaged)
        classes = labels[:, None].expand_as(table)
        largest = table.new_zeros(self.attribute_sizes[0], 2).scatter_reduce(0, classes, table, "amax")
        relative = table[index] / largest[labels[index]].clamp_min(EPSILON)
        return relative[:, 0] / (relative.sum(1) + EPSILON)

    def on_train_batch_end(self, outputs: Any, batch: Batch, batch_idx: int) -> None:
        """Keep the biased network's running statistics equal on all ranks, too."""
        if self.trainer.world_size > 1:
            average_over_ranks(self.biased)
        super().on_train_batch_end(outputs, batch, batch_idx)
