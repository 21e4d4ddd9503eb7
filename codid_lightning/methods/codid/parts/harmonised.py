"""Harmonised samples: remove the shift and scale that the other attributes give to each column of a table. Ours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, NamedTuple

import numpy as np
import torch
from lightning.pytorch.utilities import rank_zero_info
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from torch import Tensor, nn

from codid_lightning.clustering import Harmonizer
from codid_lightning.methods.codid.parts.content import ContentInputs, ContentPart
from codid_lightning.nn import distributed

Array = NDArray[Any]
MAX_SITES = 1024  # values of the other attributes together
MIN_RISE, MIN_ERRORS_OF_LOSS = 0.02, 2  # nats and standard errors by which a classifier of other attributes must lose
MAX_ERRORS_OF_LIKELIHOOD = 1  # standard errors by which rows may be less likely with effects than without
MIN_PROBABILITY = 1e-3  # that the classifier gives to any value
CLASSIFIER_ROWS = 5000  # that it learns from, under each value


@dataclass(frozen=True)
class HarmonisedSamples(ContentPart):
    """Map the rows of a table to one site, and train z_1 on the result. Ours.

    Every value of the other attributes (all their combinations, if there are several) counts as a site that shifts and
    scales each column. `Harmonizer` estimates this from the training set before the first epoch, given the modes. A
    gate decides whether to use it: content must show the other attributes less than rows as measured do, and rows of
    the validation set must be as likely with the effects of sites as without. Else training uses rows as measured.

    Evaluation maps each row by its own other attributes, or by those that the method's predictors find where they are
    unknown. A combination of values that did not occur in training is not mapped.

    Args:
        components: Most components of the mixture under each value of a_1.
    """

    components: int = 50

    def __post_init__(self) -> None:
        if self.components < 1:
            raise ValueError(f"model.decoding.components is {self.components}; it must be positive.")

    def build(self, input_shape: tuple[int, ...], attribute_sizes: tuple[int, ...]) -> HarmonisedInputs:
        """The maps and what is known about them."""
        return HarmonisedInputs(self, input_shape, attribute_sizes)


class HarmonisedInputs(ContentInputs):
    """Rows as they would be measured at the mean site.

    Args:
        settings: How the maps are estimated.
        input_shape: Shape of one sample.
        attribute_sizes: Number of values of each attribute.
    """

    shift: Tensor  # (E, d) of each combination of the other attributes' values
    scale: Tensor  # (E, d)

    def __init__(
        self, settings: HarmonisedSamples, input_shape: tuple[int, ...], attribute_sizes: tuple[int, ...]
    ) -> None:
        super().__init__()
        self.settings, self.other_sizes = settings, attribute_sizes[1:]
        sites = prod(self.other_sizes)
        if not self.other_sizes or sites > MAX_SITES:
            raise ValueError(f"HarmonisedSamples needs 1 to {MAX_SITES} combinations of other attributes' values.")
        if len(input_shape) != 1:
            raise ValueError(f"HarmonisedSamples needs rows of a table; the samples have shape {input_shape}.")
        self.register_buffer("shift", torch.zeros(sites, *input_shape))
        self.register_buffer("scale", torch.ones(sites, *input_shape))

    def site(self, others: Tensor) -> Tensor:
        """Number (B,) of the combination of the other attributes' values (B, Q - 1)."""
        number = torch.zeros_like(others[:, 0])
        for q, size in enumerate(self.other_sizes):
            number = number * size + others[:, q]
        return number

    def features(self, x: Tensor, others: Tensor) -> Tensor:
        """Rows x (B, d) at the mean site."""
        site = self.site(others)
        return (self.shift[site] + self.scale[site] * x).to(x)

    def own_representation(self, first: nn.Module, x: Tensor, others: Tensor) -> Tensor:
        """z_1 (B, p) of rows at the mean site."""
        z: Tensor = first(self.features(x, others))
        return z

    def start(self, datasets: Mapping[str, Any], max_epochs: int | None) -> None:
        """Estimate the maps on one rank, and decide whether they are used."""
        if self.judged:
            return
        shift, scale, self.gate_metrics = distributed.from_first_rank(lambda: self._fit(datasets))
        self.shift.copy_(shift)
        self.scale.copy_(scale)
        rank_zero_info(verdict(self.gate_metrics))

    def _fit(self, datasets: Mapping[str, Any]) -> tuple[Tensor, Tensor, dict[str, float]]:
        train, val = (self._rows(datasets[name]) for name in ("train", "val"))
        found = Harmonizer(self.settings.components).fit(*train)
        val = val.where(np.isin(val.site, found.sites_) & np.isin(val.value, found.covariates_))
        shift, scale = self.shift.cpu().clone(), self.scale.cpu().clone()
        shift[found.sites_], scale[found.sites_] = (
            torch.from_numpy(maps).to(shift) for maps in (found.shift_, found.scale_)
        )
        return shift, scale, judge(found, train, val)

    def _rows(self, data: Any) -> Rows:
        batch = data[torch.arange(len(data))]
        x, site = batch["x"].cpu().float().numpy(), self.site(batch["a"][:, 1:]).cpu().numpy()
        return Rows(x, site, batch["a"][:, 0].cpu().numpy())


