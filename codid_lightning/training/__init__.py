"""One run: its config, directory, result, loggers and callbacks.

    from codid_lightning.training import build, fit

    run = build("configs/toy/base.yaml", {"trainer.max_epochs": 2})
    result = fit(run)

The names below are imported on first use, so that reading a result file does not load Lightning.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from codid_lightning.training.config import resolve
    from codid_lightning.training.loading import LoadedRun, load, load_data, load_run
    from codid_lightning.training.messages import quiet
    from codid_lightning.training.run import Run, build
    from codid_lightning.training.stages import fit, predict, test, train, validate

__all__ = [
    "LoadedRun",
    "Run",
    "build",
    "fit",
    "load",
    "load_data",
    "load_run",
    "predict",
    "quiet",
    "resolve",
    "test",
    "train",
    "validate",
]
_HOMES = {
    "Run": "run",
    "build": "run",
    "resolve": "config",
    **dict.fromkeys(("fit", "predict", "test", "train", "validate"), "stages"),
    **dict.fromkeys(("LoadedRun", "load", "load_data", "load_run"), "loading"),
    "quiet": "messages",
}


def __getattr__(name: str) -> Any:
    """Import a public name from its module."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
