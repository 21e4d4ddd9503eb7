"""Does the data hide correlations, and is the model hurt by them? The numbers of the audit page of a run.

What is said about the data comes from the data alone (`data_audit`), so that it is the same for every model. The modes
that a run discovered describe the model: where it is right, and what its representations show.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import torch
from scipy.stats import binomtest, chi2_contingency, fisher_exact
from torch import Tensor
from torch.nn.functional import one_hot

from codid_lightning import metrics
from codid_lightning.analysis.data_audit.samples import Attribute, Samples
from codid_lightning.analysis.data_audit.verdict import MAX_ROWS, Answer, DataVerdict, judge
from codid_lightning.analysis.evaluation import Encoded, LoadedRun, encode
from codid_lightning.analysis.modes import Modes, discover
from codid_lightning.metrics.groups import MIN_GROUP_SIZE
from codid_lightning.metrics.information import contingency
from datamodules.base import AttributeDataModule

LEVEL = 0.05  # of all tests, after Holm's correction
NOTABLE = 0.01  # share of an attribute's information below which a correlation is too weak to matter
GAP = 0.05  # smallest difference in accuracy that counts as hurt
DRAWS = 500  # permutations


@dataclass(frozen=True)
class Association:
    """One mode against one other attribute, among the training samples of the mode's value."""

    mode: int
    attribute: int
    inside: Tensor  # (V,) shares of the attribute's values within the mode
    outside: Tensor  # (V,) the same in the other modes of the value
    strength: float  # Cramér's V, 0 to 1
    p_value: float  # chi-squared, Holm-adjusted over the whole table


@dataclass(frozen=True)
class Finding:
    """One other attribute: its correlation with the modes, and its leakage into z_1."""

    attribute: int
    information: float  # I(c_1; a_j | a_1) in bits
    available: float  # H(a_j | a_1) in bits
    by_chance: float  # mean of the permutation null
    p_value: float  # Holm-adjusted over attributes
    leaked: float  # bits about a_j that a probe finds in z_1 of test samples
    entropy: float  # H(a_j) in bits
    explained: float  # bits of these that the modes alone contain, by the same probe
    probe: float  # accuracy of a linear probe of a_j from z_1
    majority: float  # accuracy of always guessing the most frequent value

    @property
    def share(self) -> float:
        """The part of the attribute's information that the modes carry, 0 to 1."""
        return self.information / self.available if self.available > 0 else 0.0

    @property
    def correlated(self) -> bool:
        """Whether modes and attribute are significantly dependent, and strongly enough to matter."""
        return self.p_value < LEVEL and self.share >= NOTABLE


@dataclass(frozen=True)
class AuditCell:
    """Samples of one test set, one mode and one value of another attribute."""

    test: str
    mode: int
    attribute: int
    value: int
    accuracy: float
    count: int
    training: int  # training samples in the same cell
    rest: float  # accuracy with other values of the attribute: of the mode, or of its value where the mode has few
    p_value: float  # Fisher's exact test against them, one-sided, Holm-adjusted over all cells

    @property
    def hurt(self) -> bool:
        """Whether the accuracy is significantly lower than with other values of the attribute, and by `GAP` or more."""
        return self.p_value < LEVEL and self.rest - self.accuracy >= GAP


@dataclass(frozen=True)
class Fall:
    """Two test sets between which the accuracy of the first attribute differs."""

    best: str
    worst: str
    p_value: float  # two-sided, Holm-adjusted over all pairs of test sets


@dataclass(frozen=True)
class Audit:
    """The results of an audit."""

    data: DataVerdict  # independent of the model
    modes: Modes
    associations: list[Association]
    findings: list[Finding]
    cells: list[AuditCell]  # worst first
    accuracies: dict[str, tuple[float, int]]  # of the first attribute by test set, with the number of samples
    fall: Fall | None  # the largest of those that are significant and notable
    probed: str  # the test set that leakage is measured on

    @property
    def hidden(self) -> Answer:
        """Does the data hide correlations?"""
        return self.data.hides

    @property
    def hurt(self) -> bool:
        """Is the model hurt?"""
        return self.fall is not None or any(cell.hurt for cell in self.cells)


