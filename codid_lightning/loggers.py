"""Where metrics go: a CSV file in the run's directory always, and whatever the config adds to it."""

from __future__ import annotations

import hashlib
import netrc
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import wandb
from jsonargparse import Namespace
from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.utilities import rank_zero_warn

CSV, WANDB = "lightning.pytorch.loggers.CSVLogger", "lightning.pytorch.loggers.WandbLogger"
TENSORBOARD = "lightning.pytorch.loggers.TensorBoardLogger"


class PatientWandb(WandbLogger):
    """W&B's logger, which never stands in the way of a training: where it fails it goes offline, or off."""

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """The run, or one that ignores everything."""
        try:
            return super().experiment
        except Exception as error:
            rank_zero_warn(f"Weights & Biases cannot be reached; this run is kept offline or not at all: {error}")
        try:
            self._experiment = wandb.init(**{**self._wandb_init, "mode": "offline"})
        except Exception:
            self._experiment = wandb.init(mode="disabled")
        return self._experiment

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log numbers; from the first failure on they are in the CSV file only."""
        try:
            super().log_metrics(metrics, step)
        except Exception as error:
            rank_zero_warn(f"Weights & Biases is off for the rest of this run: {error}")
            self._experiment = wandb.init(mode="disabled")


def complete(configured: Any, run_dir: Path, name: str, group: str) -> Any:
    """The config of all loggers of a run.

    Args:
        configured: `trainer.logger` of the config: nothing, a boolean, a logger or several.
        run_dir: Directory of the run.
        name: What a dashboard calls the run.
        group: What a dashboard puts together: runs that differ in seed or held-out group.
    """
    if configured is False:
        return False
    given = [] if configured in (None, True) else configured if isinstance(configured, list) else [configured]
    for logger in given:
        if logger.class_path == WANDB:
            logger.class_path = f"{__name__}.{PatientWandb.__name__}"
            _complete_wandb(logger.init_args, run_dir, name, group)
        elif logger.class_path == TENSORBOARD:
            logger.init_args.save_dir, logger.init_args.name = str(run_dir), "tensorboard"
    return [_csv(run_dir), *given]


def _csv(run_dir: Path) -> Namespace:
    # A new version per start: a resumed run adds its log to the earlier ones instead of deleting them. Rows come once
    # per epoch and are written at once, so that a killed run keeps them.
    arguments = Namespace(save_dir=str(run_dir), name="logs", version=None, prefix="", flush_logs_every_n_steps=1)
    return Namespace(class_path=CSV, init_args=arguments)


def _complete_wandb(arguments: Namespace, run_dir: Path, name: str, group: str) -> None:
    arguments.save_dir = str(run_dir)
    arguments.name = arguments.name or name
    # Named after the directory, so that a resumed run goes on as the same one; a sweep names its runs itself.
    own = hashlib.sha256(str(run_dir.resolve()).encode()).hexdigest()[:12]
    arguments.id = arguments.id or os.environ.get("WANDB_RUN_ID") or own
    arguments.group = arguments.get("group") or group
    if not os.environ.get("WANDB_MODE"):  # which may switch it off altogether
        arguments.offline = arguments.offline or not _has_wandb_key()


def _has_wandb_key() -> bool:
    """Whether a key is set; without one, going online would end the run with an error."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = urlparse(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (FileNotFoundError, netrc.NetrcParseError):
        return False
