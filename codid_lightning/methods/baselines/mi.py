"""MI: z_1 and z_2 are independent."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from codid_lightning.methods.baselines.adversarial import HIDDEN, AdversarialModule
from codid_lightning.methods.losses import discrimination_loss, has_partner
from codid_lightning.metrics.permutation import shuffle_within
from codid_lightning.nn.conditional import ConditionalMLP
from datamodules.base import Batch


class MI(AdversarialModule):
    """Minimises the mutual information of z_1 and z_-1: a discriminator cannot distinguish joint from shuffled pairs.

    Brakel & Bengio, "Learning Independent Features with Adversarial Nets for Non-linear ICA", 2017. At the
    discriminator's optimum the loss E_joint[-log D] + E_marginal[-log(1 - D)] is 2 ln 2 - 2 JSD(joint, marginal).
    """

    title = "MI"

    def build_adversary(self) -> nn.Module:
        """One discriminator for all pairs."""
        return self.discriminator(1)

    def adversary_loss(self, z: Tensor, batch: Batch) -> Tensor:
        """Loss of distinguishing (z_1, z_-1) from pairs shuffled over the whole batch."""
        everyone = torch.zeros(len(z), dtype=torch.long, device=z.device)
        return self.pair_loss(self.adversary, z, 0, everyone)

    def discriminator(self, num_groups: int) -> ConditionalMLP:
        """A discriminator of pairs (z_q, z_-q) with a subnetwork per group."""
        return ConditionalMLP(num_groups, num_groups, len(self.attribute_sizes) * self.latent_dim, HIDDEN)

    def pair_loss(self, discriminator: nn.Module, z: Tensor, q: int, groups: Tensor) -> Tensor:
        """Loss of distinguishing (z_q, z_-q) from pairs shuffled within groups of at least two samples."""
        keep = has_partner(groups, len(discriminator.weight))  # type: ignore[arg-type]
        z, groups = z[keep], groups[keep]
        others = self.others(z, q)
        joint = torch.cat([z[:, q], others], dim=1)
        marginal = torch.cat([z[:, q], others.index_select(0, shuffle_within(groups))], dim=1)
        twice = groups.repeat(2)
        logits: Tensor = discriminator(torch.cat([joint, marginal]), twice, twice)
        if not len(z):
            return logits.sum()  # 0, with a gradient for every parameter
        return discrimination_loss(*logits.chunk(2))
