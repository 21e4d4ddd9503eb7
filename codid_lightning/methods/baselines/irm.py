"""IRM: one predictor of a_1 that is optimal under every value of a_2."""

from __future__ import annotations

from torch import Tensor

from codid_lightning.methods.baselines.environments import Environments, RiskModule


def scale_gradients(logits: Tensor, labels: Tensor) -> Tensor:
    """Derivative of each sample's cross-entropy by a scale of its logits, at scale 1, (B,)."""
    expected = (logits.softmax(1) * logits).sum(1)
    return expected - logits.gather(1, labels[:, None]).squeeze(1)


class IRM(RiskModule):
    """Makes the predictor of a_1 optimal in every environment at the same time.

    Arjovsky et al., "Invariant Risk Minimization", 2019, objective IRMv1: the mean over environments e of
    |d R_e(s * logits) / ds|^2 at s = 1.
    """

    title = "IRM"

    def risk_penalty(self, logits: Tensor, labels: Tensor, environments: Environments) -> Tensor:
        """Squared derivative of each environment's risk by a dummy scale, the mean over environments.

        The product of gradients is averaged over all pairs of distinct samples. The authors multiply the gradients of
        two half-batches; this is the mean over all such halves, and unbiased for any number of samples.
        """
        gradients, counts = scale_gradients(logits, labels), environments.counts
        products = environments.sums(gradients).square() - environments.sums(gradients.square())
        return environments.mean_over(products / (counts * (counts - 1)).clamp(min=1), at_least=2)
