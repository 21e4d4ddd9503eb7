"""Identity of an experiment: everything in its config that changes its numbers.

Runs of one identity are repetitions of each other: they share a hash, may resume each other, and reports count them
once. This module loads no torch, because reports compare many runs.

A config names files and does not hold their content, the reference partition excepted. A checkpoint holds a fingerprint
of its training samples, so that no run is continued with others.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

# What is left out, and why. Everything else counts.
_LEFT_OUT = {
    "names and places": (
        "title", "needs", "space", "run_dir", "config", "trainer.default_root_dir",
    ),
    "how a run of the same experiment is started or continued": (
        "resume", "ckpt_path", "weights_only",
    ),
    "how a finished run is used": (
        "adapted",
    ),
    "what is displayed, logged or returned": (
        "verbose", "return_predictions", "trainer.logger", "trainer.profiler", "trainer.log_every_n_steps",
        "trainer.enable_progress_bar", "trainer.enable_model_summary", "trainer.enable_checkpointing",
        "trainer.detect_anomaly",
    ),
    "the machine; batches are the same for any number of workers": (
        "trainer.accelerator", "data.init_args.num_workers", "data.init_args.download",
    ),
}  # fmt: skip
_UNRELATED = {key for keys in _LEFT_OUT.values() for key in keys}
# Keys that earlier versions did not have, and that change nothing if they are null.
_OFF_IF_NULL = (
    "data.init_args.global_batch_size", "data.init_args.partition", "data.init_args.augment",
    "model.init_args.weights", "model.init_args.freeze",
)  # fmt: skip
# Of `trainer.callbacks` and `trainer.plugins`, classes of these packages that observe, write files or find ranks are
# left out. All others count, also unknown ones of users.
_KNOWN_PACKAGES = ("codid_lightning", "lightning")
_OBSERVERS = {
    "Dashboard", "Snapshots", "PredictionWriter", "ProgressBar", "RichProgressBar", "TQDMProgressBar", "ModelSummary",
    "RichModelSummary", "DeviceStatsMonitor", "LearningRateMonitor", "ThroughputMonitor", "ModelCheckpoint",
    "OnExceptionCheckpoint",
}  # fmt: skip
_PLACE_PLUGINS = ("CheckpointIO", "Environment")  # how their names end
# `data.init_args.root` is a place for the public data sets: their files are the same everywhere. For own data, and for
# classes of users, another folder is another data set.
_PUBLIC_DATA, _OWN_DATA = "datamodules", {"OwnArrays", "OwnImages"}
# Keys whose values are places of this machine, at any depth of a config.
_PLACES = {
    "config", "run_dir", "ckpt_path", "default_root_dir", "root", "file", "partition", "save_dir", "dirpath",
    "directory", "dir", "log_dir", "checkpoint_path",
}  # fmt: skip
# Of the reference partition only the content counts, which a resolved config adds to the path: `cells.npz@0123...`.
_PARTITION = "data.init_args.partition"


def config_hash(config: Mapping[str, Any]) -> str:
    """The identity of a resolved config, nested or flat with dotted names, as 16 hexadecimal digits."""
    kept = _experiment(config)
    return hashlib.sha256(json.dumps(kept, sort_keys=True, default=str).encode()).hexdigest()[:16]


def difference(before: Mapping[str, Any], after: Mapping[str, Any]) -> str:
    """The keys in which two experiments differ, and their values, for a message."""
    old, new = _experiment(before), _experiment(after)
    changed = [key for key in sorted(old | new) if old.get(key) != new.get(key)]
    return ", ".join(f"{key} was {old.get(key)}, is {new.get(key)}" for key in changed[:5])


def shareable(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config without places: keys that hold one are left out, and other values that are paths become `(path)`.

    What is shown to others has no use for folders of this machine, whose names may be nobody's business.
    """
    return {key: _without_paths(value) for key, value in config.items() if key not in _PLACES}


def _without_paths(value: Any) -> Any:
    if isinstance(value, Mapping):
        return shareable(value)
    if isinstance(value, list | tuple):
        return [_without_paths(entry) for entry in value]
    return "(path)" if isinstance(value, str) and ("/" in value or "\\" in value) else value


def flatten(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Leaves of a nested mapping with dotted names."""
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _experiment(config: Mapping[str, Any]) -> dict[str, Any]:
    flat = dict(flatten(config))
    unrelated = {*_UNRELATED, "trainer.callbacks", "trainer.plugins"}  # the latter two are added below
    if _root_is_a_place(flat):
        unrelated.add("data.init_args.root")
    below = tuple(f"{name}." for name in unrelated)
    kept = {k: v for k, v in flat.items() if k not in unrelated and not k.startswith(below)}
    for key in _OFF_IF_NULL:
        if kept.get(key, 0) is None:
            del kept[key]
    if _PARTITION in kept:
        kept[_PARTITION] = str(kept[_PARTITION]).rpartition("@")[2]
    for key in ("trainer.callbacks", "trainer.plugins"):
        if counting := [entry for entry in _entries(flat, key) if not _observes(entry)]:
            kept[key] = counting  # no entry and none that counts are the same
    return kept


def _entries(flat: Mapping[str, Any], key: str) -> list[Any]:
    """What a key lists: nothing, one entry or several."""
    if key in flat:
        return _as_list(flat[key])
    parts = {name.removeprefix(f"{key}."): value for name, value in flat.items() if name.startswith(f"{key}.")}
    return [parts] if parts else []


def _as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple) else [value]


def _observes(entry: Any) -> bool:
    path = entry.get("class_path", "") if isinstance(entry, Mapping) else entry
    package, name = _package_and_name(path)
    return package in ("", *_KNOWN_PACKAGES) and (name in _OBSERVERS or name.endswith(_PLACE_PLUGINS))


def _root_is_a_place(flat: Mapping[str, Any]) -> bool:
    package, name = _package_and_name(flat.get("data.class_path", ""))
    return package in ("", _PUBLIC_DATA) and name not in _OWN_DATA


def _package_and_name(path: Any) -> tuple[str, str]:
    """The first and the last part of an import path; a short class name has no package."""
    parts = str(path).split(".")
    return (parts[0] if len(parts) > 1 else ""), parts[-1]
