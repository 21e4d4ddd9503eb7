"""Data sets as LightningDataModules: every sample comes with its attributes and, where known, its mode.

A data set needs no entry here: all modules of this folder are imported, and the data sets in them are public names of
this package.
"""

from __future__ import annotations

from importlib import import_module
from inspect import isabstract
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from datamodules.arrays import ArrayDataModule as ArrayDataModule  # not in __all__: no config can hold arrays
from datamodules.base import AttributeDataModule, AttributeDataset, Batch, DataError
from datamodules.correlated import CorrelatedDataModule
from datamodules.grouped import GroupedDataModule

_NOT_IN_CONFIGS = {"ArrayDataModule"}  # its arrays are objects of a program


def find_datasets() -> dict[str, type[AttributeDataModule]]:
    """The data sets in this folder that a config can name, by class name. Parents of several data sets are abstract."""
    modules = [import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)]
    classes = [cls for module in modules for cls in vars(module).values() if isinstance(cls, type)]
    found = [cls for cls in classes if issubclass(cls, AttributeDataModule) and not isabstract(cls)]
    public = {cls.__name__: cls for cls in found if not cls.__name__.startswith("_")}
    return {name: cls for name, cls in public.items() if name not in _NOT_IN_CONFIGS}


__all__ = [
    "AttributeDataModule",
    "AttributeDataset",
    "Batch",
    "CorrelatedDataModule",
    "DataError",
    "GroupedDataModule",
]
__all__ += sorted(find_datasets())
globals().update(find_datasets())

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Type checkers do not see names that are found at run time."""
