"""BalancedModes: every cell of a mode by propensity and a value of a_2 counts equally."""

from __future__ import annotations

from typing import Any, Literal

from codid_lightning.methods.cell_balanced import CellBalanced
from codid_lightning.methods.codid_plus import CoDIDPlus


class BalancedModes(CellBalanced, CoDIDPlus):
    """CellBalanced whose modes are found as CoDIDPlus finds them. Ours: the least one can do with such modes.

    No adversary and no counterfactual: the autoencoder only shows where modes are. Where the gate refuses it, this is
    CellBalanced to the last bit.

    Args:
        train_on: What z_1 sees once the gate has opened; see `SwappingModule`.
        **kwargs: Of `CellBalanced` and `CoDIDPlus`.
    """

    def __init__(self, train_on: Literal["decoded", "both", "real"] = "real", **kwargs: Any) -> None:
        super().__init__(train_on=train_on, **kwargs)
