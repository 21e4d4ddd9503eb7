"""Information shared by two representations, and how well a representation predicts its attribute."""

import math
import warnings

import torch
from sklearn.ensemble import HistGradientBoostingClassifier
from torch import Tensor

from codid_lightning.metrics.base import SampleMetric, is_measurable, subsample


def neighbour_information(
    z1: Tensor, z2: Tensor, *, neighbours: int = 3, max_samples: int = 2000, seed: int = 0
) -> float:
    """`I(z1; z2)` in bits by k-nearest neighbours (Kraskov et al. 2004, estimator 1), at least 0.

    The distance of two samples is Euclidean in each representation; the joint distance is the larger of the two. In
    many dimensions the estimate is biased towards zero: compare methods on the same data, and do not interpret the
    absolute value.

    scikit-learn has this estimator for single features only (`mutual_info_regression`).

    A sample that coincides with its k nearest neighbours, as in a collapsed representation, has no distance to them.
    Then all samples that coincide with it are its neighbours (Gao et al. 2017), and a warning says how many samples
    these are; two constant representations share 0 bits. The value is NaN if there are not more samples than
    neighbours or if a representation is not finite.
    """
    z1, z2 = (z.double() for z in subsample(max_samples, seed, z1, z2))
    if not (is_measurable(z1, neighbours + 1) and is_measurable(z2)):
        return math.nan
    near1, near2 = _distances(z1), _distances(z2)  # (N, N)
    joint = torch.maximum(near1, near2).fill_diagonal_(torch.inf)
    radius = joint.topk(neighbours, largest=False).values[:, -1:]  # (N, 1)
    tied = radius == 0
    if tied.any():
        share = f"{int(tied.sum())} of {len(z1)} samples"
        warnings.warn(f"{share} have the same representations as their nearest neighbours.", stacklevel=2)
    k = torch.where(tied, joint == 0, False).sum(1).clamp_min(neighbours)
    counts = [torch.where(tied, near == 0, near < radius).sum(1) - 1 for near in (near1, near2)]  # without itself
    marginal = sum((torch.digamma(count.double() + 1).mean() for count in counts), torch.tensor(0.0))
    total = torch.digamma(k.double()).mean() + torch.digamma(torch.tensor(float(len(z1))))
    return max(0.0, float(total - marginal) / math.log(2))


def _distances(z: Tensor) -> Tensor:
    """Euclidean distances (N, N); those of equal samples are exactly 0, which a matrix product does not give."""
    return torch.cdist(z, z, compute_mode="donot_use_mm_for_euclid_dist")


def informativeness_error(
    z: Tensor, labels: Tensor, held_out: Tensor, *, max_samples: int = 5000, seed: int = 0
) -> float:
    """Error of gradient-boosted trees that predict `labels` from `z`: the I of DCI (Eastwood & Williams 2018).

    Training stops early, by the score on a tenth of its samples that has every value of the attribute. If a value has
    one training sample, or the tenth fewer samples than values, training does not stop early, and a warning says so.
    The error is NaN if there is nothing to train on or to predict, or if a representation is not finite.

    Args:
        z: `(N, d)` representations.
        labels: `(N,)` values of the attribute that `z` represents.
        held_out: `(N,)` true for samples that are predicted, false for samples that train the trees.
        max_samples: Limit on the training samples.
        seed: Of the choice of training samples and of the trees.
    """
    held_out = held_out.bool()
    train_z, train_labels = subsample(max_samples, seed, z[~held_out], labels[~held_out])
    if not (is_measurable(z) and 0 < int(held_out.sum()) < len(z)):
        return math.nan
    if len(train_labels.unique()) == 1:  # trees need two values; all that there is to predict is the one
        return float((labels[held_out] != train_labels[0]).double().mean())
    early = _can_hold_out_a_tenth(train_labels)
    if not early:
        warnings.warn("Too few samples of a value to stop the training of the trees early.", stacklevel=2)
    trees = HistGradientBoostingClassifier(early_stopping=early, random_state=seed)
    trees.fit(train_z.cpu().numpy(), train_labels.cpu().numpy())
    return 1.0 - float(trees.score(z[held_out].cpu().numpy(), labels[held_out].cpu().numpy()))


def _can_hold_out_a_tenth(labels: Tensor) -> bool:
    """Whether both parts of a stratified split can have every label."""
    counts = labels.unique(return_counts=True)[1]
    return int(counts.min()) > 1 and math.ceil(len(labels) / 10) >= len(counts)


class NeighbourInformation(SampleMetric):
    """`neighbour_information` over batches and ranks."""

    function = staticmethod(neighbour_information)


class InformativenessError(SampleMetric):
    """`informativeness_error` over batches and ranks."""

    function = staticmethod(informativeness_error)
