"""The command line: LightningCLI for fit, validate, test and predict, and commands of our own beside it."""

from __future__ import annotations

import argparse
import difflib
import errno
import importlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, Self

import torch
import yaml
from jsonargparse import ArgumentError, Namespace
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch.callbacks import ProgressBar as AnyProgressBar
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import CSVLogger, WandbLogger  # noqa: F401  (short class names in configs)
from lightning.pytorch.utilities.exceptions import SIGTERMException
from rich.console import Console

import codid_lightning
import datamodules  # noqa: F401  (short class names in configs)
from codid_lightning import loggers, runs
from codid_lightning.callbacks.checkpoint import AtomicCheckpointIO, BestCheckpoint, LastCheckpoint
from codid_lightning.callbacks.predictions import PredictionWriter
from codid_lightning.callbacks.progress import ProgressBar
from codid_lightning.callbacks.stopping import StopOnSignal, Stopped
from codid_lightning.console import COMMANDS, TRAINER_COMMANDS, metrics_table, overview, quiet, trainer_help
from codid_lightning.explain import OPTIONS, config_folder, explain
from codid_lightning.module import DisentanglementModule, DivergenceError
from codid_lightning.profiler import NoProfiler
from codid_lightning.runs import CheckpointError, RunError
from datamodules.base import AttributeDataModule, DataError

Selection = Literal["last", "val", "val_balanced", "val_worst"]
MONITORS = {"val": "val/acc", "val_balanced": "val/balanced_acc", "val_worst": "val/worst_acc"}
_DISK_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EIO}
FACTS = ("input_shape", "attribute_sizes", "test_names", "test_attributes")  # what flows from data to model


def main(args: list[str] | None = None) -> int:
    """Run one command; the exit code."""
    args = sys.argv[1:] if args is None else args
    if not args or args[0] in ("-h", "--help"):
        print(overview())
        return 0
    command, rest = args[0], args[1:]
    if command == "--version":
        print(f"codid {codid_lightning.__version__}")
        return 0
    if command in COMMANDS:
        return _reported(lambda args: _command(command, args), rest)
    if command in TRAINER_COMMANDS:
        return _reported(_train, args)
    close = difflib.get_close_matches(command, [*TRAINER_COMMANDS, *COMMANDS], n=1)
    hint = f"Did you mean `{close[0]}`?" if close else "`codid --help` lists all commands."
    print(f"codid: there is no command `{command}`. {hint}", file=sys.stderr)
    return 2


def _command(name: str, args: list[str]) -> int:
    code: int = importlib.import_module(f"codid_lightning.commands.{name}").main(args)
    return code


def _train(args: list[str]) -> int:
    if "-h" in args or "--help" in args:
        print(trainer_help(args[0]))
        return 0
    CLI.run(["--help" if a == "--trainer.help" else a for a in args])
    return 0


def _reported(command: Callable[[list[str]], int], args: list[str]) -> int:
    """Call a command; errors a user can mend are one message, not a traceback."""
    try:
        with quiet():
            return command(args)
    except (DataError, DivergenceError, CheckpointError, RunError, MisconfigurationException) as error:
        print(f"codid: {error}", file=sys.stderr)
        return 1
    except (ArgumentError, argparse.ArgumentError) as error:
        print(f"codid: {explain(str(error))}", file=sys.stderr)
        return 2
    except OSError as error:
        if error.errno not in _DISK_ERRORS:
            raise
        print(
            f"codid: {error.strerror}: {error.filename}. Free space, or choose a place that can be written with "
            "--run_dir or --trainer.default_root_dir; files written before are intact.",
            file=sys.stderr,
        )
        return 1
    except Stopped as stop:
        print(stop, end="\n" if str(stop) else "", file=sys.stderr)
        return stop.exit_code
    except SIGTERMException:
        return 128 + signal.SIGTERM
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except SystemExit as end:
        if isinstance(end.__context__, KeyboardInterrupt):  # Lightning's way to leave
            return 128 + signal.SIGINT
        raise


