"""Methods that train on mixtures of two samples and of their labels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributions import Beta

from codid_lightning.methods.baselines.base import Base
from codid_lightning.nn import distributed
from datamodules.base import Batch


class MixingModule(Base):
    """Every sample of a batch is mixed with a partner of the batch; a method implements `partners`.

    The loss is that of the sample's labels times its share, plus that of the partner's labels times the rest. The share
    comes from Beta(alpha, alpha), once per batch.

    Args:
        alpha: Parameter of the Beta distribution of the share.
        **kwargs: Of `DisentanglementModule`.
    """

    def __init__(self, alpha: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if alpha <= 0:
            raise ValueError(f"model.alpha is {alpha}; it must be positive.")
        self.alpha = alpha

    def partners(self, a: Tensor) -> Tensor:
        """The position (B,) of each sample's partner, given the attributes (B, Q)."""
        raise NotImplementedError

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        """One step on mixtures."""
        partner = self.partners(batch["a"])
        share = float(Beta(self.alpha, self.alpha).sample())
        loss, z = self.mixed_loss(batch, partner, share)
        self.minimise(self.trainer.optimizers[0], distributed.scale_to_global_mean(loss, z))

    def mixed_loss(self, batch: Batch, partner: Tensor, share: float) -> tuple[Tensor, Tensor]:
        """The informative loss of mixtures, and their representations."""
        x, a = batch["x"], batch["a"]
        mixed = Batch(x=torch.lerp(x[partner], x, share), a=a, mode=batch["mode"], index=batch["index"])
        z = self.represent(mixed)
        own = self.informative_loss(z, mixed)
        other = self.informative_loss(z, Batch(x=mixed["x"], a=a[partner], mode=batch["mode"], index=batch["index"]))
        return share * own + (1 - share) * other, z
