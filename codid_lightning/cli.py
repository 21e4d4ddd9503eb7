"""The command line: LightningCLI for fit, validate, test and predict, and commands of our own beside it."""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import re
import sys
import time
from pathlib import Path
from typing import Any, Literal

import yaml
from jsonargparse import ArgumentError, Namespace
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import CSVLogger, WandbLogger  # noqa: F401  (short class name in configs)
from lightning.pytorch.utilities import rank_zero_info

import codid_lightning
import datamodules  # noqa: F401  (short class names in configs)
from codid_lightning import runs
from codid_lightning.callbacks.checkpoint import AtomicCheckpointIO, BestCheckpoint, CheckpointError, LastCheckpoint
from codid_lightning.callbacks.predictions import PredictionWriter
from codid_lightning.module import DisentanglementModule, DivergenceError
from datamodules.base import AttributeDataModule, DataError

Selection = Literal["last", "val", "val_balanced", "val_worst"]
MONITORS = {"val": "val/acc", "val_balanced": "val/balanced_acc", "val_worst": "val/worst_acc"}

COMMANDS = {
    "demo": "train on the toy data, print a table, draw decision boundaries",
    "data": "describe a data set and draw samples",
    "prepare": "build Canine-BG from ImageNet and Places",
    "evaluate": "compute every metric of one run",
    "report": "turn run directories into the paper's tables",
    "figure": "draw a figure of the paper from a run",
    "audit": "does my data hide correlations, and is my model hurt by them?",
    "benchmark": "run a matrix of data sets, methods, seeds and groups",
    "tune": "search hyperparameters on validation data",
}
TRAINER = {
    "fit": "train, test, and leave a run directory",
    "validate": "metrics on validation data",
    "test": "metrics on the test sets",
    "predict": "predictions and representations as files",
}
FACTS = ("input_shape", "attribute_sizes", "test_names", "test_attributes")


def main(args: list[str] | None = None) -> int:
    """Run one command; the exit code."""
    args = sys.argv[1:] if args is None else args
    if not args or args[0] in ("-h", "--help"):
        print(overview())
        return 0
    if args[0] == "--version":
        print(f"codid {codid_lightning.__version__}")
        return 0
    if args[0] in COMMANDS:
        command = importlib.import_module(f"codid_lightning.commands.{args[0]}")
        return _reported(command.main, args[1:])
    if args[0] not in TRAINER:
        close = difflib.get_close_matches(args[0], [*TRAINER, *COMMANDS], n=1)
        hint = f" Did you mean `{close[0]}`?" if close else " `codid --help` lists all commands."
        print(f"codid: there is no command `{args[0]}`.{hint}", file=sys.stderr)
        return 2
    return _reported(_train, args)


def overview() -> str:
    """All commands, a line each."""
    lines = [f"  {name:<10} {text}" for name, text in {**TRAINER, **COMMANDS}.items()]
    usage = "codid COMMAND [-c CONFIG ...] [--key value ...]"
    return "\n".join([f"usage: {usage}", "", *lines, "", "`codid COMMAND --help` explains its arguments."])


def _train(args: list[str]) -> int:
    CLI.run(args)
    return 0


def _reported(function: Any, args: list[str]) -> int:
    """Call a command; errors a user can mend are one message, not a traceback."""
    try:
        return int(function(args) or 0)
    except (DataError, DivergenceError, CheckpointError, RunError) as error:
        print(f"codid: {error}", file=sys.stderr)
        return 1
    except (ArgumentError, argparse.ArgumentError) as error:
        print(f"codid: {explain(str(error), args)}", file=sys.stderr)
        return 2


class RunError(RuntimeError):
    """A run cannot start or go on as asked."""


