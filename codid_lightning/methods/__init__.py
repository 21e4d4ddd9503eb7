"""Methods of our own, beside the paper's: what one may do with discovered modes, or with counterfactuals."""

from codid_lightning.methods.balanced_modes import BalancedModes
from codid_lightning.methods.cell_balanced import CellBalanced
from codid_lightning.methods.codid_plus import CoDIDPlus
from codid_lightning.methods.counterfactual import Counterfactual
from codid_lightning.methods.group_dro import GroupDRO

__all__ = ["BalancedModes", "CellBalanced", "CoDIDPlus", "Counterfactual", "GroupDRO"]
