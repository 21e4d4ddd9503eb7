"""Errors that a user can correct, as short messages: the key in question, what it accepts, the nearest valid one."""

from __future__ import annotations

import argparse
import difflib
import errno
import re
import signal
import sys
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path

from jsonargparse import ArgumentError
from lightning import Trainer
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.exceptions import SIGTERMException

from codid_lightning.errors import CheckpointError, DivergenceError, RunError
from codid_lightning.training.callbacks.stopping import Stopped
from codid_lightning.training.config import KEYS
from codid_lightning.training.config_files import config_folder
from codid_lightning.training.messages import quiet
from codid_lightning.training.registry import PARENTS, argument_names, dataset_names, method_names, subclasses
from datamodules.base import DataError

_DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EIO}
_KEY = re.compile(r'Parser key "([\w.]+)"')
_CLASS = re.compile(r"given class_path '([\w.]+)'")
_UNKNOWN_KEY = re.compile(
    r"Option '(?P<option>[\w.]+)' is not accepted|accept option '(?P<nested>[\w.]+)'"
    r"|unrecognized arguments: (?P<argument>\S+)"
)
_UNKNOWN_CLASS = re.compile(r"Expected a dot import path string: (\S+)|Import path (\S+) does not correspond")
_WRONG_VALUE = re.compile(r"Expected an? (?P<type>[^\n]+)\. Got value: (?P<value>[^\n]*)")
# The innermost union: those around it are of classes that have the key.
_WRONG_UNION = re.compile(r".*Subtypes: \[(?P<type>[^\n]+)\]\n.*?Given value: (?P<value>[^\n]*)", re.DOTALL)


def reported(command: Callable[[], int]) -> int:
    """Call a command and return its exit code; errors that a user can correct become one message."""
    try:
        with quiet():
            return command()
    except (DataError, DivergenceError, CheckpointError, RunError, MisconfigurationException) as error:
        print(f"codid: {error}", file=sys.stderr)
        return 1
    except (ArgumentError, argparse.ArgumentError) as error:
        print(f"codid: {explain(str(error))}", file=sys.stderr)
        return 2
    except OSError as error:
        if error.errno not in _DISK_ERRORS:
            raise
        print(
            f"codid: {error.strerror}: {error.filename}. Free space, or choose a place that can be written with "
            "--run_dir or --trainer.default_root_dir; files written before are intact.",
            file=sys.stderr,
        )
        return 1
    except Stopped as stop:
        print(stop, end="\n" if str(stop) else "", file=sys.stderr)
        return stop.exit_code
    except SIGTERMException:
        return 128 + signal.SIGTERM
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except SystemExit as end:
        if isinstance(end.__context__, KeyboardInterrupt):  # how Lightning ends after Ctrl-C
            return 128 + signal.SIGINT
        raise


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
        return f"Missing: {found[1]}. A config sets them: `-c configs/toy/base.yaml`."
    return "\n".join(line for line in message.splitlines()[:5] if line.strip())


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
    keys = [*KEYS, *(f"trainer.{argument}" for argument in argument_names(Trainer))]
    for group, parent in PARENTS.items():
        of_any = {a for c in subclasses(parent) for a in argument_names(c)}
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


def _missing_file(path: Path) -> str:
    named = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    folder = path.parent.parent if path.parent.parent.is_dir() else config_folder()
    known = [str(Path(named.parent.parent, *file.parts[-2:])) for file in sorted(folder.glob("*/*.yaml"))]
    return f"There is no config file {named}.{_hint(str(named), known)}"


def _hint(given: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(given, list(known), n=1)
    return f" Did you mean `{close[0]}`?" if close and close[0] != given else ""
