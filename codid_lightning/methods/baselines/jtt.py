"""JTT: train, then train again with the misclassified samples drawn more often."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from codid_lightning.methods.baselines.two_stages import UpsamplingModule


class JTT(UpsamplingModule):
    """Draws training samples that a plain network got wrong `upweight` times as often.

    Liu et al., "Just Train Twice: Improving Group Robustness without Training Group Information", ICML 2021,
    Algorithm 1. The identification model has the first share of the epochs (T), a new network has the rest. The
    defaults are the paper's for Waterbirds: T = 60 of 300 epochs and lambda_up = 100.

    Args:
        first_stage: Share of the epochs of the identification model.
        upweight: How many times as often misclassified samples are drawn (lambda_up).
        **kwargs: Of `DisentanglementModule`.
    """

    title = "JTT"

    def __init__(self, first_stage: float = 0.2, upweight: float = 100.0, **kwargs: Any) -> None:
        super().__init__(first_stage, **kwargs)
        if upweight <= 0:
            raise ValueError(f"model.upweight is {upweight}; it must be positive.")
        self.upweight = upweight

    def identify(self, logits: Tensor, labels: Tensor) -> Tensor:
        """`upweight` for the error set, 1 for all others."""
        return torch.where(logits.argmax(1) == labels, 1.0, self.upweight)
