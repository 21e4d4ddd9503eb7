"""Boards: outputs for figures, histograms and tables of a training, on a dashboard or in files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas as pd
import wandb
from lightning import Trainer
from lightning.pytorch.loggers import TensorBoardLogger, WandbLogger
from matplotlib.figure import Figure

from codid_lightning.analysis.dashboard.figures import histograms
from codid_lightning.analysis.figures.style import save
from codid_lightning.training.runs import replacing


class Board(Protocol):
    """An output for figures, histograms, tables, the config and checkpoints."""

    def figure(self, name: str, figure: Figure) -> None:
        """Show a figure."""

    def histograms(self, name: str, values: Mapping[str, np.ndarray]) -> None:
        """Show a histogram of each set of values, by name."""

    def table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Show a table; a later one of the same name replaces it."""

    def config(self, config: Mapping[str, Any]) -> None:
        """Store the resolved config."""

    def checkpoint(self, path: Path, name: str) -> None:
        """Store a checkpoint."""


class Disk:
    """Files in a folder: `<name>-epoch<e>.png` and `<name>.csv`. Config and checkpoint are in the run directory anyway.

    Args:
        trainer: The trainer, whose epochs are part of file names.
        directory: The folder.
    """

    def __init__(self, trainer: Trainer, directory: Path) -> None:
        self.trainer, self.directory = trainer, directory

    def figure(self, name: str, figure: Figure) -> None:
        """Write a PNG."""
        save(figure, self.directory / f"{_file_name(name)}-epoch{self.trainer.current_epoch:04d}.png")

    def histograms(self, name: str, values: Mapping[str, np.ndarray]) -> None:
        """Write a PNG with one panel per name."""
        self.figure(name, histograms(values))

    def table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Write a CSV file."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with replacing(self.directory / f"{_file_name(name)}.csv") as part:
            pd.DataFrame(list(rows), columns=list(columns)).to_csv(part, index=False)

    def config(self, config: Mapping[str, Any]) -> None:
        """Do nothing: the config is in `config.yaml`."""

    def checkpoint(self, path: Path, name: str) -> None:
        """Do nothing: the checkpoint stays in the run directory."""


class Wandb:
    """A run of Weights & Biases, online or offline.

    Args:
        trainer: The trainer, whose steps are logged.
        logger: The run's logger.
    """

    def __init__(self, trainer: Trainer, logger: WandbLogger) -> None:
        self.trainer, self.logger = trainer, logger

    def figure(self, name: str, figure: Figure) -> None:
        """Log an image."""
        self._log({name: wandb.Image(figure)})

    def histograms(self, name: str, values: Mapping[str, np.ndarray]) -> None:
        """Log one histogram per name."""
        self._log({f"{name}/{key}": wandb.Histogram(value.tolist()) for key, value in values.items()})

    def table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Log a table."""
        self._log({name: wandb.Table(columns=list(columns), data=[list(row) for row in rows])})

    def config(self, config: Mapping[str, Any]) -> None:
        """Add the config, so that runs can be grouped and filtered by its keys."""
        self.logger.experiment.config.update(dict(config), allow_val_change=True)

    def checkpoint(self, path: Path, name: str) -> None:
        """Log an artifact."""
        artifact = wandb.Artifact(name, type="model")
        artifact.add_file(str(path))
        self.logger.experiment.log_artifact(artifact)

    def _log(self, values: Mapping[str, Any]) -> None:
        self.logger.experiment.log({**values, "trainer/global_step": self.trainer.global_step})


class TensorBoard:
    """Event files of TensorBoard.

    Args:
        trainer: The trainer, whose steps are logged.
        logger: The run's logger.
    """

    def __init__(self, trainer: Trainer, logger: TensorBoardLogger) -> None:
        self.trainer, self.writer = trainer, logger.experiment

    def figure(self, name: str, figure: Figure) -> None:
        """Add an image."""
        self.writer.add_figure(name, figure, self.trainer.global_step)

    def histograms(self, name: str, values: Mapping[str, np.ndarray]) -> None:
        """Add one histogram per name."""
        for key, value in values.items():
            self.writer.add_histogram(f"{name}/{key}", value, self.trainer.global_step)

    def table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        """Add a Markdown table."""
        lines = [columns, ["---"] * len(columns), *rows]
        text = "\n".join("| " + " | ".join(str(cell) for cell in line) + " |" for line in lines)
        self.writer.add_text(name, text, self.trainer.global_step)

    def config(self, config: Mapping[str, Any]) -> None:
        """Do nothing: the logger has the hyperparameters, and the rest is in `config.yaml`."""

    def checkpoint(self, path: Path, name: str) -> None:
        """Do nothing: the checkpoint stays in the run directory."""


def boards_of(trainer: Trainer, directory: Path) -> list[Board]:
    """The dashboards among a trainer's loggers; files if there is none that works."""
    found: list[Board] = []
    for logger in trainer.loggers:
        if isinstance(logger, WandbLogger) and not logger.experiment.disabled:
            found.append(Wandb(trainer, logger))
        elif isinstance(logger, TensorBoardLogger):
            found.append(TensorBoard(trainer, logger))
    return found or [Disk(trainer, directory)]


def _file_name(name: str) -> str:
    return name.replace("/", "-").replace(" ", "-")
