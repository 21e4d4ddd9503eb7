"""Accuracy where it is worst."""

import torch
from torch import Tensor

from codid_lightning.metrics.base import SampleMetric


def group_accuracies(predictions: Tensor, targets: Tensor, groups: Tensor) -> dict[int, tuple[float, int]]:
    """Accuracy and number of samples of every group."""
    names, codes, sizes = groups.unique(return_inverse=True, return_counts=True)
    right = torch.zeros(len(names), dtype=torch.float64, device=groups.device)
    right.index_add_(0, codes, (predictions == targets).double())
    return {g: (hits / n, n) for g, hits, n in zip(names.tolist(), right.tolist(), sizes.tolist(), strict=True)}


def worst_group_accuracy(predictions: Tensor, targets: Tensor, groups: Tensor, *, min_samples: int = 1) -> float:
    """The lowest accuracy of any group with at least `min_samples` samples; NaN if there is none."""
    accuracies = group_accuracies(predictions, targets, groups).values()
    return min((accuracy for accuracy, n in accuracies if n >= min_samples), default=float("nan"))


class WorstGroupAccuracy(SampleMetric):
    """`worst_group_accuracy` over batches and ranks."""

    function = staticmethod(worst_group_accuracy)
