"""Group resampling: every cell of (a_1, a_2) is drawn equally often."""

from __future__ import annotations

from torch import Tensor

from codid_lightning.methods.baselines.base import Base
from codid_lightning.methods.baselines.samples import drawn, split_of
from codid_lightning.metrics.information import joint_labels
from datamodules.base import Batch


def cell_weights(a: Tensor) -> Tensor:
    """The weight (N,) of every sample with attributes a (N, Q): one over the size of its cell of all attributes."""
    cells = joint_labels(*a.unbind(1))
    return cells.bincount()[cells].double().reciprocal()


class GroupResampling(Base):
    """Draws batches with replacement in which all cells of (a_1, a_2) that occur are equally likely.

    Idrissi et al., "Simple data balancing achieves competitive worst-group-accuracy", CLeaR 2022. A step
    has as many samples, and an epoch as many steps, as with any other method.
    """

    title = "Group resampling"

    def on_fit_start(self) -> None:
        """Count the cells."""
        super().on_fit_start()
        self.weights = cell_weights(split_of(self, "train").a)

    def training_step(self, batch: Batch, batch_idx: int) -> None:
        """BASE's step on drawn samples."""
        super().training_step(drawn(self, self.weights, batch), batch_idx)
