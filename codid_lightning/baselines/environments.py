"""Methods that treat every value of the other attributes as an environment, and their statistics.

A batch mixes environments, and some may have one sample in it or none. All statistics are sums over a membership
matrix, so any number of environments costs a few matrix products.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from codid_lightning.module import DisentanglementModule
from datamodules.base import Batch


class Environments:
    """The values of one attribute in a batch.

    Args:
        values: Value of each sample, (B,).
        size: Number of values the attribute can take, E.
    """

    def __init__(self, values: Tensor, size: int) -> None:
        self.member = F.one_hot(values, size).float()  # (B, E)
        self.counts = self.member.sum(0)  # (E,)

    def sums(self, values: Tensor) -> Tensor:
        """Sums of per-sample values (B, ...) over each environment, (E, ...)."""
        sums: Tensor = torch.tensordot(self.member, values, dims=([0], [0]))
        return sums

    def means(self, values: Tensor) -> Tensor:
        """Means of per-sample values (B,) or (B, d); 0 where an environment is empty."""
        sums = self.sums(values)
        return sums / self.counts.clamp(min=1).view(-1, *[1] * (sums.ndim - 1))

    def pair_sums(self, matrix: Tensor) -> Tensor:
        """Sums of a matrix over samples (B, B) within all blocks of two environments, (E, E)."""
        return self.member.T @ matrix @ self.member

    def mean_over(self, values: Tensor, at_least: int = 1) -> Tensor:
        """Mean of (E,) values over the environments with enough samples; 0 if there are none."""
        enough = (self.counts >= at_least).float()
        return (values * enough).sum() / enough.sum().clamp(min=1)

    def mean_over_pairs(self, distances: Tensor, at_least: int = 2) -> Tensor:
        """Mean of (E, E) distances over pairs of distinct environments with enough samples; 0 if there are none."""
        enough = (self.counts >= at_least).float()
        pairs = torch.outer(enough, enough).triu(1)
        return (distances * pairs).sum() / pairs.sum().clamp(min=1)


def gram_distances(gram: Tensor) -> Tensor:
    """Squared distances between vectors whose inner products are `gram`, (E, E)."""
    norms = gram.diagonal()
    return norms[:, None] + norms[None, :] - 2 * gram


class AlignmentModule(DisentanglementModule):
    """Aligns the distribution of z_1 across environments; a method says how far two of them are apart."""

    def distances(self, z1: Tensor, environments: Environments) -> Tensor:
        """Distances between all environments' distributions of z_1 (B, d), as (E, E)."""
        raise NotImplementedError

    def penalty(self, z: Tensor, batch: Batch) -> Tensor:
        """Mean distance over pairs of values, and over the other attributes."""
        penalties = []
        for q, size in list(enumerate(self.attribute_sizes))[1:]:
            environments = Environments(batch["a"][:, q], size)
            penalties.append(environments.mean_over_pairs(self.distances(z[:, 0], environments)))
        return torch.stack(penalties).mean()


class RiskModule(DisentanglementModule):
    """Constrains how the risk of predicting a_1 from z_1 may differ between environments.

    The penalty grows linearly over the first epochs: it is meaningless before there is a predictor to speak of, and
    a ramp, unlike a jump, leaves Adam's moments valid.

    Args:
        warmup_epochs: Epochs until the penalty has its full strength.
        **kwargs: Of `DisentanglementModule`.
    """

    def __init__(self, warmup_epochs: float = 5.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.warmup_epochs = warmup_epochs

    def risk_penalty(self, logits: Tensor, labels: Tensor, environments: Environments) -> Tensor:
        """Penalty of the predictions (B, A_1) of a_1 in these environments."""
        raise NotImplementedError

    def penalty(self, z: Tensor, batch: Batch) -> Tensor:
        """Penalty at its present strength, the mean over the other attributes."""
        logits, labels = self.predictors[0](z[:, 0]), batch["a"][:, 0]
        penalties = [
            self.risk_penalty(logits, labels, Environments(batch["a"][:, q], size))
            for q, size in list(enumerate(self.attribute_sizes))[1:]
        ]
        return self.ramp() * torch.stack(penalties).mean()

    def ramp(self) -> float:
        """From 0 to 1 over `warmup_epochs`."""
        if self.warmup_epochs <= 0:
            return 1.0
        before = self.trainer.global_step - 1  # the present batch is counted already
        epochs = before / self.trainer.num_training_batches
        return min(1.0, epochs / self.warmup_epochs)
