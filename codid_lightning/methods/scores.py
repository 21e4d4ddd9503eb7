"""Accuracy and F1 of the attributes on one split."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor, nn
from torchmetrics import Metric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score


class SplitScores(nn.Module):
    """Accuracy and macro F1 of some attributes: `split/acc` of the first one, `split/a2/acc` of the second.

    Args:
        split: Name of the split.
        sizes: Number of values of all attributes.
        attributes: Attributes to score.
    """

    def __init__(self, split: str, sizes: Sequence[int], attributes: Iterable[int]) -> None:
        super().__init__()
        self.attributes = tuple(attributes)
        self.metrics = nn.ModuleList(
            _collection(sizes[q], f"{split}/" if q == 0 else f"{split}/a{q + 1}/") for q in self.attributes
        )

    def update(self, logits: Sequence[Tensor], a: Tensor) -> None:
        """Count one batch: logits (B, values) of every attribute, and attributes (B, Q)."""
        for q, metric in zip(self.attributes, self.metrics, strict=True):
            metric.update(logits[q], a[:, q])  # type: ignore[operator]

    def compute(self) -> dict[str, Tensor]:
        """The scores since the last call."""
        found: dict[str, Tensor] = {}
        for metric in self.metrics:
            found |= metric.compute()  # type: ignore[operator]
            metric.reset()  # type: ignore[operator]
        return found


def _collection(size: int, prefix: str) -> MetricCollection:
    metrics: dict[str, Metric | MetricCollection] = {
        "acc": MulticlassAccuracy(size, average="micro"),
        "f1": MulticlassF1Score(size, average="macro"),
    }
    return MetricCollection(metrics, prefix=prefix)
