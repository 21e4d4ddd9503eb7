"""Statistics for comparing methods over runs and over data sets. They are of numbers; `tables` finds these in runs."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import friedmanchisquare, rankdata, trim_mean, ttest_rel, wilcoxon

from codid_lightning.metrics.multiple_tests import holm

LEVEL = 0.05
MIN_PAIRS = 5  # with fewer runs, no test and no interval: neither would mean much

Array = NDArray[np.float64]


def paired_p_value(first: Sequence[float], second: Sequence[float]) -> float:
    """Two-sided paired t-test of the same runs of two methods; 1 if they are all equal."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # equal differences have no variance: p is 0, or NaN for none
        p = float(ttest_rel(first, second).pvalue)
    return 1.0 if math.isnan(p) else p


def interquartile_mean(values: Array, axis: int = -1) -> Array:
    """Mean without the lowest and the highest quarter of the values."""
    found: Array = trim_mean(values, 0.25, axis=axis)
    return found


def bootstrap_interval(
    strata: Sequence[Sequence[float]],
    statistic: Callable[..., Array] = np.mean,
    *,
    level: float = 1 - LEVEL,
    draws: int = 2000,
    seed: int = 0,
) -> tuple[float, float]:
    """Percentile bootstrap interval of a statistic of values that are drawn again within each stratum.

    Args:
        strata: Values that are drawn together, for example the runs on one data set.
        statistic: Function of an array and `axis`.
        level: Share of the draws that the interval covers.
        draws: Number of draws.
        seed: Of the draws.
    """
    generator = np.random.default_rng(seed)
    drawn = [generator.choice(np.asarray(values, dtype=float), (draws, len(values))) for values in strata]
    found = statistic(np.concatenate(drawn, axis=1), axis=1)
    low, high = np.quantile(found, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


@dataclass(frozen=True)
class Ranking:
    """Methods by their average rank over data sets, the best first."""

    methods: tuple[str, ...]
    ranks: tuple[float, ...]
    datasets: int
    friedman: float | None  # p-value of Friedman's test that all methods are equal; None for two methods
    alike: tuple[tuple[int, int], ...]  # first and last position of neighbours without a significant difference

    @property
    def can_differ(self) -> bool:
        """Whether the data sets suffice for a significant difference: the smallest p-value is 2 in 2^data sets."""
        return math.comb(len(self.methods), 2) * 2.0 ** (1 - self.datasets) < LEVEL


def ranking(scores: Mapping[str, Sequence[float]]) -> Ranking:
    """Average ranks, and the methods that do not differ by Wilcoxon's signed-rank tests with Holm's correction.

    The tests are of all pairs (Demsar 2006; Benavoli et al. 2016). Zero differences are split between both signs.

    Args:
        scores: One score per data set for each method, larger meaning better.
    """
    table = np.array(list(scores.values()), dtype=float)  # (methods, data sets)
    ranks = rankdata(-table, axis=0).mean(axis=1)
    order = np.argsort(ranks, kind="stable")
    pairs = list(combinations(range(len(table)), 2))
    adjusted = dict(zip(pairs, holm([_wilcoxon(table[i], table[j]) for i, j in pairs]), strict=True))
    differs = {frozenset(pair) for pair, p in adjusted.items() if p < LEVEL}
    names = list(scores)
    return Ranking(
        tuple(names[i] for i in order),
        tuple(float(ranks[i]) for i in order),
        table.shape[1],
        _friedman(table),
        _runs_of_neighbours(len(table), lambda i, j: frozenset((int(order[i]), int(order[j]))) not in differs),
    )


def _wilcoxon(first: Array, second: Array) -> float:
    """Two-sided signed-rank test; 1 if nothing differs."""
    if np.array_equal(first, second):
        return 1.0
    return float(wilcoxon(first, second, zero_method="zsplit").pvalue)


def _friedman(table: Array) -> float | None:
    if len(table) < 3:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # all methods equal everywhere: NaN
        p = float(friedmanchisquare(*table).pvalue)
    return 1.0 if math.isnan(p) else p


def _runs_of_neighbours(count: int, alike: Callable[[int, int], bool]) -> tuple[tuple[int, int], ...]:
    """The longest stretches of positions of which all pairs are alike, none inside of another."""
    found: list[tuple[int, int]] = []
    for first in range(count):
        last = first
        while last + 1 < count and all(alike(i, last + 1) for i in range(first, last + 1)):
            last += 1
        if last > first and (not found or last > found[-1][1]):
            found.append((first, last))
    return tuple(found)