class CLI(LightningCLI):
    """LightningCLI with sizes linked from data to model, one directory per run and a result file.

    `fit` trains, then tests the selected checkpoint, and writes `result.json` last.
    """

    @classmethod
    def run(cls, args: list[str], run: bool = True) -> CLI:
        """Build everything from the command line and, unless told otherwise, run it."""
        defaults = {
            "default_root_dir": "runs",
            "use_distributed_sampler": False,  # the data modules shard without padding
            "num_sanity_val_steps": 0,
            "enable_model_summary": False,
            "max_epochs": 50,
        }
        strict = {"exit_on_error": False}
        return cls(
            DisentanglementModule,
            AttributeDataModule,
            save_config_callback=None,
            trainer_defaults=defaults,
            seed_everything_default=0,
            parser_kwargs={**strict, **{name: dict(strict) for name in TRAINER}} if run else strict,
            subclass_mode_model=True,
            subclass_mode_data=True,
            auto_configure_optimizers=False,
            args=with_run_config(packaged_configs(args)),
            run=run,
        )

    # ------------------------------------------------------------------------------------------------------ arguments

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Names of the experiment, its directory, and what flows from data to model."""
        parser.add_argument("--dataset", type=str, default="", help="Name in results: the config's folder.")
        parser.add_argument("--method", type=str, default="", help="Name in results: the config or overlay.")
        parser.add_argument(
            "--run_dir", type=str | None, default=None, help="Directory of this run; by default a new one is made."
        )
        parser.add_argument(
            "--resume", type=bool, default=False, help="Go on from the last checkpoint of the same run, if any."
        )
        parser.add_argument(
            "--selection",
            type=Selection,
            default="last",
            help="Epoch to test: the last, or the best by validation accuracy: plain, averaged over cells of "
            "(a_1, a_2), or of the worst such cell.",
        )
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

    def before_instantiate_classes(self) -> None:
        """Choose the run's directory and point logger and checkpoint at it."""
        self._dump_config()
        self.identity = runs.config_hash(self.config_dump)
        settings = self.settings
        if self.subcommand != "fit" or settings.trainer.fast_dev_run:
            settings.trainer.logger = False
            return
        self.run_dir = self._run_directory()
        settings.ckpt_path = self._checkpoint_to_resume()
        if settings.trainer.logger in (None, True):
            # A new version per start: a resumed run adds its log to the earlier ones instead of deleting them.
            arguments = Namespace(save_dir=str(self.run_dir), name="logs", version=None, prefix="")
            arguments.flush_logs_every_n_steps = 100
            settings.trainer.logger = Namespace(class_path="lightning.pytorch.loggers.CSVLogger", init_args=arguments)

    def _run_directory(self) -> Path:
        """Given, inherited from the process that launched this rank, the one to resume, or new."""
        settings = self.settings
        inherited = os.environ.get("CODID_RUN_DIR") if "LOCAL_RANK" in os.environ else None
        if inherited:
            return Path(inherited)
        root = Path(settings.trainer.default_root_dir)
        same = settings.resume or settings.ckpt_path == "last"
        found = Path(settings.run_dir) if settings.run_dir else runs.latest_run(root, self.identity) if same else None
        if found is None:
            seed = f"seed{settings.seed_everything}"
            group = self._group()
            names = (
                settings.dataset or "data",
                settings.method or "model",
                seed if group is None else f"{seed}-group{group}",
            )
            found = runs.new_run_directory(root, *names)
        found.mkdir(parents=True, exist_ok=True)
        os.environ["CODID_RUN_DIR"] = str(found)
        return found

    def _checkpoint_to_resume(self) -> str | None:
        settings = self.settings
        last = self.run_dir / runs.CHECKPOINTS / runs.LAST
        if not settings.resume and settings.ckpt_path != "last":
            if settings.ckpt_path is None and last.is_file() and "LOCAL_RANK" not in os.environ:
                raise RunError(
                    f"{self.run_dir} holds a run already. Add --resume true to go on with it or choose another run_dir."
                )
            path: str | None = settings.ckpt_path
            return path
        if not last.is_file():
            return None
        before = runs.read_config(self.run_dir)
        if runs.config_hash(before) != self.identity:
            raise RunError(f"{self.run_dir} was started with another config: {_difference(before, self.config_dump)}.")
        return str(last)

    def _group(self) -> int | None:
        group: int | None = self.settings.data.init_args.get("test_group")
        return group

    # ------------------------------------------------------------------------------------------------------- trainer

    def instantiate_trainer(self, **kwargs: Any) -> Any:
        """Add checkpoints, the prediction writer and atomic file writing to what the config asks for."""
        extra: list[Any] = []
        if hasattr(self, "run_dir"):
            directory = self.run_dir / runs.CHECKPOINTS
            extra.append(LastCheckpoint(directory))
            if self.settings.selection != "last":
                extra.append(BestCheckpoint(directory, MONITORS[self.settings.selection]))
        if self.subcommand == "predict":
            extra.append(PredictionWriter(self._prediction_directory()))
        config = dict(self._get(self.config_init, "trainer", default={}))
        config["plugins"] = [*_as_list(config.get("plugins")), AtomicCheckpointIO()]
        config["callbacks"] = [*_as_list(config.get("callbacks")), *extra]
        return self._instantiate_trainer({**config, **kwargs}, [])

    def _prediction_directory(self) -> Path:
        if self.settings.run_dir:
            return Path(self.settings.run_dir) / "predictions"
        run = runs.run_of(Path(self.settings.ckpt_path)) if self.settings.ckpt_path else None
        return (run or Path(self.settings.trainer.default_root_dir)) / "predictions"

    # --------------------------------------------------------------------------------------------------- subcommands

    def fit(self, **kwargs: Any) -> None:
        """Train, test the selected epoch, write the result."""
        recorded = hasattr(self, "run_dir")
        if recorded and self.trainer.is_global_zero:
            with runs.replacing(self.run_dir / runs.CONFIG) as part:
                part.write_text(yaml.safe_dump(self.config_dump, sort_keys=False))
        start = time.perf_counter()
        self.trainer.fit(**kwargs)
        seconds = time.perf_counter() - start
        metrics = _floats(self.trainer.callback_metrics)
        epochs = self.trainer.current_epoch
        selected = "best" if self.settings.selection != "last" and recorded else None
        if selected:
            selected = str(self.run_dir / runs.CHECKPOINTS / "best.ckpt")
        self.trainer.test(self.model, datamodule=self.datamodule, ckpt_path=selected, verbose=False)
        metrics |= _floats(self.trainer.callback_metrics)
        if recorded and self.trainer.is_global_zero:
            self._record(metrics, epochs, seconds)

    def predict(self, **kwargs: Any) -> None:
        """Write predictions; they are not returned, so memory stays flat."""
        self.trainer.predict(**{**kwargs, "return_predictions": False})
        rank_zero_info(f"Predictions are in {self._prediction_directory()}.")

    def _record(self, metrics: dict[str, float], epochs: int, seconds: float) -> None:
        settings = self.settings
        result = runs.Result(
            method=settings.method or type(self.model).__name__,
            dataset=settings.dataset or type(self.datamodule).__name__,
            seed=settings.seed_everything,
            group=self._group(),
            config_hash=self.identity,
            epochs=epochs,
            seconds=round(seconds, 3),
            parameters=sum(p.numel() for p in self.model.parameters()),
            selection=settings.selection,
            metrics=metrics,
            versions=runs.package_versions(),
            git_revision=runs.git_revision(),
        )
        rank_zero_info(f"The result is in {result.write(self.run_dir)}.")


