"""EIIL: environments that a plain network violates most, then GroupDRO over them."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from codid_lightning.methods.baselines.irm import scale_gradients
from codid_lightning.methods.baselines.samples import split_of
from codid_lightning.methods.baselines.two_stages import TwoStageModule
from codid_lightning.methods.codid.parts.mode_losses import CellTable, WorstCells
from datamodules.base import Batch


class EIIL(TwoStageModule):
    """Infers two environments from a reference network, and minimises the loss of the worst (a_1, environment).

    Creager et al., "Environment Inference for Invariant Learning", ICML 2021. The environments maximise the IRM penalty
    of the reference network, sum_e |sum_i q_i(e) d l_i(s * logits) / ds|^2 at s = 1 (Eq. 6). It is convex in the
    assignment q, so its maximum is at a corner: one environment holds all samples whose derivative is positive. That
    is what the authors' gradient ascent converges to. The invariant learner is GroupDRO, as in the paper's experiments
    on Waterbirds and CivilComments. The reference network has the first share of the epochs, a new network the rest.

    Args:
        first_stage: Share of the epochs of the reference network, which should stop before it learns rare samples.
        group_lr: Step of the exponentiated-gradient ascent of the groups' weights, as in GroupDRO.
        **kwargs: Of `DisentanglementModule`.
    """

    title = "EIIL"

    def __init__(self, first_stage: float = 0.1, group_lr: float = 0.01, **kwargs: Any) -> None:
        super().__init__(first_stage, **kwargs)
        self.worst = WorstCells(group_lr)
        self.groups = CellTable(2 * self.attribute_sizes[0], weighted=True)

    def identify(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The environment of every sample."""
        return (scale_gradients(logits, labels) > 0).long()

    def begin_second_stage(self) -> None:
        """Groups that occur start with equal weights."""
        super().begin_second_stage()
        occurring = self._groups(split_of(self, "train").a, slice(None)).bincount(minlength=len(self.groups.importance))
        present = (occurring > 0).to(self.groups.importance)
        self.groups.importance = present / present.sum()

    def attribute_loss(self, losses: Tensor, batch: Batch) -> Tensor:
        """The loss of a_1 by groups, plus the losses of the other attributes."""
        if self.table.values is None:
            return super().attribute_loss(losses, batch)
        groups = self._groups(batch["a"].cpu(), batch["index"].cpu()).to(losses.device)
        return self.worst.cell_loss(self.groups, losses[:, 0], groups) + losses[:, 1:].sum(1).mean()

    def _groups(self, a: Tensor, index: Tensor | slice) -> Tensor:
        """The group (a_1, environment) of training samples with attributes a (B, Q)."""
        assert self.table.values is not None  # noqa: S101
        return 2 * a[:, 0] + self.table.values[index]
