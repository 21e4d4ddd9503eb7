"""Parser errors in a user's words: the key at fault, what it accepts, the nearest valid one."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from importlib import import_module
from inspect import isabstract
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser
from lightning import Trainer

import datamodules
from codid_lightning.module import DisentanglementModule
from datamodules.base import AttributeDataModule

PARENTS: dict[str, type[Any]] = {"model": DisentanglementModule, "data": AttributeDataModule}
OPTIONS = {
    "config": "a config file; later ones, and keys on the command line, override earlier ones",
    "seed_everything": "seed of initialisation and training; data has a seed of its own",
    "dataset": "name of the data set in results: the config's folder",
    "method": "name of the method in results: the config or overlay",
    "run_dir": "directory of this run; by default a new one below trainer.default_root_dir",
    "resume": "go on from the last checkpoint of the same run, if there is one",
    "selection": "epoch to test: the last, or the best on validation data by plain accuracy of a_1 (val), its mean "
    "over the cells of (a_1, a_2) (val_balanced) or its value in the worst cell (val_worst)",
    "ckpt_path": "checkpoint to start from; its run's config is used where none is given",
}

_KEY = re.compile(r'Parser key "([\w.]+)"')
_CLASS = re.compile(r"given class_path '([\w.]+)'")
_UNKNOWN_KEY = re.compile(
    r"Option '(?P<option>[\w.]+)' is not accepted|accept option '(?P<nested>[\w.]+)'"
    r"|unrecognized arguments: (?P<argument>\S+)"
)
_UNKNOWN_CLASS = re.compile(r"Expected a dot import path string: (\S+)|Import path (\S+) does not correspond")
_WRONG_VALUE = re.compile(r"Expected an? (?P<type>[^\n]+)\. Got value: (?P<value>[^\n]*)")
_WRONG_UNION = re.compile(r"Subtypes: \[(?P<type>[^\n]+)\]\n.*Given value: (?P<value>[^\n]*)", re.DOTALL)


def explain(message: str) -> str:
    """A parser's error in at most five lines that name the key and, where one is near, the valid one."""
    if found := _UNKNOWN_KEY.search(message):
        return _unknown_key(message, found)
    if found := _UNKNOWN_CLASS.search(message):
        return _unknown_class(message[: found.start()], found[1] or found[2])
    if found := _WRONG_VALUE.search(message) or _WRONG_UNION.search(message):
        key, value = _key(message[: found.start("type")]), found["value"]
        if nested := re.fullmatch(r"NestedArg\(key='([\w.]+)', val='?(.*?)'?\)", value):
            key, value = f"{key}.{nested[1]}", nested[2]
        expected, accepted = _readable(found["type"])
        return f"{key} must be {expected}, not `{value}`.{_hint(value, accepted)}"
    if found := re.search(r"File does not exist: '([^']+)'", message):
        return _missing_file(Path(found[1]))
    if found := re.search(r"arguments are required: (.+)", message):
        missing = ", ".join(key.split(".", 1)[-1] for key in found[1].split(", "))
        return f"Missing: {missing}. A config sets them: `-c configs/toy/base.yaml`."
    return "\n".join(line for line in message.splitlines()[:5] if line.strip())


def method_names() -> list[str]:
    """Class names of all methods that can be trained."""
    return _names(DisentanglementModule, "codid_lightning")


def dataset_names() -> list[str]:
    """Class names of all data sets."""
    return _names(AttributeDataModule, datamodules.__name__)


def argument_names(class_type: type[Any]) -> list[str]:
    """Names a user may set below a class: its constructor's arguments, also those passed on to parents."""
    names: list[str] = ArgumentParser(exit_on_error=False).add_class_arguments(class_type, fail_untyped=False)
    return names


def _names(parent: type[Any], package: str) -> list[str]:
    public = vars(import_module(package))
    return sorted(c.__name__ for c in _subclasses(parent) if public.get(c.__name__) is c and not isabstract(c))


def _subclasses(parent: type[Any]) -> set[type[Any]]:
    children: list[type[Any]] = parent.__subclasses__()
    return {*children, *(c for child in children for c in _subclasses(child))}


def _key(text: str) -> str:
    """The dotted key built from the parsers an error passed through."""
    return ".".join(_KEY.findall(text)).replace(".init_args", "")


def _unknown_key(message: str, found: re.Match[str]) -> str:
    if found["argument"] and not found["argument"].startswith("-"):
        return f"Unexpected argument `{found['argument']}`: keys are given as --key value."
    prefix, option = _key(message[: found.start()]), found["option"] or found["nested"] or found["argument"]
    option = option.lstrip("-").split("=")[0].replace("init_args.", "")
    key = f"{prefix}.{option}" if prefix else option
    classes = _CLASS.findall(message[: found.start()])
    owner = classes[-1].split(".")[-1] if classes else ""
    where = f" of {owner}" if owner else ""
    return f"There is no key `{key}`{where}.{_hint(key, _valid_keys(prefix, classes))}"


def _valid_keys(prefix: str, classes: list[str]) -> list[str]:
    if classes:
        module, name = classes[-1].rsplit(".", 1)
        arguments = argument_names(getattr(import_module(module), name))
        return [f"{prefix}.{argument}" for argument in ("class_path", *arguments)]
    keys = [*OPTIONS, *(f"trainer.{argument}" for argument in argument_names(Trainer))]
    for group, parent in PARENTS.items():
        of_any = {a for c in _subclasses(parent) for a in argument_names(c)}
        keys += [f"{group}.{argument}" for argument in ("class_path", *sorted(of_any))]
    return keys


def _unknown_class(before: str, name: str) -> str:
    key = _key(before)
    known = {"model": method_names, "data": dataset_names}.get(key, list[str])()
    listed = f" Known: {', '.join(known)}." if known else " Classes of other packages need their full import path."
    return f"{key}: there is no class `{name}`.{_hint(name, known)}{listed}"


def _readable(types: str) -> tuple[str, list[str]]:
    """Python types as a user would say them, and the literal values among them."""
    literals = [v for group in re.findall(r"Literal\[([^]]+)\]", types) for v in re.findall(r"'([^']+)'", group)]
    if literals:
        return f"one of {', '.join(literals)}", literals
    names = [name.split(".")[-1] for name in re.findall(r"<class '([\w.]+)'>", types)]
    spoken = {"int": "an integer", "float": "a number", "bool": "true or false", "str": "a text", "NoneType": "null"}
    return " or ".join(spoken.get(name, name) for name in names) or types, []


def config_folder() -> Path:
    """Where the configs of this package lie: inside it once installed, beside it in its repository."""
    package = Path(__file__).parent
    return next(folder for folder in (package / "configs", package.parent / "configs") if folder.is_dir())


def _missing_file(path: Path) -> str:
    named = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    folder = path.parent.parent if path.parent.parent.is_dir() else config_folder()
    known = [str(Path(named.parent.parent, *file.parts[-2:])) for file in sorted(folder.glob("*/*.yaml"))]
    return f"There is no config file {named}.{_hint(str(named), known)}"


def _hint(given: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(given, list(known), n=1)
    return f" Did you mean `{close[0]}`?" if close and close[0] != given else ""
