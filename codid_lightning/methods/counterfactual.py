"""Counterfactual: a_1 is predicted alike whatever the other attributes are changed to."""

from __future__ import annotations

from torch.optim import Optimizer

from codid_lightning.baselines.base import Base
from codid_lightning.methods.swapping import SwappingModule


class Counterfactual(SwappingModule, Base):
    """BASE, trained also on its samples with all other attributes changed. Ours.

    Where the gate refuses, it is BASE to the last bit. `trainer.global_step` counts batches.
    """

    def configure_optimizers(self) -> list[Optimizer]:
        """One Adam for encoder, predictors and decoder, one for the autoencoder."""
        main = [p for name, p in self.named_parameters() if not name.startswith("autoencoder.")]
        return [self.adam(main, self.lr), self.autoencoder_optimizer()]
