"""Probes, neighbour information, informativeness, distance and worst groups against known answers."""

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.stats import norm
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score

from codid_lightning.metrics import (
    a_distance,
    group_accuracies,
    informativeness_error,
    neighbour_information,
    probe_accuracy,
    probe_information,
    worst_group_accuracy,
)


def normals(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def two_blobs(gap, n=4000, dims=4, seed=0):
    """Balanced labels and unit Gaussians whose means differ by `gap` in the first dimension."""
    labels = torch.arange(n) % 2
    z = normals(n, dims, seed=seed)
    z[:, 0] += gap * (labels - 0.5)
    return z, labels


def information_of_blobs(gap):
    def integrand(x):
        p0, p1 = norm.pdf(x, -gap / 2), norm.pdf(x, gap / 2)
        mix = (p0 + p1) / 2
        return 0.5 * (p0 * np.log2(p0 / mix) + p1 * np.log2(p1 / mix))

    return quad(integrand, -12, 12)[0]


class TestProbes:
    @pytest.mark.parametrize("gap", [1.0, 3.0])
    def test_information_of_two_gaussians(self, gap):
        z, labels = two_blobs(gap)
        assert probe_information(z, labels) == pytest.approx(information_of_blobs(gap), abs=0.03)

    def test_information_of_what_is_not_there_is_clipped_at_zero(self):
        z, labels = normals(500, 20), torch.arange(500) % 3
        assert probe_information(z, labels) == 0

    def test_exclusive_or_needs_a_hidden_layer(self):
        z = normals(1200, 2).sign() + 0.1 * normals(1200, 2, seed=1)
        labels = (z[:, 0] * z[:, 1] > 0).long()
        assert probe_information(z, labels) > 0.9
        assert probe_information(z, labels, hidden=0) < 0.02
        assert probe_accuracy(z, labels, hidden=16) > 0.98

    def test_linear_accuracy_equals_logistic_regression(self):
        z = normals(1500, 6)
        labels = (z @ normals(6, 4, seed=1) + normals(1500, 4, seed=2)).argmax(1)
        reference = cross_val_score(LogisticRegression(max_iter=500), z.numpy(), labels.numpy(), cv=3).mean()
        assert probe_accuracy(z, labels) == pytest.approx(reference, abs=0.015)

    def test_same_seed_same_value_whatever_the_global_seed_and_units(self):
        z, labels = two_blobs(1.0, n=600)
        first = probe_information(z, labels, seed=4)
        torch.manual_seed(99)
        state = torch.get_rng_state()
        assert probe_information(z, labels * 7, seed=4) == first
        assert torch.equal(torch.get_rng_state(), state)
        assert probe_information(z * 1000 + 5, labels, seed=4) == pytest.approx(first, abs=5e-3)


class TestNeighbourInformation:
    @pytest.mark.parametrize("rho", [0.0, 0.6, 0.95])
    def test_of_correlated_gaussians(self, rho):
        x, noise = normals(2000, 1), normals(2000, 1, seed=1)
        y = rho * x + (1 - rho**2) ** 0.5 * noise
        assert neighbour_information(x, y) == pytest.approx(-0.5 * np.log2(1 - rho**2), abs=0.07)

    def test_adds_up_over_independent_pairs_of_dimensions(self):
        x, noise = normals(2000, 2), normals(2000, 2, seed=1)
        y = 0.8 * x + 0.6 * noise
        assert neighbour_information(x, y) == pytest.approx(-2 * np.log2(0.6), abs=0.1)


class TestInformativeness:
    def test_bayes_error_of_two_gaussians(self):
        z, labels = two_blobs(2.0)
        error = informativeness_error(z, labels, torch.arange(4000) % 5 == 0)
        assert error == pytest.approx(norm.cdf(-1), abs=0.035)

    def test_only_held_out_samples_count(self):
        z, labels = two_blobs(20.0, n=400)
        held_out = torch.arange(400) >= 300
        flipped = torch.where(held_out, 1 - labels, labels)
        assert informativeness_error(z, labels, held_out) < 0.03
        assert informativeness_error(z, flipped, held_out) > 0.97


class TestADistance:
    def test_from_alike_to_separable(self):
        z, is_test = two_blobs(0.0)
        assert a_distance(z, is_test) < 0.1
        z, is_test = two_blobs(30.0)
        assert a_distance(z, is_test) == 2

    def test_of_two_gaussians(self):
        z, is_test = two_blobs(2.0)
        assert a_distance(z, is_test) == pytest.approx(2 * (1 - 2 * norm.cdf(-1)), abs=0.08)

    def test_unequal_sizes_do_not_look_like_distance(self):
        z = normals(3000, 3)
        assert a_distance(z, torch.arange(3000) < 300) < 0.25


class TestGroups:
    predictions = torch.tensor([0, 0, 1, 1, 0, 1])
    targets = torch.tensor([0, 1, 1, 1, 1, 0])
    groups = torch.tensor([3, 3, 5, 5, 8, 8])

    def test_every_group_is_scored(self):
        assert group_accuracies(self.predictions, self.targets, self.groups) == {3: (0.5, 2), 5: (1, 2), 8: (0, 2)}
        assert worst_group_accuracy(self.predictions, self.targets, self.groups) == 0

    def test_small_groups_can_be_left_out(self):
        groups = torch.tensor([3, 3, 3, 3, 8, 3])
        assert worst_group_accuracy(self.predictions, self.targets, groups, min_samples=2) == pytest.approx(3 / 5)
        assert np.isnan(worst_group_accuracy(self.predictions, self.targets, groups, min_samples=9))
