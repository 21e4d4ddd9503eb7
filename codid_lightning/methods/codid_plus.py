"""CoDIDPlus: CoDID whose modes are looked for where the other attributes cannot be seen."""

from __future__ import annotations

from typing import Any, Literal

from torch import Tensor
from torch.optim import Optimizer

from codid_lightning.codid import CoDID
from codid_lightning.methods.propensity import propensity
from codid_lightning.methods.swapping import SwappingModule


class CoDIDPlus(SwappingModule, CoDID):
    """CoDID, informed by decoded samples, with modes found in what is left of a sample without its a_2. Ours.

    Clusters of plain z_1 tend to follow a_2, which z_1 over-encodes. The autoencoder's decoder is told a_2, so its
    latent need not show it; what in the latent predicts a_2 all the same is the mode. The inform step sees samples
    under random values of the other attributes, all other steps real ones. Where the gate refuses, it is CoDID to the
    last bit.

    Args:
        cluster_on: What modes are found in once the gate has opened: the `propensity` of a_2 given the autoencoder's
            latent, of which the mixture searches all clusters at once; z_1 `symmetrised` over the values of the other
            attributes; or the plain `z1` of real samples.
        **kwargs: Of `SwappingModule` and `CoDID`.
    """

    def __init__(self, cluster_on: Literal["propensity", "symmetrised", "z1"] = "propensity", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if self.restart:
            raise ValueError("model.restart would forget the autoencoder: leave it false, or use CoDID.")
        self.cluster_on = cluster_on

    def mode_view(self, x: Tensor) -> Tensor:
        """Representations (B, Q, d) of samples as modes are looked for in."""
        view: Tensor = self.encoder(x) if self.cluster_on == "z1" else self(x)
        return view

    def content(self, x: Tensor) -> Tensor | None:
        """The symmetrised latent (B, p) of samples x, once swaps are accepted and where modes are looked for in it."""
        return None if self.modes_move else self.symmetrised_latent(x)

    @property
    def modes_move(self) -> bool:
        """The autoencoder has learnt, so what is found in its latent stays."""
        return not self.swapping or self.cluster_on != "propensity"

    def mode_features(self, content: Tensor, a: Tensor, attribute: int) -> Tensor:
        """Log-odds of all other attributes given the content, (N, k)."""
        others = [q for q in range(a.shape[1]) if q != attribute]
        return propensity(content, a[:, attribute], a[:, others])

    def configure_optimizers(self) -> list[Optimizer]:
        """CoDID's, and the autoencoder's."""
        return [*super().configure_optimizers(), self.autoencoder_optimizer()]
