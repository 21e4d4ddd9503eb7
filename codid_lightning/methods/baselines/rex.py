"""REx: the same risk of predicting a_1 under every value of a_2."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from codid_lightning.methods.baselines.environments import Environments, RiskModule


class REx(RiskModule):
    """Reduces the variance of the risk across environments.

    Krueger et al., "Out-of-Distribution Generalization via Risk Extrapolation", ICML 2021, Eq. 8 (V-REx).
    """

    title = "REx"

    def risk_penalty(self, logits: Tensor, labels: Tensor, environments: Environments) -> Tensor:
        """Variance over environments of the mean cross-entropy."""
        risks = environments.means(F.cross_entropy(logits, labels, reduction="none"))
        return environments.mean_over((risks - environments.mean_over(risks)).square())
