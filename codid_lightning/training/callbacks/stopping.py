"""Ctrl-C and SIGTERM end a run between two batches, where a checkpoint can be resumed exactly."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback

from codid_lightning.training.lightning_adapter import request_stop


class Stopped(Exception):
    """A signal ended the run.

    Args:
        message: Where the run stopped and how to resume it; empty on all ranks but the first.
        signum: The signal.
    """

    def __init__(self, message: str, signum: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signum


class StopOnSignal(Callback):
    """Records signals and lets Lightning end the run after the current batch, which is the same on all ranks.

    Lightning alone would stop inside a batch at Ctrl-C and inside a validation at SIGTERM, whose metrics would then
    lack batches. Ranks that get the signal at different moments would wait for each other forever.
    """

    def __init__(self) -> None:
        self.signum: int | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Replace Lightning's signal handlers; Lightning restores the original ones after the training."""
        if trainer.received_sigterm:
            self.signum = signal.SIGTERM
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self._note)
            signal.signal(signal.SIGINT, self._note)

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        """Stop after this batch."""
        self._agree(trainer)

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Let a validation finish."""
        request_stop(trainer, False)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop after this validation."""
        self._agree(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop after this epoch."""
        self._agree(trainer)

    def _agree(self, trainer: Trainer) -> None:
        request_stop(trainer, trainer.strategy.reduce_boolean_decision(self.signum is not None, all=False))

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if signum == signal.SIGINT:
            if self.signum is not None:
                raise KeyboardInterrupt
            os.write(2, b"\nStopping after this batch; Ctrl-C again stops at once, without a new checkpoint.\n")
        self.signum = signum
