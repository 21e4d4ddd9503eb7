"""Random permutations within groups."""

from __future__ import annotations

import torch
from torch import Tensor


def shuffle_within(groups: Tensor, generator: torch.Generator | None = None, repeats: int | None = None) -> Tensor:
    """Random permutations that keep every sample inside its group.

    With a single group all samples are permuted; A-CMI permutes within attribute values, CoDID within clusters. The
    samples are sorted by (group, random key) and by group. Both orders have the same groups at the same positions, so
    that the map from one to the other permutes within groups, for all groups and repeats at once.

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
