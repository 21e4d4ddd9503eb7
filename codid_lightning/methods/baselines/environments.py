"""Methods that treat every value of the other attributes as an environment, and statistics of environments.

A batch contains samples of several environments; some have one sample or none. All statistics are products with a
membership matrix, for any number of environments.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from codid_lightning.methods.base import DisentanglementModule
from datamodules.base import Batch


class Environments:
    """The values of one attribute in a batch.

    Args:
        values: Value of each sample, (B,).
        size: Number of values of the attribute, E.
        dtype: Of the numbers of which statistics are taken.
    """

    def __init__(self, values: Tensor, size: int, dtype: torch.dtype = torch.float32) -> None:
        self.member = F.one_hot(values, size).to(dtype)  # (B, E)
        self.counts = self.member.sum(0)  # (E,)

    def sums(self, values: Tensor) -> Tensor:
        """Sums of per-sample values (B, ...) over each environment, (E, ...)."""
        sums: Tensor = torch.tensordot(self.member, values, dims=([0], [0]))
        return sums

    def means(self, values: Tensor) -> Tensor:
        """Means of per-sample values (B,) or (B, d) over each environment; 0 for an empty environment."""
        sums = self.sums(values)
        return sums / self.counts.clamp(min=1).view(-1, *[1] * (sums.ndim - 1))

    def pair_sums(self, matrix: Tensor) -> Tensor:
        """Sums (E, E) of a matrix (B, B) over the pairs of samples of two environments."""
        return self.member.T @ matrix @ self.member

    def mean_over(self, values: Tensor, at_least: int = 1) -> Tensor:
        """Mean of (E,) values over the environments with enough samples (`at_least`); 0 if there are none."""
        enough = (self.counts >= at_least).to(self.counts)
        return (values * enough).sum() / enough.sum().clamp(min=1)

    def mean_over_pairs(self, distances: Tensor, at_least: int = 2) -> Tensor:
        """Mean of (E, E) distances over pairs of environments with enough samples (`at_least`); 0 if there are none."""
        enough = (self.counts >= at_least).to(self.counts)
        pairs = torch.outer(enough, enough).triu(1)
        return (distances * pairs).sum() / pairs.sum().clamp(min=1)


def gram_distances(gram: Tensor) -> Tensor:
    """Squared distances between vectors whose inner products are `gram`, (E, E)."""
    norms = gram.diagonal()
    return norms[:, None] + norms[None, :] - 2 * gram


class AlignmentModule(DisentanglementModule):
    """Aligns the distribution of z_1 across environments; a method implements `distances`."""

    def distances(self, z1: Tensor, environments: Environments) -> Tensor:
        """Distances (E, E) between the distributions of z_1 (B, d) in all environments."""
        raise NotImplementedError

    def penalty(self, z: Tensor, batch: Batch) -> Tensor:
        """Mean distance over pairs of values, and over the other attributes."""
        penalties = []
        for q, size in list(enumerate(self.attribute_sizes))[1:]:
            environments = Environments(batch["a"][:, q], size, z.dtype)
            penalties.append(environments.mean_over_pairs(self.distances(z[:, 0], environments)))
        return torch.stack(penalties).mean()


class RiskModule(DisentanglementModule):
    """Penalises differences of the risk of predicting a_1 from z_1 between environments.

    The weight of the penalty increases linearly over the first epochs: an untrained predictor has no meaningful risk,
    and a sudden increase would invalidate Adam's moments. A method implements `risk_penalty`.

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
        """Mean penalty over the other attributes, times the current weight."""
        logits, labels = self.predictors[0](z[:, 0]), batch["a"][:, 0]
        penalties = [
            self.risk_penalty(logits, labels, Environments(batch["a"][:, q], size, z.dtype))
            for q, size in list(enumerate(self.attribute_sizes))[1:]
        ]
        return self.ramp() * torch.stack(penalties).mean()

    def ramp(self) -> float:
        """Weight of the penalty: from 0 to 1 over `warmup_epochs`."""
        if self.warmup_epochs <= 0:
            return 1.0
        before = self.trainer.global_step - 1  # the current batch is already counted
        epochs = before / self.trainer.num_training_batches
        return min(1.0, epochs / self.warmup_epochs)
