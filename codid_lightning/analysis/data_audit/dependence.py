"""How two labels depend on each other, and whether inputs show an attribute. Numbers with intervals and tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2_contingency, ttest_1samp
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedGroupKFold, StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

Array = NDArray[Any]

DRAWS = 999  # permutations and bootstrap samples
FOLDS = 3
PENALTY = 0.05  # inverse strength of the ridge penalty of classifiers


@dataclass(frozen=True)
class Correlation:
    """Target and another attribute: what everybody can count."""

    information: float  # I(a_1; a_2) in bits, less its bias
    interval: tuple[float, float]  # 95 %, by bootstrap over groups
    available: float  # H(a_2) in bits
    p_value: float
    shortcut: float  # accuracy of predicting a_1 from a_2 alone
    majority: float  # accuracy of always predicting the most frequent a_1

    @property
    def share(self) -> float:
        """The part of the information about a_2 that a_1 carries."""
        return self.information / self.available if self.available > 0 else 0.0


@dataclass(frozen=True)
class Readability:
    """What inputs show of an attribute beyond what the target tells."""

    information: float  # bits per row that a classifier gains on rows that it was not trained on
    interval: tuple[float, float]  # 95 %
    p_value: float  # one-sided
    accuracy: float
    majority: float  # accuracy of the best guess from the target alone


def correlation(target: Array, other: Array, groups: Array | None = None, seed: int = 0) -> Correlation:
    """The plain correlation of two attributes (N,).

    Rows of one group (a person, a device) are not independent: the bootstrap draws whole groups, and the test uses one
    random row of each.
    """
    generator = np.random.default_rng(seed)
    table = _table(target, other)
    members = _members(groups, len(target))
    draws = []
    for _ in range(DRAWS // 2):
        if groups is None:
            again = generator.multinomial(table.sum(), table.ravel() / table.sum()).reshape(table.shape)
        else:
            rows = np.concatenate([members[i] for i in generator.integers(len(members), size=len(members))])
            again = _table(target[rows], other[rows])
        draws.append(_information(again) - 2 * _bias(again))  # counted once for the sample, once for drawing from it
    low, high = np.quantile(draws, [0.025, 0.975])
    one_each = np.array([generator.choice(rows) for rows in members]) if groups is not None else np.arange(len(target))
    return Correlation(
        information=max(0.0, _information(table) - _bias(table)),
        interval=(max(0.0, float(low)), max(0.0, float(high))),
        available=_entropy(table.sum(0)),
        p_value=_independence(target[one_each], other[one_each], generator),
        shortcut=float(table.max(0).sum() / table.sum()),
        majority=float(table.sum(1).max() / table.sum()),
    )


def readability(
    x: Array, target: Array, other: Array, groups: Array | None = None, seed: int = 0
) -> Readability | None:
    """How well a_2 can be read from features (N, d), given a_1; None where too few rows have some value of a_2.

    A logistic regression on features, their squares and a_1 predicts rows of folds that it was not fitted on; it is
    compared with the frequencies of a_2 given a_1. Folds keep groups together. A classifier that learns noise loses, so
    that the one-sided test of its gain is on the safe side.
    """
    names, index = np.unique(other, return_inverse=True)
    if len(names) < 2 or np.bincount(index).min() < FOLDS:
        return None
    values = np.unique(target, return_inverse=True)[1]
    inputs = np.concatenate([x, x**2, np.eye(values.max() + 1)[values]], axis=1)
    gain, hits, guessed = (np.zeros(len(x)) for _ in range(3))
    for train, test in _folds(index, groups, seed):
        if len(np.unique(index[train])) < len(names):
            return None
        fitted = make_pipeline(StandardScaler(), LogisticRegression(C=PENALTY, max_iter=100)).fit(
            inputs[train], index[train]
        )
        ours = fitted.predict_log_proba(inputs[test])
        counts = _table(values[train], index[train], (values.max() + 1, len(names))) + 1.0
        frequencies = np.log(counts / counts.sum(1, keepdims=True))[values[test]]
        rows = np.arange(len(test))
        gain[test] = ours[rows, index[test]] - frequencies[rows, index[test]]
        hits[test] = ours.argmax(1) == index[test]
        guessed[test] = frequencies.argmax(1) == index[test]
    units = np.array([gain[rows].mean() for rows in _members(groups, len(x))]) / np.log(2)
    test_ = ttest_1samp(units, 0, alternative="greater")
    low, high = ttest_1samp(units, 0).confidence_interval(0.95)
    return Readability(
        information=max(0.0, float(units.mean())),
        interval=(max(0.0, float(low)), max(0.0, float(high))),
        p_value=float(test_.pvalue) if units.std() > 0 else 1.0,
        accuracy=float(hits.mean()),
        majority=float(guessed.mean()),
    )


def _folds(labels: Array, groups: Array | None, seed: int) -> Any:
    if groups is not None and len(np.unique(groups)) >= FOLDS:
        return StratifiedGroupKFold(FOLDS, shuffle=True, random_state=seed).split(labels, labels, groups)
    return StratifiedKFold(FOLDS, shuffle=True, random_state=seed).split(labels, labels)


def _members(groups: Array | None, n: int) -> list[Array]:
    """Rows of each group; without groups every row is one."""
    if groups is None:
        return list(np.arange(n)[:, None])
    order = np.argsort(groups, kind="stable")
    return np.split(order, np.flatnonzero(groups[order][1:] != groups[order][:-1]) + 1)


def _table(x: Array, y: Array, shape: tuple[int, int] | None = None) -> Array:
    """Counts of pairs."""
    if shape is None:
        (xs, x), (ys, y) = np.unique(x, return_inverse=True), np.unique(y, return_inverse=True)
        shape = (len(xs), len(ys))
    return np.bincount(x * shape[1] + y, minlength=shape[0] * shape[1]).reshape(shape)


def _entropy(counts: Array) -> float:
    p = counts[counts > 0] / counts.sum()
    return float(-(p * np.log2(p)).sum())


def _information(table: Array) -> float:
    return _entropy(table.sum(0)) + _entropy(table.sum(1)) - _entropy(table.ravel())


def _bias(table: Array) -> float:
    """By how much information counted in a table exceeds the true one on average (Miller, 1955)."""
    rows, columns = ((table.sum(axis) > 0).sum() for axis in (1, 0))
    return float((rows - 1) * (columns - 1) / (2 * np.log(2) * max(table.sum(), 1)))


def _independence(x: Array, y: Array, generator: np.random.Generator) -> float:
    """p-value of independence: the chi-squared test, by permutations where counts are small."""
    table = _table(x, y)
    if min(table.shape) < 2:
        return 1.0
    found = chi2_contingency(table, correction=False)
    if found.expected_freq.min() >= 5:
        return float(found.pvalue)
    observed, y_index, x_index = (
        _information(table),
        np.unique(y, return_inverse=True)[1],
        np.unique(x, return_inverse=True)[1],
    )
    reached = sum(
        _information(_table(x_index, generator.permutation(y_index), table.shape)) >= observed - 1e-12
        for _ in range(DRAWS)
    )
    return (1 + reached) / (1 + DRAWS)
