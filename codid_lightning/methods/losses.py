"""Losses shared by several methods, as pure functions."""

from __future__ import annotations

from functools import cache
from math import log, pi, sqrt

import torch
import torch.nn.functional as F
from torch import Tensor


def has_partner(groups: Tensor, num_groups: int) -> Tensor:
    """Mask of samples whose group holds at least two: only they have marginal pairs."""
    sizes = torch.zeros(num_groups, dtype=torch.long, device=groups.device)
    partnered: Tensor = sizes.index_add_(0, groups, torch.ones_like(groups))[groups] > 1
    return partnered


def discrimination_loss(
    joint: Tensor, marginal: Tensor, weights: Tensor | None = None, partnered: Tensor | None = None
) -> Tensor:
    """Binary cross-entropy of separating joint from marginal pairs (Eq. 5; without weights, L_d).

    Args:
        joint: Logits of pairs (z_q, z_-q) of one sample, (B,).
        marginal: Logits of pairs whose z_-q was shuffled, (B,).
        weights: Weight of each marginal pair, (B,).
        partnered: Float mask (B,) of the samples to count, those with a partner to shuffle with; by default all.
    """
    against = F.softplus(marginal)
    losses = F.softplus(-joint) + (against if weights is None else weights * against)
    return losses.mean() if partnered is None else (losses * partnered).sum() / partnered.sum().clamp_min(1)


def reconstruction_loss(reconstruction: Tensor, x: Tensor) -> Tensor:
    """Mean squared error over all elements (Eq. 3)."""
    return F.mse_loss(reconstruction, x)


def isotropic_loss(subcluster_probs: Tensor, z: Tensor, centres: Tensor) -> Tensor:
    """Expected squared distance to the assigned half's mean (Eq. 9).

    Args:
        subcluster_probs: Probabilities of the two halves of each sample's cluster (B, 2).
        z: Representations (B, d).
        centres: Means of the two halves of each sample's cluster (B, 2, d).
    """
    return (subcluster_probs * (z[:, None] - centres).square().sum(2)).sum(1).mean()


def gaussian_divergence(mean: Tensor, variance: Tensor, other_mean: Tensor, other_variance: Tensor) -> Tensor:
    """Jensen-Shannon divergence of two Gaussians; it has no closed form.

    The Gaussian with the mixture's mean and variance in the mixture's place gives an upper bound, exact to second order
    for close Gaussians and too large by up to 0.26 for distant ones. The divergence and its bound depend on two numbers
    only: the distance of the means in units of both standard deviations together, and the ratio of these. Their
    quotient varies slowly, so a small table of numerical integrals corrects the bound to within 2e-3.
    """
    deviation, other_deviation = variance.sqrt(), other_variance.sqrt()
    distance = (mean - other_mean).abs() / (deviation + other_deviation)
    ratio = (variance.log() - other_variance.log()).abs() / 2
    width = (variance + other_variance) / (2 * deviation * other_deviation)  # cosh(ratio)
    bound = (width + distance.square() * (1 + width) / 2).log() / 2
    # To the table's coordinates, in which it reaches from -1 to 1.
    place = torch.stack([ratio * (2 / _LARGEST_RATIO), distance * (2 / _LARGEST_DISTANCE)], dim=-1) - 1
    table = _divergence_over_bound(mean.dtype, mean.device)
    place = place.view(1, -1, 1, 2)
    correction = F.grid_sample(table, place, padding_mode="border", align_corners=True).view(bound.shape)
    return (bound * correction).clamp(0, log(2))


_LARGEST_DISTANCE, _LARGEST_RATIO = 6.0, 8.0  # beyond them the divergence is its maximum ln 2 to within 2e-3


