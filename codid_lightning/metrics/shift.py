"""Distance of two sets of representations."""

import math

import torch
from torch import Tensor

from codid_lightning.metrics.base import SampleMetric, is_measurable, subsample
from codid_lightning.metrics.probes import MIN_SAMPLES, held_out_log_probs


def a_distance(z: Tensor, is_test: Tensor, *, max_samples: int = 2500, seed: int = 0) -> float:
    """Proxy A-distance `2 (1 - 2 err)` between training and test representations (Ben-David et al. 2007).

    `err` is the held-out error of a linear probe that predicts the set of a sample. Both sets have the same size, so
    that the distance is between 0 (same distribution) and 2 (separable). It is NaN if a set has fewer than two samples
    or if a representation is not finite.

    Args:
        z: `(N, d)` representations of both sets.
        is_test: `(N,)` true for the second set.
        max_samples: Largest number of samples of each set.
        seed: Of the choice of samples and of the probe.
    """
    first, second = z[~is_test.bool()], z[is_test.bool()]
    size = min(max_samples, len(first), len(second))
    both = torch.cat([*subsample(size, seed, first), *subsample(size, seed, second)])
    if not is_measurable(both, MIN_SAMPLES):
        return math.nan
    domain = torch.arange(2).repeat_interleave(size)
    wrong = held_out_log_probs(both, domain, hidden=0, seed=seed).argmax(1) != domain
    return max(0.0, 2 * (1 - 2 * float(wrong.double().mean())))


class ADistance(SampleMetric):
    """`a_distance` over batches and ranks."""

    function = staticmethod(a_distance)
