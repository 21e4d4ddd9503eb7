"""Counterfactual: a_1 is predicted alike whatever the other attributes are changed to."""

from __future__ import annotations

from typing import cast

from torch import Tensor
from torch.optim import Optimizer

from codid_lightning import distributed
from codid_lightning.baselines.base import Base
from codid_lightning.methods.swapping import SwappingModule
from datamodules.base import Batch


class Counterfactual(SwappingModule, Base):
    """BASE, trained also on its samples with all other attributes changed. Ours.

    Where the gate refuses, it is BASE to the last bit. `trainer.global_step` counts batches.
    """

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        """The autoencoder's step while it learns, then one of encoder and predictors."""
        if self.current_epoch < self.autoencoder_epochs:
            self.autoencode(batch, batch_idx)
        main, _ = cast(list[Optimizer], self.optimizers())
        z: Tensor = self(batch["x"])
        self.minimise(main, self.informative_loss(z, batch) * distributed.share(z))

    def configure_optimizers(self) -> list[Optimizer]:
        """One Adam for encoder, predictors and decoder, one for the autoencoder."""
        main = [p for name, p in self.named_parameters() if not name.startswith("autoencoder.")]
        return [self.adam(main, self.lr), self.autoencoder_optimizer()]
