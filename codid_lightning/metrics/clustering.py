"""Agreement of clusters with the true modes, and compactness of clusters."""

from collections.abc import Callable

import torch
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score, silhouette_score
from torch import Tensor

from codid_lightning.metrics.base import SampleMetric, subsample
from codid_lightning.metrics.information import (
    conditional_information,
    contingency,
    joint_labels,
    normalized_information,
)


def cluster_accuracy(clusters: Tensor, modes: Tensor) -> float:
    """Share of samples that the best one-to-one matching of clusters to modes assigns correctly.

    If there are more clusters than modes, the samples of unmatched clusters count as wrong, and conversely.
    """
    table = contingency(clusters, modes).cpu().numpy()
    rows, columns = linear_sum_assignment(table, maximize=True)
    return float(table[rows, columns].sum() / len(clusters))


def adjusted_rand_index(clusters: Tensor, modes: Tensor) -> float:
    """Pairs of samples on which two partitions agree, corrected for chance (Hubert & Arabie 1985)."""
    return float(adjusted_rand_score(modes.cpu().numpy(), clusters.cpu().numpy()))


def normalized_mutual_information(clusters: Tensor, modes: Tensor) -> float:
    """`2 I / (H + H)` of two partitions; a single cluster of a single mode scores 1."""
    return float(normalized_mutual_info_score(modes.cpu().numpy(), clusters.cpu().numpy()))


def mean_within(
    groups: Tensor, score: Callable[[Tensor, Tensor], float], x: Tensor, y: Tensor, *, by_size: bool = False
) -> float:
    """Mean of `score(x, y)` over the groups, with equal weights or (`by_size`) by their number of samples."""
    names, sizes = groups.unique(return_counts=True)
    scores = torch.tensor([score(x[groups == g], y[groups == g]) for g in names], dtype=torch.float64)
    weights = sizes.double().cpu() if by_size else torch.ones_like(scores)
    return float((weights * scores).sum() / weights.sum())


def subcluster_accuracy(subclusters: Tensor, modes: Tensor, clusters: Tensor) -> float:
    """`cluster_accuracy` of the two subclusters of a cluster, averaged over the clusters."""
    return mean_within(clusters, cluster_accuracy, subclusters, modes)


def mode_scores(clusters: Tensor, modes: Tensor, values: Tensor, others: Tensor) -> dict[str, float]:
    """All scores of discovered modes, by the names under which they are logged.

    The paper's scores are computed under each value of the attribute and averaged over the values. Two more scores
    show whether clusters follow the modes or the other attribute, which is correlated with them: clusters of a_2 have
    a high `modes/nmi_a2` and a low `modes/nmi_given_a2`.

    Args:
        clusters: `(N,)` discovered modes, numbered over all values of the attribute.
        modes: `(N,)` true modes, -1 where unknown; if all are, only scores without modes are returned.
        values: `(N,)` values of the attribute whose modes these are.
        others: `(N,)` values of the other attribute, or one number per combination of several.
    """
    scores = {
        "modes/count": float(len(clusters.unique())),
        "modes/nmi_a2": mean_within(values, normalized_information, clusters, others),
    }
    known = modes >= 0
    if not known.any():
        return scores
    c, m, a1, a2 = clusters[known], modes[known], values[known], others[known]
    cells = joint_labels(a1, a2)
    return scores | {
        "modes/acc": mean_within(a1, cluster_accuracy, c, m),
        "modes/ari": mean_within(a1, adjusted_rand_index, c, m),
        "modes/nmi": mean_within(a1, normalized_mutual_information, c, m),
        "modes/nmi_given_a2": mean_within(cells, normalized_mutual_information, c, m, by_size=True),
        "modes/correlation": conditional_information(m, a2, given=c),
    }


def silhouette(z: Tensor, clusters: Tensor, *, max_samples: int = 5000, seed: int = 0) -> float:
    """Mean silhouette (Rousseeuw 1987) with Euclidean distances, on at most `max_samples` random samples.

    It is 0 for a single cluster, and for clusters of one sample each. It is NaN if a representation is not finite.
    """
    z, clusters = subsample(max_samples, seed, z, clusters)
    if not 2 <= len(clusters.unique()) < len(clusters):
        return 0.0
    if not z.isfinite().all():
        return float("nan")
    return float(silhouette_score(z.double().cpu().numpy(), clusters.cpu().numpy()))


class ClusterAccuracy(SampleMetric):
    """`cluster_accuracy` over batches and ranks."""

    function = staticmethod(cluster_accuracy)


class SubclusterAccuracy(SampleMetric):
    """`subcluster_accuracy` over batches and ranks."""

    function = staticmethod(subcluster_accuracy)


class ModeScores(SampleMetric):
    """`mode_scores` over batches and ranks."""

    function = staticmethod(mode_scores)


class Silhouette(SampleMetric):
    """`silhouette` over batches and ranks."""

    function = staticmethod(silhouette)
