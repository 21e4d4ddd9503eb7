"""Mode sources: in what modes are looked for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from codid_lightning.methods.codid.parts.base import Part
from codid_lightning.methods.codid.parts.propensity import propensity

if TYPE_CHECKING:
    from codid_lightning.methods.codid.module import CoDID


@dataclass(frozen=True)
class ModeSource(Part, ABC):
    """In what modes are looked for.

    By default clusters are looked for in the representations z_q that `representations` gives. A source that looks for
    them in something else gives its `content`, and turns it into `features`.
    """

    @abstractmethod
    def representations(self, codid: CoDID, x: Tensor) -> Tensor:
        """Representations (B, Q, d) of samples x (B, ...), in which the means of clusters are measured."""

    def content(self, codid: CoDID, x: Tensor) -> Tensor | None:
        """What to keep of samples x (B, ...) to look for modes in, (B, p); None for their representations."""
        return None

    def features(self, content: Tensor, a: Tensor, attribute: int) -> Tensor:
        """What to cluster, (N, k), given the content (N, p) and attributes (N, Q) of the training set."""
        return content

    def needs_refinement(self, codid: CoDID) -> bool:
        """Whether training moves what modes are looked for in, so that looking again is worth it."""
        return True


@dataclass(frozen=True)
class Representation(ModeSource):
    """z_q of real samples. This is the paper's source."""

    def representations(self, codid: CoDID, x: Tensor) -> Tensor:
        """The encoder's output."""
        z: Tensor = codid.encoder(x)
        return z


@dataclass(frozen=True)
class SymmetrisedRepresentation(ModeSource):
    """z_1 averaged over decodings under all values of the other attributes. Ours; needs `model.decoding`.

    Until the gate accepts the autoencoder, these are the representations of real samples.
    """

    def representations(self, codid: CoDID, x: Tensor) -> Tensor:
        """The representations that evaluation uses."""
        z: Tensor = codid(x)
        return z


@dataclass(frozen=True)
class Propensity(SymmetrisedRepresentation):
    """Log-odds of the other attributes given content that does not show them. Ours; needs `model.decoding`.

    Clusters of z_1 tend to follow a_2. The latent of the autoencoder, averaged over all values of a_2, cannot show a_2.
    What in it predicts a_2 is the mode. The mixture searches the number of clusters at once. Until the gate accepts the
    autoencoder, modes are looked for in representations of real samples.
    """

    def content(self, codid: CoDID, x: Tensor) -> Tensor | None:
        """The autoencoder's latent, averaged over decodings."""
        found = codid.counterfactuals
        return found.symmetrised_latent(x) if found is not None and found.accepted else None

    def features(self, content: Tensor, a: Tensor, attribute: int) -> Tensor:
        """Log-odds of all other attributes given the content, by classifiers that did not see the sample."""
        others = [q for q in range(a.shape[1]) if q != attribute]
        return propensity(content, a[:, attribute], a[:, others])

    def needs_refinement(self, codid: CoDID) -> bool:
        """Not after the autoencoder was accepted: it does not change any more."""
        return codid.counterfactuals is None or not codid.counterfactuals.accepted
