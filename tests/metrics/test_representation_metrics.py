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

    def test_of_collapsed_representations_is_finite(self):
        constant, varied = torch.full((300, 4), 3.7), normals(300, 4)
        with pytest.warns(UserWarning, match="300 of 300 samples have the same representations"):
            assert neighbour_information(constant, constant) == 0
        assert neighbour_information(constant, varied) == pytest.approx(0, abs=1e-6)
        mixed = torch.where(torch.arange(300)[:, None] < 30, constant, varied)
        with pytest.warns(UserWarning, match="30 of 300 samples"):
            assert 0 <= neighbour_information(mixed, mixed) < np.inf

    @pytest.mark.parametrize("values", [2, 8])
    def test_of_representations_with_few_values(self, values):
        """Everything is known of a label with equally frequent values: log2 of their number."""
        labels = torch.arange(1600) % values
        places = 5 + normals(values, 6, seed=1)
        with pytest.warns(UserWarning, match="1600 of 1600"):
            found = neighbour_information(places[labels], places[labels] * 2)
        assert found == pytest.approx(np.log2(values), abs=0.02)
        with pytest.warns(UserWarning, match="1600 of 1600"):
            assert neighbour_information(places[labels], places[labels[torch.randperm(1600)]]) < 0.05

    def test_without_enough_samples_or_of_non_finite_ones_is_nan(self):
        assert np.isnan(neighbour_information(normals(3, 2), normals(3, 2)))
        assert np.isnan(neighbour_information(torch.empty(0, 2), torch.empty(0, 2)))
        broken = normals(50, 2)
        broken[7, 1] = torch.nan
        assert np.isnan(neighbour_information(broken, normals(50, 2)))
        assert np.isnan(neighbour_information(normals(50, 2), broken))


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

    @pytest.mark.parametrize("rare", ["one sample of a class", "few samples of many classes"])
    def test_rare_classes_are_predicted_with_a_warning(self, rare):
        z, labels = two_blobs(20.0, n=400)
        if rare.startswith("one"):
            labels[0] = 2
        else:
            z, labels = torch.arange(40.0)[:, None].repeat(3, 1), torch.arange(40).repeat(3)
        held_out = torch.arange(len(z)) >= 300 if rare.startswith("one") else torch.arange(len(z)) >= 80
        with pytest.warns(UserWarning, match="Too few samples of a value"):
            assert 0 <= informativeness_error(z, labels, held_out) <= (0.05 if rare.startswith("one") else 1)

    def test_a_single_class_in_training(self):
        labels = torch.tensor([0] * 8 + [0, 0, 0, 1])
        assert informativeness_error(normals(12, 2), labels, torch.arange(12) >= 8) == 0.25

    def test_nothing_to_train_on_to_predict_or_finite_is_nan(self):
        z, labels = two_blobs(2.0, n=60)
        assert np.isnan(informativeness_error(z, labels, torch.ones(60)))
        assert np.isnan(informativeness_error(z, labels, torch.zeros(60)))
        assert np.isnan(informativeness_error(z * torch.inf, labels, torch.arange(60) < 20))


class TestDegenerateProbes:
    @pytest.mark.parametrize("size", [0, 1, 2])
    def test_too_few_samples_are_nan(self, size):
        z, labels = normals(size, 3), torch.zeros(size, dtype=torch.long)
        assert np.isnan(probe_accuracy(z, labels))
        assert np.isnan(probe_information(z, labels))

    def test_the_fewest_samples_give_a_number(self):
        z, labels = normals(3, 2), torch.arange(3) % 2
        assert 0 <= probe_accuracy(z, labels) <= 1
        assert np.isfinite(probe_information(z, labels))

    def test_non_finite_representations_are_nan(self):
        z, labels = two_blobs(2.0, n=60)
        z[3, 0] = torch.nan
        assert np.isnan(probe_accuracy(z, labels))
        assert np.isnan(probe_information(z, labels))
        assert np.isnan(a_distance(z, labels))


class TestADistance:
    @pytest.mark.parametrize("test", [0, 1, 39, 40])
    def test_an_empty_set_or_one_sample_is_nan(self, test):
        assert np.isnan(a_distance(normals(40, 2), torch.arange(40) < test))

    def test_two_samples_of_each_set_give_a_number(self):
        assert 0 <= a_distance(normals(4, 2), torch.arange(4) < 2) <= 2

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
