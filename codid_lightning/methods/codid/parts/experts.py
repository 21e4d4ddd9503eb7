"""Experts within a_2: modes without an autoencoder. Ours.

A classifier of a_1 that learns from samples of one value of a_2 only cannot use a_2. Where it is wrong about a sample
it did not learn from, content like the sample's has the other value of a_1 more often under this value of a_2: the mode
of the sample is rare here. Such a sample is flagged. Its mode is the one that another value of a_2 prefers.

Experts are also wrong where samples are merely hard. Under a hidden correlation, what is rare under one value of a_2 is
common under another. So `flagged` is learnt from content under the other values and applied to this one: the area under
the ROC curve is then less than 0.5. If content is merely hard, it is hard under every value: more than 0.5.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import RidgeClassifier
from sklearn.metrics import roc_auc_score
from sklearn.model_selection import StratifiedKFold
from torch import Tensor

from codid_lightning.methods.codid.parts.propensity import FOLDS, LANDMARKS, principal_components

ROUNDS = 4
MIN_SAMPLES = 2 * FOLDS  # of a value of a_1 under a value of a_2, so that an expert can learn it
MIN_FLAGGED = 5  # flagged samples that a side of the sign test needs

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Booleans = NDArray[np.bool_]


@dataclass(frozen=True)
class Judged:
    """What experts say about samples.

    Args:
        flagged: Samples that the experts of their own value of a_2 put under another value of a_1, (N,).
        preferred: Value of a_2 that prefers each sample's mode, (N,): its own one unless it is flagged.
        area: Area under the ROC curve of `flagged`, learnt under the other values of a_2; None if nothing is flagged.
    """

    flagged: Tensor
    preferred: Tensor
    area: float | None

    @property
    def hidden(self) -> bool:
        """Whether there is a hidden correlation."""
        return self.area is not None and self.area < 0.5


def judge(content: Tensor, value: Tensor, other: Tensor) -> Judged:
    """Flag the samples whose mode is rare under their value of a_2.

    A flagged sample's mode is the one preferred by the value of a_2 whose expert is surest of the sample's a_1.

    Args:
        content: Inputs (N, p).
        value: Values of a_1, (N,).
        other: Values of a_2, (N,); several other attributes are given by their joint value.
    """
    y, e = value.cpu().numpy(), other.cpu().numpy()
    x = content.detach().cpu().double().numpy().copy()
    for here in _samples_of_each(e):
        x[here] -= x[here].mean(0)  # so that what is learnt under one value of a_2 applies to another
    x = principal_components(x)
    x = Nystroem(gamma=1.0, n_components=min(LANDMARKS, len(x)), random_state=0).fit_transform(x)
    margins = np.full(len(x), np.inf)
    for here in _samples_of_each(e):
        known = here[_common(y[here])]
        if len(np.unique(y[known])) > 1:
            margins[known] = _held_out_margins(x[known], y[known])
    flagged = margins < 0
    return Judged(
        flagged=torch.from_numpy(flagged).to(value.device),
        preferred=torch.from_numpy(_preferred(x, y, e, flagged)).to(value.device),
        area=_sign_test(x, y, e, flagged),
    )


def _samples_of_each(labels: Integers) -> list[Integers]:
    return [np.flatnonzero(labels == label) for label in np.unique(labels)]


def _common(y: Integers) -> Booleans:
    """Samples (n,) of the values that occur often enough to be learnt."""
    common: Booleans = np.bincount(y)[y] >= MIN_SAMPLES
    return common


def _held_out_margins(x: Floats, y: Integers) -> Floats:
    """Margins (n,) by experts that did not learn from the sample, each round from what the last one did not flag."""
    margins = np.full(len(x), np.inf)
    folds = list(StratifiedKFold(FOLDS, shuffle=True, random_state=0).split(x, y))
    for _ in range(ROUNDS):
        trusted = margins > 0
        for learn, predict in folds:
            kept = learn[trusted[learn]]
            kept = kept if len(np.unique(y[kept])) == len(np.unique(y)) else learn
            margins[predict] = _margins(_expert(x[kept], y[kept]), x[predict], y[predict])
    return margins


def _expert(x: Floats, y: Integers) -> RidgeClassifier:
    """Ridge regression of one-hot labels (n,), all of which count equally."""
    return RidgeClassifier(class_weight="balanced").fit(x, y)


def _margins(expert: RidgeClassifier, x: Floats, y: Integers) -> Floats:
    """Scores (n,) of the samples' own values less those of the best other values; -inf for values not learnt."""
    scores = expert.decision_function(x)
    scores = np.stack([-scores, scores], axis=1) if scores.ndim == 1 else scores
    own = y[:, None] == expert.classes_
    margins: Floats = np.where(own, scores, -np.inf).max(1) - np.where(own, -np.inf, scores).max(1)
    return margins


def _preferred(x: Floats, y: Integers, e: Integers, flagged: Booleans) -> Integers:
    """Values of a_2 (N,) that prefer the samples' modes."""
    preferred, best = e.copy(), np.full(len(x), -np.inf)
    for other in np.unique(e):
        known = (e == other) & ~flagged
        asked = np.flatnonzero(flagged & (e != other))
        if len(asked) == 0 or len(np.unique(y[known])) < 2:
            continue
        margins = _margins(_expert(x[known], y[known]), x[asked], y[asked])
        surer = margins > best[asked]
        preferred[asked[surer]], best[asked[surer]] = other, margins[surer]
    return preferred


def _sign_test(x: Floats, y: Integers, e: Integers, flagged: Booleans) -> float | None:
    """Mean area under the ROC curve over all cells (a_1, a_2), weighted by flagged samples; None if none has enough."""
    areas, weights = [], []
    for value in np.unique(y):
        for other in np.unique(e):
            here, there = ((y == value) & side for side in (e == other, e != other))
            counts = [flagged[side].sum() for side in (here, there)]
            rest = [(~flagged[side]).sum() for side in (here, there)]
            if min(counts + rest) >= MIN_FLAGGED:
                learnt = _expert(x[there], flagged[there].astype(np.int64))
                areas.append(roc_auc_score(flagged[here], learnt.decision_function(x[here])))
                weights.append(counts[0])
    return float(np.average(areas, weights=weights)) if areas else None
