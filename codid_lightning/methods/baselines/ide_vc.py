"""IDE-VC: z_2 cannot be estimated from z_1."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from codid_lightning.methods.baselines.adversarial import AdversarialModule, adversary_mlp
from codid_lightning.nn import distributed
from datamodules.base import Batch


def unexplained_variance(estimate: Tensor, target: Tensor) -> Tensor:
    """Squared error in units of the target's variance, the mean over its dimensions: 1 if nothing is explained.

    It does not change if the target is scaled. Both are means over all ranks.
    """
    error, *_ = distributed.moments((target - estimate).square(), [0])
    _, variance, _ = distributed.moments(target, [0])
    return (error / (variance + 1e-6)).mean()


def standard_normal_divergence(mean: Tensor, log_variance: Tensor) -> Tensor:
    """KL(N(mean, variance) || N(0, 1)), summed over all dimensions of a sample, the mean over samples."""
    return 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).flatten(1).sum(1).mean()


class IDEVC(AdversarialModule):
    """Variational representations; z_-1 cannot be estimated from z_1.

    Yuan et al., "Improving Zero-Shot Voice Style Transfer via Disentangled Representation Learning", ICLR 2021,
    with the estimator of the CoDID paper's appendix, z_-1 from z_1: the encoder maximises, the estimator e minimises
    E ||z_-1 - e(z_1)||^2 in units of the variance of z_-1.

    Args:
        prior: Weight of the divergence of the variational posteriors from the standard normal prior.
        **kwargs: Of `AdversarialModule`.
    """

    title = "IDE-VC"
    variational = True

    def __init__(self, prior: float = 1e-3, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.prior = prior

    def encode(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Samples of the variational posteriors by the reparameterisation trick."""
        mean, log_variance = self.encoder(batch["x"]).chunk(2, dim=-1)
        z = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        divergence = standard_normal_divergence(mean, log_variance)
        self.losses.add("prior", divergence)
        return z, self.informative_loss(z, batch) + self.prior * divergence

    def build_adversary(self) -> nn.Module:
        """The estimator of z_-1."""
        return adversary_mlp(self.latent_dim, (len(self.attribute_sizes) - 1) * self.latent_dim)

    def adversary_loss(self, z: Tensor, batch: Batch) -> Tensor:
        """Share of the variance of z_-1 that z_1 does not explain."""
        return unexplained_variance(self.adversary(z[:, 0]), self.others(z))
