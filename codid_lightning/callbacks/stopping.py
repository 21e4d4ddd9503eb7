"""Ctrl-C and SIGTERM end a run between two batches, where a checkpoint can be continued exactly."""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback


class Stopped(Exception):
    """The run has ended because it was asked to.

    Args:
        message: Where it stopped and how to go on; empty on all ranks but the first.
        signum: The signal that asked.
    """

    def __init__(self, message: str, signum: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signum


class StopOnSignal(Callback):
    """Notes signals and lets Lightning end the run after the batch, on all ranks at the same one.

    Lightning itself would stop inside a batch at Ctrl-C, inside a validation at SIGTERM (whose metrics then miss the
    batches before the stop), and let ranks that are signalled at different moments wait for each other forever.
    """

    def __init__(self) -> None:
        self.signum: int | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take the place of Lightning's handlers, which removes ours again when it is done."""
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
        trainer._signal_connector.received_sigterm = False

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop after this validation."""
        self._agree(trainer)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop after this epoch."""
        self._agree(trainer)

    def _agree(self, trainer: Trainer) -> None:
        asked = trainer.strategy.reduce_boolean_decision(self.signum is not None, all=False)
        trainer._signal_connector.received_sigterm = asked

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if signum == signal.SIGINT:
            if self.signum is not None:
                raise KeyboardInterrupt
            os.write(2, b"\nStopping after this batch; Ctrl-C again stops at once, without a new checkpoint.\n")
        self.signum = signum
