"""CoDID of version 0.1.0: its flat arguments as parts, so that old configs and checkpoints can be read.

This module imports no network: reading the config of an old run need not load torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_ROOM = "codid_lightning.methods.codid"
CODID = "codid_lightning.CoDID"
_GONE = ("CellBalanced", "GroupDRO", "CoDIDPlus", "BalancedModes", "Counterfactual")
_SOURCES = {"z1": "Representation", "symmetrised": "SymmetrisedRepresentation", "propensity": "Propensity"}
_KEPT = (
    *("input_shape", "attribute_sizes", "test_names", "test_attributes", "backbone", "latent_dim", "lr"),
    *("reconstruction", "decay_from", "targets", "moded", "max_clusters"),
)
# Old names and new ones, by part.
_DISCOVERY = {"pretrain_epochs": "start", "cluster_every": "every", "cluster_until": "until"}
_DISCOVERY |= {name: name for name in ("clusterer", "n_clusters", "restart")}
_ALIGNMENT = {"discriminator_lr": "lr", "discriminator_steps": "steps", "adversarial_momentum": "momentum"}
_ALIGNMENT |= {"disentangle_lr": "encoder_lr", "strength": "strength", "sharing": "sharing"}
_WEIGHTS = {"weight_lr": "lr", "meta_reconstruction": "reconstruction", "meta_lr": "step"}
_WEIGHTS |= {"virtual_step": "direction", "weight_scale": "scale"}
_DECODING = {"autoencoder_epochs": "epochs", "autoencoder_lr": "lr", "autoencoder_kl": "kl"}
_DECODING |= {"likelihood": "likelihood", "train_on": "train_on"}
_RENAMED = {*_DISCOVERY, *_ALIGNMENT, *_WEIGHTS, "mode_prediction", "weight_alignment", "split_by", "discrimination"}
_RENAMED |= {"reconfigure", "exact"}


def is_old(class_name: str, arguments: Mapping[str, Any]) -> bool:
    """Whether these are arguments of version 0.1.0: of a class that is gone, or of CoDID without parts."""
    return class_name in _GONE or (class_name == "CoDID" and bool(_RENAMED & arguments.keys()))


def upgrade(class_name: str, old: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of today's CoDID for those of a class of version 0.1.0, parts as `class_path` and `init_args`.

    The result has only the settings that `old` has, so that an overlay stays an overlay.
    """
    cells, plain = class_name in ("CellBalanced", "GroupDRO", "BalancedModes"), class_name == "Counterfactual"
    new = {name: old[name] for name in _KEPT if name in old}
    if discovery := _discovery(class_name, old):
        new["discovery"] = {"class_path": "codid_lightning.ModeDiscovery", "init_args": discovery}
    if cells or plain:
        values = plain or old.get("cells") == "values"
        new |= {"targets": None, "moded": [] if values else None}
        new |= {"mode_loss": None if plain else _cell_loss(class_name, old), "alignment": None, "splits": None}
    else:
        new |= _adversarial_parts(old)
    decodes = class_name in ("CoDIDPlus", "BalancedModes", "Counterfactual")
    return new | {"decoding": _settings(old, _DECODING) if decodes else None}


def _settings(old: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Settings of a part taken from old arguments, `names` being old and new names."""
    return {new: old[was] for was, new in names.items() if was in old}


def _part(path: str, old: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """A part of one of several classes."""
    return {"class_path": f"{_ROOM}.parts.{path}", "init_args": _settings(old, names)}


def _discovery(class_name: str, old: Mapping[str, Any]) -> dict[str, Any]:
    settings = _settings(old, _DISCOVERY)
    if "reconfigure" in old:
        settings["reset_heads"] = old["reconfigure"] == "full"
    propensity = class_name in ("CoDIDPlus", "BalancedModes")
    if settings or propensity:
        source = _SOURCES[old.get("cluster_on", "propensity") if propensity else "z1"]
        settings["source"] = _part(f"sources.{source}", {}, {})
    return settings


def _cell_loss(class_name: str, old: Mapping[str, Any]) -> dict[str, Any]:
    name = "WorstCells" if class_name == "GroupDRO" else "EqualCells"
    return _part(f"mode_losses.{name}", old, {"group_lr": "lr"} if name == "WorstCells" else {})


def _adversarial_parts(old: Mapping[str, Any]) -> dict[str, Any]:
    """Mode loss, alignment and splits of CoDID, with the settings that the arguments have."""
    new: dict[str, Any] = {}
    if "mode_prediction" in old:
        predicts = old["mode_prediction"] > 0
        new["mode_loss"] = _part("mode_losses.PredictModes", old, {"mode_prediction": "weight"}) if predicts else None
    if old.get("split_by") == "mixture":
        new["splits"] = None
    elif {"split_by", "weight_alignment"} & old.keys():
        new["splits"] = _settings(old, {"weight_alignment": "weight_alignment"})
    discrimination = old.get("discrimination")
    if discrimination == "none":
        new["alignment"] = None
    elif discrimination or {*_ALIGNMENT, *_WEIGHTS} & old.keys():
        new["alignment"] = _part("alignments.DiscriminatorAlignment", old, _ALIGNMENT)
        if discrimination == "plain":
            new["alignment"]["init_args"]["weights"] = None
        elif discrimination == "weighted" or _WEIGHTS.keys() & old.keys():
            new["alignment"]["init_args"]["weights"] = _settings(old, _WEIGHTS)
    return new
