from itertools import combinations, permutations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from codid_lightning.metrics import (
    adjusted_rand_index,
    cluster_accuracy,
    mode_scores,
    normalized_information,
    normalized_mutual_information,
    silhouette,
    subcluster_accuracy,
)

label_pairs = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=40)


def columns(pairs):
    return torch.tensor(pairs).unbind(1)


def accuracy_by_trying_all_matchings(clusters, modes):
    names, targets = clusters.unique().tolist(), [*modes.unique().tolist()]
    targets += [-1 - i for i in range(max(0, len(names) - len(targets)))]  # an unmatched cluster is always wrong
    best = 0
    for chosen in permutations(targets, len(names)):
        mapping = dict(zip(names, chosen, strict=True))
        best = max(best, sum(mapping[c] == m for c, m in zip(clusters.tolist(), modes.tolist(), strict=True)))
    return best / len(clusters)


def agreement_over_all_pairs(clusters, modes):
    """Share of pairs that are together in both partitions, corrected for chance."""
    pairs = list(combinations(range(len(modes)), 2))
    same_cluster, same_mode = ([bool(labels[i] == labels[j]) for i, j in pairs] for labels in (clusters, modes))
    both = sum(c and m for c, m in zip(same_cluster, same_mode, strict=True))
    expected = sum(same_cluster) * sum(same_mode) / max(1, len(pairs))
    largest = (sum(same_cluster) + sum(same_mode)) / 2
    return (both - expected) / (largest - expected) if largest != expected else 1.0


@given(label_pairs)
@settings(max_examples=1000, deadline=None)
def test_partition_scores_equal_references(pairs):
    clusters, modes = columns(pairs)
    assert cluster_accuracy(clusters, modes) == pytest.approx(accuracy_by_trying_all_matchings(clusters, modes))
    assert adjusted_rand_index(clusters, modes) == pytest.approx(agreement_over_all_pairs(clusters, modes), abs=1e-9)
    constant = len(clusters.unique()) == len(modes.unique()) == 1
    information = 1.0 if constant else normalized_information(clusters, modes)
    assert normalized_mutual_information(clusters, modes) == pytest.approx(information, abs=1e-9)


def test_spare_clusters_count_as_wrong():
    modes = torch.tensor([0, 0, 0, 0, 1, 1])
    clusters = torch.tensor([5, 5, 5, 7, 9, 9])
    assert cluster_accuracy(clusters, modes) == pytest.approx(5 / 6)
    assert cluster_accuracy(modes, clusters) == pytest.approx(5 / 6)


def test_subclusters_are_scored_in_each_cluster_and_averaged_over_clusters():
    clusters = torch.tensor([0, 0, 0, 0, 1, 1])
    modes = torch.tensor([0, 0, 1, 1, 2, 2])
    halves = torch.tensor([1, 1, 0, 1, 0, 1])
    assert subcluster_accuracy(halves, modes, clusters) == pytest.approx((3 / 4 + 1 / 2) / 2)


class TestModeScores:
    values = torch.tensor([0] * 6 + [1] * 4)
    modes = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 3, 3])
    others = torch.tensor([0, 1, 0, 1, 0, 1, 0, 1, 0, 1])

    def test_averages_sklearn_scores_over_the_values(self):
        clusters = torch.tensor([4, 4, 5, 5, 5, 5, 9, 9, 8, 9])
        scores = mode_scores(clusters, self.modes, self.values, self.others)
        by_value = [
            [score(self.modes[self.values == v], clusters[self.values == v]) for v in (0, 1)]
            for score in (adjusted_rand_score, normalized_mutual_info_score)
        ]
        assert scores["modes/ari"] == pytest.approx(np.mean(by_value[0]))
        assert scores["modes/nmi"] == pytest.approx(np.mean(by_value[1]))
        assert scores["modes/acc"] == pytest.approx((5 / 6 + 3 / 4) / 2)
        assert scores["modes/count"] == 4

    def test_clusters_that_follow_the_modes(self):
        scores = mode_scores(self.modes + 7, self.modes, self.values, self.others)
        assert scores["modes/acc"] == scores["modes/ari"] == 1
        assert scores["modes/nmi"] == scores["modes/nmi_given_a2"] == pytest.approx(1)
        assert scores["modes/correlation"] == pytest.approx(0, abs=1e-12)

    def test_clusters_that_follow_the_other_attribute(self):
        scores = mode_scores(self.values * 2 + self.others, self.modes, self.values, self.others)
        assert scores["modes/nmi_a2"] == pytest.approx(1)
        assert scores["modes/nmi_given_a2"] == pytest.approx(0, abs=1e-9)
        assert scores["modes/correlation"] == pytest.approx(0, abs=1e-9)  # a_2 is constant within a cluster

    def test_within_cluster_correlation_of_the_papers_example(self):
        # one cluster holds modes i and j with p(m, a2) = 1/8, 3/8, 3/8, 1/8
        modes = torch.tensor([0] * 4 + [1] * 4)
        others = torch.tensor([0, 1, 1, 1, 0, 0, 0, 1])
        cluster = torch.zeros(8, dtype=torch.long)
        scores = mode_scores(cluster, modes, cluster, others)
        expected = 2 * (1 / 8 * np.log2(1 / 2) + 3 / 8 * np.log2(3 / 2))
        assert scores["modes/correlation"] == pytest.approx(expected)

    def test_unknown_modes_are_left_out(self):
        scores = mode_scores(self.modes, torch.full_like(self.modes, -1), self.values, self.others)
        assert set(scores) == {"modes/count", "modes/nmi_a2"}
        partly = self.modes.clone()
        partly[::3] = -1
        assert mode_scores(self.modes, partly, self.values, self.others)["modes/acc"] == 1


@pytest.mark.parametrize("clusters", [2, 5])
def test_silhouette_equals_its_definition(clusters):
    generator = torch.Generator().manual_seed(clusters)
    z = torch.randn(61, 3, generator=generator, dtype=torch.float64)
    labels = torch.randint(clusters, (61,), generator=generator)
    z += labels[:, None]
    labels[0] = 99  # a cluster of one sample scores 0
    expected = sum(silhouette_of(i, z, labels) for i in range(len(z))) / len(z)
    assert silhouette(z, labels) == pytest.approx(expected, abs=1e-9)


def silhouette_of(i, z, labels):
    """(b - a) / max(a, b), with the mean distance a to the sample's cluster and b to the nearest other cluster."""
    distances = (z - z[i]).norm(dim=1)
    own = labels == labels[i]
    if own.sum() == 1:
        return 0.0
    a = float(distances[own].sum() / (own.sum() - 1))
    b = min(float(distances[labels == k].mean()) for k in labels.unique() if k != labels[i])
    return (b - a) / max(a, b)


def test_silhouette_of_single_samples_is_zero_and_of_infinite_ones_undefined():
    z = torch.randn(10, 2, generator=torch.Generator().manual_seed(0))
    assert silhouette(z, torch.arange(10)) == 0
    z[3, 1] = torch.inf
    assert np.isnan(silhouette(z, torch.arange(10) % 2))


def test_silhouette_of_one_cluster_is_zero_and_of_a_sample_is_close():
    z = torch.randn(4000, 2, generator=torch.Generator().manual_seed(0))
    assert silhouette(z, torch.zeros(4000)) == 0
    labels = (torch.arange(4000) % 2).long()
    z = z + 5 * labels[:, None]
    assert silhouette(z, labels, max_samples=1000) == pytest.approx(silhouette(z, labels), abs=0.02)
