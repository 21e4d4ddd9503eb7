"""Split and merge proposals of a Dirichlet-process mixture and their Hastings ratios, as pure functions of moments."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Generator, Tensor

from codid_lightning.clustering.niw import NIW, Moments

MoveKind = Literal["merge", "split"]


@dataclass(frozen=True)
class Proposal:
    """A proposed move: the clusters it changes, the log of its Hastings ratio, and whether it was accepted."""

    kind: MoveKind
    clusters: tuple[int, ...]
    log_hastings: float
    accepted: bool
    reason: str = ""  # why a move with a sufficient ratio was not accepted


def log_hastings_split(prior: NIW, concentration: float, first: Moments, second: Moments) -> Tensor:
    """Log Hastings ratio H_s ``(K,)`` of splitting each cluster into two halves; -inf if a half is empty.

    H_s = alpha Gamma(N_1) f(X_1) Gamma(N_2) f(X_2) / (Gamma(N) f(X)), the paper's appendix "Preliminaries". The ratio
    of the merge that undoes the split is H_m = 1 / H_s.
    """
    whole = first.merged(second)
    log_ratio = (
        math.log(concentration)
        + torch.lgamma(first.n)
        + torch.lgamma(second.n)
        - torch.lgamma(whole.n)
        + prior.log_marginal(first)
        + prior.log_marginal(second)
        - prior.log_marginal(whole)
    )
    empty = (first.n <= 0) | (second.n <= 0)
    return torch.where(empty, -torch.inf, log_ratio)


def accept(log_hastings: Tensor, generator: Generator | None) -> Tensor:
    """Accept proposals with probability min(1, H); without a generator, exactly if H > 1."""
    if generator is None:
        return log_hastings > 0
    chance = torch.rand(log_hastings.shape, generator=generator, dtype=torch.float64)
    return chance.log().to(log_hastings.device) < log_hastings


def propose_splits(
    prior: NIW, concentration: float, first: Moments, second: Moments, room: int, generator: Generator | None
) -> list[Proposal]:
    """Propose to split every cluster into its two subclusters; at most ``room`` are accepted, the likeliest first."""
    ratios = log_hastings_split(prior, concentration, first, second)
    accepted = accept(ratios, generator).tolist()
    proposals = []
    for k in ratios.argsort(descending=True, stable=True).tolist():
        happens = accepted[k] and room > 0
        room -= happens
        reason = "no free cluster" if accepted[k] and not happens else ""
        proposals.append(Proposal("split", (k,), float(ratios[k]), happens, reason))
    return proposals


def propose_merges(
    prior: NIW, concentration: float, clusters: Moments, neighbours: int, generator: Generator | None
) -> list[Proposal]:
    """Propose to merge neighbouring clusters, the likeliest pairs first; a cluster merges at most once in a round."""
    left, right = neighbouring_pairs(clusters.mean, neighbours)
    ratios = -log_hastings_split(prior, concentration, clusters[left], clusters[right])
    accepted = accept(ratios, generator).tolist()
    taken: set[int] = set()
    proposals = []
    for p in ratios.argsort(descending=True, stable=True).tolist():
        pair = (int(left[p]), int(right[p]))
        busy = not taken.isdisjoint(pair)
        happens = accepted[p] and not busy
        if happens:
            taken.update(pair)
        reason = "one of the clusters already merged" if accepted[p] and busy else ""
        proposals.append(Proposal("merge", pair, float(ratios[p]), happens, reason))
    return proposals


def log_joint(prior: NIW, concentration: float, clusters: Moments) -> float:
    """Log of p(partition) p(samples | partition) of a Dirichlet-process mixture, up to a constant of N and alpha.

    A move's log Hastings ratio is the change of this.
    """
    seats = torch.lgamma(clusters.n) + math.log(concentration)
    return float((seats + prior.log_marginal(clusters)).sum())


def agglomerate(
    clusters: Moments,
    prior: Callable[[Moments], NIW],
    concentration: float,
    neighbours: int,
    levels_up_to: int = 0,
    most: int | None = None,
) -> tuple[Tensor, int]:
    """Merge neighbouring clusters down to a single one, and return the likeliest clustering on the way.

    All merges with a Hastings ratio above one are made. If there is none, the merge that loses least per sample of its
    smaller part is made: two parts of a Gaussian may be likelier apart than merged, and still less likely than the
    whole Gaussian. As the prior is that of the current clusters, every merge may make the next one likelier; with many
    overlapping clusters the levels at which merging stops may then all be far too coarse.

    Args:
        clusters: Moments of the clusters.
        prior: Function that returns the prior for the current clusters.
        concentration: Concentration alpha of the Dirichlet process.
        neighbours: How many nearest clusters each may merge with.
        levels_up_to: Up to this number of clusters, every level is a candidate; above it, only those at which no merge
            has a ratio above one.
        most: Largest number of clusters of a candidate.

    Returns:
        The final cluster ``(K,)`` of each cluster, and how many there are.
    """
    final = torch.arange(len(clusters.n), device=clusters.n.device)
    best, best_joint = final, -math.inf
    while True:
        belief, k = prior(clusters), len(clusters.n)
        made = propose_merges(belief, concentration, clusters, neighbours, generator=None) if k > 1 else []
        pairs = [p.clusters for p in made if p.accepted]
        if (k <= levels_up_to or not pairs) and (most is None or k <= most):
            joint = log_joint(belief, concentration, clusters)
            if joint > best_joint:
                best, best_joint = final, joint
        if k == 1:
            return best, int(best.max()) + 1
        if not pairs:
            pairs = [max(made, key=lambda p: p.log_hastings / float(clusters.n[list(p.clusters)].min())).clusters]
        joined = torch.arange(k, device=final.device)
        for left, right in pairs:
            joined[right] = left
        left_over, group = joined.unique(return_inverse=True)
        clusters, final = clusters.grouped(group, len(left_over)), group[final]


def settle(prior: NIW, concentration: float, clusters: Moments, neighbours: int) -> Moments:
    """Merge neighbouring clusters under one prior until no merge has a Hastings ratio above one."""
    while (k := len(clusters.n)) > 1:
        made = propose_merges(prior, concentration, clusters, neighbours, generator=None)
        joined = torch.arange(k, device=clusters.n.device)
        for left, right in (p.clusters for p in made if p.accepted):
            joined[right] = left
        left_over, group = joined.unique(return_inverse=True)
        if len(left_over) == k:
            break
        clusters = clusters.grouped(group, len(left_over))
    return clusters


def neighbouring_pairs(means: Tensor, neighbours: int) -> tuple[Tensor, Tensor]:
    """Pairs of clusters in which one is among the nearest of the other; each pair occurs once, smaller index first."""
    k = len(means)
    distances = torch.cdist(means, means)
    distances.fill_diagonal_(torch.inf)
    nearest = distances.topk(min(neighbours, k - 1), largest=False).indices
    near = torch.zeros(k, k, dtype=torch.bool, device=means.device).scatter_(1, nearest, True)
    left, right = torch.where((near | near.T).triu(1))
    return left, right
