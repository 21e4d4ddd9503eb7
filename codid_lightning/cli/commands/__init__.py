"""Commands in addition to those of LightningCLI: each parses its arguments, calls the library and prints."""

import sys


def help_or_arguments(args: list[str] | None, usage: str) -> list[str] | None:
    """The arguments, for LightningCLI to parse; None after printing `usage` if they ask for help.

    Commands on a trained run take all arguments of `codid test` and have no parser of their own.
    """
    arguments = sys.argv[2:] if args is None else args
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage)
        return None
    return arguments
