"""CellBalanced: every cell of a discovered cluster and a value of a_2 counts equally."""

from __future__ import annotations

from torch import Tensor

from codid_lightning.methods.cells import CellModule


class CellBalanced(CellModule):
    """Weighs samples by the inverse size of their cell, so that no correlation between modes and a_2 pays off.

    Ours; the weights are those of importance sampling towards the uniform distribution over the cells that occur.
    """

    def cell_loss(self, losses: Tensor, cells: Tensor) -> Tensor:
        """Mean weighted loss; over the training set the weights have mean 1."""
        weights = self.counts.sum() / ((self.counts > 0).sum() * self.counts[cells])
        return (weights * losses).mean()
