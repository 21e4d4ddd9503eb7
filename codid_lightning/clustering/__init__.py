"""Mode discovery, usable without Lightning: ``from codid_lightning.clustering import DPGMM``.

Names are imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from codid_lightning.clustering.base import Clusterer
    from codid_lightning.clustering.dpgmm import DPGMM
    from codid_lightning.clustering.given import KMeans, TrueModes
    from codid_lightning.clustering.harmonizer import Harmonizer
    from codid_lightning.clustering.niw import NIW
    from codid_lightning.clustering.per_value import Clustering, ModesPerValue, Move

__all__ = ["DPGMM", "NIW", "Clusterer", "Clustering", "Harmonizer", "KMeans", "ModesPerValue", "Move", "TrueModes"]

_HOMES = {
    "Clusterer": "base",
    "DPGMM": "dpgmm",
    **dict.fromkeys(("KMeans", "TrueModes"), "given"),
    "Harmonizer": "harmonizer",
    "NIW": "niw",
    **dict.fromkeys(("Clustering", "ModesPerValue", "Move"), "per_value"),
}


def __getattr__(name: str) -> Any:
    """Import a public name from its module."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
