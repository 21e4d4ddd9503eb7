"""Arguments of clusterers that had other names, in configs and checkpoints of earlier versions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_RENAMED = {
    "DPGMM": {"seed": "random_state", "n_iter": "max_iter"},
    "KMeans": {"seed": "random_state"},
}


def upgrade_arguments(class_path: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of a clusterer under today's names; those of other classes are returned as they are."""
    package, _, name = class_path.rpartition(".")
    ours = package in ("", "codid_lightning") or package.startswith("codid_lightning.clustering")
    renamed = _RENAMED.get(name, {}) if ours else {}
    return {renamed.get(key, key): value for key, value in arguments.items()}
