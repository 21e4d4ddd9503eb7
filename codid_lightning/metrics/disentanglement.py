"""Information shared by two representations, and how well a representation predicts its attribute."""

import math

import torch
from sklearn.ensemble import HistGradientBoostingClassifier
from torch import Tensor

from codid_lightning.metrics.base import SampleMetric, subsample


def neighbour_information(
    z1: Tensor, z2: Tensor, *, neighbours: int = 3, max_samples: int = 2000, seed: int = 0
) -> float:
    """`I(z1; z2)` in bits by k-nearest neighbours (Kraskov et al. 2004, estimator 1), at least 0.

    The distance of two samples is Euclidean in each representation; the joint distance is the larger of the two. In
    many dimensions the estimate is biased towards zero: compare methods on the same data, and do not interpret the
    absolute value.

    scikit-learn has this estimator for single features only (`mutual_info_regression`).
    """
    z1, z2 = (z.double() for z in subsample(max_samples, seed, z1, z2))
    near1, near2 = torch.cdist(z1, z1), torch.cdist(z2, z2)  # (N, N)
    joint = torch.maximum(near1, near2).fill_diagonal_(torch.inf)
    radius = joint.topk(neighbours, largest=False).values[:, -1:]  # (N, 1)
    counts = [(near < radius).sum(1) - 1 for near in (near1, near2)]  # without the sample itself
    n, k = torch.tensor(float(len(z1))), torch.tensor(float(neighbours))
    marginal = sum((torch.digamma(count.double() + 1).mean() for count in counts), torch.tensor(0.0))
    return max(0.0, float(torch.digamma(k) + torch.digamma(n) - marginal) / math.log(2))


def informativeness_error(
    z: Tensor, labels: Tensor, held_out: Tensor, *, max_samples: int = 5000, seed: int = 0
) -> float:
    """Error of gradient-boosted trees that predict `labels` from `z`: the I of DCI (Eastwood & Williams 2018).

    Args:
        z: `(N, d)` representations.
        labels: `(N,)` values of the attribute that `z` represents.
        held_out: `(N,)` true for samples that are predicted, false for samples that train the trees.
        max_samples: Limit on the training samples.
        seed: Of the choice of training samples and of the trees.
    """
    held_out = held_out.bool()
    train_z, train_labels = subsample(max_samples, seed, z[~held_out], labels[~held_out])
    trees = HistGradientBoostingClassifier(early_stopping=True, random_state=seed)
    trees.fit(train_z.cpu().numpy(), train_labels.cpu().numpy())
    return 1.0 - float(trees.score(z[held_out].cpu().numpy(), labels[held_out].cpu().numpy()))


class NeighbourInformation(SampleMetric):
    """`neighbour_information` over batches and ranks."""

    function = staticmethod(neighbour_information)


class InformativenessError(SampleMetric):
    """`informativeness_error` over batches and ranks."""

    function = staticmethod(informativeness_error)
