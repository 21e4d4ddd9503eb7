"""Modes as a prior: what the other attributes say about a cluster is added to its logit. Ours."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from codid_lightning.errors import RunError
from codid_lightning.methods.codid.adaptation import Content, fit_temperature
from codid_lightning.methods.codid.parts.mode_losses import ModeLoss, mass_shifts
from codid_lightning.nn.slots import PriorPredictor, cluster_logits
from datamodules.base import Batch

if TYPE_CHECKING:
    from codid_lightning.clustering import Clustering
    from codid_lightning.methods.codid.module import CoDID
    from codid_lightning.methods.codid.target import Target

MAX_JOINT = 64  # values of all other attributes together; with more, their log-ratios are added


@dataclass(frozen=True)
class PriorInLogits(ModeLoss):
    """Predict the cluster of every sample, with log p(c | a_2) / p(c) of training added to its logits.

    What a_2 says about the cluster is in the logits already, so the network gains nothing from encoding a_2: with true
    modes it learns p(c | s), s being what of x does not depend on a_2. This is logit adjustment (Menon et al., ICLR
    2021) with a prior per value of a_2 and per mode. a_1 is predicted by adding up the probabilities of its clusters.
    With one cluster under each value it is logit adjustment over the cells (a_1, a_2).

    On decoded samples (`model.decoding`, once its gate accepts), x does not show a_2. Nothing is added then, and the
    network predicts pairs of cluster and a_2. Its log-odds of a_2 are the propensity, which `CoDID.adapt` uses.

    Several other attributes count as one attribute with all their combinations. If there are more than `MAX_JOINT` of
    these, the log-ratios of the attributes are added instead, as if they were independent given the cluster.

    Args:
        pseudo_count: Samples of training's marginal p(c) that each estimate of p(c | a_2) begins with.
    """

    pseudo_count: float = 1.0

    def __post_init__(self) -> None:
        if self.pseudo_count <= 0:
            raise ValueError(f"model.mode_loss.pseudo_count is {self.pseudo_count}; it must be positive.")

    # -------------------------------------------------------------------------------------------------------- networks

    def heads(self, target: Target) -> dict[str, nn.Module]:
        """A mode predictor with tables of training's frequencies."""
        sizes = _other_sizes(target)
        joint = prod(sizes) if self.predicts_others(target) else 1
        rows = joint if joint > 1 else sum(sizes)
        return {"mode_predictor": PriorPredictor(target.total_slots, target.latent_dim, joint, rows)}

    def networks(self, target: Target) -> list[nn.Module]:
        """The mode predictor."""
        return [target.mode_predictor]

    def slot_tables(self, target: Target) -> list[nn.Parameter]:
        """Rows of the mode predictor."""
        return [target.mode_predictor.weight, target.mode_predictor.bias]

    def clusters_changed(self, target: Target, found: Clustering, z: Tensor, optimizers: Iterable[Optimizer]) -> None:
        """Children of a split share their parent's probability, and a merged cluster has the sum of its parts'."""
        inherit_rows = partial(super().clusters_changed, target, found, z, optimizers)
        target.mode_predictor.bias.add_(mass_shifts(target, found, z, inherit_rows)[:, None])

    def clusters_known(self, codid: CoDID, adopted: bool) -> None:
        """Count how often every cluster occurs with every value of the other attributes."""
        a = codid.training_attributes()
        for target in (target for target in codid.target_list if target.ready):
            slot = target.slot_of(a, torch.arange(len(a), device=a.device))
            self._count(_predictor(target), slot, _rows(target, a))

    def _count(self, predictor: PriorPredictor, slot: Tensor, rows: Tensor) -> None:
        """Fill the tables, given the clusters (N,) of the training set and its rows of the table (N, J)."""
        values, slots = predictor.log_ratio.shape
        marginal = slot.bincount(minlength=slots).double() / len(slot)
        cells = (rows * slots + slot[:, None]).flatten().bincount(minlength=values * slots).view(values, slots).double()
        share = (cells + self.pseudo_count * marginal) / (cells.sum(1, keepdim=True) + self.pseudo_count)
        unused = marginal == 0
        predictor.log_ratio.copy_(torch.where(unused, 0.0, share.log() - marginal.log()))
        predictor.log_marginal.copy_(marginal.log())

    # ---------------------------------------------------------------------------------------------------------- losses

    def training_logits(self, codid: CoDID, target: Target, z: Tensor, a: Tensor) -> Tensor | None:
        """Logarithms of p(a_q | x, other attributes) in training up to a constant, (B, A); None without clusters."""
        if not target.ready:
            return None
        return _of_values(target, self._training_logits(codid, target, z, a)[0])

    def additional_loss(self, codid: CoDID, z: Tensor, batch: Batch) -> Tensor | None:
        """Cross-entropy of the cluster (on decoded samples also of the other attributes) given the value, summed."""
        total: Tensor | None = None
        for target in codid.target_list:
            if target.ready:
                loss = self._cluster_loss(codid, target, z[:, target.attribute], batch)
                codid.losses.add("mode_prediction", loss)
                total = loss if total is None else total + loss
        return total

    def _cluster_loss(self, codid: CoDID, target: Target, z: Tensor, batch: Batch) -> Tensor:
        """What is missing from the attribute's loss to the cross-entropy of its clusters, given z_q (B, d)."""
        a, q = batch["a"], target.attribute
        clusters, own = self._training_logits(codid, target, z, a)
        of_value = _of_values(target, clusters).gather(1, a[:, q : q + 1])[:, 0]
        return (of_value + target.cluster_cross_entropy(own, a, batch["index"])).mean()

    def _training_logits(self, codid: CoDID, target: Target, z: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
        """Logits (B, C) in training: of clusters, and of what is to be predicted.

        On decoded samples: p(c | s), and p(c, e | s) with the own e. On real ones both are p(c | x, e).
        """
        predictor = _predictor(target)
        pairs = predictor.logits(z, target.active.flatten())
        clusters = cluster_logits(pairs)
        if not codid.sees_content(target):
            clusters = clusters + _log_ratios(target, a)
        elif pairs.shape[2] > 1:
            return clusters, pairs[torch.arange(len(a), device=a.device), :, _rows(target, a)[:, 0]]
        return clusters, clusters

    # ------------------------------------------------------------------------------------------------------ evaluation

    def evaluation_logits(self, codid: CoDID, target: Target, z: Tensor, a: Tensor) -> Tensor | None:
        """Logarithms of p(a_q | x) (B, A) as believed of the place of use; None until there are clusters."""
        if not target.ready:
            return None
        content = self.content(codid, target, z)
        belief = codid.belief(target, content)
        return belief.log_probs(content, None if belief.kind == "uniform" else joint_others(target, a)).to(z)

    def content(self, codid: CoDID, target: Target, z: Tensor) -> Content:
        """What content says about samples with representations z_q (B, d)."""
        predictor, active = _predictor(target), target.active.flatten()
        logits = predictor.logits(z, active)[:, active] / predictor.temperature
        if not codid.sees_content(target):
            logits = logits.logsumexp(2, keepdim=True)
        joint = logits.flatten(1).log_softmax(1).view(logits.shape)
        marginal = predictor.log_marginal[active]
        value = active.nonzero()[:, 0] // target.slots
        return Content(joint, value, predictor.log_ratio[:, active] + marginal, marginal, target.values)

    def predicts_others(self, target: Target) -> bool:
        """Whether the network has an output for every joint value of the other attributes."""
        return 1 < prod(_other_sizes(target)) <= MAX_JOINT

    def calibration_sample(self, codid: CoDID, z: Tensor, a: Tensor) -> tuple[Tensor, Tensor] | None:
        """What `calibrate` needs of validation samples: logits and attributes; None until there are clusters."""
        target = codid.target_list[0]
        if not target.ready:
            return None
        return _predictor(target).logits(z[:, target.attribute], target.active.flatten()), a

    def calibrate(self, codid: CoDID, logits: Tensor, a: Tensor) -> None:
        """Set the temperature that makes validation labels most likely under training's correlation.

        On decoded samples the labels are a_1 and the other attributes, on real ones a_1 given the other attributes.
        """
        target = codid.target_list[0]
        predictor, q = _predictor(target), target.attribute
        logits, offset = logits.double(), _log_ratios(target, a).double()
        decoded, row = codid.sees_content(target), _rows(target, a)[:, 0]

        def loss(temperature: Tensor) -> Tensor:
            scaled = logits / temperature
            if decoded:
                joint = scaled.flatten(1).log_softmax(1).view(scaled.shape)
                own = joint[torch.arange(len(a), device=a.device), :, row]
            else:
                own = (scaled.logsumexp(2) + offset).log_softmax(1)
            return -_of_values(target, own).gather(1, a[:, q : q + 1]).mean()

        predictor.temperature.fill_(fit_temperature(loss))


def joint_others(target: Target, a: Tensor) -> Tensor:
    """Joint value (B,) of all attributes but the target's, given all attributes (B, Q)."""
    sizes = _other_sizes(target)
    if prod(sizes) > MAX_JOINT:
        raise RunError(
            f"The other attributes have {prod(sizes)} combinations of values; a correlation can be assumed or adapted "
            f"to for at most {MAX_JOINT}. Use model.pi: uniform."
        )
    return _rows(target, a)[:, 0]


def check_others(others: Tensor, sizes: Sequence[int], samples: int) -> None:
    """Raise if values of the other attributes (N, Q - 1) were never seen in training, or N is not `samples`."""
    if tuple(others.shape) != (samples, len(sizes)):
        raise RunError(
            f"The other attributes have shape {tuple(others.shape)}; for {samples} samples and {len(sizes)} columns in "
            f"training it must be {(samples, len(sizes))}."
        )
    for column, size in enumerate(sizes):
        wrong = (others[:, column] < 0) | (others[:, column] >= size)
        if wrong.any():
            row = int(wrong.nonzero()[0])
            raise RunError(
                f"Row {row} has value {int(others[row, column])} of attribute {column + 2}. In training its "
                f"values are 0 to {size - 1}. Remove these rows, or let the model predict the attribute."
            )


def _rows(target: Target, a: Tensor) -> Tensor:
    """Rows (B, J) of the table of log-ratios: one for all other attributes together, or one for each."""
    sizes = _other_sizes(target)
    columns = [a[:, j] for j in range(a.shape[1]) if j != target.attribute]
    if prod(sizes) <= MAX_JOINT:
        joint = columns[0] if columns else torch.zeros_like(a[:, 0])
        for column, size in zip(columns[1:], sizes[1:], strict=True):
            joint = joint * size + column
        return joint[:, None]
    starts = [sum(sizes[:j]) for j in range(len(sizes))]
    return torch.stack([start + column for start, column in zip(starts, columns, strict=True)], dim=1)


def _log_ratios(target: Target, a: Tensor) -> Tensor:
    """What the other attributes of samples add to logits of clusters, (B, C)."""
    found = [_predictor(target).log_ratio.index_select(0, rows) for rows in _rows(target, a).unbind(1)]
    return found[0] if len(found) == 1 else torch.stack(found).sum(0)


def _other_sizes(target: Target) -> list[int]:
    return [size for j, size in enumerate(target.attribute_sizes) if j != target.attribute]


def _of_values(target: Target, clusters: Tensor) -> Tensor:
    """Add up the probabilities of each value's clusters: logarithms (B, A * K) to (B, A)."""
    return clusters.reshape(len(clusters), target.values, target.slots).logsumexp(2)


def _predictor(target: Target) -> PriorPredictor:
    predictor = target.mode_predictor
    assert isinstance(predictor, PriorPredictor)  # noqa: S101
    return predictor
