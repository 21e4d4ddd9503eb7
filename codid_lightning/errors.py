"""Errors that a user can act on. Commands print their message without a traceback."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path


class RunError(RuntimeError):
    """A run cannot start or continue as configured."""


class CheckpointError(RuntimeError):
    """A checkpoint cannot be written, read or continued. The message names the reason."""


class DivergenceError(RuntimeError):
    """A training loss is no longer finite."""


def hidden_datamodules() -> str:
    """A message if Python finds a folder or file `datamodules` of somebody else first; it is not imported."""
    spec = find_spec("datamodules")
    if spec is None or spec.origin is None:
        return ""
    found = Path(spec.origin)
    if found.name == "__init__.py":
        found = found.parent
    if (found / "labelled.py").is_file():
        return ""
    return f"{found} hides this program's package of the same name. Rename it, or start in another folder."
