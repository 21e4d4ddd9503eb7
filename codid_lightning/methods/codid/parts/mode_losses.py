"""Mode losses: how the inform step uses the clusters of each attribute."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from codid_lightning.methods.codid.parts.base import Part
from codid_lightning.nn import distributed
from codid_lightning.nn.slots import ModePredictor, conserving_shifts
from datamodules.base import Batch

if TYPE_CHECKING:
    from codid_lightning.clustering import Clustering
    from codid_lightning.methods.codid.module import CoDID
    from codid_lightning.methods.codid.target import Target

MASS_SAMPLES = 1 << 15  # about how many samples the probability of merged clusters is measured on


@dataclass(frozen=True)
class ModeLoss(Part, ABC):
    """How the inform step uses modes: an additional loss, or other weights of the samples, or both."""

    def attribute_loss(self, codid: CoDID, losses: Tensor, batch: Batch) -> Tensor:
        """One number of a batch's attribute losses (B, Q). By default every sample counts the same (Eq. 1)."""
        return losses.sum(1).mean()

    def additional_loss(self, codid: CoDID, z: Tensor, batch: Batch) -> Tensor | None:
        """What is added to the informative loss of representations z (B, Q, d), once there are clusters."""
        return None

    def training_logits(self, codid: CoDID, target: Target, z: Tensor, a: Tensor) -> Tensor | None:
        """Logits (B, A) of the target's attribute in training, given z_q (B, d); None for those of its predictor."""
        return None

    def evaluation_logits(self, codid: CoDID, target: Target, z: Tensor, a: Tensor) -> Tensor | None:
        """Logits (B, A) of the target's attribute in evaluation, given z_q (B, d); None for those of its predictor."""
        return None

    def calibration_sample(self, codid: CoDID, z: Tensor, a: Tensor) -> tuple[Tensor, Tensor] | None:
        """What to keep of validation samples z (B, Q, d) with attributes (B, Q) for `calibrate`; None for nothing."""
        return None

    def calibrate(self, codid: CoDID, logits: Tensor, a: Tensor) -> None:
        """Calibrate on the whole validation set: what `calibration_sample` returned."""

    def networks(self, target: Target) -> list[nn.Module]:
        """Heads of a target that the inform step trains."""
        return []

    def clusters_known(self, codid: CoDID, adopted: bool) -> None:
        """Called when clusters are adopted, and when a fit starts with clusters (`adopted` is False)."""


@dataclass(frozen=True)
class PredictModes(ModeLoss):
    """Predict the cluster of every sample from z_q (Eq. 2). This is the paper's mode loss.

    Args:
        weight: Weight of the mode prediction loss (lambda_mp).
    """

    weight: float = 0.3

    def __post_init__(self) -> None:
        if self.weight <= 0:
            raise ValueError(
                f"model.mode_loss.weight is {self.weight}; it must be positive. model.mode_loss: null has no mode loss."
            )

    def heads(self, target: Target) -> dict[str, nn.Module]:
        """A mode predictor."""
        return {"mode_predictor": ModePredictor(target.total_slots, target.latent_dim)} if target.moded else {}

    def networks(self, target: Target) -> list[nn.Module]:
        """The mode predictor."""
        return [target.mode_predictor] if target.moded else []

    def slot_tables(self, target: Target) -> list[nn.Parameter]:
        """Rows of the mode predictor."""
        return [target.mode_predictor.weight, target.mode_predictor.bias] if target.moded else []

    def clusters_changed(self, target: Target, found: Clustering, z: Tensor, optimizers: Iterable[Optimizer]) -> None:
        """Children of a split share their parent's probability, and a merged cluster has the sum of its parts'."""
        inherit_rows = partial(super().clusters_changed, target, found, z, optimizers)
        target.mode_predictor.bias.add_(mass_shifts(target, found, z, inherit_rows))

    def additional_loss(self, codid: CoDID, z: Tensor, batch: Batch) -> Tensor | None:
        """KL divergence of the prediction from the cluster probabilities, summed over targets."""
        total: Tensor | None = None
        for target in codid.target_list:
            if target.moded and target.ready:
                loss = target.mode_losses(z[:, target.attribute], batch["index"])[0].mean()
                codid.losses.add("mode_prediction", loss)
                total = self.weight * loss if total is None else total + self.weight * loss
        return total


