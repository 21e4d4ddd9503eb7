"""The command line: the only room that reads arguments. No other room imports it."""

from codid_lightning.cli.main import main

__all__ = ["main"]
