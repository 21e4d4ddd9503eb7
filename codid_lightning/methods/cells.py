"""Learning from cells: the samples that share a cluster of a_1 and the values of all other attributes."""

from __future__ import annotations

from math import prod
from typing import Any, Literal

import torch
from torch import Tensor

from codid_lightning.clustering import Clustering
from codid_lightning.codid import CoDID
from codid_lightning.targets import Target
from datamodules.base import Batch


class CellModule(CoDID):
    """CoDID's mode discovery without its disentanglement; a method says how cells enter the loss of a_1.

    Until there are clusters all samples count alike. Only the loss of a_1 goes by cells.

    Args:
        cells: Of discovered clusters and other attributes, or of the values of all attributes.
        reconstruction: Weight of the reconstruction loss.
        **kwargs: Of `CoDID`.
    """

    counts: Tensor  # training samples in each cell

    def __init__(
        self, cells: Literal["clusters", "values"] = "clusters", reconstruction: float = 0.0, **kwargs: Any
    ) -> None:
        super().__init__(
            reconstruction=reconstruction,
            targets=[0],
            moded=[0] if cells == "clusters" else [],
            discrimination="none",
            split_by="mixture",
            mode_prediction=0.0,
            **kwargs,
        )
        size = self.target_list[0].values * self.target_list[0].slots * prod(self.attribute_sizes[1:])
        self.register_buffer("counts", torch.zeros(size, dtype=torch.long), persistent=False)

    def cell_loss(self, losses: Tensor, cells: Tensor) -> Tensor:
        """One number of the losses of a_1 (B,) in these cells (B,)."""
        raise NotImplementedError

    def attribute_loss(self, losses: Tensor, batch: Batch) -> Tensor:
        """The loss of a_1 by cells, those of the other attributes as ever."""
        if not self.target_list[0].ready:
            return super().attribute_loss(losses, batch)
        own = self.cell_loss(losses[:, 0], self.cells_of(batch["a"], batch["index"]))
        return own + losses[:, 1:].sum(1).mean()

    def cells_of(self, a: Tensor, index: Tensor) -> Tensor:
        """Cells (B,) of training samples with attributes a (B, Q)."""
        cells = self.target_list[0].slot_of(a, index)
        for q, size in list(enumerate(self.attribute_sizes))[1:]:
            cells = cells * size + a[:, q]
        return cells

    def adopt(self, target: Target, found: Clustering) -> None:
        """New clusters are new cells."""
        super().adopt(target, found)
        self.count_cells()

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Count the cells of a run that starts with clusters, resumed or of values."""
        super().on_train_batch_start(batch, batch_idx)
        if self.target_list[0].ready and not self.counts.any():
            self.count_cells()

    def count_cells(self) -> None:
        """Count the training samples of every cell."""
        a: Tensor = self.trainer.datamodule.datasets["train"].a.to(self.device)  # type: ignore[attr-defined]
        cells = self.cells_of(a, torch.arange(len(a), device=self.device))
        self.counts = cells.bincount(minlength=len(self.counts))
