"""Configs of earlier versions: class paths and arguments that have other names today.

`upgrade` is applied to configs of run directories and to config files that users give. To rename a class, add a line
to `CLASS_PATHS`. To rename or regroup arguments of a model, add a function to `MODEL_UPGRADES`.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from typing import Any

from codid_lightning.clustering.legacy import upgrade_arguments
from codid_lightning.methods.codid import legacy

_ROOT = "codid_lightning"

# Modules that moved; the classes in them kept their names.
_MODULES: dict[str, str] = {
    "module": "methods.base",
    "codid": "methods.codid.module",
    "baselines": "methods.baselines",
    "methods.propensity": "methods.codid.parts.propensity",
    "callbacks.checkpoint": "training.callbacks.checkpoint",
    "callbacks.dashboard": "analysis.dashboard.callback",
    "callbacks.mode_discovery": "methods.codid.discovery",
    "callbacks.predictions": "training.callbacks.predictions",
    "callbacks.progress": "training.callbacks.progress",
    "callbacks.snapshots": "training.callbacks.snapshots",
    "callbacks.statistics": "methods.batchnorm",
    "callbacks.stopping": "training.callbacks.stopping",
    "callbacks.swap_gate": "methods.codid.parts.gate",
    "loggers": "training.loggers",
    "optimizer": "nn.adam",
    "networks": "nn",
}  # fmt: skip

# Classes that have another name today.
CLASS_PATHS: dict[str, str] = {
    f"{_ROOT}.callbacks.statistics.SettledStatistics": f"{_ROOT}.methods.batchnorm.RecomputeBatchNorm",
    f"{_ROOT}.loggers.PatientWandb": f"{_ROOT}.training.loggers.FaultTolerantWandbLogger",
}


def _compose_codid(model: dict[str, Any]) -> None:
    """CoDID and its relatives of version 0.1.0 had flat arguments; today CoDID is composed of parts."""
    name, arguments = str(model.get("class_path", "")).rpartition(".")[2], model.get("init_args") or {}
    if legacy.is_old(name, arguments):
        model["class_path"], model["init_args"] = legacy.CODID, legacy.upgrade(name, arguments)


# Each takes the model's section `{class_path, init_args}` of a config, changes it in place to what the class takes
# today, and leaves a section that needs no change as it is.
MODEL_UPGRADES: list[Callable[[dict[str, Any]], None]] = [_compose_codid]


def class_path(path: str) -> str:
    """Today's import path of a class."""
    if path in CLASS_PATHS:
        return CLASS_PATHS[path]
    found = re.fullmatch(rf"{_ROOT}\.([a-z_0-9.]+)\.(\w+)", path)
    if not found:
        return path
    module, name = found.groups()
    parts = module.split(".")
    for size in range(len(parts), 0, -1):
        old = ".".join(parts[:size])
        if old in _MODULES:
            return ".".join([_ROOT, _MODULES[old], *parts[size:], name])
    return path


def is_outdated(config: Mapping[str, Any]) -> bool:
    """Whether `upgrade` would change the config."""
    return _upgraded(config) != config


def upgrade(config: Mapping[str, Any], origin: str = "") -> dict[str, Any]:
    """The config as this version writes it.

    Args:
        config: A whole config or an overlay; it is not changed.
        origin: The file it comes from. Where given, one warning names what changed.
    """
    upgraded = _upgraded(config)
    if origin and upgraded != config:
        renamed = [f"{old} is now {class_path(old)}" for old in sorted(set(_paths(config))) if class_path(old) != old]
        what = "; ".join(renamed) or "arguments of the model have other names now"
        warnings.warn(f"{origin} is of an earlier version: {what}.", stacklevel=2)
    return upgraded


def _upgraded(config: Mapping[str, Any]) -> dict[str, Any]:
    upgraded: dict[str, Any] = _with_class_paths(deepcopy(dict(config)))
    model = upgraded.get("model")
    if isinstance(model, dict):
        for change in MODEL_UPGRADES:
            change(model)
    renamed: dict[str, Any] = _with_renamed_arguments(upgraded)
    return renamed


def _with_class_paths(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: class_path(v) if k == "class_path" and isinstance(v, str) else _with_class_paths(v)
                for k, v in value.items()}  # fmt: skip
    return [_with_class_paths(entry) for entry in value] if isinstance(value, list) else value


def _with_renamed_arguments(value: Any) -> Any:
    """Clusterers had `seed` and `n_iter`, which are `random_state` and `max_iter` today."""
    if isinstance(value, list):
        return [_with_renamed_arguments(entry) for entry in value]
    if not isinstance(value, dict):
        return value
    value = {key: _with_renamed_arguments(entry) for key, entry in value.items()}
    if isinstance(value.get("class_path"), str) and isinstance(value.get("init_args"), dict):
        value["init_args"] = upgrade_arguments(value["class_path"], value["init_args"])
    return value


def _paths(value: Any) -> Iterator[str]:
    """All class paths in a config."""
    if isinstance(value, Mapping):
        for key, entry in value.items():
            if key == "class_path" and isinstance(entry, str):
                yield entry
            else:
                yield from _paths(entry)
    elif isinstance(value, list):
        for entry in value:
            yield from _paths(entry)
