"""BASE: supervised learning only."""

from __future__ import annotations

from torch import Tensor

from codid_lightning.methods.base import DisentanglementModule
from codid_lightning.nn import distributed
from datamodules.base import Batch


class Base(DisentanglementModule):
    """Predicts each attribute from its own representation, without a constraint between representations."""

    title = "BASE"

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        """One step on the informative loss, without a penalty."""
        z = self(batch["x"])
        self.minimise(self.trainer.optimizers[0], distributed.scale_to_global_mean(self.informative_loss(z, batch), z))

    def penalty(self, z: Tensor, batch: Batch) -> Tensor:
        """Zero."""
        return z.new_zeros(())
