"""What a data set holds that a model could take for the target: the tests, put together into one verdict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from codid_lightning import metrics
from codid_lightning.analysis.data_audit.dependence import Correlation, Readability, correlation, readability
from codid_lightning.analysis.data_audit.features import all_features, content_features
from codid_lightning.analysis.data_audit.hidden import DRAWS, HiddenCorrelation, hidden_correlation
from codid_lightning.analysis.data_audit.samples import Attribute, Samples

Array = NDArray[Any]

LEVEL = 0.05  # of all correlations that are tested, after Holm's correction
NOTABLE = 0.01  # share of an attribute's information below which a correlation is too weak to matter
DISGUISED = 0.8  # share above which content cannot be told from the attribute itself
MAX_ROWS = 3000  # of the tests that look at inputs; a random part of larger data

Answer = Literal["yes", "unclear", "no"]


@dataclass(frozen=True)
class AttributeFinding:
    """What was found about one other attribute. p-values are Holm-adjusted over all correlations of all attributes."""

    name: str
    plain: Correlation
    plain_p: float
    hidden: HiddenCorrelation | None  # None where a_1 and a_2 never vary apart
    hidden_p: float
    readable: Readability | None  # None where a value of a_2 is too rare

    @property
    def correlated(self) -> bool:
        """Whether target and attribute are correlated, notably."""
        return self.plain_p < LEVEL and self.plain.share >= NOTABLE

    @property
    def hides(self) -> Answer:
        """Whether kinds of rows under one value of the target correlate with the attribute."""
        if self.hidden is None:
            return "unclear"
        if self.hidden_p >= LEVEL or self.hidden.share < NOTABLE:
            return "no"
        return "unclear" if self.hidden.share >= DISGUISED else "yes"

    @property
    def visible(self) -> bool:
        """Whether inputs show the attribute; where this cannot be tested, they are taken to."""
        return self.hidden is None or self.readable is None or self.readable.p_value < LEVEL

    @property
    def threat(self) -> Answer:
        """Whether a model may predict the target from this attribute: it must be visible, and correlated."""
        if not self.visible and self.hides != "yes":
            return "no"
        if self.correlated or self.hides == "yes":
            return "yes"
        return self.hides


@dataclass(frozen=True)
class DataVerdict:
    """All attributes."""

    attributes: tuple[AttributeFinding, ...]
    rows: int  # that the tests of inputs looked at
    modes: Array  # (N,) of all rows, -1 for rows that no test looked at; of the attribute with the clearest correlation

    @property
    def threat(self) -> Answer:
        """Do shortcuts threaten?"""
        return _worst(finding.threat for finding in self.attributes)

    @property
    def hides(self) -> Answer:
        """Does the data hide correlations?"""
        return _worst(finding.hides for finding in self.attributes)


def _worst(answers: Any) -> Answer:
    found = set(answers)
    return "yes" if "yes" in found else "unclear" if "unclear" in found else "no"


def judge(samples: Samples, draws: int = DRAWS, seed: int = 0) -> DataVerdict:
    """Test every other attribute. The result depends on the data and the seed alone, not on a model."""
    chosen = _some(samples, seed)
    content, x = content_features(samples.x[chosen]), all_features(samples.x[chosen])
    tests = 2 * len(samples.others)
    draws = max(draws, round(4 * tests / LEVEL) - 1)  # so that the smallest corrected p-value can fall below the level
    found = [_tests(samples, other, chosen, content, x, draws, seed) for other in samples.others]
    p_values = [p for plain, hidden, _ in found for p in (plain.p_value, hidden.p_value if hidden else 1.0)]
    adjusted = metrics.holm(p_values)
    findings = tuple(
        AttributeFinding(other.name, plain, adjusted[2 * i], hidden, adjusted[2 * i + 1], readable)
        for i, (other, (plain, hidden, readable)) in enumerate(zip(samples.others, found, strict=True))
    )
    modes = np.full(len(samples), -1)
    tested = [hidden for _, hidden, _ in found if hidden]
    if tested:
        modes[chosen] = min(tested, key=lambda h: (h.p_value, -h.share)).modes
    return DataVerdict(findings, len(chosen), modes)


def _some(samples: Samples, seed: int) -> Array:
    """Rows that the tests of inputs look at: of the training part, at most `MAX_ROWS`, one of each group and cell."""
    rows = np.arange(len(samples)) if samples.part is None else np.flatnonzero(samples.part == "train")
    order = np.random.default_rng(seed).permutation(rows)
    if samples.groups is not None:
        keys = np.stack([samples.groups, samples.target.labels, *(o.labels for o in samples.others)], 1)[order]
        order = order[np.sort(np.unique(keys, axis=0, return_index=True)[1])]
    return np.sort(order[:MAX_ROWS])


def _tests(
    samples: Samples, other: Attribute, chosen: Array, content: Array, x: Array, draws: int, seed: int
) -> tuple[Correlation, HiddenCorrelation | None, Readability | None]:
    train = slice(None) if samples.part is None else samples.part == "train"
    groups = None if samples.groups is None else samples.groups[train]
    plain = correlation(samples.target.labels[train], other.labels[train], groups, seed)
    target, labels = samples.target.labels[chosen], other.labels[chosen]
    own = None if samples.groups is None else samples.groups[chosen]
    return plain, hidden_correlation(content, target, labels, draws, seed), readability(x, target, labels, own, seed)
