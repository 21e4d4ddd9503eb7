"""What all parts of CoDID share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor, nn
from torch.optim import Optimizer

from codid_lightning.nn.slots import carry_over

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

    def clusters_changed(self, target: Target, found: Clustering, z: Tensor, optimizers: Iterable[Optimizer]) -> None:
        """Let the heads follow clusters that have split or merged. By default rows and Adam moments are inherited.

        Args:
            target: Whose heads; it still has the former clusters.
            found: The new clusters, and what they inherit.
            z: Representations (N, d) of all training samples.
            optimizers: All optimizers that may hold moments of the heads.
        """
        carry_over(self.slot_tables(target), found.inherit.to(z.device), optimizers)

    def optimizers(self, codid: CoDID) -> dict[str, OptimizerSettings]:
        """Optimizers of this part's networks, by the name of the step that uses them."""
        return {}
