"""The command `codid`: find the command that is meant and run it.

Modules that load torch are imported inside functions, so that help and a misspelt command answer at once.
"""

from __future__ import annotations

import difflib
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from codid_lightning import __version__
from codid_lightning.cli.console import COMMANDS, TRAINER_COMMANDS, overview


def main(args: list[str] | None = None) -> int:
    """Run one command and return the exit code."""
    args = sys.argv[1:] if args is None else args
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
    if hiding := _other_datamodules():
        print(
            f"codid: {hiding} hides this program's package of the same name. Rename it, or start codid in another "
            "folder.",
            file=sys.stderr,
        )
        return 1
    from codid_lightning.cli.errors import reported

    return reported(lambda: _run(command, rest))


def _run(command: str, args: list[str]) -> int:
    if command in TRAINER_COMMANDS:
        from codid_lightning.cli.commands import train

        return train.main(command, args)
    code: int = import_module(f"codid_lightning.cli.commands.{command}").main(args)
    return code


def _other_datamodules() -> Path | None:
    """A folder or file `datamodules` of somebody else that Python finds first, if there is one; nothing is imported."""
    spec = find_spec("datamodules")
    if spec is None or spec.origin is None:
        return None
    found = Path(spec.origin)
    if found.name != "__init__.py":
        return found
    return None if (found.parent / "labelled.py").is_file() else found.parent


def _nearest(command: str) -> str:
    close = difflib.get_close_matches(command, [*TRAINER_COMMANDS, *COMMANDS], n=1)
    return f"Did you mean `{close[0]}`?" if close else "`codid --help` lists all commands."
