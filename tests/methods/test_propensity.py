"""Propensity scores against known odds, and the modes they show."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.metrics import adjusted_rand_score

from codid_lightning.clustering import DPGMM, ModesPerValue
from codid_lightning.methods.codid.parts.propensity import propensity


def sample(n=3000, p=0.9, values=2, seed=0):
    """Content of two modes under each value of a_1, by whose place a_2 is likely or not, with noise beside it."""
    rng = np.random.default_rng(seed)
    a1, mode = rng.integers(2, size=n), rng.integers(2, size=n)
    likely = rng.random(n) < p
    a2 = np.where(likely, mode, (mode + rng.integers(1, values, size=n)) % values)
    content = rng.normal(size=(n, 5))
    content[:, 1] += 6 * mode + 2 * a1
    return torch.from_numpy(content), torch.from_numpy(a1), torch.from_numpy(mode), torch.from_numpy(a2)


@pytest.mark.parametrize("p", [0.6, 0.75, 0.9])
def test_log_odds_are_those_the_modes_were_drawn_with(p):
    content, a1, mode, a2 = sample(n=6000, p=p)
    score = propensity(content, a1, a2[:, None])
    assert score.shape == (6000, 1)
    for m in (0, 1):
        expected = np.log(p / (1 - p)) * (1 if m else -1)
        assert float(score[mode == m].median()) == pytest.approx(expected, abs=0.3)


def test_content_that_does_not_matter_is_not_told_apart():
    content, a1, _, _ = sample()
    chance = torch.from_numpy(np.random.default_rng(1).integers(2, size=len(a1)))
    assert float(propensity(content, a1, chance[:, None]).abs().median()) < 0.2


def test_no_sample_is_judged_by_a_classifier_that_saw_it():
    rng = np.random.default_rng(0)
    content = torch.from_numpy(rng.normal(size=(400, 60)))  # enough to learn the labels by heart
    a1, a2 = torch.zeros(400, dtype=torch.long), torch.from_numpy(rng.integers(2, size=400))
    score = propensity(content, a1, a2[:, None])[:, 0]
    assert float(((score > 0) == (a2 == 1)).double().mean()) == pytest.approx(0.5, abs=0.08)


def test_the_mixture_finds_the_modes_without_being_told_their_number():
    content, a1, mode, a2 = sample()
    features = propensity(content, a1, a2[:, None])
    found = ModesPerValue(DPGMM(), [4, 1], 8, search=True).fit(features, a1)
    assert all(2 <= count <= 4 for count in found.active.sum(1).tolist())  # skewed scores may be cut once more
    for value in (0, 1):
        assert adjusted_rand_score(mode[a1 == value], found.labels[a1 == value]) > 0.9


def test_many_values_and_several_other_attributes_have_columns_of_their_own():
    content, a1, mode, a2 = sample(values=4)
    two = (a2 > 0).long()
    score = propensity(content, a1, torch.stack([a2, two], dim=1))
    assert score.shape == (3000, 5)
    torch.testing.assert_close(score[:, :4].sum(1), torch.zeros(3000, dtype=score.dtype), atol=1e-9, rtol=0)
    likeliest = score[:, :4].argmax(1)
    assert float((likeliest == mode).double().mean()) > 0.9


def test_a_value_seen_with_one_other_value_only_tells_nothing():
    content, a1, _, a2 = sample(n=200)
    a2 = torch.where(a1 == 1, 1, a2)
    score = propensity(content, a1, a2[:, None])[:, 0]
    assert score[a1 == 1].unique().numel() == 1
    assert score[a1 == 0].unique().numel() > 1


def test_means_are_measured_where_they_are_asked_for():
    content, a1, _, a2 = sample(n=300)
    found = ModesPerValue(DPGMM(), [2, 2], 4).fit(propensity(content, a1, a2[:, None]), a1)
    z = torch.randn(300, 7, dtype=torch.float64)
    moved = found.with_means_in(z)
    for value, slot in found.active.nonzero().tolist():
        own = found.labels == value * 4 + slot
        torch.testing.assert_close(moved.means[value, slot], z[own].mean(0))
        for half in (0, 1):
            weight = found.sub_probs[own, half].double()
            if weight.sum() > 0:
                mean = (weight[:, None] * z[own]).sum(0) / weight.sum()
                torch.testing.assert_close(moved.sub_means[value, slot, half], mean)
    assert torch.equal(moved.labels, found.labels)
