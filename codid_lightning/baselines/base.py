"""BASE: supervised learning only."""

from __future__ import annotations

from torch import Tensor

from codid_lightning.module import DisentanglementModule
from datamodules.base import Batch


class Base(DisentanglementModule):
    """Attribute prediction from separate representations, with no constraint between them."""

    def penalty(self, z: Tensor, batch: Batch) -> Tensor:
        """Nothing."""
        return z.new_zeros(())
