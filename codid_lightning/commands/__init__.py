"""Commands beside LightningCLI's: each parses its arguments, calls the library and prints."""

import sys


def help_or_arguments(args: list[str] | None, usage: str) -> list[str] | None:
    """Arguments that LightningCLI will parse, or None after printing `usage` when help is asked for.

    Commands that look at a trained run take whatever `codid test` takes; they have no parser of their own.
    """
    arguments = sys.argv[2:] if args is None else args
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage)
        return None
    return arguments
