"""The methods that CoDID is compared with, on the same backbone.

A method is a class in this folder that states its `title`. It needs no entry here: all modules of the folder are
imported, and their methods are public names of this package.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from codid_lightning.methods.base import DisentanglementModule


def find_methods() -> dict[str, type[DisentanglementModule]]:
    """The methods in the modules of this folder, by class name. Parents of several methods have no title."""
    modules = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
    classes = [cls for module in modules for cls in vars(module).values() if isinstance(cls, type)]
    methods = [cls for cls in classes if issubclass(cls, DisentanglementModule) and "title" in vars(cls)]
    return {cls.__name__: cls for cls in methods if cls.__module__.startswith(f"{__name__}.")}


globals().update(find_methods())
__all__ = sorted(find_methods())

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Type checkers do not see names that are found at run time."""
