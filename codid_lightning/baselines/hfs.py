"""HFS: every z_1 occurs with every z_2."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from codid_lightning.baselines.environments import gram_distances
from codid_lightning.module import DisentanglementModule
from datamodules.base import Batch

Reduction = Literal["max", "mean"]


def support_distance(z1: Tensor, z2: Tensor, reduction: Reduction = "max", combinations: int | None = None) -> Tensor:
    """Distance of the combinations of all z_1i (B, d) with z_2j (B, e) from the pairs that occur.

    With `max` it is the directed Hausdorff distance from the factorised support to the support, with `mean` its
    soft form. A combination's squared distance to pair k is the sum of two entries of B x B matrices; the nearest
    pair is searched without gradients, so that only two gathers are differentiated.

    Args:
        z1: Representations.
        z2: Representations of the same samples.
        reduction: Over combinations.
        combinations: Take only the first so many z_2j: a random choice, since batches are shuffled.
    """
    first, second = (gram_distances(z @ z.T).clamp(min=0) for z in (z1, z2))
    second = second[:combinations]
    with torch.no_grad():
        nearest = (first[:, None] + second[None]).argmin(2)  # (B, J): of combination (i, j)
    squared = first.gather(1, nearest) + second.gather(1, nearest.T).T
    distances = (squared + 1e-12).sqrt()
    return distances.max() if reduction == "max" else distances.mean()


def unit_spread(z: Tensor) -> Tensor:
    """Representations in units of their root mean squared distance from the mean."""
    centred = z - z.mean(0)
    return centred / (centred.square().sum(1).mean() + 1e-12).sqrt()


class HFS(DisentanglementModule):
    """Factorises the support of (z_1, z_-1), whatever the correlation within it.

    Roth et al., "Disentanglement of Correlated Factors via Hausdorff Factorized Support", ICLR 2023, with Euclidean
    distances between whole representations, each in units of its own spread: otherwise shrinking would be rewarded.
    Over combinations (i, j) the maximum, or mean, of min_k ||(z_1i, z_-1j) - (z_1k, z_-1k)||.

    Args:
        reduction: The farthest combination, or the mean over them.
        combinations: Number of z_-1 in the batch each z_1 is combined with; None for all, at B^3 operations.
        **kwargs: Of `DisentanglementModule`.
    """

    def __init__(self, reduction: Reduction = "mean", combinations: int | None = 16, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.reduction: Reduction = reduction
        self.combinations = combinations

    def penalty(self, z: Tensor, batch: Batch) -> Tensor:
        """Distance of the factorised support from the support of the batch."""
        own, others = unit_spread(z[:, 0]), unit_spread(z[:, 1:].flatten(1))
        return support_distance(own, others, self.reduction, self.combinations)
