"""ID-FaceVC: minimises a variational upper bound on the information between z_1 and z_2."""

from __future__ import annotations

from torch import Tensor, nn

from codid_lightning.methods.baselines.adversarial import AdversarialModule, adversary_mlp
from codid_lightning.nn import distributed
from datamodules.base import Batch

MAX_LOG_VARIANCE = 5.0  # without a limit, the variance goes to 0 if one representation is a function of the other


def gaussian_nll(mean: Tensor, log_variance: Tensor, target: Tensor) -> Tensor:
    """Negative log-likelihood per sample, without its constant, summed over dimensions; the mean over samples."""
    return 0.5 * ((target - mean).square() / log_variance.exp() + log_variance).sum(1).mean()


def contrastive_upper_bound(mean: Tensor, log_variance: Tensor, target: Tensor) -> Tensor:
    """Mean log-likelihood of each target under its own Gaussian minus that of all targets under it, in nats.

    Cheng et al., "CLUB: A Contrastive Log-ratio Upper Bound of Mutual Information", ICML 2020. The mean over all
    B^2 pairs needs only the targets' first two moments, which are those of all ranks.
    """
    joint = (target - mean).square()
    centre, variance, _ = distributed.moments(target, [0])
    marginal = variance + (centre - mean).square()
    return 0.5 * ((marginal - joint) / log_variance.exp()).sum(1).mean()


class IDFaceVC(AdversarialModule):
    """Minimises the CLUB bound on I(z_1; z_-1) with a Gaussian q(z_-1 | z_1) that is trained at the same time.

    Rong & Liu, "Seeing Your Speech Style: A Novel Zero-Shot Identity-Disentanglement Face-based Voice Conversion",
    AAAI 2025: E_{p(z_1, z_-1)} log q(z_-1 | z_1) - E_{p(z_1) p(z_-1)} log q(z_-1 | z_1).
    """

    title = "ID-FaceVC"

    def build_adversary(self) -> nn.Module:
        """Mean and log-variance of q."""
        return adversary_mlp(self.latent_dim, 2 * (len(self.attribute_sizes) - 1) * self.latent_dim)

    def adversary_loss(self, z: Tensor, batch: Batch) -> Tensor:
        """Negative log-likelihood of z_-1 given z_1, by which q is fitted."""
        return gaussian_nll(*self.conditional(z), self.others(z))

    def penalty(self, z: Tensor, batch: Batch) -> Tensor:
        """The upper bound, with gradients for both z_1 and z_-1."""
        return contrastive_upper_bound(*self.conditional(z), self.others(z))

    def conditional(self, z: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log-variance of q(z_-1 | z_1)."""
        mean, log_variance = self.adversary(z[:, 0]).chunk(2, dim=1)
        return mean, MAX_LOG_VARIANCE * (log_variance / MAX_LOG_VARIANCE).tanh()