def audit(run: LoadedRun) -> Audit:
    """Measure hidden correlations in the training data and their effect on the model."""
    train = encode(run.model, run.data.datasets["train"])
    tests = {name: encode(run.model, run.data.datasets[name]) for name in run.data.test_names}
    modes = discover(run.model, train)
    probed = "test2" if "test2" in tests else run.data.test_names[0]
    right = {name: test.predicted[:, 0] == test.a[:, 0] for name, test in tests.items()}
    return Audit(
        data=judge(training_samples(run.data)),
        modes=modes,
        associations=associations(modes, train),
        findings=findings(modes, train, tests[probed], run.data.attribute_sizes),
        cells=cells(modes, train, tests),
        accuracies={name: (_share(hits), len(hits)) for name, hits in right.items()},
        fall=largest_fall(right),
        probed=probed,
    )


def training_samples(data: AttributeDataModule, most: int = MAX_ROWS) -> Samples:
    """Training samples of a data set, a random part of large ones."""
    train = data.datasets["train"]
    rows = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))[:most].sort().values
    labels = train.a[rows].numpy()
    target, *others = (
        Attribute(name, values, labels[:, q])
        for q, (name, values) in enumerate(zip(data.attribute_names, data.value_names, strict=True))
    )
    return Samples(train.inputs(rows).float().numpy(), target, tuple(others))


def associations(modes: Modes, train: Encoded) -> list[Association]:
    """Test each mode against every other attribute, if its value has several modes."""
    found: list[tuple[int, int, Tensor]] = []
    for mode in modes.ids:
        below = modes.labels // modes.slots == mode // modes.slots
        for q in range(1, train.a.shape[1]):
            counts = contingency((modes.labels[below] == mode).long(), train.a[below, q])
            if min(counts.shape) > 1:
                values = int(train.a[:, q].max()) + 1
                table = torch.zeros(2, values, dtype=counts.dtype)
                table[:, train.a[below, q].unique()] = counts
                found.append((mode, q, table))
    tests = [chi2_contingency(table[:, table.sum(0) > 0].numpy(), correction=False) for _, _, table in found]
    adjusted = metrics.holm([float(test.pvalue) for test in tests])
    return [
        Association(
            mode,
            q,
            inside=table[1] / table[1].sum(),
            outside=table[0] / table[0].sum(),
            strength=float((test.statistic / table.sum()) ** 0.5),
            p_value=p,
        )
        for (mode, q, table), test, p in zip(found, tests, adjusted, strict=True)
    ]


def findings(modes: Modes, train: Encoded, test: Encoded, sizes: Sequence[int]) -> list[Finding]:
    """Correlation with the modes and leakage into z_1, for every attribute but the first."""
    found, p_values = [], []
    values, attributes = train.a[:, 0], range(1, len(sizes))
    for q in attributes:
        information = metrics.conditional_information(modes.labels, train.a[:, q], values)
        null = metrics.information_null(modes.labels, train.a[:, q], values, DRAWS)
        p_values.append((1 + int((null >= information - 1e-12).sum())) / (1 + DRAWS))
        found.append((information, metrics.conditional_entropy(train.a[:, q], values), float(null.mean())))
    z, labels = test.z[:, 0], modes.of(test.z[:, 0], test.a[:, 0])
    leaked = {q: metrics.probe_information(z, test.a[:, q]) for q in attributes}
    alone = one_hot(labels.unique(return_inverse=True)[1])
    return [
        Finding(
            q,
            *numbers,
            p_value=p,
            leaked=leaked[q],
            entropy=metrics.entropy(test.a[:, q]),
            explained=min(leaked[q], metrics.probe_information(alone, test.a[:, q])),
            probe=metrics.probe_accuracy(z, test.a[:, q]),
            majority=float(test.a[:, q].bincount().max() / len(test.a)),
        )
        for q, numbers, p in zip(attributes, found, metrics.holm(p_values), strict=True)
    ]