def mass_shifts(target: Target, found: Clustering, z: Tensor, inherit_rows: Callable[[], None]) -> Tensor:
    """Let rows of the mode predictor be inherited; the shifts (A * K,) of logits that conserve clusters' probabilities.

    Args:
        target: Whose mode predictor.
        found: The new clusters.
        z: Representations (N, d) of all training samples.
        inherit_rows: Moves the rows.
    """
    predictor, active = target.mode_predictor, found.active.flatten().to(z.device)
    z = z[:: len(z) // MASS_SAMPLES + 1].to(predictor.weight)
    former = predictor(z, target.active.flatten())
    inherit_rows()
    inherit, share = found.inherit.to(z.device), found.share.to(z.device)
    return conserving_shifts(former, predictor(z, active), inherit, share)


class CellTable(nn.Module):
    """Training samples in each cell: a cluster of the first attribute with the values of all other attributes."""

    counts: Tensor  # training samples in each cell
    importance: Tensor  # of every cell, adding up to 1, where it is learnt

    def __init__(self, cells: int, weighted: bool) -> None:
        super().__init__()
        self.register_buffer("counts", torch.zeros(cells, dtype=torch.long), persistent=False)
        if weighted:
            self.register_buffer("importance", torch.zeros(cells))


@dataclass(frozen=True)
class CellLoss(ModeLoss):
    """Weighs the loss of a_1 by cells: (cluster of a_1, values of all other attributes).

    Until there are clusters, every sample counts the same. With `model.moded: []` the cells are those of the values of
    all attributes.
    """

    weighted: ClassVar[bool] = False  # whether the importance of cells is learnt

    def heads(self, target: Target) -> dict[str, nn.Module]:
        """The table of cells of the first attribute."""
        cells = target.total_slots * prod(target.attribute_sizes[1:])
        return {"cells": CellTable(cells, self.weighted)} if target.attribute == 0 else {}

    @abstractmethod
    def cell_loss(self, table: CellTable, losses: Tensor, cells: Tensor) -> Tensor:
        """One number of the losses of a_1 (B,) of samples in these cells (B,)."""

    def attribute_loss(self, codid: CoDID, losses: Tensor, batch: Batch) -> Tensor:
        """The loss of a_1 by cells, plus the losses of the other attributes."""
        target = codid.target_list[0]
        if not target.ready:
            return super().attribute_loss(codid, losses, batch)
        own = self.cell_loss(cell_table(target), losses[:, 0], cells_of(target, batch["a"], batch["index"]))
        return own + losses[:, 1:].sum(1).mean()

    def clusters_known(self, codid: CoDID, adopted: bool) -> None:
        """Count the training samples of every cell."""
        target = codid.target_list[0]
        table, a = cell_table(target), codid.training_attributes()
        cells = cells_of(target, a, torch.arange(len(a), device=a.device))
        table.counts = cells.bincount(minlength=len(table.counts))


@dataclass(frozen=True)
class EqualCells(CellLoss):
    """Weigh samples by the inverse size of their cell, so that no correlation between modes and a_2 pays off.

    These are the weights of importance sampling towards the uniform distribution over the cells that occur.
    """

    def cell_loss(self, table: CellTable, losses: Tensor, cells: Tensor) -> Tensor:
        """Mean weighted loss; over the training set the weights have mean 1."""
        counts = table.counts
        weights = counts.sum() / ((counts > 0).sum() * counts[cells])
        return (weights * losses).mean()


@dataclass(frozen=True)
class WorstCells(CellLoss):
    """Minimise the loss of the worst cell, by weights that follow the cells' losses (GroupDRO).

    Sagawa et al., "Distributionally Robust Neural Networks for Group Shifts", ICLR 2020, Algorithm 1; over clusters as
    in Sohoni et al., "No Subclass Left Behind" (GEORGE), NeurIPS 2020. Cells missing from a batch keep their weight.

    Args:
        lr: Step of the exponentiated-gradient ascent of the cells' weights.
    """

    lr: float = 0.01

    weighted: ClassVar[bool] = True

    def clusters_known(self, codid: CoDID, adopted: bool) -> None:
        """New cells start with equal weights; a resumed run keeps its own."""
        super().clusters_known(codid, adopted)
        table = cell_table(codid.target_list[0])
        if adopted or not table.importance.any():
            present = (table.counts > 0).to(table.importance)
            table.importance = present / present.sum()

    def cell_loss(self, table: CellTable, losses: Tensor, cells: Tensor) -> Tensor:
        """Mean losses of the cells, weighted after the weights have made their step.

        Cells are shared by all ranks: a sum over this rank's samples, as a mean that the inform step scales to a sum.
        """
        importance = table.importance
        local = torch.zeros_like(importance).index_add(0, cells, losses.to(importance))
        sizes = torch.zeros_like(importance).index_add(0, cells, torch.ones_like(losses).to(importance))
        total, count = distributed.average([local.detach(), sizes])
        count = torch.where(count > 0, count, 1.0)
        grown = importance * (self.lr * total / count).exp()
        table.importance = grown / grown.sum()
        return (table.importance * local / count).sum() / distributed.relative_size(losses)


def cells_of(target: Target, a: Tensor, index: Tensor) -> Tensor:
    """Cells (B,) of training samples with attributes a (B, Q)."""
    cells = target.slot_of(a, index)
    for q, size in list(enumerate(target.attribute_sizes))[1:]:
        cells = cells * size + a[:, q]
    return cells


def cell_table(target: Target) -> CellTable:
    """The table of cells that `CellLoss` built for the first attribute."""
    table = target.cells
    assert isinstance(table, CellTable)  # noqa: S101
    return table
