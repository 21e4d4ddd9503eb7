"""DANN: a_2 cannot be predicted from z_1."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from codid_lightning.methods.baselines.adversarial import AdversarialModule, adversary_mlp
from datamodules.base import Batch


class DANN(AdversarialModule):
    """Removes the other attributes from z_1 by adversarial predictors.

    Ganin et al., "Domain-Adversarial Training of Neural Networks", JMLR 2016: the saddle point of
    CE(a_1 from z_1) - strength * CE(a_2 from z_1).
    """

    title = "DANN"

    def sources(self) -> range:
        """Indices of the representations that must not contain other attributes."""
        return range(1)

    def build_adversary(self) -> nn.Module:
        """One predictor per source; its outputs are the values of all other attributes."""
        total = sum(self.attribute_sizes)
        return nn.ModuleList(adversary_mlp(self.latent_dim, total - self.attribute_sizes[q]) for q in self.sources())

    def adversary_loss(self, z: Tensor, batch: Batch) -> Tensor:
        """Mean cross-entropy over the other attributes and the sources."""
        losses = []
        for predictor, q in zip(self.adversary.children(), self.sources(), strict=True):
            others = [r for r in range(len(self.attribute_sizes)) if r != q]
            logits = predictor(z[:, q]).split([self.attribute_sizes[r] for r in others], dim=1)
            losses += [F.cross_entropy(part, batch["a"][:, r]) for part, r in zip(logits, others, strict=True)]
        return torch.stack(losses).mean()
