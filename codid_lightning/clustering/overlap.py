"""Components that overlap belong to one cluster: merging by estimated misclassification (DEMP; Hennig 2010)."""

from __future__ import annotations

import torch
from torch import Tensor

_MAX_SAMPLES = 20_000  # of more samples, this many evenly spaced ones are used


def overlapping_groups(probs: Tensor, limit: float) -> Tensor:
    """The group ``(K,)`` of each component of a mixture after overlapping ones were merged.

    The probability that a sample of component i is assigned to j is estimated by the responsibilities of i over the
    samples assigned to j. The pair with the largest such probability, in either direction, is merged, until none is
    above ``limit``. A merged group has the sum of its parts' responsibilities (C. Hennig, Methods for merging Gaussian
    mixture components, Advances in Data Analysis and Classification 4, 2010, section 4.2).

    Args:
        probs: Responsibilities of the components, ``(N, K)``.
        limit: Largest misclassification probability of two clusters.
    """
    joined = probs[:: -(-len(probs) // _MAX_SAMPLES)].to(torch.float64, copy=True)
    group = torch.arange(probs.shape[1], device=probs.device)
    while joined.shape[1] > 1:
        k = joined.shape[1]
        confused = joined.new_zeros(k, k).index_add_(0, joined.argmax(1), joined).T  # of row's mass, assigned to column
        share = confused / joined.sum(0).clamp_min(torch.finfo(joined.dtype).tiny)[:, None]
        share = torch.maximum(share, share.T).fill_diagonal_(0)
        if float(share.max()) <= limit:
            break
        low, high = sorted(divmod(int(share.argmax()), k))
        joined[:, low] += joined[:, high]
        left = torch.arange(k, device=probs.device) != high
        joined = joined[:, left]
        place = left.long().cumsum(0) - 1
        place[high] = low
        group = place[group]
    return group
