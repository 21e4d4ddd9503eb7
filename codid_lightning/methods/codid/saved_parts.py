"""The parts that a checkpoint was trained with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from codid_lightning.clustering import Clusterer
from codid_lightning.methods.checkpoints import OLD_FORMAT, restore
from codid_lightning.methods.codid.discovery import ModeDiscovery
from codid_lightning.methods.codid.legacy import upgrade
from codid_lightning.methods.codid.parts.base import Part

_CLASSES = {"weights": "LearnedWeights", "splits": "LearnedSplits", "decoding": "DecodedSamples"}  # of these names


def parts_of_checkpoint(checkpoint: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The parts a checkpoint was trained with, except those that are given anyway."""
    state = checkpoint.get("codid", {})
    saved = state.get("parts", {})
    if state.get("schema") == OLD_FORMAT:
        saved = {name: _described(name, part) for name, part in _upgraded_parts(checkpoint).items()}
    kinds = (Part, ModeDiscovery, Clusterer)
    return {name: restore(name, part, kinds) for name, part in saved.items() if name not in given}


def _upgraded_parts(checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    arguments = {**checkpoint.get("hyper_parameters", {})}
    clusterer = checkpoint["codid"].get("clusterer")
    if clusterer is not None:
        arguments["clusterer"] = {"class_path": clusterer["name"], "init_args": clusterer["arguments"]}
    new = upgrade("CoDID", arguments)
    return {name: new[name] for name in ("discovery", "mode_loss", "alignment", "splits", "decoding") if name in new}


def _described(name: str, part: Any) -> Any:
    """A part in the form that checkpoints use."""
    if not isinstance(part, Mapping):
        return part
    path, settings = part.get("class_path", _CLASSES.get(name, "")), part.get("init_args", part)
    described = {key: _described(key, value) for key, value in settings.items() if key != "class_path"}
    return {"class": path.rpartition(".")[2], "settings": described}
