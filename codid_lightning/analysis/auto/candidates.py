"""Models of rows that are tried: each with and without what helps against shortcuts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from codid_lightning.clustering.harmonizer import Harmonizer

Array = NDArray[Any]
Family = Literal["logistic", "boosting"]

COMPONENTS = 10  # of the mixture that effects of sites are estimated with
MIN_ROWS_OF_SITE = 20  # below, a site's effect is not estimated: its rows stay as measured
MOST_WEIGHT = 20.0  # of a row, in units of the mean weight


@dataclass(frozen=True)
class Candidate:
    """A kind of model with its settings.

    Args:
        family: Of the classifier.
        settings: Of the classifier.
        balanced: Every cell (target or mode, other attributes) counts as often as without correlation.
        harmonised: The shift and scale that the other attributes give to columns are removed before.
    """

    family: Family
    settings: Mapping[str, float] = field(default_factory=dict)
    balanced: bool = False
    harmonised: bool = False

    @property
    def title(self) -> str:
        """In words."""
        name = {"logistic": "logistic regression", "boosting": "gradient boosting"}[self.family]
        extras = [text for on, text in ((self.harmonised, "harmonised"), (self.balanced, "cells balanced")) if on]
        return ", ".join([name, *extras])

    @property
    def key(self) -> str:
        """Title and settings."""
        return " ".join([self.title, *(f"{name}={value:g}" for name, value in self.settings.items())])

    @property
    def robust(self) -> bool:
        """Whether it does anything against shortcuts."""
        return self.balanced or self.harmonised

    def fit(
        self, x: Array, y: Array, site: Array, kind: Array, seed: int = 0, harmonizer: Harmonizer | None = None
    ) -> Fitted:
        """Train on rows.

        Args:
            x: Inputs (N, d).
            y: Target (N,).
            site: Combination (N,) of the other attributes.
            kind: Value or mode (N,) of the target: cells are pairs of kind and site.
            seed: Of the classifier.
            harmonizer: Fitted to these rows, if it is there already.
        """
        if self.harmonised and harmonizer is None:
            harmonizer = harmonizer_of(x, y, site, seed)
        harmonizer = harmonizer if self.harmonised else None
        inputs = cleaned(harmonizer, x, site)
        weights = cell_weights(kind, site) if self.balanced else np.ones(len(y))
        if self.family == "logistic":
            fitted = make_pipeline(StandardScaler(), LogisticRegression(C=self.settings.get("C", 1.0), max_iter=300))
            fitted.fit(inputs, y, logisticregression__sample_weight=weights)
        else:
            leaves = int(self.settings.get("leaves", 15))
            fitted = HistGradientBoostingClassifier(max_iter=80, max_leaf_nodes=leaves, random_state=seed)
            fitted.fit(inputs, y, sample_weight=weights)
        return Fitted(harmonizer, fitted)


@dataclass(frozen=True)
class Fitted:
    """A trained model."""

    harmonizer: Harmonizer | None
    classifier: Any

    @property
    def needs_site(self) -> bool:
        """Whether predictions need the other attributes."""
        return self.harmonizer is not None

    def predict_proba(self, x: Array, site: Array) -> Array:
        """Probabilities (N, values)."""
        found: Array = self.classifier.predict_proba(cleaned(self.harmonizer, x, site))
        return found


def harmonizer_of(x: Array, y: Array, site: Array, seed: int = 0) -> Harmonizer | None:
    """Effects of sites with enough rows; None where fewer than two have."""
    sites, counts = np.unique(site, return_counts=True)
    known = np.isin(site, sites[counts >= MIN_ROWS_OF_SITE])
    if len(np.unique(site[known])) < 2:
        return None
    return Harmonizer(COMPONENTS, seed=seed).fit(x[known].astype(float), site[known], y[known])


def cleaned(harmonizer: Harmonizer | None, x: Array, site: Array) -> Array:
    """Rows (N, d) without the effects of sites that are known."""
    if harmonizer is None:
        return x
    known, found = np.isin(site, harmonizer.sites_), x.astype(float)
    if known.any():
        found[known] = harmonizer.transform(x[known], site[known])
    return found


def cell_weights(kind: Array, site: Array) -> Array:
    """Weights (N,) under which kind and site are independent: p(kind) p(site) / p(kind, site)."""
    kinds, kind = np.unique(kind, return_inverse=True)
    sites, site = np.unique(site, return_inverse=True)
    joint = np.bincount(kind * len(sites) + site, minlength=len(kinds) * len(sites)).reshape(len(kinds), -1)
    alike = joint.sum(1, keepdims=True) * joint.sum(0, keepdims=True) / joint.sum()
    weights = (alike / np.maximum(joint, 1))[kind, site]
    found: Array = np.minimum(weights / weights.mean(), MOST_WEIGHT)
    return found


def candidates(threat: bool) -> list[Candidate]:
    """What is tried, cheap models first; without a threat plain ones only."""
    settings: dict[Family, list[dict[str, float]]] = {
        "logistic": [{"C": 0.01}, {"C": 0.1}, {"C": 1.0}],
        "boosting": [{"leaves": 7}, {"leaves": 31}],
    }
    found = [
        Candidate(family, own, balanced, harmonised)
        for harmonised in (False, True)
        for balanced in (False, True)
        for family, several in settings.items()
        for own in several
    ]
    return [c for c in found if threat or not c.robust]
