"""What all parts of CoDID share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import nn

if TYPE_CHECKING:
    from codid_lightning.clustering import Clustering
    from codid_lightning.methods.codid.module import CoDID
    from codid_lightning.methods.codid.target import Target


@dataclass(frozen=True)
class OptimizerSettings:
    """An Adam of its own for some networks."""

    networks: Iterable[nn.Module]
    lr: float
    momentum: float = 0.9


@dataclass(frozen=True)
class Part:
    """One part of CoDID. It holds settings only, so that one part can serve several models.

    What a part learns lives in the heads that it builds for each target. Write a part of your own as a frozen dataclass
    on `ModeSource`, `ModeLoss` or `Alignment`, and name it in a config by its import path.
    """

    def heads(self, target: Target) -> dict[str, nn.Module]:
        """Networks this part needs for one target, by the name they get as the target's attribute."""
        return {}

    def slot_tables(self, target: Target) -> list[nn.Parameter]:
        """Parameters of these heads with one leading row per slot. Clusters that split or merge inherit the rows."""
        return []

    def clusters_changed(self, target: Target, found: Clustering) -> None:
        """Adapt the heads further, after clusters have split or merged and rows were inherited."""

    def optimizers(self, codid: CoDID) -> dict[str, OptimizerSettings]:
        """Optimizers of this part's networks, by the name of the step that uses them."""
        return {}
