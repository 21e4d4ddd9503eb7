"""Commands in addition to those of LightningCLI: each parses its arguments, calls the library and prints."""

import sys
from pathlib import Path

from codid_lightning.errors import RunError


def help_or_arguments(args: list[str] | None, usage: str) -> list[str] | None:
    """The arguments, for LightningCLI to parse; None after printing `usage` if they ask for help.

    Commands on a trained run take all arguments of `codid test` and have no parser of their own.
    """
    arguments = sys.argv[2:] if args is None else args
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage)
        return None
    return arguments


def without_path(arguments: list[str], name: str) -> tuple[list[str], Path | None]:
    """The arguments without an option of the command that LightningCLI does not have, and the file it names."""
    others, value = without_option(arguments, name, "the name of a file")
    return others, None if value is None else Path(value)


def without_option(arguments: list[str], name: str, what: str = "a value") -> tuple[list[str], str | None]:
    """The arguments without an option of the command that LightningCLI does not have, and its value."""
    for i, argument in enumerate(arguments):
        if argument.startswith(f"{name}="):
            return arguments[:i] + arguments[i + 1 :], argument.partition("=")[2]
        if argument == name:
            if i + 1 == len(arguments):
                raise RunError(f"{name} needs {what}.")
            return arguments[:i] + arguments[i + 2 :], arguments[i + 1]
    return arguments, None
