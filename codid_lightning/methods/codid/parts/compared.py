"""Which pairs of a batch have their weights compared."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from codid_lightning.nn.conditional import Parts, Table

if TYPE_CHECKING:
    from codid_lightning.methods.codid.target import Target, View

MAX_PARTNERS = 64  # of a sample; more tell little more about its weights


@dataclass(frozen=True)
class Compared:
    """Blocks of samples, within which all pairs of one cluster are compared.

    In small batches a block has the samples of one value, and all pairs are compared. The work grows with the square of
    the batch. In large ones a cluster is cut into parts of the same size to within one sample, with at most
    `MAX_PARTNERS`, and pairs of one part are compared. Training batches are in random order, so a part is a random draw
    from the batch's samples of the cluster: the loss is the mean of what smaller batches would give, without bias, and
    the work grows with the batch itself. Whichever is less is taken.
    """

    table: Table
    slot: Tensor | None  # (blocks,) cluster of each part; None if blocks are values

    @classmethod
    def of(cls, target: Target, view: View) -> Compared:
        """The blocks of a batch."""
        (values, rows), clusters = view.table.shape, target.columns.shape[1]
        if values * rows**2 <= (values * clusters + len(view.slot) // MAX_PARTNERS) * MAX_PARTNERS**2:
            return cls(view.table, None)
        return cls.in_parts(target, view)

    @classmethod
    def in_parts(cls, target: Target, view: View) -> Compared:
        """The parts of all clusters."""
        values, clusters = target.values, target.columns.shape[1]
        first = clusters * torch.arange(values, device=view.slot.device)[:, None]
        rank = (target.active.cumsum(1) - 1).clamp_min(0) + first  # clusters in use, counted from 0
        parts = Parts(rank.flatten()[view.slot], values * clusters, MAX_PARTNERS)
        slots = target.columns + target.slots * torch.arange(values, device=view.slot.device)[:, None]
        return cls(parts, slots.flatten()[parts.group])
