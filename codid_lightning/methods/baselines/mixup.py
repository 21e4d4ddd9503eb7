"""Mixup: mixtures of random samples and of their labels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from codid_lightning.methods.baselines.mixing import MixingModule


class Mixup(MixingModule):
    """Mixes each sample with a random one of its batch.

    Zhang et al., "mixup: Beyond Empirical Risk Minimization", ICLR 2018. The default is the paper's for ImageNet and
    that of DomainBed.

    Args:
        alpha: Parameter of the Beta distribution of the share.
        **kwargs: Of `DisentanglementModule`.
    """

    title = "Mixup"

    def __init__(self, alpha: float = 0.2, **kwargs: Any) -> None:
        super().__init__(alpha, **kwargs)

    def partners(self, a: Tensor) -> Tensor:
        """A random permutation."""
        return torch.randperm(len(a), device=a.device)
