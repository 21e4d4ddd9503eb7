"""Losses shared by several methods, as pure functions."""

from __future__ import annotations

from math import log

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


def has_partner(groups: Tensor, num_groups: int) -> Tensor:
    """Mask of samples whose group holds at least two: only they have marginal pairs."""
    sizes = torch.zeros(num_groups, dtype=torch.long, device=groups.device)
    partnered: Tensor = sizes.index_add_(0, groups, torch.ones_like(groups))[groups] > 1
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


def isotropic_loss(halves: Tensor, z: Tensor, centres: Tensor, radius: Tensor) -> Tensor:
    """Expected squared distance to the assigned half's mean, in units of the cluster's own spread (Eq. 9).

    Args:
        halves: Probabilities of the two halves (B, 2).
        z: Representations (B, d).
        centres: Means of the two halves of each sample's cluster (B, 2, d).
        radius: Mean squared distance of the cluster's samples to its mean (B,).
    """
    distance = (z[:, None] - centres).square().sum(2) / radius.clamp_min(1e-12)[:, None]
    return (halves * distance).sum(1).mean()


def gaussian_divergence(mean: Tensor, variance: Tensor, other_mean: Tensor, other_variance: Tensor) -> Tensor:
    """Jensen-Shannon divergence of two Gaussians, approximately; it has no closed form.

    The mixture is replaced by the Gaussian of the same mean and variance. That is an upper bound, exact to second
    order for close Gaussians, and cut at the divergence's maximum ln 2, which it reaches for distant ones.
    """
    mixed = (variance + other_variance) / 2 + (mean - other_mean).square() / 4
    bound = (mixed.square() / (variance * other_variance)).log() / 4
    return bound.clamp(0, log(2))


def binary_divergence(p: Tensor, q: Tensor) -> Tensor:
    """Jensen-Shannon divergence of two distributions over two outcomes, given the probability of one."""
    return _binary_entropy((p + q) / 2) - (_binary_entropy(p) + _binary_entropy(q)) / 2


def _binary_entropy(p: Tensor) -> Tensor:
    p = p.clamp(1e-6, 1 - 1e-6)
    return -(p * p.log() + (1 - p) * (-p).log1p())


def summary_divergence(weights: Tensor, together: Tensor, others: Tensor, floor: float = 1e-4) -> Tensor:
    """How differently two samples' marginal pairs are weighted, averaged over the values of a_2.

    The weight summary of sample i is the mean and variance of w(z_1i, z_2k) over the partners k of its cluster with
    a_2 = eta, for each eta; the divergences of two summaries are averaged by the number of partners.

    Args:
        weights: w(z_1i, z_2k), (..., M, M).
        together: Whether i and k share a cluster, (..., M, M).
        others: One-hot values of the other attributes, (..., M, V).
        floor: Added to every variance: few partners say little about a variance.

    Returns:
        The averaged divergence of samples i and j, (..., M, M).
    """
    together, others = together.to(weights), others.to(weights)
    count = together @ others  # (..., M, V) partners with each value
    mean = (weights * together) @ others / count.clamp_min(1)
    square = (weights.square() * together) @ others / count.clamp_min(1)
    variance = (square - mean.square()).clamp_min(0) + floor
    divergence = gaussian_divergence(mean[..., :, None, :], variance[..., :, None, :], mean[..., None, :, :],
                                     variance[..., None, :, :])  # fmt: skip
    share = count / count.sum(-1, keepdim=True).clamp_min(1)
    return (divergence * share[..., :, None, :]).sum(-1)


def weight_alignment_loss(halves: Tensor, divergence: Tensor, together: Tensor, epsilon: float = 0.05) -> Tensor:
    """Pairs of one cluster that are weighted alike belong to the same half (Eq. 10).

    Args:
        halves: Probability of the first half, (..., M).
        divergence: Averaged divergence of the pairs' weight summaries, (..., M, M).
        together: Pairs to count, (..., M, M).
        epsilon: Added to the divergence, so that pairs weighted exactly alike count strongly, not infinitely.
    """
    apart = binary_divergence(halves[..., :, None], halves[..., None, :])
    ratio = apart / (divergence + epsilon) * together
    return ratio.sum() / together.sum().clamp_min(1)
