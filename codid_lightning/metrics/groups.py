"""Accuracy in groups of samples, and in the worst group."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torchmetrics import Metric

from codid_lightning.metrics.base import SampleMetric

MIN_GROUP_SIZE = 10  # below, the accuracy of a group is mostly chance


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


def adjusted_accuracy(predictions: Tensor, targets: Tensor, groups: Tensor, training_groups: Tensor) -> float:
    """Accuracy of every group, weighted by the group's share of the training samples (Sagawa et al. 2020).

    It is the accuracy to expect where groups are as frequent as in training. Groups without test samples do not count.
    NaN if no group of the test samples occurs in training.
    """
    accuracies = group_accuracies(predictions, targets, groups)
    names, counts = training_groups.unique(return_counts=True)
    weights = {g: n for g, n in zip(names.tolist(), counts.tolist(), strict=True) if g in accuracies}
    total = sum(weights.values())
    return sum(n * accuracies[g][0] for g, n in weights.items()) / total if total else float("nan")


class WorstGroupAccuracy(SampleMetric):
    """`worst_group_accuracy` over batches and ranks."""

    function = staticmethod(worst_group_accuracy)


class CellAccuracy(Metric):
    """Accuracy of the first attribute in the cells (a_1, a_q) of every other attribute: their mean and the worst.

    Plain accuracy on correlated data is high for a model that uses the correlation; such a model is wrong in rare
    cells. Only counts are stored: memory does not grow with the data, and the counts of ranks are added.

    The accuracy of a small cell is noise, but its samples are the rare ones. No sample is left out: for each a_q, the
    small cells of one value of a_1 are pooled into one cell. If the pool is still small, the value's next smallest
    cells join it. A value with fewer than `min_samples` samples in all is one cell.

    Args:
        attribute_sizes: Number of values of each attribute.
        min_samples: Smaller cells are pooled. If no value of a_1 has that many samples, results are NaN.
    """

    full_state_update = False
    hits: Tensor
    counts: Tensor

    def __init__(self, attribute_sizes: Sequence[int], min_samples: int = 10) -> None:
        super().__init__()
        self.values, *others = attribute_sizes
        self.others, self.min_samples = torch.tensor(others, dtype=torch.long), min_samples
        self.starts = self.values * (self.others.cumsum(0) - self.others)  # cells of the attributes before
        for name in ("hits", "counts"):
            self.add_state(name, torch.zeros(self.values * sum(others), dtype=torch.long), dist_reduce_fx="sum")

    def update(self, predictions: Tensor, attributes: Tensor) -> None:
        """Count one batch: predicted values of a_1 (B,) and all attributes (B, Q)."""
        sizes, starts = self.others.to(attributes.device), self.starts.to(attributes.device)
        cells = starts + attributes[:, :1] * sizes + attributes[:, 1:]  # (B, Q - 1)
        right = predictions == attributes[:, 0]
        self.counts += cells.flatten().bincount(minlength=len(self.counts))
        self.hits += cells[right].flatten().bincount(minlength=len(self.hits))

    def compute(self) -> dict[str, Tensor]:
        """`balanced_acc` and `worst_acc`."""
        hits, counts = self._pooled_cells()
        if not (counts >= self.min_samples).any():
            nothing = torch.full((), torch.nan, device=counts.device)
            return {"balanced_acc": nothing, "worst_acc": nothing}
        accuracies = hits / counts
        return {"balanced_acc": accuracies.mean(), "worst_acc": accuracies.min()}

    def _pooled_cells(self) -> tuple[Tensor, Tensor]:
        """Right predictions and samples of all cells that are not empty, small ones pooled."""
        sections = [self.values * size for size in self.others.tolist()]
        hits, counts = [self.hits[:0]], [self.counts[:0]]
        for own_hits, own_counts in zip(self.hits.split(sections), self.counts.split(sections), strict=True):
            by_size, order = own_counts.view(self.values, -1).sort(dim=1)
            right = own_hits.view(self.values, -1).gather(1, order)
            pooled = (by_size < self.min_samples) | (by_size.cumsum(1) - by_size < self.min_samples)
            hits += [(right * pooled).sum(1), right[~pooled]]
            counts += [(by_size * pooled).sum(1), by_size[~pooled]]
        all_counts = torch.cat(counts)
        return torch.cat(hits)[all_counts > 0], all_counts[all_counts > 0]