def cells(modes: Modes, train: Encoded, tests: Mapping[str, Encoded]) -> list[AuditCell]:
    """Accuracy of the first attribute in every cell (mode, value of another attribute), the worst first.

    Each test set is tested alone: often they hold the same samples under other values of the other attributes, and a
    sample may count only once in a test. Holm's correction holds for dependent tests, too.
    """
    found = [cell for name, test in tests.items() for cell in _cells_of(name, test, modes, train)]
    adjusted = metrics.holm([cell.p_value for cell in found])
    found = [replace(cell, p_value=p) for cell, p in zip(found, adjusted, strict=True)]
    return sorted(found, key=lambda cell: (not cell.hurt, cell.accuracy))


def _cells_of(name: str, test: Encoded, modes: Modes, train: Encoded) -> list[AuditCell]:
    """The cells of one test set, with p-values before correction."""
    right, labels = test.predicted[:, 0] == test.a[:, 0], modes.of(test.z[:, 0], test.a[:, 0])
    found = []
    for mode in labels.unique().tolist():
        for q in range(1, test.a.shape[1]):
            for value in test.a[labels == mode, q].unique().tolist():
                inside = (labels == mode) & (test.a[:, q] == value)
                others = (labels == mode) & (test.a[:, q] != value)
                if others.sum() < MIN_GROUP_SIZE:  # too few to compare with: take all modes of the value
                    others = (test.a[:, 0] == mode // modes.slots) & (test.a[:, q] != value)
                training = int(((modes.labels == mode) & (train.a[:, q] == value)).sum())
                found.append(_cell((name, mode, q, value), right[inside], right[others], training))
    return found


def _cell(place: tuple[str, int, int, int], right: Tensor, others: Tensor, training: int) -> AuditCell:
    """One cell with its p-value before correction; 1 if there are too few samples to compare."""
    hits, rest = int(right.sum()), int(others.sum())
    comparable = min(len(right), len(others)) >= MIN_GROUP_SIZE
    table = [[hits, len(right) - hits], [rest, len(others) - rest]]
    p = float(fisher_exact(table, alternative="less").pvalue) if comparable else 1.0
    elsewhere = rest / len(others) if len(others) else float("nan")
    return AuditCell(*place, hits / len(right), len(right), training, elsewhere, p)


def largest_fall(right: Mapping[str, Tensor]) -> Fall | None:
    """The largest difference of accuracy between two test sets that is significant and notable; None if there is none.

    Args:
        right: Whether each sample (N,) of a test set is predicted rightly. Sets of the same size are compared sample by
            sample, because they may hold the same samples in the same order.
    """
    pairs = [sorted(pair, key=lambda name: -_share(right[name])) for pair in combinations(right, 2)]
    adjusted = metrics.holm([_difference(right[best], right[worst]) for best, worst in pairs])
    falls = [Fall(best, worst, p) for (best, worst), p in zip(pairs, adjusted, strict=True) if p < LEVEL]
    sizes = {fall: _share(right[fall.best]) - _share(right[fall.worst]) for fall in falls}
    return max((fall for fall in falls if sizes[fall] >= GAP), key=sizes.__getitem__, default=None)


def _share(hits: Tensor) -> float:
    return float(hits.double().mean())


def _difference(one: Tensor, other: Tensor) -> float:
    """Two-sided p-value of equal accuracy: McNemar's exact test of pairs, or Fisher's of sets of different sizes."""
    if len(one) != len(other):
        table = [[int(hits.sum()), int((~hits).sum())] for hits in (one, other)]
        return float(fisher_exact(table).pvalue)
    gained, lost = int((one & ~other).sum()), int((other & ~one).sum())
    return float(binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0