def packaged_configs(args: list[str]) -> list[str]:
    """Let `configs/...` name the configs shipped with the package where the working directory has none."""
    shipped = Path(__file__).parent
    if not (shipped / "configs").is_dir():
        shipped = shipped.parent
    return [
        str(shipped / a) if a.startswith("configs/") and not Path(a).exists() and (shipped / a).exists() else a
        for a in args
    ]


def with_run_config(args: list[str]) -> list[str]:
    """Without a config, take the one saved beside the checkpoint."""
    if any(a in ("-c", "--config") or a.startswith("--config=") for a in args):
        return args
    for i, a in enumerate(args):
        path = a.split("=", 1)[1] if a.startswith("--ckpt_path=") else args[i + 1] if a == "--ckpt_path" else None
        run = runs.run_of(Path(path)) if path and Path(path).is_file() else None
        if run is not None:
            return [args[0], "-c", str(run / runs.CONFIG), *args[1:]]
    return args


def explain(message: str, args: list[str]) -> str:
    """The useful lines of a parser's error, with the nearest valid key."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    useful = [
        line for line in lines if not line.startswith(("Problem with given class_path", "usage:", "Tip:"))
    ] or lines
    text = " ".join(useful[:6])
    wrong = re.search(r"[Kk]ey [`'\"]?([\w.]+)|arguments?: (?:--)?([\w.]+)|[Oo]ption [`'\"]?([\w.]+)", text)
    if wrong:
        key = next(g for g in wrong.groups() if g).split(".")[-1]
        close = difflib.get_close_matches(key, known_keys(), n=1)
        if close and close[0] != key:
            text += f" Did you mean `{close[0]}`?"
    return text


def known_keys() -> list[str]:
    """All argument names of methods, data sets and trainer."""
    import inspect

    from lightning import Trainer

    classes: list[Any] = [Trainer, *_subclasses(DisentanglementModule), *_subclasses(AttributeDataModule)]
    names = {name for c in classes for name in inspect.signature(c.__init__).parameters if name != "self"}
    top = {
        "data",
        "model",
        "trainer",
        "dataset",
        "method",
        "run_dir",
        "resume",
        "selection",
        "seed_everything",
        "ckpt_path",
    }
    return sorted(names | top)


def _subclasses(parent: type[Any]) -> list[type[Any]]:
    children: list[type[Any]] = parent.__subclasses__()
    return [parent, *(c for child in children for c in _subclasses(child))]


def _as_list(value: Any) -> list[Any]:
    return [] if value is None else list(value) if isinstance(value, list | tuple) else [value]


def _floats(metrics: Any) -> dict[str, float]:
    return {name: float(value) for name, value in metrics.items()}


def _difference(before: dict[str, Any], after: dict[str, Any]) -> str:
    old, new = dict(runs.flatten(before)), dict(runs.flatten(after))
    changed = [k for k in sorted(old | new) if old.get(k) != new.get(k) and k not in runs._UNRELATED]
    return ", ".join(f"{k} was {old.get(k)}, is {new.get(k)}" for k in changed[:5])
