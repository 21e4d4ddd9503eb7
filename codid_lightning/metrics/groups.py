"""Accuracy in groups of samples, and in the worst group."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torchmetrics import Metric

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


class CellAccuracy(Metric):
    """Accuracy of the first attribute in the cells (a_1, a_q) of every other attribute: their mean and the worst.

    If clusters c_1 under the values of a_1 are known, cells are (c_1, a_q): hidden correlations are within a value.
    Plain accuracy on correlated data is high for a model that uses the correlation; such a model is wrong in rare
    cells. Only counts are stored: memory does not grow with the data, and the counts of ranks are added.

    Args:
        attribute_sizes: Number of values of each attribute.
        min_samples: Smaller cells are left out, because their accuracy is too noisy; if none is left, results are NaN.
        num_groups: Number of possible clusters; default: the number of values of a_1.
    """

    full_state_update = False
    hits: Tensor
    counts: Tensor

    def __init__(self, attribute_sizes: Sequence[int], min_samples: int = 10, num_groups: int | None = None) -> None:
        super().__init__()
        values, *others = attribute_sizes
        first = num_groups or values
        self.others, self.min_samples = torch.tensor(others, dtype=torch.long), min_samples
        self.starts = first * (self.others.cumsum(0) - self.others)  # cells of the attributes before
        for name in ("hits", "counts"):
            self.add_state(name, torch.zeros(first * sum(others), dtype=torch.long), dist_reduce_fx="sum")

    def update(self, predictions: Tensor, attributes: Tensor, groups: Tensor | None = None) -> None:
        """Count one batch: predicted values of a_1 (B,), all attributes (B, Q) and, if known, clusters (B,)."""
        sizes, starts = self.others.to(attributes.device), self.starts.to(attributes.device)
        first = attributes[:, 0] if groups is None else groups
        cells = starts + first[:, None] * sizes + attributes[:, 1:]  # (B, Q - 1)
        right = predictions == attributes[:, 0]
        self.counts += cells.flatten().bincount(minlength=len(self.counts))
        self.hits += cells[right].flatten().bincount(minlength=len(self.hits))

    def compute(self) -> dict[str, Tensor]:
        """`balanced_acc` and `worst_acc`."""
        kept = self.counts >= self.min_samples
        accuracies = self.hits[kept] / self.counts[kept]
        worst = accuracies.min() if len(accuracies) else accuracies.mean()
        return {"balanced_acc": accuracies.mean(), "worst_acc": worst}
