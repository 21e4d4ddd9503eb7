"""Loggers of a run: always a CSV file in its directory, and those that the config adds."""

from __future__ import annotations

import argparse
import hashlib
import netrc
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from jsonargparse import Namespace
from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.utilities import rank_zero_warn

from codid_lightning.training.identity import shareable

CSV, WANDB = "lightning.pytorch.loggers.CSVLogger", "lightning.pytorch.loggers.WandbLogger"
TENSORBOARD = "lightning.pytorch.loggers.TensorBoardLogger"


# What W&B would record besides what is logged: the command line, folders, the user's and the machine's name, the Git
# remote, console output and packages.
_PRIVATE: dict[str, Any] = {
    "console": "off", "disable_git": True, "disable_code": True, "host": "-", "x_disable_meta": True,
    "x_disable_machine_info": True, "x_save_requirements": False,
}  # fmt: skip


class FaultTolerantWandbLogger(WandbLogger):
    """A W&B logger whose errors do not end the training: it then logs offline or not at all.

    It records what is logged, and nothing about the machine or the user; other `settings` replace that.
    """

    def __init__(self, **kwargs: Any) -> None:
        if kwargs.get("settings") is None:
            kwargs["settings"] = dict(_PRIVATE)
        super().__init__(**kwargs)
        self.arguments = kwargs
        self.replacement: Any = None  # W&B's run after a failure

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """W&B's run, or one that ignores everything."""
        if self.replacement is not None:
            return self.replacement
        try:
            return super().experiment
        except Exception as error:
            rank_zero_warn(f"Weights & Biases cannot be reached; this run is kept offline or not at all: {error}")
        try:
            self.replacement = WandbLogger(**{**self.arguments, "mode": "offline"}).experiment
        except Exception:
            self.replacement = _disabled_run()
        return self.replacement

    def log_hyperparams(self, params: Any) -> None:
        """Log hyperparameters, without places."""
        super().log_hyperparams(shareable(vars(params) if isinstance(params, argparse.Namespace) else params))

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log numbers; after the first failure, only the CSV file gets them."""
        try:
            super().log_metrics(metrics, step)
        except Exception as error:
            rank_zero_warn(f"Weights & Biases is off for the rest of this run: {error}")
            self.replacement = _disabled_run()


def _disabled_run() -> Any:
    import wandb  # only here: most runs log nothing to W&B, and importing it takes a second

    return wandb.init(mode="disabled")


def complete(configured: Any, run_dir: Path, name: str, group: str) -> Any:
    """The config of all loggers of a run.

    Args:
        configured: `trainer.logger` of the config: nothing, a boolean, a logger or several.
        run_dir: Directory of the run.
        name: Name of the run in dashboards.
        group: Group of the run in dashboards; its runs differ in seed or held-out group.
    """
    if configured is False:
        return False
    given = [] if configured in (None, True) else configured if isinstance(configured, list) else [configured]
    for logger in given:
        if logger.class_path == WANDB:
            logger.class_path = f"{__name__}.{FaultTolerantWandbLogger.__name__}"
            _complete_wandb(logger.init_args, run_dir, name, group)
        elif logger.class_path == TENSORBOARD:
            logger.init_args.save_dir, logger.init_args.name = str(run_dir), "tensorboard"
    return [_csv(run_dir), *given]


def _csv(run_dir: Path) -> Namespace:
    # A resumed run writes a new version of the log and keeps the earlier ones. Rows come once per epoch and are written
    # immediately, so that a killed run keeps them.
    arguments = Namespace(save_dir=str(run_dir), name="logs", version=None, prefix="", flush_logs_every_n_steps=1)
    return Namespace(class_path=CSV, init_args=arguments)


def _complete_wandb(arguments: Namespace, run_dir: Path, name: str, group: str) -> None:
    arguments.save_dir = str(run_dir)
    arguments.name = arguments.name or name
    # The id depends on the directory, so that a resumed run continues the same W&B run; a sweep sets ids itself.
    own = hashlib.sha256(str(run_dir.resolve()).encode()).hexdigest()[:12]
    arguments.id = arguments.id or os.environ.get("WANDB_RUN_ID") or own
    arguments.group = arguments.get("group") or group
    if not os.environ.get("WANDB_MODE"):  # which may disable W&B
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
