"""CoDID and its baselines: disentangled representations under hidden correlations.

Names are imported on first use: `from codid_lightning.clustering import DPGMM` loads neither Lightning nor matplotlib.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from codid_lightning.clustering import DPGMM, KMeans, TrueModes  # noqa: F401
    from codid_lightning.methods.base import DisentanglementModule  # noqa: F401
    from codid_lightning.methods.baselines import *  # noqa: F403
    from codid_lightning.methods.codid.discovery import ModeDiscovery  # noqa: F401
    from codid_lightning.methods.codid.module import CoDID  # noqa: F401

__version__ = "0.1.0"

_ROOMS = {
    "clustering": ("DPGMM", "KMeans", "TrueModes"),
    "methods.base": ("DisentanglementModule",),
    "methods.codid.module": ("CoDID",),
    "methods.codid.discovery": ("ModeDiscovery",),
}
_HOMES = {name: room for room, names in _ROOMS.items() for name in names}
_METHODS = ("methods.baselines",)  # lists its methods in `__all__`


def __getattr__(name: str) -> Any:
    """Import a public name from the room it lives in."""
    if name in _HOMES:
        return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    if name == "__all__":
        return [*_HOMES, *(method for room in _METHODS for method in import_module(f"{__name__}.{room}").__all__)]
    if not name.startswith("_") and name[:1].isupper():
        for room in _METHODS:
            module = import_module(f"{__name__}.{room}")
            if name in module.__all__:
                return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """Public names, also those that were not imported yet."""
    return sorted([*globals(), *__getattr__("__all__")])
