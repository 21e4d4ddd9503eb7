"""Losses shared by several methods, as pure functions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def shuffle_within(groups: Tensor, generator: torch.Generator | None = None, repeats: int | None = None) -> Tensor:
    """Random permutations that keep every sample inside its group.

    One group is an unconditional shuffle, groups by attribute value or by cluster give the marginals of A-CMI
    and CoDID. Sorting by (group, random key) and by group gives two orders of the same groups; matching them
    position by position permutes within groups, for all groups and repeats at once.

    Args:
        groups: Group of each sample, (B,).
        generator: Source of randomness on the device of `groups`.
        repeats: Number of independent permutations, or None for a single one.

    Returns:
        Indices (B,), or (repeats, B): position i receives the sample at the returned index.
    """
    shape = (repeats or 1, len(groups))
    keys = torch.rand(shape, device=groups.device, generator=generator, dtype=torch.float64)
    mixed = (groups + keys).argsort(dim=1)  # keys in [0, 1): groups stay together, order inside is random
    permutation = torch.empty_like(mixed).scatter_(1, groups.argsort().expand(shape), mixed)
    return permutation if repeats is not None else permutation[0]


def has_partner(groups: Tensor) -> Tensor:
    """Mask of samples whose group holds at least two: only they have marginal pairs."""
    _, inverse, counts = groups.unique(return_inverse=True, return_counts=True)
    partnered: Tensor = counts[inverse] > 1
    return partnered


def discrimination_loss(joint: Tensor, marginal: Tensor, weights: Tensor | None = None) -> Tensor:
    """Binary cross-entropy of telling joint from marginal pairs (Eq. 5; without weights, L_d).

    Args:
        joint: Logits of pairs (z_q, z_-q) of one sample.
        marginal: Logits of pairs whose z_-q was shuffled.
        weights: Weight of each marginal pair.
    """
    against = F.softplus(marginal)
    return F.softplus(-joint).mean() + (against if weights is None else weights * against).mean()


def reconstruction_loss(reconstruction: Tensor, x: Tensor) -> Tensor:
    """Mean squared error over all elements (Eq. 3)."""
    return F.mse_loss(reconstruction, x)