class CLI(LightningCLI):
    """LightningCLI with sizes linked from data to model, one directory per run and a result file.

    `fit` trains, then tests the selected epoch, and writes `result.json` last.
    """

    @classmethod
    def run(cls, args: list[str], run: bool = True) -> Self:
        """Build everything from the command line and, unless told otherwise, run it.

        Args:
            args: A subcommand and its arguments; only the arguments if nothing is to be run.
            run: Whether to run the subcommand.
        """
        defaults = {
            "default_root_dir": "runs",
            "use_distributed_sampler": False,  # the data modules shard without padding
            "num_sanity_val_steps": 0,
            "enable_model_summary": False,
            "max_epochs": 50,
        }
        strict = {"exit_on_error": False, "allow_abbrev": False, "prog": "codid"}
        strict["dump_header"] = [f"codid-lightning=={codid_lightning.__version__}"]
        return cls(
            DisentanglementModule,
            AttributeDataModule,
            save_config_callback=None,
            trainer_defaults=defaults,
            seed_everything_default=0,
            parser_kwargs={**strict, **{name: dict(strict) for name in TRAINER_COMMANDS}} if run else strict,
            subclass_mode_model=True,
            subclass_mode_data=True,
            auto_configure_optimizers=False,
            args=with_run_config(readable_configs(packaged_configs(args)), subcommand=run),
            run=run,
        )

    # ------------------------------------------------------------------------------------------------------ arguments

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """Subcommands and the arguments that are not the user's: how results are shown, how checkpoints are read."""
        return {name: skip | {"verbose", "weights_only"} for name, skip in LightningCLI.subcommands().items()}

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Names of the experiment, its directory, and what flows from data to model."""
        parser.add_argument("--dataset", type=str, default="", help=OPTIONS["dataset"])
        parser.add_argument("--method", type=str, default="", help=OPTIONS["method"])
        parser.add_argument("--run_dir", type=str | None, default=None, help=OPTIONS["run_dir"])
        parser.add_argument("--resume", type=bool, default=False, help=OPTIONS["resume"])
        parser.add_argument("--selection", type=Selection, default="last", help=OPTIONS["selection"])
        for fact in FACTS:
            parser.link_arguments(f"data.{fact}", f"model.init_args.{fact}", apply_on="instantiate")

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parse without LightningCLI's warning about `sys.argv`: tests and commands pass arguments directly."""
        self.config = parser.parse_args(args)

    def _parse_ckpt_path(self) -> None:
        """Keep the config as given: LightningCLI would let a checkpoint silently override it."""

    # -------------------------------------------------------------------------------------------------- the directory

    @property
    def settings(self) -> Namespace:
        """The arguments of the subcommand."""
        settings: Namespace = self.config[self.subcommand] if self.subcommand else self.config
        return settings

    @property
    def group(self) -> int | None:
        """The held-out group, where the data set's protocol has them."""
        group: int | None = self.settings.data.init_args.get("test_group")
        return group

    @property
    def names(self) -> tuple[str, str, str]:
        """Data set, method, and what tells the runs of one experiment apart."""
        repetition = f"seed{self.settings.seed_everything}"
        repetition += "" if self.group is None else f"-group{self.group}"
        return self.settings.dataset or "data", self.settings.method or "model", repetition

    def before_instantiate_classes(self) -> None:
        """Choose the run's directory and point loggers and checkpoint at it."""
        self._recall_data()
        self._dump_config()
        self.identity = runs.config_hash(self.config_dump)
        trainer = self.settings.trainer
        if self.subcommand != "fit" or trainer.fast_dev_run:
            trainer.logger = False
            return
        self.run_dir = self._run_directory()
        self.settings.ckpt_path = self._checkpoint_to_resume()
        dataset, method, _ = self.names
        trainer.logger = loggers.complete(trainer.logger, self.run_dir, "-".join(self.names), f"{dataset}-{method}")

    def _recall_data(self) -> None:
        """Read new files as the checkpoint's: with the names of its labels and inputs, unless others are given."""
        data, path = self.settings.data, self.settings.get("ckpt_path")
        if self.subcommand == "fit" or path is None or "labels" not in data.init_args:
            return
        state = AtomicCheckpointIO().load_checkpoint(path, map_location="cpu")
        kept = state.get(data.class_path.rpartition(".")[2], {}).get("arguments", {})
        for name, value in kept.items():
            if data.init_args.get(name) is None:
                data.init_args[name] = value

    def _run_directory(self) -> Path:
        """Given, inherited from the process that launched this rank, the one to resume, or new."""
        settings = self.settings
        if "LOCAL_RANK" in os.environ and not settings.run_dir:
            if "CODID_RUN_DIR" not in os.environ:
                raise RunError("Ranks started by another launcher must share a directory: add --run_dir.")
            return Path(os.environ["CODID_RUN_DIR"])
        root = Path(settings.trainer.default_root_dir)
        same = settings.resume or settings.ckpt_path == "last"
        found = Path(settings.run_dir) if settings.run_dir else runs.latest_run(root, self.identity) if same else None
        if found is None:
            found = runs.new_run_directory(root, *self.names)
        found.mkdir(parents=True, exist_ok=True)
        os.environ["CODID_RUN_DIR"] = str(found)
        return found

    def _checkpoint_to_resume(self) -> str | None:
        settings = self.settings
        last = self.run_dir / runs.CHECKPOINTS / runs.LAST
        if not settings.resume and settings.ckpt_path != "last":
            if settings.ckpt_path is None and "LOCAL_RANK" not in os.environ:
                self._refuse_begun()
            path: str | None = settings.ckpt_path
            return path
        if not last.is_file():
            return None
        before = runs.read_config(self.run_dir)
        if runs.config_hash(before) != self.identity:
            changes = runs.difference(before, self.config_dump)
            raise RunError(f"{self.run_dir} was started with another config: {changes}.")
        return str(last)

    def _refuse_begun(self) -> None:
        if (self.run_dir / runs.CHECKPOINTS / runs.LAST).is_file():
            raise RunError(
                f"{self.run_dir} holds a run already. Add --resume true to go on with it or choose another run_dir."
            )

    # ------------------------------------------------------------------------------------------------- instantiation

    def instantiate_classes(self) -> None:
        """Build data, method and trainer; a value they refuse is the user's to change."""
        try:
            super().instantiate_classes()
        except ValueError as error:
            cause: BaseException = error
            while cause.__cause__ is not None:
                cause = cause.__cause__
            if isinstance(cause, ValueError):
                raise RunError(str(cause)) from error
            raise

    def instantiate_trainer(self, **kwargs: Any) -> Any:
        """Add checkpoints, progress, the prediction writer and atomic file writing to what the config asks for."""
        config = dict(self._get(self.config_init, "trainer", default={}))
        callbacks = _as_list(config.get("callbacks"))
        if config.get("enable_progress_bar") is not False and not any(isinstance(c, AnyProgressBar) for c in callbacks):
            callbacks.append(ProgressBar())
        if hasattr(self, "run_dir"):
            directory = self.run_dir / runs.CHECKPOINTS
            self.stop, self.last = StopOnSignal(), LastCheckpoint(directory)
            callbacks += [self.stop, self.last]
            if self.settings.selection != "last":
                callbacks.append(BestCheckpoint(directory, MONITORS[self.settings.selection]))
        if self.subcommand == "predict":
            callbacks.append(PredictionWriter(self._prediction_directory()))
        config["callbacks"] = callbacks
        config["profiler"] = config.get("profiler") or NoProfiler()
        config["plugins"] = [*_as_list(config.get("plugins")), AtomicCheckpointIO()]
        return self._instantiate_trainer({**config, **kwargs}, [])

    def _prediction_directory(self) -> Path:
        if self.settings.run_dir:
            return Path(self.settings.run_dir) / "predictions"
        run = runs.run_of(Path(self.settings.ckpt_path)) if self.settings.ckpt_path else None
        return (run or Path(self.settings.trainer.default_root_dir)) / "predictions"

    # --------------------------------------------------------------------------------------------------- subcommands

    def fit(self, **kwargs: Any) -> None:
        """Train, test the selected epoch, write the result; no other process works in the directory meanwhile."""
        if not hasattr(self, "run_dir") or not self.trainer.is_global_zero:
            return self._fit(**kwargs)
        with runs.alone(self.run_dir):
            if self.settings.ckpt_path is None:
                self._refuse_begun()  # another process may have been here since the command line was read
            return self._fit(**kwargs)

    def _fit(self, **kwargs: Any) -> None:
        recorded = hasattr(self, "run_dir")
        self.train(**kwargs)
        epochs = self.trainer.current_epoch
        seconds, metrics = (self.last.seconds, dict(self.last.metrics)) if recorded else (0.0, {})
        best = {"model": self.model, "datamodule": self.datamodule, "verbose": False}
        if recorded and self.settings.selection != "last":
            best["ckpt_path"] = self.run_dir / runs.CHECKPOINTS / runs.BEST
            self.trainer.validate(**best)
            metrics |= _floats(self.trainer.callback_metrics)
        self.trainer.test(**best)
        metrics |= _floats(self.trainer.callback_metrics)
        self._show(metrics, self.datamodule.test_names)
        if recorded and self.trainer.is_global_zero:
            self._record(metrics, epochs, seconds)

    def train(self, **kwargs: Any) -> None:
        """Train in the run's directory, with its config beside the checkpoints to come."""
        recorded = hasattr(self, "run_dir")
        if recorded and self.trainer.is_global_zero:
            runs.sweep(self.run_dir)
            with runs.replacing(self.run_dir / runs.CONFIG) as part:
                part.write_text(yaml.safe_dump(self.config_dump, sort_keys=False))
        try:
            self.trainer.fit(**kwargs)
        except SIGTERMException as error:
            if not recorded:
                raise
            raise self._stopped() from error
        except (MemoryError, RuntimeError) as error:
            if not _is_out_of_memory(error):
                raise
            raise RunError(
                f"Out of memory with data.batch_size {self.datamodule.batch_size}: lower it or model.latent_dim. "
                "The last epoch's checkpoint is kept."
            ) from error
        except OSError as error:  # loggers write without saying where
            error.filename = error.filename or str(self.run_dir if recorded else ".")
            raise

    def _stopped(self) -> Stopped:
        signum = signal.Signals(self.stop.signum or signal.SIGTERM)
        epoch, batch = self.trainer.current_epoch, self.trainer.fit_loop.epoch_loop.batch_progress.current.completed
        message = (
            f"Stopped by {signum.name} in epoch {epoch} after {batch} batches. The checkpoint is "
            f"{self.run_dir / runs.CHECKPOINTS / runs.LAST}; the same command with --resume true goes on from there."
        )
        return Stopped(message if self.trainer.is_global_zero else "", signum)

    def validate(self, **kwargs: Any) -> None:
        """Print metrics on validation data."""
        self.trainer.validate(**kwargs, verbose=False)
        self._show(_floats(self.trainer.callback_metrics), ["val"])

    def test(self, **kwargs: Any) -> None:
        """Print metrics on the test sets."""
        self.trainer.test(**kwargs, verbose=False)
        self._show(_floats(self.trainer.callback_metrics), self.datamodule.test_names)

    def predict(self, **kwargs: Any) -> None:
        """Write predictions; they are not returned, so memory stays flat."""
        self.trainer.predict(**{**kwargs, "return_predictions": False})
        self._say(f"Predictions are in {self._prediction_directory()}.")

    def _record(self, metrics: dict[str, float], epochs: int, seconds: float) -> None:
        settings = self.settings
        result = runs.Result(
            method=settings.method or type(self.model).__name__,
            dataset=settings.dataset or type(self.datamodule).__name__,
            seed=settings.seed_everything,
            group=self.group,
            config_hash=self.identity,
            epochs=epochs,
            seconds=round(seconds, 3),
            parameters=sum(p.numel() for p in self.model.parameters()),
            selection=settings.selection,
            metrics=metrics,
            versions=runs.package_versions(),
            git_revision=runs.git_revision(),
        )
        self._say(f"The result is in {result.write(self.run_dir)}.")

    def _show(self, metrics: dict[str, float], splits: Sequence[str]) -> None:
        shown = {name: value for name, value in metrics.items() if name.split("/")[0] in splits}
        if self.trainer.is_global_zero:
            Console().print(metrics_table(shown, self.datamodule.attribute_names))

    def _say(self, line: str) -> None:
        if self.trainer.is_global_zero:
            print(line)


