"""Adaptation to the place of use: what unlabelled samples say about the correlation there. Ours.

A network that sees content s alone gives p(c, e | s): the probability of cluster c of a_1 and of the value e of the
other attributes, as they occur together in training. At another place c and e may correlate differently. A `Belief`
says how, and turns p(c, e | s) into probabilities of a_1 given s and e. `adapt` estimates it from samples without
labels of a_1.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import log, sqrt
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from codid_lightning.errors import RunError

FILE = "adaptation.json"  # beside the checkpoint
FORMAT = 1
MIN_SAMPLES = 20  # fewer unlabelled samples say nothing
PENALTY = 1.0  # on the squares of the dial's numbers: a normal prior around no correlation
PSEUDO_COUNT = 1.0  # samples of training's marginal that each estimated distribution over clusters begins with
FOLDS = 5
EM_STEPS = 200
_Z95 = 1.959964  # of the normal distribution


@dataclass(frozen=True)
class Content:
    """What content says about samples.

    Args:
        log_joint: log p(c, e | s) in training, (N, C, E). E is 1 for a network that predicts clusters only.
        value: Value of a_1 that each cluster belongs to, (C,).
        log_prior: log p(c | e) in training, (E', C), for all values e of the other attributes.
        log_marginal: log p(c) in training, (C,).
        values: Number of values of a_1, A.
    """

    log_joint: Tensor
    value: Tensor
    log_prior: Tensor
    log_marginal: Tensor
    values: int

    def __getitem__(self, rows: Tensor) -> Content:
        return Content(self.log_joint[rows], self.value, self.log_prior, self.log_marginal, self.values)

    def __len__(self) -> int:
        return len(self.log_joint)

    def on_cpu(self) -> Content:
        """The same in double precision on the CPU, where estimates are made."""
        joint, prior, marginal = (t.cpu().double() for t in (self.log_joint, self.log_prior, self.log_marginal))
        return Content(joint, self.value.cpu(), prior, marginal, self.values)

    @property
    def sees_others(self) -> bool:
        """Whether the network predicts the other attributes from content, which the dial needs."""
        return self.log_joint.shape[2] > 1

    @property
    def clusters(self) -> Tensor:
        """Logarithms of p(c | s), (N, C)."""
        return self.log_joint.logsumexp(2)

    def of_values(self, clusters: Tensor) -> Tensor:
        """Add up the probabilities of each value's clusters: logarithms (..., C) to (..., A)."""
        own = self.value == torch.arange(self.values, device=self.value.device)[:, None]  # (A, C)
        return torch.where(own, clusters[..., None, :], -torch.inf).logsumexp(-1)

    def given_value(self) -> Tensor:
        """Logarithms of p(e | s, a_1), (N, A, E): the propensity of the other attributes."""
        joint = self.of_values(self.log_joint.transpose(1, 2)).transpose(1, 2)  # (N, A, E)
        return joint.log_softmax(2)


# -------------------------------------------------------------------------------------------------------------- beliefs


class Belief(ABC):
    """How a_1 and the other attributes are believed to correlate at the place of use."""

    kind: ClassVar[str]

    @abstractmethod
    def to(self, like: Tensor) -> Belief:
        """The same on the device and in the precision of a tensor."""

    @abstractmethod
    def log_joint(self, content: Content) -> Tensor:
        """Logarithms of p(a_1, e | s) up to terms that depend on s and e alone, (N, A, E)."""

    def log_probs(self, content: Content, others: Tensor | None) -> Tensor:
        """Logarithms of p(a_1 | s, e), (N, A), given the other attributes' joint value e (N,)."""
        joint = self.log_joint(content)
        if joint.shape[2] == 1:
            return joint[:, :, 0].log_softmax(1)
        if others is None:
            raise ValueError("A belief in a correlation needs the values of the other attributes.")
        return joint[torch.arange(len(joint), device=joint.device), :, others].log_softmax(1)

    def log_others(self, content: Content, shares: Tensor) -> Tensor:
        """Logarithms of p(e | s), (N, E), where e has these shares (E,) at the place of use."""
        return (self.log_joint(content).logsumexp(1) + shares.log()).log_softmax(1)


@dataclass(frozen=True)
class Uniform(Belief):
    """Content and the other attributes are independent. Nothing has to be known about the place of use."""

    kind: ClassVar[str] = "uniform"

    def to(self, like: Tensor) -> Uniform:
        """Itself: there are no numbers."""
        return self

    def log_joint(self, content: Content) -> Tensor:
        """Logarithms of p(a_1 | s), the same for every e."""
        return content.of_values(content.clusters)[:, :, None]

    def log_others(self, content: Content, shares: Tensor) -> Tensor:
        """The shares."""
        return shares.log().expand(len(content), -1)


@dataclass(frozen=True)
class Dial(Belief):
    """p(e | s, a_1) is training's to the power g: 1 is the correlation of training, 0 none, -1 the reverse.

    Args:
        gains: g of each value of a_1, (A,).
        offsets: Added to the log-odds of every e under each value of a_1, (A, E).
    """

    gains: Tensor
    offsets: Tensor
    kind: ClassVar[str] = "dial"

    def to(self, like: Tensor) -> Dial:
        """The same on the device and in the precision of a tensor."""
        return Dial(self.gains.to(like), self.offsets.to(like))

    def log_joint(self, content: Content) -> Tensor:
        """Logarithms of p(a_1 | s) p(e | s, a_1)."""
        turned = self.offsets + self.gains[:, None] * content.given_value()
        return content.of_values(content.clusters)[:, :, None] + turned.log_softmax(2)

    def log_others(self, content: Content, shares: Tensor) -> Tensor:
        """The offsets hold the shares already."""
        return self.log_joint(content).logsumexp(1).log_softmax(1)


@dataclass(frozen=True)
class ModePrior(Belief):
    """Clusters have their own distribution under every e.

    Args:
        log_prior: log pi(c | e), (E, C).
    """

    log_prior: Tensor
    kind: ClassVar[str] = "modes"

    def to(self, like: Tensor) -> ModePrior:
        """The same on the device and in the precision of a tensor."""
        return ModePrior(self.log_prior.to(like))

    def log_joint(self, content: Content) -> Tensor:
        """Training's p(c | s), with its prior p(c) replaced by pi(c | e), added up over the clusters of a value."""
        ratio = self.log_prior - content.log_marginal  # (E, C)
        return content.of_values(content.clusters[:, None] + ratio).transpose(1, 2)


def turned_to(dial: float, content: Content) -> Belief:
    """The belief at a number on the dial: training's correlation is 1, none is 0, the reverse is -1."""
    if dial == 0:
        return Uniform()
    if content.sees_others:
        size = content.log_joint.shape[2]
        gains = content.log_joint.new_full((content.values,), dial)
        return Dial(gains, content.log_joint.new_zeros(content.values, size))
    ratio = content.log_prior - content.log_marginal
    return ModePrior((content.log_marginal + dial * ratio).log_softmax(1))


# ----------------------------------------------------------------------------------------------------------- estimation


def fit_dial(content: Content, others: Tensor) -> Dial:
    """The dial that makes the other attributes (N,) most likely given content; no label of a_1 is used."""
    solution = _minimise(_dial_loss(content, others), _first_dial(content))
    return _as_dial(solution, content)


def dial_intervals(dial: Dial, content: Content, others: Tensor) -> list[tuple[float, float]]:
    """95 % intervals of the gains: the estimate is normal with the inverse information as variance."""
    scores = _dial_scores(dial, content, others)  # (N, P), the gains first
    information = scores.T @ scores + 2 * PENALTY * torch.eye(scores.shape[1], dtype=scores.dtype)
    deviation = _Z95 * information.inverse().diagonal().sqrt()[: content.values]
    return [(float(g - d), float(g + d)) for g, d in zip(dial.gains, deviation, strict=True)]


def _dial_scores(dial: Dial, content: Content, others: Tensor) -> Tensor:
    """Derivatives (N, P) of every sample's log-likelihood by the dial's numbers: gains, then offsets but the first."""
    odds, rows = content.given_value().double(), others[:, None, None].expand(-1, content.values, 1)
    probs = (dial.offsets + dial.gains[:, None] * odds).softmax(2)  # (N, A, E)
    chosen = torch.zeros_like(probs).scatter(2, rows, 1.0)
    value = (content.of_values(content.clusters) + probs.gather(2, rows)[..., 0].log()).softmax(1)
    by_offset = value[:, :, None] * (chosen - probs)
    by_gain = (by_offset * odds).sum(2)
    return torch.cat([by_gain, by_offset[:, :, 1:].flatten(1)], dim=1)


def _first_dial(content: Content) -> Tensor:
    size = content.log_joint.shape[2]
    return torch.cat([torch.ones(content.values), torch.zeros(content.values * (size - 1))]).double()


def _as_dial(theta: Tensor, content: Content) -> Dial:
    gains, rest = theta[: content.values], theta[content.values :].view(content.values, -1)
    return Dial(gains, torch.cat([torch.zeros_like(rest[:, :1]), rest], dim=1))


def _dial_losses(content: Content, others: Tensor) -> Callable[[Tensor], Tensor]:
    """Negative log-likelihood of every sample's other attributes as a function of the dial's numbers."""
    log_values, odds = content.of_values(content.clusters).double(), content.given_value().double()

    def losses(theta: Tensor) -> Tensor:
        dial = _as_dial(theta, content)
        turned = (dial.offsets + dial.gains[:, None] * odds).log_softmax(2)
        chosen = turned.gather(2, others[:, None, None].expand(-1, content.values, 1))[..., 0]
        return -(log_values + chosen).logsumexp(1)

    return losses


def _dial_loss(content: Content, others: Tensor) -> Callable[[Tensor], Tensor]:
    losses = _dial_losses(content, others)
    return lambda theta: losses(theta).sum() + PENALTY * theta.square().sum()


def _minimise(loss: Callable[[Tensor], Tensor], start: Tensor) -> Tensor:
    theta = start.clone().requires_grad_()
    solver = torch.optim.LBFGS([theta], max_iter=100, tolerance_grad=1e-6, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        solver.zero_grad()
        value = loss(theta)
        value.backward()
        return value

    with torch.enable_grad():
        solver.step(closure)
    return theta.detach()


def fit_mode_prior(content: Content, others: Tensor) -> ModePrior:
    """pi(c | e) by expectation maximisation under each e (Saerens et al., Neural Computation 2002).

    Each distribution begins with a pseudo-count of training's marginal. A value e that does not occur keeps it.
    """
    marginal = content.log_marginal.double()
    likelihood = content.clusters.double() - marginal  # log p(s | c) up to a constant of s
    member = torch.nn.functional.one_hot(others, len(content.log_prior)).double()  # (N, E)
    pi = marginal.exp().expand(len(content.log_prior), -1)
    for _ in range(EM_STEPS):
        posterior = (likelihood + pi[others].log()).softmax(1)
        counts = member.T @ posterior + PSEUDO_COUNT * marginal.exp()
        new = counts / counts.sum(1, keepdim=True)
        moved, pi = (new - pi).abs().max(), new
        if moved < 1e-6:
            break
    return ModePrior(pi.log())


def fit_temperature(negative_log_likelihood: Callable[[Tensor], Tensor]) -> float:
    """The temperature that makes labels most likely, given their negative log-likelihood as a function of it."""
    found = _minimise(lambda theta: negative_log_likelihood(theta[0].exp()), torch.zeros(1, dtype=torch.float64))
    return float(found[0].clamp(log(0.1), log(10.0)).exp())


# ----------------------------------------------------------------------------------------------------------- adaptation


@dataclass(frozen=True)
class ClusterShares:
    """How often clusters occur under each value e of the other attributes.

    Args:
        value: Value of a_1 that each cluster belongs to, (C,).
        train: p(c | e) in training, (E, C).
        now: pi(c | e) at the place of use, (E, C).
    """

    value: Tensor
    train: Tensor
    now: Tensor

    def to_json(self) -> dict[str, Any]:
        """Plain numbers."""
        return {"value": self.value.tolist(), "train": self.train.tolist(), "now": self.now.tolist()}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> ClusterShares:
        """What `to_json` gave."""
        train, now = (torch.tensor(stored[name], dtype=torch.float64) for name in ("train", "now"))
        return cls(torch.tensor(stored["value"]), train, now)


@dataclass(frozen=True)
class Adaptation:
    """The belief chosen for a place of use, and why.

    Args:
        belief: What predictions use from now on.
        samples: Number of unlabelled samples.
        chosen: The candidate whose belief it is: `uniform`, `train`, `dial` or `modes`.
        likelihoods: Mean held-out log-likelihood of the other attributes under each candidate.
        dial: Gains under each value of a_1, where they can be read.
        intervals: Their 95 % intervals.
        clusters: How often clusters occur, in training and as estimated; None where this was not estimated.
        others_given: Whether the other attributes were given, rather than predicted.
        model: `fingerprint` of the model's weights; empty for estimates that belong to no model.
    """

    belief: Belief
    samples: int
    chosen: str = "uniform"
    likelihoods: Mapping[str, float] = field(default_factory=dict)
    dial: Sequence[float] | None = None
    intervals: Sequence[tuple[float, float]] | None = None
    clusters: ClusterShares | None = None
    others_given: bool = True
    model: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain numbers and names."""
        belief: dict[str, Any] = {"kind": self.belief.kind}
        if isinstance(self.belief, Dial):
            belief |= {"gains": self.belief.gains.tolist(), "offsets": self.belief.offsets.tolist()}
        elif isinstance(self.belief, ModePrior):
            belief |= {"prior": self.belief.log_prior.exp().tolist()}
        return {
            "format": FORMAT,
            "model": self.model,
            "belief": belief,
            "chosen": self.chosen,
            "samples": self.samples,
            "held_out_log_likelihood": dict(self.likelihoods),
            "dial": None if self.dial is None else list(self.dial),
            "dial_95": None if self.intervals is None else [list(pair) for pair in self.intervals],
            "clusters": None if self.clusters is None else self.clusters.to_json(),
            "others_given": self.others_given,
        }

    @classmethod
    def from_json(cls, stored: Mapping[str, Any], where: str = "The adaptation") -> Adaptation:
        """What `to_json` gave."""
        try:
            if stored["format"] != FORMAT:
                raise RunError(f"{where} has format {stored['format']}; this version reads format {FORMAT}.")
            clusters, intervals = stored["clusters"], stored["dial_95"]
            return cls(
                belief=_read_belief(stored["belief"]),
                samples=int(stored["samples"]),
                chosen=str(stored["chosen"]),
                likelihoods=dict(stored["held_out_log_likelihood"]),
                dial=stored["dial"],
                intervals=None if intervals is None else [(low, high) for low, high in intervals],
                clusters=None if clusters is None else ClusterShares.from_json(clusters),
                others_given=bool(stored["others_given"]),
                model=str(stored["model"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise RunError(f"{where} is damaged ({error!r}): run `codid adapt` again.") from error

    def save(self, path: Path) -> None:
        """Write a JSON file."""
        path.write_text(json.dumps(self.to_json(), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> Adaptation:
        """Read a JSON file."""
        try:
            stored = json.loads(path.read_text())
        except ValueError as error:  # not JSON, or not text
            raise RunError(f"{path} is damaged ({error}): run `codid adapt` again.") from error
        return cls.from_json(stored, str(path))


def fingerprint(state: Mapping[str, Any]) -> str:
    """A hash of a model's weights, given its state dict."""
    digest = hashlib.sha256()
    for name, value in sorted(state.items()):
        if isinstance(value, Tensor):
            digest.update(f"{name} {tuple(value.shape)}".encode())
            digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]


def _read_belief(stored: Mapping[str, Any]) -> Belief:
    if stored["kind"] == Dial.kind:
        gains, offsets = (torch.tensor(stored[name], dtype=torch.float64) for name in ("gains", "offsets"))
        return Dial(gains, offsets)
    if stored["kind"] == ModePrior.kind:
        return ModePrior(torch.tensor(stored["prior"], dtype=torch.float64).log())
    if stored["kind"] == Uniform.kind:
        return Uniform()
    raise ValueError(f"unknown kind {stored['kind']!r}")


def adapt(content: Content, others: Tensor, others_given: bool = True) -> Adaptation:
    """Estimate the correlation at the place of use from unlabelled samples, and decide whether to believe it.

    Candidates are no correlation, that of training, the dial and, if a value of a_1 has several clusters, a prior of
    clusters, in this order. Each is judged by the likelihood of held-out samples' other attributes. The first candidate
    is chosen that is within one standard error of the best.

    A network of real samples without modes gets no candidate but the first: what its output says about the other
    attributes may come from the samples showing them, and would be taken for a correlation.

    Args:
        content: What content says about the samples.
        others: Joint value of their other attributes, (N,).
        others_given: Whether these were given, rather than predicted.

    Raises:
        RunError: There are fewer than `MIN_SAMPLES` samples.
    """
    content, others = content.on_cpu(), others.cpu()
    if len(content) < MIN_SAMPLES:
        raise RunError(f"There are {len(content)} unlabelled samples; adaptation needs at least {MIN_SAMPLES}.")
    candidates = _candidates(content)
    scores = {name: _held_out(estimate, content, others) for name, estimate in candidates.items()}
    chosen = _choose(scores)
    dial = fit_dial(content, others) if content.sees_others else None
    modes = fit_mode_prior(content, others) if "modes" in candidates else None
    fitted: dict[str, Belief | None] = {"dial": dial, "modes": modes}
    return Adaptation(
        belief=fitted.get(chosen) or candidates[chosen](content, others),
        samples=len(content),
        chosen=chosen,
        likelihoods={name: float(score.mean()) for name, score in scores.items()},
        dial=None if dial is None else dial.gains.tolist(),
        intervals=None if dial is None else dial_intervals(dial, content, others),
        clusters=None if modes is None else _shares(content, modes),
        others_given=others_given,
    )


def _shares(content: Content, modes: ModePrior) -> ClusterShares:
    return ClusterShares(content.value, content.log_prior.exp(), modes.log_prior.exp())


Estimate = Callable[[Content, Tensor], Belief]


def _candidates(content: Content) -> dict[str, Estimate]:
    found: dict[str, Estimate] = {"uniform": lambda c, e: Uniform()}
    modes_known = len(content.value) > content.values
    if content.sees_others or modes_known:
        found["train"] = lambda c, e: turned_to(1.0, c)
    if content.sees_others:
        found["dial"] = fit_dial
    if modes_known:
        found["modes"] = fit_mode_prior
    return found


def _held_out(estimate: Estimate, content: Content, others: Tensor) -> Tensor:
    """Log-likelihood (N,) of every sample's other attributes under what was estimated from the other folds."""
    size = len(content.log_prior)
    scores = torch.empty(len(content), dtype=torch.float64)
    # Every value of the other attributes is spread over the folds, whatever the order of the samples.
    rank = torch.empty_like(others)
    rank[others.argsort(stable=True)] = torch.arange(len(others), device=others.device)
    for fold in range(FOLDS):
        rows = (rank % FOLDS == fold).nonzero()[:, 0]
        rest = (rank % FOLDS != fold).nonzero()[:, 0]
        counts = others[rest].bincount(minlength=size).double() + 1
        belief = estimate(content[rest], others[rest])
        predicted = belief.log_others(content[rows], counts / counts.sum())
        scores[rows] = predicted.gather(1, others[rows][:, None])[:, 0].double()
    return scores


def _choose(scores: Mapping[str, Tensor]) -> str:
    """The simplest candidate whose likelihood is within a standard error of the best one's."""
    best = max(scores.values(), key=lambda score: float(score.mean()))

    def close(score: Tensor) -> bool:
        loss = best - score
        return float(loss.mean()) <= float(loss.std()) / sqrt(len(loss))

    return next(name for name, score in scores.items() if close(score))
