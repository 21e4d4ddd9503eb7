"""Is a model hurt by the correlations of its data? From predictions alone, whoever made them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import fisher_exact, ttest_ind

from codid_lightning import metrics
from codid_lightning.analysis.data_audit.samples import Attribute, Samples

Array = NDArray[Any]

LEVEL = 0.05  # of all cells, after Holm's correction
GAP = 0.05  # smallest difference in accuracy that counts as hurt
MIN_CELL = 10  # rows, or groups of rows, below which a cell is not tested
MIN_MODE = 20  # rows of a mode that has cells of its own
DRAWS = 1000  # bootstrap samples
DIAL = tuple(round(1 - 0.1 * i, 1) for i in range(21))  # 1: the correlation of training, 0: none, -1: the reverse


@dataclass(frozen=True)
class Cell:
    """Rows of one value or mode of the target, and one value of another attribute."""

    test: str
    value: int  # of the target
    mode: int  # -1: all rows of the value
    attribute: int  # which of the other attributes
    other: int  # its value
    accuracy: float
    interval: tuple[float, float]  # 95 %, by bootstrap over groups
    count: int
    training: int  # rows of the same cell that the data were trained on; -1 where the rows are not split
    rest: float  # accuracy of the same value or mode with other values of the attribute
    p_value: float  # one-sided, Holm-adjusted over all cells

    @property
    def hurt(self) -> bool:
        """Whether the accuracy is significantly lower than with other values of the attribute, and by `GAP` or more."""
        return self.p_value < LEVEL and self.rest - self.accuracy >= GAP


@dataclass(frozen=True)
class Simulation:
    """Accuracy as the correlation of target and attribute is turned, by re-weighting the cells of the test rows."""

    attribute: int
    accuracy: tuple[float, ...]  # one for each of `DIAL`
    missing: float  # share of the weight under the reversed correlation that falls on cells without test rows


@dataclass(frozen=True)
class ModelVerdict:
    """What predictions show."""

    accuracy: float
    interval: tuple[float, float]
    balanced: float  # mean accuracy of the values of the target
    worst: float  # accuracy of the worst cell (value, all other attributes) with `MIN_CELL` rows or more
    cells: tuple[Cell, ...]  # hurt ones first, then by accuracy
    simulations: tuple[Simulation, ...]
    rows: int

    @property
    def hurt(self) -> bool:
        """Is the model hurt?"""
        return any(cell.hurt for cell in self.cells)


def judge_predictions(samples: Samples, predicted: Array, modes: Array | None = None, seed: int = 0) -> ModelVerdict:
    """Compare predictions with the target in every cell.

    Args:
        samples: Data; rows of `part == "train"` are not judged.
        predicted: Predicted value (N,) of each row; negative where there is none.
        modes: Mode (N,) of each row under its value of the target, -1 where unknown.
        seed: Of bootstrap samples.
    """
    judged = predicted >= 0
    if samples.part is not None and (judged & (samples.part != "train")).any():
        judged &= samples.part != "train"
    right = predicted == samples.target.labels
    rows = np.flatnonzero(judged)
    generator = np.random.default_rng(seed)
    cells = _cells(samples, right, rows, modes, generator)
    adjusted = metrics.holm([cell.p_value for cell in cells])
    cells = [replace(cell, p_value=p) for cell, p in zip(cells, adjusted, strict=True)]
    values = samples.target.labels[rows]
    joint = np.unique(np.stack([values, *(o.labels[rows] for o in samples.others)], 1), axis=0, return_inverse=True)[1]
    joint = joint.ravel()  # numpy 2.0.0 returns a column
    sizes, hits = np.bincount(joint), np.bincount(joint, right[rows])
    large = sizes >= MIN_CELL
    return ModelVerdict(
        accuracy=float(right[rows].mean()),
        interval=_interval(right, rows, samples.groups, generator),
        balanced=float(np.mean([right[rows][values == v].mean() for v in np.unique(values)])),
        worst=float((hits[large] / sizes[large]).min()) if large.any() else float("nan"),
        cells=tuple(sorted(cells, key=lambda cell: (not cell.hurt, cell.accuracy))),
        simulations=tuple(_simulation(samples, q, right, rows, modes) for q in range(len(samples.others))),
        rows=len(rows),
    )


def _cells(
    samples: Samples, right: Array, rows: Array, modes: Array | None, generator: np.random.Generator
) -> list[Cell]:
    target, found = samples.target.labels, []
    tests = np.full(len(samples), "data") if samples.part is None else samples.part
    kinds = [(value, -1) for value in range(len(samples.target.values))]
    if modes is not None:
        pairs, counts = np.unique(np.stack([target[rows], modes[rows]], 1), axis=0, return_counts=True)
        kinds += [(v, m) for (v, m), n in zip(pairs.tolist(), counts.tolist(), strict=True) if m >= 0 and n >= MIN_MODE]
    for test in np.unique(tests[rows]).tolist():
        own = rows[tests[rows] == test]
        for value, mode in kinds:
            inside = own[(target[own] == value) & ((modes[own] == mode) if mode >= 0 and modes is not None else True)]
            for q, other in enumerate(samples.others):
                for o in np.unique(other.labels[inside]).tolist():
                    here, there = inside[other.labels[inside] == o], inside[other.labels[inside] != o]
                    training = _training(samples, value, mode, modes, other, o)
                    p = _lower(right, here, there, samples.groups)
                    rest = float(right[there].mean()) if len(there) else float("nan")
                    interval = _interval(right, here, samples.groups, generator)
                    place = (str(test), value, mode, q, o)
                    found.append(Cell(*place, float(right[here].mean()), interval, len(here), training, rest, p))
    return found


def _training(samples: Samples, value: int, mode: int, modes: Array | None, other: Attribute, o: int) -> int:
    if samples.part is None:
        return -1
    inside = (samples.part == "train") & (samples.target.labels == value) & (other.labels == o)
    if mode >= 0 and modes is not None:
        inside &= modes == mode
    return int(inside.sum())


def _lower(right: Array, here: Array, there: Array, groups: Array | None) -> float:
    """One-sided p-value of a lower accuracy: Fisher's exact test, or Welch's of the accuracies of groups."""
    if groups is not None:
        one, other = (_by_group(right, rows, groups) for rows in (here, there))
        if min(len(one), len(other)) < MIN_CELL or one.std() + other.std() == 0:
            return 1.0
        return float(ttest_ind(one, other, equal_var=False, alternative="less").pvalue)
    if min(len(here), len(there)) < MIN_CELL:
        return 1.0
    table = [[int(right[rows].sum()), int((~right[rows]).sum())] for rows in (here, there)]
    return float(fisher_exact(table, alternative="less").pvalue)


def _by_group(right: Array, rows: Array, groups: Array) -> Array:
    index = np.unique(groups[rows], return_inverse=True)[1]
    shares: Array = np.bincount(index, right[rows]) / np.bincount(index)
    return shares


def _interval(right: Array, rows: Array, groups: Array | None, generator: np.random.Generator) -> tuple[float, float]:
    """95 % interval of the accuracy: Wilson's, or by bootstrap over groups."""
    if groups is None:
        n, p, z = len(rows), float(right[rows].mean()), 1.96
        middle, half = p + z * z / (2 * n), z * np.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
        return float((middle - half) / (1 + z * z / n)), float((middle + half) / (1 + z * z / n))
    index = np.unique(groups[rows], return_inverse=True)[1]
    sizes, hits = np.bincount(index), np.bincount(index, right[rows])
    drawn = generator.integers(len(sizes), size=(DRAWS, len(sizes)))
    shares = hits[drawn].sum(1) / sizes[drawn].sum(1)
    low, high = np.quantile(shares, [0.025, 0.975])
    return float(low), float(high)


