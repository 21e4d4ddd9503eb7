"""A-CMI: z_1 and z_2 are independent given either attribute."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from codid_lightning.methods.baselines.mi import MI
from datamodules.base import Batch


class ACMI(MI):
    """Minimises the mutual information of z_q and z_-q given a_q, for every attribute.

    Funke et al., "Disentanglement and Generalization Under Correlation Shifts", CoLLAs 2022: the mean over q of
    I(z_q; z_-q | a_q). Pairs are shuffled within each attribute value; CoDID shuffles within modes.
    """

    title = "A-CMI"

    def build_adversary(self) -> nn.Module:
        """One discriminator per attribute, with a subnetwork per value."""
        return nn.ModuleList(self.discriminator(size) for size in self.attribute_sizes)

    def adversary_loss(self, z: Tensor, batch: Batch) -> Tensor:
        """Mean over attributes of the discrimination loss within their values."""
        losses = [self.pair_loss(d, z, q, batch["a"][:, q]) for q, d in enumerate(self.adversary.children())]
        return torch.stack(losses).mean()
