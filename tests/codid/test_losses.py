"""Pairs and losses against closed forms and numerical integration."""

from __future__ import annotations

from math import log

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad, simpson
from scipy.spatial.distance import jensenshannon
from scipy.stats import norm
from torch import nn

from codid_lightning.methods.losses import (
    discrimination_loss,
    gaussian_divergence,
    has_partner,
    summary_divergence,
    weight_alignment_loss,
)
from codid_lightning.metrics.permutation import shuffle_within
from tests.codid.oracle import total_discrimination_loss
from tests.codid.tiny import bench, gradients_of, random_batch, tiny_codid, tiny_data

GROUPS = st.lists(st.integers(0, 5), min_size=1, max_size=60)


@given(GROUPS, st.integers(0, 2**31), st.integers(1, 4))
@settings(max_examples=60, deadline=None)
def test_shuffling_keeps_marginals_and_never_mixes_groups(groups, seed, repeats):
    groups = torch.tensor(groups)
    permutations = shuffle_within(groups, torch.Generator().manual_seed(seed), repeats)
    assert permutations.shape == (repeats, len(groups))
    for permutation in permutations:
        assert permutation.sort().values.tolist() == list(range(len(groups)))  # every z_-q is used exactly once
        assert torch.equal(groups[permutation], groups)


def test_shuffling_is_uniform_over_permutations():
    groups = torch.tensor([7, 2, 7, 2, 7])
    permutations = shuffle_within(groups, torch.Generator().manual_seed(0), repeats=12000)
    found, counts = permutations.unique(dim=0, return_counts=True)
    assert len(found) == 6 * 2
    assert (counts - 1000).abs().max() < 5 * 1000**0.5


def jensen_shannon(first, second):
    """Of two densities on the line, in nats."""

    def integrand(x, p, q):
        return p(x) * np.log(2 * p(x) / (p(x) + q(x))) if p(x) > 0 else 0.0

    limits = {"a": -40, "b": 40, "limit": 200, "points": [-3, -1, 0, 1, 3]}
    return (quad(integrand, args=(first, second), **limits)[0] + quad(integrand, args=(second, first), **limits)[0]) / 2


def test_discrimination_loss_at_the_optimal_discriminator_is_the_divergence_of_two_gaussians():
    joint, marginal = norm(0, 1), norm(1.5, 0.7)
    generator = np.random.default_rng(0)
    x, y = (torch.from_numpy(d.rvs(400_000, random_state=generator)) for d in (joint, marginal))

    def logit(z):  # of p / (p + q)
        return torch.from_numpy(joint.logpdf(z) - marginal.logpdf(z))

    loss = float(discrimination_loss(logit(x), logit(y)))
    assert loss == pytest.approx(2 * log(2) - 2 * jensen_shannon(joint.pdf, marginal.pdf), abs=3e-3)


def test_a_trained_discriminator_comes_close_to_the_divergence():
    torch.manual_seed(0)
    joint, marginal = norm(0, 1), norm(2, 1)
    network = nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1)).double()
    optimizer = torch.optim.Adam(network.parameters(), lr=2e-2)
    x, y = torch.randn(2, 4000, 1, dtype=torch.float64) + torch.tensor([0.0, 2.0]).view(2, 1, 1)
    for _ in range(150):
        loss = discrimination_loss(network(x), network(y))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() == pytest.approx(2 * log(2) - 2 * jensen_shannon(joint.pdf, marginal.pdf), abs=0.03)


GRID = np.linspace(-11, 11, 4001)  # in standard deviations


def divergence(mean, deviation, other_mean, other_deviation):
    arguments = (mean, deviation**2, other_mean, other_deviation**2)
    return float(gaussian_divergence(*(torch.tensor(a, dtype=torch.float64) for a in arguments)))


@pytest.mark.parametrize("case", [(0, 1, 0.05, 1), (0, 1, 0, 1.05), (0.4, 0.3, 0.42, 0.31), (0, 2, 0.1, 1.9)])
def test_close_gaussians_have_the_exact_divergence(case):
    mean, deviation, other_mean, other_deviation = map(float, case)
    exact = jensen_shannon(norm(mean, deviation).pdf, norm(other_mean, other_deviation).pdf)
    assert divergence(mean, deviation, other_mean, other_deviation) == pytest.approx(exact, rel=0.02)


