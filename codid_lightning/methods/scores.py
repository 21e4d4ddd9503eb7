"""Scores of the attributes on one split, and accuracy in cells of the validation data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torchmetrics import Metric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score
from torchmetrics.utilities import dim_zero_cat

from codid_lightning.metrics.groups import CellAccuracy
from codid_lightning.metrics.prediction import group_scores, value_scores
from datamodules.base import Batch


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
        self.metrics = nn.ModuleList(_collection(sizes[q], _prefix(split, q)) for q in self.attributes)

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


class Samples(Metric):
    """All samples of a split: logits and attributes, gathered from batches and ranks."""

    full_state_update = False
    logits: list[Tensor]
    a: list[Tensor]

    def __init__(self, logits: int, attributes: int) -> None:
        super().__init__()
        self.widths = (logits, attributes)
        for name in ("logits", "a"):
            self.add_state(name, default=[], dist_reduce_fx="cat")

    def update(self, logits: Tensor, a: Tensor) -> None:
        """Keep one batch: logits of all scored attributes side by side (B, sum of values), attributes (B, Q)."""
        self.logits.append(logits.detach())
        self.a.append(a)

    def compute(self) -> tuple[Tensor, Tensor]:
        """Logits and attributes of all samples."""
        return dim_zero_cat(self.logits), dim_zero_cat(self.a)

    def take_part(self) -> None:
        """Keep an empty batch: a rank without samples, too, has something to gather."""
        logits, attributes = self.widths
        empty = torch.empty(0, logits, device=self.device)
        self.update(empty, torch.empty(0, attributes, dtype=torch.long, device=self.device))


class CompleteScores(SplitScores):
    """Adds the scores that need all samples at once, which are kept until the end of a test.

    Of every attribute `class_balanced_acc`, `auroc` and `ece`; of the first one `worst_group_acc` and `adjusted_acc`.
    What is not a number is left out. `trained_on` holds the attributes (M, Q) of training samples.
    """

    trained_on: Tensor | None = None

    def __init__(self, split: str, sizes: Sequence[int], attributes: Iterable[int]) -> None:
        super().__init__(split, sizes, attributes)
        self.split, self.widths = split, [sizes[q] for q in self.attributes]
        self.samples = Samples(sum(self.widths), len(sizes))

    def update(self, logits: Sequence[Tensor], a: Tensor) -> None:
        """Count one batch, and keep it."""
        super().update(logits, a)
        self.samples.update(torch.cat([logits[q] for q in self.attributes], dim=1), a)

    def compute(self) -> dict[str, Tensor]:
        """The scores since the last call."""
        found = super().compute()
        self.samples.take_part()
        logits, a = self.samples.compute()
        self.samples.reset()
        if not len(a):
            return found
        scores: dict[str, float] = {}
        for q, own in zip(self.attributes, logits.split(self.widths, dim=1), strict=True):
            of_attribute = value_scores(own, a[:, q])
            if q == 0:
                of_attribute |= group_scores(own.argmax(1), a, self.trained_on)
            scores |= {_prefix(self.split, q) + name: value for name, value in of_attribute.items()}
        return found | {name: a.new_tensor(value, dtype=torch.float) for name, value in scores.items()}


class Scores(nn.Module):
    """The scores of all splits; on validation data also those of cells.

    Args:
        sizes: Number of values of all attributes.
        test_names: Names of the test sets.
        test_attributes: Attributes to score on test sets; on validation data it is all of them.
    """

    def __init__(self, sizes: Sequence[int], test_names: Iterable[str], test_attributes: Iterable[int]) -> None:
        super().__init__()
        tested = tuple(test_attributes)
        tests = {name: CompleteScores(name, sizes, tested) for name in test_names}
        self.splits = nn.ModuleDict({"val": SplitScores("val", sizes, range(len(sizes))), **tests})
        self.cells = ValidationCells(sizes)

    def start_tests(self, trained_on: Tensor | None) -> None:
        """Begin a test, given the attributes (M, Q) of the training samples, if they are known."""
        for scores in self.splits.values():
            if isinstance(scores, CompleteScores):
                scores.trained_on = trained_on

    def update(self, split: str, logits: Sequence[Tensor], batch: Batch) -> None:
        """Count one batch of a split: logits (B, values) of every attribute."""
        self.splits[split].update(logits, batch["a"])  # type: ignore[operator]
        if split == "val":
            self.cells.update(logits[0].argmax(1), batch)

    def compute(self, split: str) -> dict[str, Tensor]:
        """The scores of a split since the last call."""
        found: dict[str, Tensor] = self.splits[split].compute()  # type: ignore[operator]
        return found | self.cells.compute() if split == "val" else found


class ValidationCells(nn.Module):
    """Accuracy of the first attribute in cells of the validation data, which model selection may use.

    `val/worst_acc` and `val/balanced_acc` are over the cells (a_1, a_q) of every other attribute. Where there is a
    reference partition p, `val/worst_reference_acc` and `val/balanced_reference_acc` are over the cells (a_1, p).

    Args:
        sizes: Number of values of all attributes.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        super().__init__()
        self.values = sizes[0]
        self.cells = CellAccuracy(sizes)
        self.reference_cells: CellAccuracy | None = None
        self.partition: Tensor | None = None

    def start(self, partition: Tensor | None) -> None:
        """Begin a validation, given the cell (N,) of every validation sample in a reference partition, if any."""
        self.partition = partition
        self.reference_cells = None
        if partition is not None:
            own = CellAccuracy((self.values, int(partition.max()) + 1))
            self.reference_cells = own.to(partition.device)

    def update(self, predicted: Tensor, batch: Batch) -> None:
        """Count one batch, given the predicted values of a_1 (B,)."""
        a = batch["a"]
        self.cells.update(predicted, a)
        if self.reference_cells is not None and self.partition is not None:
            self.reference_cells.update(predicted, torch.stack([a[:, 0], self.partition[batch["index"]]], dim=1))

    def compute(self) -> dict[str, Tensor]:
        """The scores since the last call; those that no cell has enough samples for are left out."""
        found = {f"val/{name}": value for name, value in self.cells.compute().items()}
        self.cells.reset()
        if self.reference_cells is not None:
            own = self.reference_cells.compute()
            found |= {f"val/{name.replace('_acc', '_reference_acc')}": value for name, value in own.items()}
            self.reference_cells.reset()
        return {name: value for name, value in found.items() if value.isfinite()}


def _prefix(split: str, q: int) -> str:
    """What comes before the names of an attribute's scores."""
    return f"{split}/" if q == 0 else f"{split}/a{q + 1}/"


def _collection(size: int, prefix: str) -> MetricCollection:
    metrics: dict[str, Metric | MetricCollection] = {
        "acc": MulticlassAccuracy(size, average="micro"),
        "f1": MulticlassF1Score(size, average="macro"),
    }
    return MetricCollection(metrics, prefix=prefix)
