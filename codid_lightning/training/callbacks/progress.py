"""A progress bar that takes almost no time."""

from __future__ import annotations

import time
from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import RichProgressBar

REDRAWS_PER_SECOND = 4


class ProgressBar(RichProgressBar):
    """Rich's bar, redrawn four times a second instead of after every batch, with the last validation accuracy."""

    def __init__(self) -> None:
        super().__init__(refresh_rate=1)
        self.next_redraw = 0.0

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the bar of an epoch, counted from 1."""
        super().on_train_epoch_start(trainer, pl_module)
        self._count_from_one(trainer)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Redraw the bar, unless it was drawn less than a quarter of a second ago."""
        now = time.monotonic()
        if now < self.next_redraw and not trainer.is_last_batch:
            return
        self.next_redraw = now + 1 / REDRAWS_PER_SECOND
        starts = self.train_progress_bar_id is None  # resumed inside an epoch
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
        if starts:
            self._count_from_one(trainer)

    def get_metrics(self, trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
        """Validation accuracy, once there is one."""
        return {name: float(value) for name, value in trainer.callback_metrics.items() if name == "val/acc"}

    def _count_from_one(self, trainer: Trainer) -> None:
        if self.progress is not None and self.train_progress_bar_id is not None:
            text = f"Epoch {trainer.current_epoch + 1}/{trainer.max_epochs}"
            self.progress.update(self.train_progress_bar_id, description=text)
