"""Is a hidden correlation in the data? A test of the data alone: no trained model takes part.

Under a fixed value of the target a_1, rows are of several kinds (modes). A hidden correlation means that the kinds
occur more often under one value of a_2 than under another. But a_2 also changes how rows look: a device shifts and
scales what it measures. Rows that merely look different must not count.

So two mixtures of Gaussians are compared. In both, every value of a_2 shifts and scales every column, and components
are shared by all values of a_2 under one value of a_1. In the first, how often a component occurs does not depend on
a_2; in the second it does. The statistic is the gain in log-likelihood. It is above zero by chance, too, and estimated
maps leave traces. So its null distribution comes from the whole procedure, repeated on rows that keep the effects of
a_2 but lose its correlation with content: effects are removed, rows get the values of a_2 in a random order within each
value of a_1, and the procedure starts again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import chi2_contingency
from sklearn.cluster import KMeans
from torch import Tensor

Array = NDArray[Any]

DRAWS = 199  # permutations; fewer if the answer is clear before
BATCH = 40  # permutations computed at a time
ENOUGH = 5  # permutations that reach the statistic, after which the test ends (Besag and Clifford, 1991)
BURN_IN, ITERATIONS = 6, 18  # of EM: before and after the maps of values of a_2 begin to move
ROUNDS = 15  # of alternating least squares
MAX_DIRECTIONS = 8  # principal components
MIN_CELL = 8  # rows of a cell (a_1, a_2); smaller ones are left out
LEVELS = (2, 5)  # components under each value of a_1; with many, some follow a value of a_2 instead of a kind of row
ROWS_PER_COMPONENT = 30  # at least, on average
DIFFERENT = 0.01  # level at which two components count as two modes
PSEUDO_COUNT = 1.0  # rows of every value of a_2 that are spread as those of all values
PRIOR_ROWS = 4.0  # rows with the overall variance that every component has in addition


@dataclass(frozen=True)
class HiddenCorrelation:
    """The result of the test for one attribute a_2."""

    statistic: float  # gain in log-likelihood, nats
    p_value: float
    information: float  # I(component; a_2 | a_1) in bits with the fewest components, less what chance gives
    available: float  # H(a_2 | a_1) in bits
    draws: int  # permutations
    modes: Array  # (N,) number of each row's mode under its value of a_1; -1 in cells that are too small

    @property
    def share(self) -> float:
        """The part of the information about a_2 that content carries, given a_1."""
        return self.information / self.available if self.available > 0 else 0.0


def hidden_correlation(
    x: Array, target: Array, other: Array, draws: int = DRAWS, seed: int = 0
) -> HiddenCorrelation | None:
    """Test whether content and a_2 depend on each other given a_1; None where no value of a_1 has two values of a_2.

    Args:
        x: Features (N, d).
        target: Values (N,) of a_1.
        other: Values (N,) of a_2.
        draws: Largest number of permutations.
        seed: Of permutations and of first components.
    """
    problem = _Problem.of(x, target, other, seed)
    if problem is None:
        return None
    generator = np.random.default_rng(seed)
    fits = [problem.fit(problem.site[None], level) for level in range(len(LEVELS))]
    statistic = torch.stack([fit.gain() for fit in fits])  # (levels, 1)
    reached, done = torch.zeros(len(LEVELS)), 0
    found, by_chance = float(fits[0].information()), 0.0
    while done < draws and reached.min() < ENOUGH:
        count = min(BATCH, draws - done)
        sites = torch.from_numpy(np.stack([problem.dealt(generator) for _ in range(count)]))
        nulls = [problem.fit(sites, level) for level in range(len(LEVELS))]
        reached += (torch.stack([null.gain() for null in nulls]) >= statistic - 1e-9).sum(1)
        by_chance += float(nulls[0].information().sum())
        done += count
    best = int(reached.argmin())  # the coarser one, if both are as clear
    return HiddenCorrelation(
        statistic=float(statistic[best]),
        p_value=min(1.0, len(LEVELS) * float(1 + reached[best]) / (1 + done)),
        information=max(0.0, found - by_chance / done),
        available=problem.entropy(),
        draws=done,
        modes=merged(problem.modes(fits[best], len(x)), target, other),
    )


class _Problem(NamedTuple):
    """Rows in cells that are large enough, ordered by a_1, and what every fit begins with."""

    rows: Array  # (N,) rows of the data
    content: Tensor  # (N, D) without the effects of a_2, as far as means and deviations show them
    site: Tensor  # (N,) value of a_2, numbered anew
    bounds: list[tuple[int, int]]  # rows of each value of a_1
    directions: Tensor  # (D, d) in which rows of one value of a_1 differ most
    first: list[list[Array]]  # for each of `LEVELS`, clusters (n,) of each value's rows, from 0

    @classmethod
    def of(cls, x: Array, target: Array, other: Array, seed: int) -> _Problem | None:
        rows = rows_to_compare(target, other)
        if not len(rows):
            return None
        order = rows[np.argsort(target[rows], kind="stable")]
        x, values, site = x[order].astype(float), target[order], np.unique(other[order], return_inverse=True)[1]
        edges = [0, *(np.flatnonzero(values[1:] != values[:-1]) + 1).tolist(), len(values)]
        bounds = list(pairwise(edges))
        spread = x.std(0)
        member = one_hot(torch.from_numpy(site)[None])
        content = harmonised(torch.from_numpy(x / np.where(spread > 1e-9, spread, 1.0)), member, bounds)[0]
        residual = torch.cat([content[start:end] - content[start:end].mean(0) for start, end in bounds])
        _, size, axes = torch.linalg.svd(residual, full_matrices=False)
        keep = min(MAX_DIRECTIONS, int((size > 1e-6 * size[0]).sum()))
        directions = axes[:keep].T * len(x) ** 0.5 / size[:keep]
        scores = (residual @ axes[:keep].T).numpy()
        first = [[_clusters(scores[start:end], level, seed) for start, end in bounds] for level in LEVELS]
        return cls(order, content, torch.from_numpy(site), bounds, directions, first)

    def fit(self, site: Tensor, level: int) -> _Fit:
        """Mixtures under several assignments (B, N) of a_2, before their EM."""
        member = one_hot(site)
        z = harmonised(self.content, member, self.bounds) @ self.directions
        return _Fit(z, member, self.bounds, self.first[level])

    def modes(self, fitted: _Fit, count: int) -> Array:
        """Components (N,) of all rows of the data."""
        found = np.full(count, -1)
        for (start, end), assigned in zip(self.bounds, fitted.assigned, strict=True):
            found[self.rows[start:end]] = assigned[0].argmax(1).numpy()
        return found

    def dealt(self, generator: np.random.Generator) -> Array:
        """The values of a_2, permuted within each value of a_1."""
        site: Array = self.site.numpy().copy()
        for start, end in self.bounds:
            site[start:end] = generator.permutation(site[start:end])
        return site

    def entropy(self) -> float:
        """H(a_2 | a_1) in bits."""
        total = 0.0
        for start, end in self.bounds:
            p = self.site[start:end].bincount().double()
            p = p[p > 0] / p.sum()
            total += float(-(p * p.log2()).sum()) * (end - start)
        return total / len(self.content)


def _clusters(scores: Array, level: int, seed: int) -> Array:
    count = max(2, min(level, len(scores) // ROWS_PER_COMPONENT))
    labels: Array = KMeans(count, n_init=2, random_state=seed).fit_predict(scores)
    return labels


def merged(components: Array, target: Array, other: Array) -> Array:
    """Modes (N,): components of one value of a_1 that correlate with a_2 in the same way are one mode.

    The two whose shares of a_2 differ least are merged as long as a chi-squared test does not tell them apart.
    """
    modes = np.full(len(components), -1)
    sites = np.unique(other, return_inverse=True)[1]
    for value in np.unique(target):
        rows = np.flatnonzero((target == value) & (components >= 0))
        groups = [rows[components[rows] == c] for c in np.unique(components[rows])]
        while len(groups) > 1:
            counts = [np.bincount(sites[group], minlength=sites.max() + 1) for group in groups]
            pairs = [(_alike(counts[i], counts[j]), i, j) for i, j in combinations(range(len(groups)), 2)]
            p, i, j = max(pairs)
            if p < DIFFERENT:
                break
            groups[i] = np.concatenate([groups[i], groups.pop(j)])
        for number, group in enumerate(sorted(groups, key=len, reverse=True)):
            modes[group] = number
    return modes


def _alike(one: Array, other: Array) -> float:
    table = np.stack([one, other])[:, (one + other) > 0]
    return float(chi2_contingency(table, correction=False).pvalue) if table.shape[1] > 1 else 1.0


def rows_to_compare(target: Array, other: Array) -> Array:
    """Rows in cells (a_1, a_2) of `MIN_CELL` rows or more, under values of a_1 that have several such cells."""
    found: list[Array] = []
    for value in np.unique(target):
        cells = [np.flatnonzero((target == value) & (other == o)) for o in np.unique(other[target == value])]
        cells = [rows for rows in cells if len(rows) >= MIN_CELL]
        found += cells if len(cells) > 1 else []
    return np.sort(np.concatenate(found)) if found else np.empty(0, dtype=int)


def one_hot(site: Tensor) -> Tensor:
    """Members (B, N, S) of the values (B, N) of a_2."""
    return torch.nn.functional.one_hot(site).double()


def harmonised(x: Tensor, member: Tensor, bounds: Sequence[tuple[int, int]]) -> Tensor:
    """Rows (B, N, D) of which every value of a_2 has the same spread within a_1, and no additive effect (ComBat).

    Rows that are shifted and scaled by a_2 beforehand give the same result, so that it does not matter whether effects
    are put back before a_2 is permuted.
    """
    counts = member.sum(1)[:, :, None]  # (B, S, 1)
    square, freedom = x.new_zeros(()), x.new_zeros(())
    for start, end in bounds:
        part, own = x[..., start:end, :], member[:, start:end]
        size = own.sum(1)[:, :, None]
        mean = own.transpose(1, 2) @ part / size.clamp_min(1)
        square = square + own.transpose(1, 2) @ part.square() - size * mean.square()
        freedom = freedom + (size - 1).clamp_min(0)
    deviation = (square.clamp_min(0) / freedom.clamp_min(1)).sqrt()
    deviation = torch.where(deviation > 1e-6, deviation, 1.0)  # constant at this place
    scaled = x / (member @ deviation)
    for _ in range(ROUNDS):  # alternating least squares: effects of a_1 and of a_2
        centred = torch.cat([scaled[:, s:e] - scaled[:, s:e].mean(1, keepdim=True) for s, e in bounds], 1)
        scaled = scaled - member @ (member.transpose(1, 2) @ centred / counts)
    return scaled


class _Fit:
    """EM of mixtures on several versions of the data at once: B versions of N rows (B, N, d)."""

    def __init__(self, x: Tensor, member: Tensor, bounds: Sequence[tuple[int, int]], first: Sequence[Array]) -> None:
        self.x, self.member, self.bounds = x, member, bounds  # (B, N, d), (B, N, S)
        self.rows = member.sum(1)[:, :, None]  # (B, S, 1)
        batch, _, d = x.shape
        self.scale = x.new_ones(batch, member.shape[2], d)
        self.shift = torch.zeros_like(self.scale)
        self.assigned = [
            torch.nn.functional.one_hot(torch.from_numpy(labels).long()).to(x).expand(batch, -1, -1) for labels in first
        ]
        self.means: list[Tensor] = []  # (B, K, d) under each value of a_1
        self.variances: list[Tensor] = []
        self.weights: list[Tensor] = []  # (B, S, K)
        self._components(self.content(), own=False)

    def gain(self) -> Tensor:
        """By how much separate weights raise the log-likelihood (B,).

        Both mixtures begin with the same components, which find their place before maps move: a mixture with shared
        weights moves one mode onto another if it can, and separate weights would not bring them back.
        """
        start = self._state()
        shared = self._run(own=False)
        self._restore(start)
        return self._run(own=True) - shared

    def _run(self, own: bool) -> Tensor:
        """EM; the log-likelihood (B,)."""
        for i in range(BURN_IN + ITERATIONS):
            self._expect()
            if i >= BURN_IN:
                self._move_maps()
            self._components(self.content(), own)
        return self._expect()

    def content(self) -> Tensor:
        """Rows (B, N, d) without the effects of a_2."""
        return self.member @ self.shift + (self.member @ self.scale) * self.x

    def _state(self) -> tuple[Any, ...]:
        return self.shift, self.scale, self.means, self.variances, self.weights, list(self.assigned)

    def _restore(self, state: tuple[Any, ...]) -> None:
        self.shift, self.scale, self.means, self.variances, self.weights, self.assigned = state

    def _by_value(self, rows: Tensor) -> list[Tensor]:
        return [rows[:, start:end] for start, end in self.bounds]

    def _expect(self) -> Tensor:
        """Responsibilities, and the log-likelihood (B,)."""
        content = self.content()
        total = (self.rows * self.scale.log()).sum((1, 2))
        for v, (c, member) in enumerate(zip(self._by_value(content), self._by_value(self.member), strict=True)):
            precision = 1 / self.variances[v]
            linear = (self.means[v] * precision).transpose(1, 2)
            offset = (self.means[v].square() * precision - precision.log()).sum(2)[:, None]
            logits = c @ linear - 0.5 * (c.square() @ precision.transpose(1, 2) + offset)
            logits = logits + member @ self.weights[v].clamp_min(1e-300).log()
            norm = logits.logsumexp(2, keepdim=True)
            self.assigned[v] = (logits - norm).exp()
            total = total + norm.sum((1, 2))
        return total

    def _components(self, content: Tensor, own: bool) -> None:
        """Means, variances and weights from responsibilities."""
        self.means, self.variances, self.weights = [], [], []
        parts = zip(self.assigned, self._by_value(content), self._by_value(self.member), strict=True)
        for r, c, member in parts:
            size = r.sum(1)[:, :, None]  # (B, K, 1)
            mean = r.transpose(1, 2) @ c / (size + 1e-9)
            square = r.transpose(1, 2) @ c.square() / (size + 1e-9) - mean.square()
            overall = c.var(1, unbiased=False)[:, None]
            self.means.append(mean)
            self.variances.append(
                (size * square.clamp_min(0) + PRIOR_ROWS * overall.clamp_min(1e-6)) / (size + PRIOR_ROWS)
            )
            everywhere = r.mean(1)[:, None]  # (B, 1, K)
            counts = member.transpose(1, 2) @ r + PSEUDO_COUNT * everywhere
            weights = counts / counts.sum(2, keepdim=True) if own else everywhere.expand_as(counts)
            self.weights.append(weights)

    def _move_maps(self) -> None:
        """The likeliest shift and scale of every value of a_2, given responsibilities and components."""
        weight, pull = [], []
        for v, r in enumerate(self.assigned):
            weight.append(r @ (1 / self.variances[v]))  # (B, n, d)
            pull.append(r @ (self.means[v] / self.variances[v]))
        w, m, x, to_site = torch.cat(weight, 1), torch.cat(pull, 1), self.x, self.member.transpose(1, 2)
        all_w = to_site @ w
        wx, wxx, wm, wxm = (to_site @ part / all_w for part in (w * x, w * x.square(), m, m * x))
        sxx, sxm = (wxx - wx.square()).clamp_min(1e-9) * all_w, (wxm - wx * wm) * all_w
        scale = (sxm + (sxm.square() + 4 * self.rows * sxx).sqrt()) / (2 * sxx)
        shift = wm - scale * wx
        # the common part belongs to the components
        total = self.rows.sum(1, keepdim=True)
        common = ((self.rows * scale.log()).sum(1, keepdim=True) / total).exp()
        self.scale, shift = scale / common, shift / common
        self.shift = shift - (self.rows * shift).sum(1, keepdim=True) / total

    def information(self) -> Tensor:
        """I(component; a_2 | a_1) in bits (B,)."""
        total = self.x.new_zeros(len(self.x))
        for weights, member in zip(self.weights, self._by_value(self.member), strict=True):
            share = member.mean(1)[:, :, None]  # (B, S, 1)
            joint = share * weights
            alike = joint.sum(1, keepdim=True) * share
            total = total + member.shape[1] * torch.where(joint > 0, joint * (joint / alike).log2(), 0).sum((1, 2))
        return total / self.x.shape[1]