# ---------------------------------------------------------------------------------------------------------------- gate


class Rows(NamedTuple):
    """Rows of a table, in the order of `Harmonizer.fit`'s arguments."""

    x: Array  # (N, d)
    site: Array  # (N,)
    value: Array  # (N,) of a_1

    def where(self, keep: Array) -> Rows:
        """Some of the rows."""
        return Rows(*(part[keep] for part in self))


def judge(found: Harmonizer, train: Rows, val: Rows) -> dict[str, float]:
    """Whether the effects of sites are real, from rows that they were not estimated from.

    Real effects show the site beyond what content says about it. So a classifier must know less about the site of a row
    after they are removed: its loss must rise by more than 0.02 and by more than two standard errors. A wrong map that
    moves one mode onto another would do this, too, but it makes rows less likely: they must be no less likely than
    under a mixture without effects, but for a standard error. Each mixture has the number of components that suits it.
    """
    if len(found.sites_) < 2 or len(val.x) < 2:
        return {"gate/accepted": 0.0}
    without = Harmonizer(found.components, effects="none").fit(*train)
    gain, gain_error = _mean(found.score_samples(*val) - without.score_samples(*val))
    before = site_losses(train, val)
    after = site_losses(*(rows._replace(x=found.transform(rows.x, rows.site)) for rows in (train, val)))
    rise, rise_error = _mean(after - before)
    real = rise > max(MIN_RISE, MIN_ERRORS_OF_LOSS * rise_error) and gain > -MAX_ERRORS_OF_LIKELIHOOD * gain_error
    return {
        "gate/likelihood_gain": gain,
        "gate/likelihood_error": gain_error,
        "gate/a2_loss_measured": float(before.mean()),
        "gate/a2_loss_content": float(after.mean()),
        "gate/a2_loss_error": rise_error,
        "gate/accepted": float(real),
    }


def _mean(values: Array) -> tuple[float, float]:
    """Mean and its standard error."""
    return float(values.mean()), float(values.std()) / len(values) ** 0.5


def site_losses(train: Rows, val: Rows) -> Array:
    """Cross-entropy (N,) of the site of validation rows, by a quadratic classifier under each value of a_1."""
    losses = np.zeros(len(val.x))
    for value in np.unique(val.value):
        own, other = np.flatnonzero(train.value == value), val.value == value
        own = np.random.default_rng(0).permutation(own)[:CLASSIFIER_ROWS]
        losses[other] = _losses(train.x[own], train.site[own], val.x[other], val.site[other])
    return losses


def _losses(x: Array, y: Array, new_x: Array, new_y: Array) -> Array:
    known = np.unique(y)
    if len(known) < 2:
        return np.where(new_y == known[0], 0.0, -np.log(MIN_PROBABILITY))
    classifier = make_pipeline(StandardScaler(), LogisticRegression(max_iter=200)).fit(_quadratic(x), y)
    probability = classifier.predict_proba(_quadratic(new_x))
    right: Array = (probability * (new_y[:, None] == known)).sum(1)
    return -np.log(np.maximum(right, MIN_PROBABILITY))


def _quadratic(x: Array) -> Array:
    return np.concatenate([x, x**2], axis=1)


def verdict(metrics: Mapping[str, float]) -> str:
    """The gate's line."""
    if len(metrics) == 1:
        return "Site effects: not used, the other attributes have a single value in training."
    decided = "used" if metrics["gate/accepted"] else "not used, training continues on rows as measured"
    return (
        f"Site effects: {decided}. A classifier's loss in predicting the other attributes of validation rows is "
        f"{metrics['gate/a2_loss_measured']:.3f} before and {metrics['gate/a2_loss_content']:.3f} after they are "
        f"removed (standard error of the difference {metrics['gate/a2_loss_error']:.3f}, it must rise by "
        f"{MIN_ERRORS_OF_LOSS} of these and {MIN_RISE}). With them, the log-likelihood of a validation row changes by "
        f"{metrics['gate/likelihood_gain']:+.3f} (standard error {metrics['gate/likelihood_error']:.3f}, it may fall "
        f"by {MAX_ERRORS_OF_LIKELIHOOD} of these)."
    )