@pytest.mark.parametrize("distance", [0.0, 0.3, 1.0, 1.7, 2.6, 5.0, 9.0, 30.0])
@pytest.mark.parametrize("ratio", [1.0, 1.3, 2.5, 7.0, 40.0])
def test_gaussians_have_the_divergence_of_numerical_integration(distance, ratio):
    for deviation in (0.03, 1.0):
        other = ratio * deviation
        mean = 0.4 + distance * deviation
        # By Simpson's rule between points of both Gaussians, in which neither is a spike.
        x = np.unique(np.concatenate([0.4 + deviation * GRID, mean + other * GRID]))
        logs = norm(0.4, deviation).logpdf(x), norm(mean, other).logpdf(x)
        mixture = np.logaddexp(*logs) - log(2)
        exact = simpson(sum(np.exp(each) * (each - mixture) for each in logs), x=x) / 2
        found = divergence(0.4, deviation, mean, other)
        assert found == pytest.approx(exact, abs=2e-3)
        assert divergence(mean, other, 0.4, deviation) == pytest.approx(found, abs=1e-12)
        assert 0 <= found <= log(2)


def relative(weights, together):
    """Weights over the mean weight of all pairs of the cluster."""
    found = weights.clone()
    for i in range(len(weights)):
        members = torch.nonzero(together[i]).flatten()
        found[i] /= weights[members][:, members].mean()
    return found


def test_weight_summaries_are_means_and_variances_by_value_weighted_by_counts():
    generator = torch.Generator().manual_seed(0)
    weights = torch.rand(7, 7, generator=generator, dtype=torch.float64)
    cluster, a2 = torch.tensor([0, 0, 0, 1, 1, 1, 1]), torch.tensor([0, 1, 0, 1, 1, 1, 0])
    together = cluster[:, None] == cluster
    found = summary_divergence(weights, together, nn.functional.one_hot(a2, 2), floor=1e-4)
    weights = relative(weights, together)
    for i, j in together.nonzero().tolist():
        expected = 0.0
        for value in (0, 1):
            partners = [k for k in range(7) if together[i, k] and a2[k] == value]
            (m, v), (n, u) = ((weights[s, partners].mean(), weights[s, partners].var(correction=0)) for s in (i, j))
            share = len(partners) / int(together[i].sum())
            expected += share * divergence(float(m), float(v + 1e-4) ** 0.5, float(n), float(u + 1e-4) ** 0.5)
        assert float(found[i, j]) == pytest.approx(expected, abs=1e-12)


PATTERN = torch.tensor([[0.5, 0.5, 1.5, 1.5]] * 2 + [[1.5, 1.5, 0.5, 0.5]] * 2, dtype=torch.float64)  # three to one


@pytest.mark.parametrize("level", [0.5, 0.05, 0.003, 1e-6])
def test_the_level_of_weights_does_not_change_their_summaries(level):
    """Weights are used relative to their cluster's mean, so that nothing holds the level."""
    others, together = nn.functional.one_hot(torch.tensor([0, 0, 1, 1]), 2), torch.ones(4, 4)
    found = summary_divergence(level * PATTERN, together, others)
    torch.testing.assert_close(found, summary_divergence(PATTERN, together, others))
    apart = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64).kron(torch.ones(2, 2, dtype=torch.float64))
    torch.testing.assert_close(found, log(2) * apart, atol=2e-3, rtol=0)


