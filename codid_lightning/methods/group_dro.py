"""GroupDRO: the worst cell of a discovered cluster and a value of a_2 counts most."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from codid_lightning import distributed
from codid_lightning.clustering import Clustering
from codid_lightning.methods.cells import CellModule
from codid_lightning.targets import Target


class GroupDRO(CellModule):
    """Minimises the loss of the worst cell, by weights that follow the cells' losses.

    Sagawa et al., "Distributionally Robust Neural Networks for Group Shifts", ICLR 2020, Algorithm 1; over clusters as
    in Sohoni et al., "No Subclass Left Behind" (GEORGE), NeurIPS 2020. Cells missing from a batch keep their weight.

    Args:
        group_lr: Step of the exponentiated-gradient ascent of the cells' weights.
        **kwargs: Of `CellModule`.
    """

    importance: Tensor  # of every cell, adding up to 1

    def __init__(self, group_lr: float = 0.01, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.group_lr = group_lr
        self.register_buffer("importance", torch.zeros(len(self.counts)))

    def adopt(self, target: Target, found: Clustering) -> None:
        """New cells start with equal weights."""
        self.importance.zero_()
        super().adopt(target, found)

    def count_cells(self) -> None:
        """Cells without weights get equal ones; a resumed run brings its own."""
        super().count_cells()
        if not self.importance.any():
            present = (self.counts > 0).float()
            self.importance = present / present.sum()

    def cell_loss(self, losses: Tensor, cells: Tensor) -> Tensor:
        """Mean losses of the cells, weighted after the weights have made their step."""
        local = torch.zeros_like(self.importance).index_add(0, cells, losses.float())
        sizes = torch.zeros_like(self.importance).index_add(0, cells, torch.ones_like(losses).float())
        total, count = distributed.average([local.detach(), sizes])
        count = torch.where(count > 0, count, 1.0)
        grown = self.importance * (self.group_lr * total / count).exp()
        self.importance = grown / grown.sum()
        return (self.importance * local / count).sum()
