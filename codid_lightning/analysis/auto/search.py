"""Try candidates within a budget, choose one by rows that it was not trained on, and prove it on test rows."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import ttest_1samp
from sklearn.model_selection import StratifiedGroupKFold

from codid_lightning.analysis.auto.candidates import Candidate, candidates, cell_weights, harmonizer_of
from codid_lightning.analysis.auto.model import AutoModel, combination
from codid_lightning.analysis.data_audit.model import ModelVerdict, judge_predictions
from codid_lightning.analysis.data_audit.report import DataAudit, audit_samples
from codid_lightning.analysis.data_audit.samples import Samples
from codid_lightning.clustering.harmonizer import Harmonizer
from codid_lightning.errors import RunError
from codid_lightning.training.runs import replacing

Array = NDArray[Any]
Report = Callable[[str, int, int, float | None], None]  # title, finished, of how many, seconds left

FOLDS = 5
TEST = 5  # one in so many rows is a test row, where the file names none
LEVEL = 0.05  # of a gain over the plain model, corrected for the number of candidates
STATE = "candidates.json"


@dataclass(frozen=True)
class Tried:
    """A candidate and its scores on rows that it was not trained on."""

    candidate: Candidate
    accuracy: float
    independent: float  # accuracy if target and other attributes were independent, by re-weighting rows
    worst: float  # accuracy of the worst cell
    gain: float  # of `independent` over the plain model
    p_value: float  # of this gain, one-sided, not corrected
    seconds: float


@dataclass(frozen=True)
class AutoResult:
    """What was tried, chosen and proven."""

    audit: DataAudit  # of all rows, with the predictions of the chosen model on test rows
    tried: tuple[Tried, ...]  # best first
    left_out: tuple[str, ...]  # candidates for which there was no time
    base: Tried
    chosen: Tried
    before: ModelVerdict  # the plain model on test rows
    after: ModelVerdict  # the chosen model on test rows
    changed: tuple[tuple[int, str, str, str], ...]  # row, value, plain prediction, chosen prediction
    model: AutoModel

    @property
    def reason(self) -> str:
        """Why this model was chosen."""
        if self.audit.data.threat == "no":
            return "The audit found no shortcut, so plain models were compared by their accuracy alone."
        if self.chosen is self.base:
            return "No candidate was significantly better than the plain model where the correlation is gone."
        return (
            f"Where the correlation is gone, it gains {100 * self.chosen.gain:.1f} points over the plain model on rows "
            f"that neither was trained on (p = {self.chosen.p_value:.4f}, {self._compared} candidates compared)."
        )

    @property
    def _compared(self) -> int:
        return sum(t.candidate.robust for t in self.tried)


def auto(
    samples: Samples, folder: Path, budget: float = 1200, seed: int = 0, report: Report | None = None
) -> AutoResult:
    """Find out whether shortcuts threaten, try what helps, and choose.

    Args:
        samples: Rows or embeddings (N, d); test rows by `part`, else one in five rows, drawn by cell and group.
        folder: Finished candidates are kept here, so that an interrupted search goes on.
        budget: Seconds after which no candidate begins; plain models are always tried.
        seed: Of folds and models.
        report: Called before each candidate.
    """
    if samples.x.ndim != 2:
        raise RunError(f"`codid auto` takes tables and embeddings; these inputs have shape {samples.x.shape[1:]}.")
    started = time.monotonic()
    samples = samples if samples.part is not None else replace(samples, part=_parts(samples, seed))
    audit = audit_samples(samples, seed=seed)
    is_train = np.asarray(samples.part == "train")
    train = samples.where(is_train)
    kind = train.target.labels
    if audit.data.hides == "yes":
        kind = kind * (audit.data.modes.max() + 2) + audit.data.modes[is_train] + 1
    folds = _Folds(train, kind, seed)
    state = _State.of(folder, samples, kind, seed)
    waiting = candidates(audit.data.threat != "no")
    left_out: list[str] = []
    durations: list[float] = []
    try:
        for number, candidate in enumerate(waiting):
            spent = time.monotonic() - started
            if candidate.robust and spent > budget:
                left_out.append(candidate.key)
                continue
            if report:
                ahead = len(waiting) - number
                report(candidate.key, number, len(waiting), float(np.mean(durations)) * ahead if durations else None)
            if candidate.key not in state.predicted:
                before = time.monotonic()
                predicted = folds.cross_predicted(candidate)
                state.add(candidate.key, predicted, time.monotonic() - before)
                durations.append(time.monotonic() - before)
    except KeyboardInterrupt:
        if not any(c.key in state.predicted for c in waiting if not c.robust):
            raise
        left_out += [c.key for c in waiting if c.key not in state.predicted and c.key not in left_out]
    finished = [c for c in waiting if c.key in state.predicted]
    tried, base, chosen = choose(finished, state, train, kind)
    return _prove(samples, audit, kind, tried, base, chosen, left_out, seed)


def choose(
    finished: Sequence[Candidate], state: _State, train: Samples, kind: Array
) -> tuple[list[Tried], Tried, Tried]:
    """Scores of all, the plain model, and the choice: the plain one unless another is significantly better.

    The plain model is the most accurate one. Others are compared with it by their accuracy if target and other
    attributes were independent: rows are re-weighted, and rows of a group count as one.
    """
    target, site = train.target.labels, combination(train)
    weights = cell_weights(kind, site)
    cell = np.unique(np.stack([target, site], 1), axis=0, return_inverse=True)[1].ravel()
    sizes = np.bincount(cell)
    right = {c.key: np.array(state.predicted[c.key][0]) == target for c in finished}
    plain = max((c for c in finished if not c.robust), key=lambda c: right[c.key].mean())
    tried = []
    for c in finished:
        own = right[c.key]
        gains = weights * (own.astype(float) - right[plain.key])
        units = gains if train.groups is None else np.bincount(train.groups, gains, train.groups.max() + 1)
        units = units if train.groups is None else units[np.bincount(train.groups) > 0]
        p = float(ttest_1samp(units, 0, alternative="greater").pvalue) if units.std() > 0 else 1.0
        shares = np.bincount(cell, own)[sizes >= 10] / sizes[sizes >= 10]
        worst = float(shares.min()) if len(shares) else float("nan")
        independent = float((weights * own).sum() / weights.sum())
        tried.append(Tried(c, float(own.mean()), independent, worst, float(gains.mean()), p, state.predicted[c.key][1]))
    tried.sort(key=lambda t: -t.independent)
    base = next(t for t in tried if t.candidate is plain)
    robust = [t for t in tried if t.candidate.robust]
    better = [t for t in robust if t.p_value * len(robust) < LEVEL]
    return tried, base, (better[0] if better else base)


def _prove(
    samples: Samples,
    audit: DataAudit,
    kind: Array,
    tried: Sequence[Tried],
    base: Tried,
    chosen: Tried,
    left_out: Sequence[str],
    seed: int,
) -> AutoResult:
    """Train the plain and the chosen model on all training rows, and judge both on test rows."""
    is_train = np.asarray(samples.part == "train")
    train, site = samples.where(is_train), combination(samples)
    fits = {}
    for one in (base, chosen):
        if one.candidate.key not in fits:
            fits[one.candidate.key] = one.candidate.fit(train.x, train.target.labels, site[is_train], kind, seed)
    predicted = {key: fit.predict_proba(samples.x, site).argmax(1) for key, fit in fits.items()}
    before, after = predicted[base.candidate.key], predicted[chosen.candidate.key]
    values = samples.target.values
    changed = tuple(
        (
            int(samples.rows[i] if samples.rows is not None else i),
            values[samples.target.labels[i]],
            values[before[i]],
            values[after[i]],
        )
        for i in np.flatnonzero(~is_train & (before != after))
    )
    model = AutoModel(
        target=samples.target.name,
        values=values,
        others=tuple((other.name, other.values) for other in samples.others),
        encoder=samples.encoder,
        fitted=fits[chosen.candidate.key],
        title=chosen.candidate.title,
    )
    plain, robust = (judge_predictions(samples, np.where(is_train, -1, p), None, seed) for p in (before, after))
    return AutoResult(
        audit=replace(audit, model=robust),
        tried=tuple(tried),
        left_out=tuple(left_out),
        base=base,
        chosen=chosen,
        before=plain,
        after=robust,
        changed=changed,
        model=model,
    )


def _parts(samples: Samples, seed: int) -> Array:
    """`train` or `test` (N,): one in five rows of every cell, whole groups."""
    cell = samples.target.labels * (combination(samples).max() + 1) + combination(samples)
    groups = np.arange(len(samples)) if samples.groups is None else samples.groups
    _, test = next(StratifiedGroupKFold(TEST, shuffle=True, random_state=seed).split(cell, cell, groups))
    part = np.full(len(samples), "train", dtype=object)
    part[test] = "test"
    return part


class _Folds:
    """Training rows in folds; effects of sites are estimated once in each."""

    def __init__(self, train: Samples, kind: Array, seed: int) -> None:
        self.train, self.kind, self.seed, self.site = train, kind, seed, combination(train)
        cell = train.target.labels * (self.site.max() + 1) + self.site
        groups = np.arange(len(train)) if train.groups is None else train.groups
        splits = StratifiedGroupKFold(FOLDS, shuffle=True, random_state=seed + 1).split(cell, cell, groups)
        self.folds = list(splits)
        self.harmonizers: dict[int, Harmonizer | None] = {}

    def cross_predicted(self, candidate: Candidate) -> Array:
        """The prediction (N,) of every row by a model that was not trained on it."""
        train, target = self.train, self.train.target.labels
        found = np.empty(len(train), dtype=int)
        for number, (fit, held) in enumerate(self.folds):
            if len(np.unique(target[fit])) < len(train.target.values):
                raise RunError(f"Some value of {train.target.name} has too few rows to hold some of them out.")
            if candidate.harmonised and number not in self.harmonizers:
                self.harmonizers[number] = harmonizer_of(train.x[fit], target[fit], self.site[fit], self.seed)
            own = self.harmonizers.get(number)
            fitted = candidate.fit(train.x[fit], target[fit], self.site[fit], self.kind[fit], self.seed, own)
            found[held] = fitted.predict_proba(train.x[held], self.site[held]).argmax(1)
        return found


@dataclass
class _State:
    """Finished candidates, on disk."""

    file: Path
    content: str  # hash of data and settings
    predicted: dict[str, tuple[list[int], float]]  # predictions and seconds

    @classmethod
    def of(cls, folder: Path, samples: Samples, kind: Array, seed: int) -> _State:
        digest = hashlib.sha256(repr((seed, samples.target, samples.others)).encode())
        parts = (samples.x, samples.target.labels, kind, combination(samples), np.asarray(samples.part == "train"))
        for part in parts:
            digest.update(np.ascontiguousarray(part).tobytes())
        content, file = digest.hexdigest()[:16], folder / STATE
        if file.is_file():
            before = json.loads(file.read_text())
            if before.get("content") == content:
                return cls(file, content, {key: tuple(value) for key, value in before["predicted"].items()})
        return cls(file, content, {})

    def add(self, key: str, predicted: Array, seconds: float) -> None:
        """Keep the predictions of a candidate."""
        self.predicted[key] = (predicted.tolist(), seconds)
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(self.file) as part:
            part.write_text(json.dumps({"content": self.content, "predicted": self.predicted}))
