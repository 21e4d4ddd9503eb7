"""What Lightning prints about itself."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from codid_lightning.methods.lightning_adapter import NOTES

# Advice that does not apply here: batches are indexed whole and sharded without padding, losses are logged per epoch,
# metrics are the same on all ranks, callbacks come from the config and not from the checkpoint.
_NEEDLESS_WARNINGS = (
    r".*does not have many workers",
    r".*smaller than the logging interval",
    r".*LeafSpec.* is deprecated",
    r".*callbacks used to create the checkpoint",
    r".*Checkpoint directory .* exists and is not empty",
    r".*it is recommended to use `Trainer\(devices=1",
    r".*recommended to use `self.log\(.*sync_dist=True",
)


# Lightning counts optimizer steps, of which a batch makes several here, and cannot detect that our loaders continue
# with the batch after the checkpoint.
_RESUME_WARNING = r"You're resuming from a checkpoint that ended before the epoch ended"


@contextmanager
def exact_resume() -> Iterator[None]:
    """Hide Lightning's warning that resumed results are unreliable; for checkpoints that this package wrote."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=_RESUME_WARNING)
        yield


class _Print(logging.Handler):
    """Prints to what standard output is at that moment: a file, a pipe, or the screen above a progress bar."""

    def emit(self, record: logging.LogRecord) -> None:
        print(record.getMessage(), file=sys.stdout, flush=True)


@contextmanager
def _printed(notes: logging.Logger) -> Iterator[None]:
    """Print the notes of a logger, and nowhere else."""
    handler, propagated = _Print(), notes.propagate
    notes.addHandler(handler)
    notes.propagate = False
    try:
        yield
    finally:
        notes.removeHandler(handler)
        notes.propagate = propagated


@contextmanager
def quiet() -> Iterator[None]:
    """Hide Lightning's notes about itself and print ours; warnings about the user's run are shown."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.WARNING)
        with _printed(NOTES), warnings.catch_warnings():
            for message in _NEEDLESS_WARNINGS:
                warnings.filterwarnings("ignore", message=message)
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
