"""LISA: mixtures of samples with the same a_1 and another a_2, or with the same a_2 and another a_1."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from codid_lightning.methods.baselines.mixing import MixingModule


class LISA(MixingModule):
    """Mixes samples selectively, so that a_2 carries no information about the mixed label.

    Yao et al., "Improving Out-of-Distribution Robustness via Selective Augmentation", ICML 2022, Algorithm 1: with
    probability `same_label`, partners have the same a_1 and other values of the other attributes; else the same values
    of all other attributes and another a_1. Partners are those of the batch; a sample without one stays as it is.

    Args:
        alpha: Parameter of the Beta distribution of the share.
        same_label: Probability of mixing within a value of a_1 (p_sel).
        **kwargs: Of `DisentanglementModule`.
    """

    title = "LISA"

    def __init__(self, alpha: float = 2.0, same_label: float = 0.5, **kwargs: Any) -> None:
        super().__init__(alpha, **kwargs)
        if not 0 <= same_label <= 1:
            raise ValueError(f"model.same_label is {same_label}; it must be a probability, from 0 to 1.")
        self.same_label = same_label

    def partners(self, a: Tensor) -> Tensor:
        """A random sample that differs in a_1 alone, or in the other attributes alone; else the sample itself."""
        label = a[:, None, 0] == a[None, :, 0]
        others = (a[:, None, 1:] == a[None, :, 1:]).all(2)
        matching = label & ~others if float(torch.rand(())) < self.same_label else others & ~label
        chosen = ((1 - torch.rand(matching.shape, device=a.device)) * matching).argmax(1)
        return torch.where(matching.any(1), chosen, torch.arange(len(a), device=a.device))
