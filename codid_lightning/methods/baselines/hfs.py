"""HFS: every z_1 occurs together with every z_2."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from codid_lightning.methods.base import DisentanglementModule
from codid_lightning.methods.baselines.environments import gram_distances
from datamodules.base import Batch

Reduction = Literal["max", "mean"]


def support_distance(z1: Tensor, z2: Tensor, reduction: Reduction = "max", combinations: int | None = None) -> Tensor:
    """Distance of all combinations (z_1i, z_2j) of z_1 (B, d) and z_2 (B, e) from the pairs of the batch.

    With `max` it is the directed Hausdorff distance from the factorised support to the support, with `mean` its soft
    form. The squared distance of a combination to pair k is the sum of two entries of B x B matrices. The nearest pair
    is found without gradients, so that only two gathers are differentiated.

    Args:
        z1: Representations.
        z2: Representations of the same samples.
        reduction: Over combinations.
        combinations: Number of z_2j to use, the first in the batch; a random choice, since batches are shuffled.
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
    """Factorises the support of (z_1, z_-1); correlations within the support are allowed.

    Roth et al., "Disentanglement of Correlated Factors via Hausdorff Factorized Support", ICLR 2023, with Euclidean
    distances between whole representations, each scaled to unit spread: otherwise smaller representations have a
    smaller penalty.
    Over combinations (i, j) the maximum, or mean, of min_k ||(z_1i, z_-1j) - (z_1k, z_-1k)||.

    Args:
        reduction: Maximum or mean over the combinations.
        combinations: Number of z_-1 with which each z_1 is combined; None for all, which takes B^3 operations.
        **kwargs: Of `DisentanglementModule`.
    """

    title = "HFS"

    def __init__(self, reduction: Reduction = "mean", combinations: int | None = 16, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.reduction: Reduction = reduction
        self.combinations = combinations

    def penalty(self, z: Tensor, batch: Batch) -> Tensor:
        """Distance of the factorised support from the support of the batch."""
        own, others = unit_spread(z[:, 0]), unit_spread(z[:, 1:].flatten(1))
        return support_distance(own, others, self.reduction, self.combinations)
