"""The command `codid`: find the command that is meant and run it.

What loads torch is imported after the arguments are known to be right, as far as they can be checked without it: help
and misspelt commands answer at once.
"""

from __future__ import annotations

import argparse
import atexit
import difflib
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

from codid_lightning import __version__
from codid_lightning.cli import arguments
from codid_lightning.cli.console import COMMANDS, TRAINER_COMMANDS, overview
from codid_lightning.errors import hidden_datamodules


def main(args: list[str] | None = None) -> int:
    """Run one command and return the exit code.

    Args:
        args: The command and its arguments; default: those of this process, which then does nothing else.
    """
    alone, args = args is None, sys.argv[1:] if args is None else args
    if not args or args[0] in ("-h", "--help"):
        print(overview())
        return 0
    command, rest = args[0], args[1:]
    if command == "--version":
        print(f"codid {__version__}")
        return 0
    if command not in {**TRAINER_COMMANDS, **COMMANDS}:
        print(f"codid: there is no command `{command}`. {_nearest(command)}", file=sys.stderr)
        return 2
    try:
        if (text := arguments.help_of(command, rest)) is not None:
            print(text)
            return 0
        arguments.check(command, rest)
    except argparse.ArgumentError as error:
        print(f"codid: {error}", file=sys.stderr)
        return 2
    if hidden := hidden_datamodules():
        print(f"codid: {hidden}", file=sys.stderr)
        return 1
    with _importing(alone):
        from codid_lightning.cli.errors import reported

    return reported(lambda: _run(command, rest, alone))


def _run(command: str, args: list[str], alone: bool) -> int:
    with _importing(alone):
        module = import_module(f"codid_lightning.cli.commands.{'train' if command in TRAINER_COMMANDS else command}")
    code: int = module.main(command, args) if command in TRAINER_COMMANDS else module.main(args)
    return code


@contextmanager
def _importing(alone: bool) -> Iterator[None]:
    """Import without a search for garbage: there is none among modules, and it would take a fifth of the time.

    What is imported stays, so that later searches need not look at it either. A program that calls `main` keeps its own
    settings.
    """
    if alone:
        gc.disable()
    try:
        yield
    finally:
        if alone:
            gc.freeze()
            atexit.register(gc.unfreeze)  # or the end of the process finds modules that were never collected
            gc.enable()


def _nearest(command: str) -> str:
    close = difflib.get_close_matches(command, [*TRAINER_COMMANDS, *COMMANDS], n=1)
    return f"Did you mean `{close[0]}`?" if close else "`codid --help` lists all commands."