@cache
def _divergence_over_bound(dtype: torch.dtype, device: torch.device) -> Tensor:
    """Divergence of two Gaussians over its bound, (1, 1, distances, logarithms of the ratio of deviations)."""
    distance = torch.linspace(0, _LARGEST_DISTANCE, 61, dtype=torch.float64)[:, None, None]
    ratio = torch.linspace(0, _LARGEST_RATIO, 65, dtype=torch.float64)[:, None]
    deviation, units = ratio.exp(), torch.linspace(-9, 9, 181, dtype=torch.float64)
    centre = distance * (1 + deviation)
    # The points of both Gaussians together resolve the narrow one as well as the wide one.
    nodes = [(centre + deviation * units), units.expand(len(distance), len(ratio), -1)]
    x = torch.cat(nodes, dim=-1).sort(dim=-1).values
    log_p = -(x.square()) / 2
    log_q = -((x - centre) / deviation).square() / 2 - ratio
    log_mixture = torch.logaddexp(log_p, log_q) - log(2)
    density = log_p.exp() * (log_p - log_mixture) + log_q.exp() * (log_q - log_mixture)
    divergence = torch.trapezoid(density, x) / (2 * sqrt(2 * pi))
    width = ratio.cosh()
    bound = ((width + distance.square() * (1 + width) / 2).log() / 2).squeeze(-1)
    table = divergence / bound.clamp_min(1e-12)
    table[0, 0] = 1  # the limit of equal Gaussians
    return table[None, None].to(device, dtype)


def binary_divergence(p: Tensor, q: Tensor) -> Tensor:
    """Jensen-Shannon divergence of two distributions over two outcomes, given the probability of one."""
    return _binary_entropy((p + q) / 2) - (_binary_entropy(p) + _binary_entropy(q)) / 2


def _binary_entropy(p: Tensor) -> Tensor:
    p = p.clamp(1e-6, 1 - 1e-6)
    return -(p * p.log() + (1 - p) * (-p).log1p())


def summary_divergence(weights: Tensor, together: Tensor, others: Tensor, floor: float = 1e-4) -> Tensor:
    """How differently two samples' marginal pairs are weighted, averaged over the values of a_2.

    The weight summary of sample i is the mean and variance of w(z_1i, z_2k) over the partners k of its cluster with
    a_2 = eta, for each eta; the divergences of two summaries are averaged by the number of partners. Weights are taken
    relative to the mean of their cluster: only their ratios tell modes apart, and training leaves their level free.

    Args:
        weights: w(z_1i, z_2k), positive, at any level, (..., M, M).
        together: Whether i and k share a cluster, (..., M, M).
        others: One-hot values of the other attributes, (..., M, V).
        floor: Added to every variance of relative weights: few partners say little about a variance.

    Returns:
        The averaged divergence of samples i and j, (..., M, M).
    """
    together, others = together.to(weights), others.to(weights)
    size, weights = together.sum(-1, keepdim=True), weights * together
    level = together @ weights.sum(-1, keepdim=True) / size.square().clamp_min(1)  # mean of all pairs of the cluster
    weights = weights / level.clamp_min(torch.finfo(weights.dtype).tiny)
    count = together @ others  # (..., M, V) partners with each value
    mean = weights @ others / count.clamp_min(1)
    square = weights.square() @ others / count.clamp_min(1)
    variance = (square - mean.square()).clamp_min(0) + floor
    divergence = gaussian_divergence(mean[..., :, None, :], variance[..., :, None, :], mean[..., None, :, :],
                                     variance[..., None, :, :])  # fmt: skip
    share = count / count.sum(-1, keepdim=True).clamp_min(1)
    return (divergence * share[..., :, None, :]).sum(-1)


def weight_alignment_loss(first_half: Tensor, divergence: Tensor, together: Tensor, epsilon: float = 0.05) -> Tensor:
    """Pairs of one cluster that are weighted alike belong to the same half (Eq. 10).

    The expectation over clusters counts a cluster by its samples; that over its pairs is over two different samples.
    Clusters with one sample contribute nothing.

    Args:
        first_half: Probability of the first half, (..., M).
        divergence: Averaged divergence of the pairs' weight summaries, (..., M, M).
        together: Whether i and j share a cluster, (..., M, M).
        epsilon: Added to the divergence, so that pairs weighted exactly alike count strongly, not infinitely.
    """
    apart = binary_divergence(first_half[..., :, None], first_half[..., None, :])
    pairs = together.to(divergence) * (
        1 - torch.eye(together.shape[-1], dtype=divergence.dtype, device=divergence.device)
    )
    partners = pairs.sum(-1)
    of_sample = (apart / (divergence + epsilon) * pairs).sum(-1) / partners.clamp_min(1)
    return of_sample.sum() / (partners > 0).sum().clamp_min(1)