def packaged_configs(args: list[str]) -> list[str]:
    """Let `configs/...` name the configs shipped with the package where the working directory has none."""
    shipped = config_folder().parent
    return [
        str(shipped / a) if a.startswith("configs/") and not Path(a).exists() and (shipped / a).exists() else a
        for a in args
    ]


def readable_configs(args: list[str]) -> list[str]:
    """The arguments, once the config files among them are known to be YAML: the parser's complaint names no file."""
    named = [b for a, b in pairwise(args) if a in ("-c", "--config")]
    for file in [*named, *(a.removeprefix("--config=") for a in args if a.startswith("--config="))]:
        try:
            yaml.safe_load(Path(file).read_text() if Path(file).is_file() else "")
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise RunError(f"{file} is not a YAML file: {error}") from error
    return args


def with_run_config(args: list[str], subcommand: bool = True) -> list[str]:
    """Without a config, take the one saved beside the checkpoint."""
    if any(a in ("-c", "--config") or a.startswith("--config=") for a in args):
        return args
    for i, a in enumerate(args):
        path = a.split("=", 1)[1] if a.startswith("--ckpt_path=") else "".join(args[i + 1 : i + 2])
        run = runs.run_of(Path(path)) if a.startswith("--ckpt_path") and Path(path).is_file() else None
        if run is not None:
            first = int(subcommand)
            return [*args[:first], "-c", str(run / runs.CONFIG), *args[first:]]
    return args


def _is_out_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _as_list(value: Any) -> list[Any]:
    return [] if value is None else list(value) if isinstance(value, list | tuple) else [value]


def _floats(metrics: Any) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items()}