def _simulation(samples: Samples, q: int, right: Array, rows: Array, modes: Array | None) -> Simulation:
    """Shares of cells are those of training, turned towards no correlation and beyond, down to the reverse."""
    train = np.arange(len(samples)) if samples.part is None else np.flatnonzero(samples.part == "train")
    kind = samples.target.labels if modes is None else samples.target.labels * (modes.max() + 2) + modes + 1
    kinds, kind = np.unique(kind, return_inverse=True)
    other, count = samples.others[q].labels, len(samples.others[q].values)
    joint = np.bincount(kind[train] * count + other[train], minlength=len(kinds) * count).reshape(-1, count)
    if not len(train):
        joint = np.bincount(kind[rows] * count + other[rows], minlength=len(kinds) * count).reshape(-1, count)
    joint = joint / joint.sum()
    alike = joint.sum(1, keepdims=True) * joint.sum(0, keepdims=True)
    place = kind[rows] * count + other[rows]
    sizes = np.bincount(place, minlength=joint.size).reshape(joint.shape)
    accuracy = np.bincount(place, right[rows], joint.size).reshape(joint.shape) / np.maximum(sizes, 1)
    found, missing = [], 0.0
    for dial in DIAL:
        weights = np.maximum(alike + dial * (joint - alike), 0)
        seen = weights * (sizes > 0)
        found.append(float((seen * accuracy).sum() / seen.sum()))
        missing = float(1 - seen.sum() / weights.sum())
    return Simulation(q, tuple(found), missing)


def as_values(target: Attribute, predicted: Any) -> Array:
    """Numbers (N,) of predicted values by name; -1 where there is none, a number of no value for unknown names."""
    from datamodules.tables import label_texts

    texts = label_texts(np.asarray(predicted), "predictions", Path("the predictions"))
    place = {value: i for i, value in enumerate(target.values)}
    return np.array([-1 if text is None else place.get(text, len(place)) for text in texts])