def test_every_cluster_has_a_level_of_its_own():
    """Two clusters with one pattern, the second at a hundredth of the level; the last row and column are padding."""
    weights = torch.rand(9, 9, dtype=torch.float64)
    weights[:4, :4], weights[4:8, 4:8] = 0.5 * PATTERN, 0.005 * PATTERN
    slot = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1, -1])
    together = (slot[:, None] == slot) & (slot >= 0)
    others = nn.functional.one_hot(torch.tensor([0, 0, 1, 1, 0, 0, 1, 1, 0]), 2)
    found = summary_divergence(weights, together, others)
    torch.testing.assert_close(found[:4, :4], found[4:8, 4:8])
    assert found.isfinite().all()


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=9), min_size=1, max_size=3), st.integers(0, 2**31 - 1))
@settings(max_examples=60, deadline=None)
def test_weight_alignment_is_an_expectation_over_clusters_and_then_over_pairs(slots, seed):
    """Eq. 10 by brute force: a cluster counts by its samples, and a pair has two of them."""
    random, longest = np.random.default_rng(seed), max(map(len, slots))
    first, divergence = (
        random.uniform(0, 1, (len(slots), longest)),
        random.uniform(0, 0.7, (len(slots), longest, longest)),
    )
    together, clusters = np.zeros(divergence.shape), []
    for block, row in enumerate(slots):
        for slot in set(row):
            members = [i for i, other in enumerate(row) if other == slot]
            together[np.ix_([block], members, members)] = 1
            clusters.append((block, members))
    clusters = [(block, members) for block, members in clusters if len(members) > 1]
    total, expected = sum(len(members) for _, members in clusters), 0.0
    for block, members in clusters:
        ratios = [
            jensenshannon([first[block, i], 1 - first[block, i]], [first[block, j], 1 - first[block, j]]) ** 2
            / (divergence[block, i, j] + 0.05)
            for i in members
            for j in members
            if i != j
        ]
        expected += len(members) / total * np.mean(ratios)
    found = weight_alignment_loss(*map(torch.from_numpy, (first, divergence, together)))
    assert float(found) == pytest.approx(expected, rel=1e-4, abs=1e-7)


def test_weight_alignment_is_finite_for_equal_weights_and_single_samples():
    weights = torch.full((4, 4), 0.5)
    others = nn.functional.one_hot(torch.tensor([0, 0, 1, 1]), 2)
    for together in (torch.ones(4, 4), torch.eye(4), torch.zeros(4, 4)):
        halves = torch.tensor([0.0, 1.0, 0.3, 1.0], requires_grad=True)
        loss = weight_alignment_loss(halves, summary_divergence(weights, together, others), together)
        loss.backward()
        assert loss.isfinite()
        assert halves.grad.isfinite().all()


def test_weight_alignment_prefers_halves_that_follow_the_weights():
    weights = torch.tensor([[0.2, 0.2, 0.8, 0.8]] * 2 + [[0.8, 0.8, 0.2, 0.2]] * 2)
    together, others = torch.ones(4, 4), nn.functional.one_hot(torch.tensor([0, 0, 1, 1]), 2)
    summaries = summary_divergence(weights, together, others)
    following, crossing = torch.tensor([0.9, 0.9, 0.1, 0.1]), torch.tensor([0.9, 0.1, 0.9, 0.1])
    assert weight_alignment_loss(following, summaries, together) < weight_alignment_loss(crossing, summaries, together)


def test_samples_alone_in_their_cluster_contribute_nothing():
    module = tiny_codid(tiny_data()).double()
    batch = random_batch(module, 16, shape=(2,))
    bench(module, batch["a"])
    target = module.target_list[0]
    target.labels = batch["a"][:, 0] * target.slots
    alone = torch.tensor([3, 9])
    target.labels[alone] += torch.tensor([1, 2])
    z = torch.randn(16, 2, 4, dtype=torch.float64, requires_grad=True)
    views = module.views(z, batch)
    assert (~has_partner(views[0].slot, 10)).nonzero().flatten().tolist() == alone.tolist()
    pairs = module.alignment.shuffled_pairs(module, views)
    weights = module.alignment.pair_weights(module, views, pairs)
    gradient, _ = module.alignment.gradient_of_z(module, views, pairs, weights)
    (exact,) = torch.autograd.grad(total_discrimination_loss(module, views, pairs, weights), z)
    torch.testing.assert_close(gradient, exact)
    assert (gradient[alone] == 0).all()
    assert (gradient.flatten(1).norm(dim=1) > 0).sum() == 14
    slots = target.labels[alone]
    received = gradients_of(module, lambda: module.alignment.discriminate(module, views))
    assert (received["targets.0.discriminator.condition"][slots] == 0).all()


def test_a_batch_of_lonely_samples_trains_on():
    module = tiny_codid(tiny_data(), max_clusters=5, discovery={"n_clusters": 2})
    batch = random_batch(module, 4, shape=(2,))
    bench(module, batch["a"])
    target = module.target_list[0]
    target.labels = batch["a"][:, 0] * 5 + torch.arange(4)
    module.training_step(batch, 0)
    assert module.losses.read() is None  # no loss that is not finite
    assert all(parameter.isfinite().all() for parameter in module.parameters())
