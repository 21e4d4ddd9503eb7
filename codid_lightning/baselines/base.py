"""BASE: supervised learning only."""

from __future__ import annotations

from torch import Tensor

from codid_lightning import distributed
from codid_lightning.module import DisentanglementModule
from datamodules.base import Batch


class Base(DisentanglementModule):
    """Attribute prediction from separate representations, with no constraint between them."""

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        """One step down the informative loss; there is no penalty to add."""
        z = self(batch["x"])
        self.minimise(self.trainer.optimizers[0], distributed.part(self.informative_loss(z, batch), z))

    def penalty(self, z: Tensor, batch: Batch) -> Tensor:
        """Nothing."""
        return z.new_zeros(())
