"""CoDIDPlus: CoDID whose modes are looked for where the other attributes are averaged out."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor
from torch.optim import Optimizer

from codid_lightning.codid import CoDID
from codid_lightning.methods.swapping import SwappingModule


class CoDIDPlus(SwappingModule, CoDID):
    """CoDID, informed by decoded samples and clustered on z_1 averaged over them. Ours.

    Clusters of plain z_1 tend to follow a_2, which z_1 over-encodes; an average over a_2 has none to follow. The inform
    step sees samples under random values of the other attributes, all other steps real ones. Where the gate refuses, it
    is CoDID to the last bit.

    Args:
        cluster_on: What modes are found in once the gate has opened: z_1 `symmetrised` over the values of the other
            attributes, or the plain `z1` of real samples.
        **kwargs: Of `SwappingModule` and `CoDID`.
    """

    def __init__(self, cluster_on: Literal["z1", "symmetrised"] = "symmetrised", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if self.restart:
            raise ValueError("model.restart would forget the autoencoder: leave it false, or use CoDID.")
        self.cluster_on = cluster_on

    def mode_view(self, x: Tensor) -> Tensor:
        """Representations (B, Q, d) of samples as modes are looked for in."""
        view: Tensor = self(x) if self.cluster_on == "symmetrised" else self.encoder(x)
        return view

    def configure_optimizers(self) -> list[Optimizer]:
        """CoDID's, and the autoencoder's."""
        return [*super().configure_optimizers(), self.autoencoder_optimizer()]
