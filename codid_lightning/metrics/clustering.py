"""How well clusters match the true modes, and how compact they are."""

from collections.abc import Callable

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from codid_lightning.metrics.base import SampleMetric, subsample
from codid_lightning.metrics.information import (
    conditional_information,
    contingency,
    joint_labels,
    normalized_information,
)


def cluster_accuracy(clusters: Tensor, modes: Tensor) -> float:
    """Share of samples that the best one-to-one matching of clusters to modes gets right.

    The two numbers may differ: what is left over on either side counts as wrong.
    """
    table = contingency(clusters, modes).cpu().numpy()
    rows, columns = linear_sum_assignment(table, maximize=True)
    return float(table[rows, columns].sum() / len(clusters))


def adjusted_rand_index(clusters: Tensor, modes: Tensor) -> float:
    """Pairs of samples on which two partitions agree, corrected for chance (Hubert & Arabie 1985)."""
    table = contingency(clusters, modes).double()

    def pairs(counts: Tensor) -> float:
        return float((counts * (counts - 1) / 2).sum())

    together, by_cluster, by_mode = pairs(table), pairs(table.sum(1)), pairs(table.sum(0))
    expected = by_cluster * by_mode / max(1.0, pairs(table.sum()))
    best = (by_cluster + by_mode) / 2
    return (together - expected) / (best - expected) if best != expected else 1.0


def normalized_mutual_information(clusters: Tensor, modes: Tensor) -> float:
    """`normalized_information` of two partitions; a single mode found as a single cluster scores 1."""
    if len(clusters.unique()) == len(modes.unique()) == 1:
        return 1.0
    return normalized_information(clusters, modes)


def mean_within(
    groups: Tensor, score: Callable[[Tensor, Tensor], float], x: Tensor, y: Tensor, *, by_size: bool = False
) -> float:
    """Mean of `score(x, y)` over the groups, each counted once or by its number of samples."""
    names, sizes = groups.unique(return_counts=True)
    scores = torch.tensor([score(x[groups == g], y[groups == g]) for g in names], dtype=torch.float64)
    weights = sizes.double().cpu() if by_size else torch.ones_like(scores)
    return float((weights * scores).sum() / weights.sum())


def subcluster_accuracy(subclusters: Tensor, modes: Tensor, clusters: Tensor) -> float:
    """`cluster_accuracy` of the two halves of a cluster, averaged over the clusters."""
    return mean_within(clusters, cluster_accuracy, subclusters, modes)


def mode_scores(clusters: Tensor, modes: Tensor, values: Tensor, others: Tensor) -> dict[str, float]:
    """All scores of discovered modes, by the names under which they are logged.

    The paper's scores are taken under each value of the attribute and averaged over the values. Beside them
    stand two that tell modes from the other attribute, with which they are correlated: clusters that merely
    follow a_2 have a high `modes/nmi_a2` and a low `modes/nmi_given_a2`.

    Args:
        clusters: `(N,)` discovered modes, numbered over all values of the attribute.
        modes: `(N,)` true modes, -1 where unknown; without any, only what needs none is returned.
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

    Zero when fewer than two clusters remain: there is no other cluster to be far from.
    """
    z, clusters = subsample(max_samples, seed, z, clusters)
    codes = joint_labels(clusters)
    sizes = codes.bincount()  # (K,)
    if len(sizes) < 2:
        return 0.0
    membership = torch.nn.functional.one_hot(codes).to(z.dtype)  # (N, K)
    total = torch.cat([torch.cdist(rows, z) @ membership for rows in z.split(1024)])  # (N, K)
    own = codes[:, None]
    own_size = sizes[codes]
    inside = total.gather(1, own).squeeze(1) / (own_size - 1).clamp(min=1)
    outside = (total / sizes).scatter(1, own, torch.inf).amin(1)
    width = (outside - inside) / torch.maximum(inside, outside).clamp(min=torch.finfo(z.dtype).tiny)
    return float(width.where(own_size > 1, 0).mean())


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
