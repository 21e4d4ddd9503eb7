"""Which methods and data sets there are, and which arguments they take."""

from __future__ import annotations

from importlib import import_module
from inspect import isabstract
from typing import Any

from jsonargparse import ArgumentParser

import codid_lightning
import datamodules
from codid_lightning.methods.base import DisentanglementModule
from datamodules.base import AttributeDataModule

PARENTS: dict[str, type[Any]] = {"model": DisentanglementModule, "data": AttributeDataModule}

for _name in codid_lightning.__all__:  # a class is known by its short name once its module is imported
    getattr(codid_lightning, _name)


def method_names() -> list[str]:
    """Class names of all methods that can be trained."""
    return _names(DisentanglementModule, codid_lightning.__name__)


def dataset_names() -> list[str]:
    """Class names of all data sets."""
    return _names(AttributeDataModule, datamodules.__name__)


def argument_names(class_type: type[Any]) -> list[str]:
    """Constructor arguments of a class, also those it passes on to its parents."""
    names: list[str] = ArgumentParser(exit_on_error=False).add_class_arguments(class_type, fail_untyped=False)
    return names


def public_path(path: str) -> str:
    """The shortest import path of a class: `codid_lightning.Base` for `codid_lightning.methods.baselines.base.Base`."""
    module, _, name = path.rpartition(".")
    package = import_module(module.partition(".")[0]) if module else None
    if package not in (codid_lightning, datamodules) or name not in package.__all__:
        return path
    same = getattr(import_module(module), name, None) is getattr(package, name)
    return f"{package.__name__}.{name}" if same else path


def subclasses(parent: type[Any]) -> set[type[Any]]:
    """All classes derived from `parent`, at any depth."""
    children: list[type[Any]] = parent.__subclasses__()
    return {*children, *(c for child in children for c in subclasses(child))}


def _names(parent: type[Any], package: str) -> list[str]:
    module = import_module(package)
    public = {name: getattr(module, name) for name in module.__all__}
    return sorted(c.__name__ for c in subclasses(parent) if public.get(c.__name__) is c and not isabstract(c))
