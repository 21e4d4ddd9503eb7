import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import gammaln
from torch import Tensor

from codid_lightning.clustering.features import QuadraticFeatures
from codid_lightning.clustering.moves import (
    accept,
    agglomerate,
    log_hastings_split,
    log_joint,
    neighbouring_pairs,
    propose_merges,
    propose_splits,
)
from codid_lightning.clustering.niw import NIW, Moments, empirical_prior

FAMILIES = ("full", "diag", "spherical")


def blobs(k: int, n: int, d: int, seed: int, family: str = "full") -> tuple[Tensor, Tensor, Moments, NIW]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % k
    x = torch.randn(n, d, generator=generator, dtype=torch.float64)
    x = x + 2 * torch.randn(k, d, generator=generator, dtype=torch.float64)[labels]
    x = x - x.mean(0)
    features = QuadraticFeatures(x, family)
    clusters = features.to_moments(features.group_sums(labels, k))
    return x, labels, clusters, empirical_prior(clusters)


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=20, deadline=None)
@given(k=st.integers(2, 6), n=st.integers(12, 80), d=st.integers(1, 5), seed=st.integers(0, 99))
def test_merging_undoes_splitting(family, k, n, d, seed):
    """H_m * H_s = 1, and both are the change of the joint density of samples and partition."""
    x, labels, clusters, prior = blobs(k, n, d, seed, family)
    for proposal in propose_merges(prior, 0.5, clusters, neighbours=k, generator=None):
        i, j = proposal.clusters
        split = log_hastings_split(prior, 0.5, clusters[torch.tensor([i])], clusters[torch.tensor([j])])
        assert proposal.log_hastings + float(split) == pytest.approx(0, abs=1e-10)
        merged = torch.where(labels == j, i, labels).unique(return_inverse=True)[1]
        features = QuadraticFeatures(x, family)
        after = features.to_moments(features.group_sums(merged, k - 1))
        gain = log_joint(prior, 0.5, after) - log_joint(prior, 0.5, clusters)
        assert proposal.log_hastings == pytest.approx(gain, abs=1e-7)


def test_the_hastings_ratio_is_the_papers_formula():
    """Over halves of unequal sizes, with marginal likelihoods of the samples themselves."""
    x, labels, _, prior = blobs(2, 23, 3, 1)

    def log_f(chosen: Tensor) -> float:
        features = QuadraticFeatures(x[chosen], "full")
        return float(
            prior.log_marginal(
                features.to_moments(features.group_sums(torch.zeros(len(features.x), dtype=torch.long), 1))
            )
        )

    features = QuadraticFeatures(x, "full")
    halves = features.to_moments(features.group_sums(labels, 2))
    sizes = [float((labels == half).sum()) for half in (0, 1)]
    expected = math.log(0.7) + sum(gammaln(n) + log_f(labels == half) for half, n in enumerate(sizes))
    expected -= gammaln(len(x)) + log_f(torch.ones_like(labels, dtype=torch.bool))
    found = log_hastings_split(prior, 0.7, halves[torch.tensor([0])], halves[torch.tensor([1])])
    assert float(found) == pytest.approx(expected, abs=1e-8)


def test_splitting_off_nothing_is_impossible():
    _, _, clusters, prior = blobs(2, 20, 2, 0)
    nothing = Moments(torch.zeros(2).double(), clusters.mean, torch.zeros_like(clusters.scatter))
    assert log_hastings_split(prior, 1.0, clusters, nothing).tolist() == [-math.inf, -math.inf]


@settings(max_examples=30, deadline=None)
@given(k=st.integers(2, 12), seed=st.integers(0, 999))
def test_no_cluster_merges_twice_in_a_round(k, seed):
    _, _, clusters, prior = blobs(1, 40, 2, seed)
    apart = 0.01 * torch.randn(k, 2, generator=torch.Generator().manual_seed(seed)).double()
    close = Moments(clusters.n.repeat(k), clusters.mean + apart, clusters.scatter.repeat(k, 1, 1))
    made = propose_merges(prior, 1.0, close, neighbours=8, generator=None)
    merged = [cluster for p in made if p.accepted for cluster in p.clusters]
    assert 0 < len(merged) == len(set(merged))
    left = set(range(k)) - set(merged)
    assert not any(p.log_hastings > 0 and left.issuperset(p.clusters) for p in made)
    assert all(p.reason for p in made if not p.accepted and p.log_hastings > 0)
    assert [p.log_hastings for p in made] == sorted((p.log_hastings for p in made), reverse=True)


def test_random_acceptance_has_probability_min_one_h():
    ratios = torch.tensor([0.3, 1.0, 2.0, 0.0]).log().double().repeat_interleave(20_000)
    rates = accept(ratios, torch.Generator().manual_seed(0)).double().reshape(4, -1).mean(1)
    torch.testing.assert_close(rates, torch.tensor([0.3, 1.0, 1.0, 0.0]).double(), atol=0.01, rtol=0)


def test_deterministic_acceptance_is_h_above_one():
    assert accept(torch.tensor([-0.1, 0.0, 0.1]), None).tolist() == [False, False, True]


def test_least_likely_splits_beyond_the_truncation_are_rejected():
    far = torch.tensor([[0.0, 50.0], [0.0, 10.0], [0.0, 0.0]]).double()  # first coordinate of the halves
    first, second = (
        Moments(
            torch.full((3,), 50.0).double(),
            torch.stack([far[:, i], far[:, 0]], 1),
            50 * torch.eye(2).double().repeat(3, 1, 1),
        )
        for i in range(2)
    )
    prior = NIW(torch.zeros(2).double(), 0.01, 4 * torch.eye(2).double(), 4.0)
    made = propose_splits(prior, 1.0, first, second, room=1, generator=None)
    assert [(p.clusters, p.accepted, p.reason) for p in made] == [
        ((0,), True, ""),
        ((1,), False, "no free cluster"),
        ((2,), False, ""),
    ]


@settings(max_examples=30, deadline=None)
@given(k=st.integers(2, 12), neighbours=st.integers(1, 15), seed=st.integers(0, 99))
def test_neighbouring_pairs_by_brute_force(k, neighbours, seed):
    means = torch.randn(k, 3, generator=torch.Generator().manual_seed(seed))
    distance = torch.cdist(means, means)
    expected = set()
    for i in range(k):
        others = sorted((j for j in range(k) if j != i), key=lambda j: float(distance[i, j]))
        expected |= {(min(i, j), max(i, j)) for j in others[:neighbours]}
    left, right = neighbouring_pairs(means, neighbours)
    assert sorted(expected) == list(zip(left.tolist(), right.tolist(), strict=True))


def test_agglomeration_crosses_the_valley_between_cells_and_the_whole():
    """Hexagonal cells of a Gaussian are likelier apart than in pairs, but likeliest as one."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(30_000, 2, generator=generator, dtype=torch.float64)
    x[20_000:] += 12
    rows = torch.arange(-6, 18).double()
    offsets = 0.5 * (rows % 2)
    grid = torch.stack(
        [(torch.arange(-6, 18)[None] + offsets[:, None]).flatten(), (rows * 3**0.5 / 2).repeat_interleave(24)], 1
    )
    cells = torch.cdist(x, grid).argmin(1).unique(return_inverse=True)[1]
    features = QuadraticFeatures(x - x.mean(0), "full")
    fine = features.to_moments(features.group_sums(cells, int(cells.max()) + 1))
    merged, k = agglomerate(fine, empirical_prior, 1.0, neighbours=8)
    assert k == 2
    assert torch.equal(merged[cells] == merged[cells[0]], x[:, 0] < 6)
