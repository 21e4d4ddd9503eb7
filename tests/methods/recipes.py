"""Arguments that make CoDID one of the methods of configs/methods, small enough to be trained in a second."""

from __future__ import annotations

from typing import Any

from codid_lightning import ModeDiscovery
from codid_lightning.methods.codid.parts.alignments import DiscriminatorAlignment
from codid_lightning.methods.codid.parts.decoding import DecodedSamples
from codid_lightning.methods.codid.parts.mode_losses import EqualCells, ModeLoss
from codid_lightning.methods.codid.parts.sources import ModeSource, Propensity

Arguments = dict[str, Any]


def discovery(**changes: Any) -> ModeDiscovery:
    """Two clusters under each value, looked for after two epochs and refined after every epoch."""
    return ModeDiscovery(**{"start": 2, "every": 1, "n_clusters": 2, **changes})


def codid(source: ModeSource | None = None, **changes: Any) -> Arguments:
    """CoDID itself."""
    found = discovery() if source is None else discovery(source=source)
    return {"max_clusters": 4, "discovery": found, "alignment": DiscriminatorAlignment(steps=2), **changes}


def cells(mode_loss: ModeLoss, over: str = "clusters", **changes: Any) -> Arguments:
    """The loss of a_1 by cells of clusters (or of values) and a_2."""
    none = {"reconstruction": 0.0, "alignment": None, "splits": None}
    targets = {"targets": [0], "moded": [0] if over == "clusters" else []}
    return {"max_clusters": 4, "discovery": discovery(**changes), "mode_loss": mode_loss, **none, **targets}


def counterfactual(**decoding: Any) -> Arguments:
    """z_1 is trained on decoded samples, and nothing else is done."""
    none = {"moded": [], "mode_loss": None, "alignment": None, "splits": None}
    return {"reconstruction": 0.0, **none, "decoding": DecodedSamples(**decoding)}


def codid_plus(source: ModeSource = Propensity(), train_on: str = "decoded", **changes: Any) -> Arguments:  # noqa: B008
    """CoDID on decoded samples, with modes by propensity."""
    return {**codid(source), "decoding": DecodedSamples(epochs=1, train_on=train_on), **changes}


def balanced_modes(epochs: int = 2) -> Arguments:
    """Cells of modes by propensity count equally."""
    return {**cells(EqualCells(), source=Propensity()), "decoding": DecodedSamples(epochs=epochs, train_on="real")}
