"""A run: trainer, method and data made from a config, and the directory they work in."""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jsonargparse import Namespace
from lightning import Trainer, seed_everything
from lightning.fabric.plugins.environments.slurm import SLURMEnvironment
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.callbacks import ProgressBar as AnyProgressBar

from codid_lightning.errors import RunError
from codid_lightning.methods.base import DisentanglementModule
from codid_lightning.methods.hardware import precision_problem, strategy_problem
from codid_lightning.training import loggers, runs
from codid_lightning.training.callbacks.checkpoint import AtomicCheckpointIO, BestCheckpoint, LastCheckpoint
from codid_lightning.training.callbacks.progress import ProgressBar
from codid_lightning.training.callbacks.stopping import StopOnSignal
from codid_lightning.training.config import MONITORS, Config, as_dict, check_selection, combine, run_parser
from codid_lightning.training.identity import config_hash, difference
from codid_lightning.training.lightning_adapter import let_go, recorded_hyperparameters
from datamodules.base import AttributeDataModule, DataError


@dataclass
class Run:
    """The objects that `build` makes from a config; `trainer, module, data = run` unpacks them.

    A run that has trained frees module and data when the last reference to it is gone: its trainer drops them.

    Args:
        trainer: With the callbacks, loggers and plugins of the config and of the run's directory.
        module: The method.
        data: The data set.
        config: The resolved config.
        directory: Where config, logs, checkpoints and result go; None if the run writes no files.
        checkpoint: The checkpoint to start from.
    """

    trainer: Trainer
    module: DisentanglementModule
    data: AttributeDataModule
    config: dict[str, Any]
    directory: Path | None = None
    checkpoint: str | None = None
    identity: str = field(init=False)

    def __post_init__(self) -> None:
        self.identity = config_hash(self.config)
        weakref.finalize(self, let_go, self.trainer).atexit = False

    def __iter__(self) -> Iterator[Any]:
        yield from (self.trainer, self.module, self.data)

    @property
    def group(self) -> int | None:
        """The held-out group, where the data set's protocol has groups."""
        group: int | None = self.config["data"]["init_args"].get("test_group")
        return group

    @property
    def names(self) -> tuple[str, str, str]:
        """Data set, method, and what distinguishes the runs of one experiment."""
        return _names(self.config)

    @property
    def last(self) -> Path:
        """The checkpoint of the last epoch."""
        return self._checkpoints / runs.LAST

    @property
    def best(self) -> Path:
        """The checkpoint of the best epoch, where the config selects by validation data."""
        return self._checkpoints / runs.BEST

    @property
    def _checkpoints(self) -> Path:
        if self.directory is None:
            raise RunError("This run was built without a directory, so it has no checkpoints.")
        return self.directory / runs.CHECKPOINTS


def build(*configs: Config, record: bool = True) -> Run:
    """Make trainer, method and data from configs; later configs override earlier ones.

    Args:
        configs: Each is the path of a config file, a mapping of dotted or nested keys, or a parsed config.
        record: Give the run a directory with its config, logs, checkpoints and result. Without it, nothing is written.

    Raises:
        ArgumentError: A key does not exist or has a value of the wrong type.
        RunError: The method or data set does not accept a value, or the directory belongs to another run.
    """
    config = combine(*configs)
    _check_hardware(config.trainer, training=record)
    if config.seed_everything is not False:
        chosen = None if config.seed_everything is True else config.seed_everything
        config.seed_everything = seed_everything(chosen, workers=True)
    if not record:
        _recall_labels(config)
    resolved = as_dict(config)
    check_selection(config.selection, resolved)
    directory: Path | None = None
    if record and not config.trainer.fast_dev_run:
        directory = _run_directory(config, resolved)
        config.ckpt_path = _checkpoint_to_start_from(config, resolved, directory)
        dataset, method, _ = names = _names(resolved)
        settings = (directory, "-".join(names), f"{dataset}-{method}")
        config.trainer.logger = loggers.complete(config.trainer.logger, *settings)
    else:
        config.trainer.logger = False
    made = _instantiate(config, resolved)
    gc.collect()  # parsing leaves errors that refer to themselves, to the frames here and so to what was made
    trainer = Trainer(**_trainer_arguments(dict(made.trainer), directory, config.selection))
    return Run(trainer, made.model, made.data, resolved, directory, config.ckpt_path)


def _check_hardware(arguments: Namespace, training: bool) -> None:
    """Raise for a strategy or precision that methods do not work with, before Lightning asks for a GPU or a package."""
    strategy = getattr(arguments.strategy, "class_path", arguments.strategy)
    name = strategy.rpartition(".")[2] if isinstance(strategy, str) else strategy
    problem = strategy_problem(name) or precision_problem(arguments.precision, training)
    if problem is not None:
        raise RunError(problem)


def _names(config: dict[str, Any]) -> tuple[str, str, str]:
    group = config["data"]["init_args"].get("test_group")
    repetition = f"seed{config['seed_everything']}" + ("" if group is None else f"-group{group}")
    return config["dataset"], config["method"], repetition


def _recall_labels(config: Namespace) -> None:
    """Take the names of labels and inputs from the checkpoint where the config of the user's own data has none."""
    data, path = config.data, config.ckpt_path
    if path is None or "labels" not in data.init_args:
        return
    state = AtomicCheckpointIO().load_checkpoint(path, map_location="cpu")
    kept = state.get(data.class_path.rpartition(".")[2], {}).get("arguments", {})
    for name, value in kept.items():
        if data.init_args.get(name) is None:
            data.init_args[name] = value


# -------------------------------------------------------------------------------------------------------- the directory


def _run_directory(config: Namespace, resolved: dict[str, Any]) -> Path:
    """The given directory, that of the process that launched this rank, the one to resume, or a new one.

    The tasks of a SLURM job step know nothing of each other yet, so the name of the step stands for the time.
    """
    if _was_launched() and not config.run_dir:
        if "CODID_RUN_DIR" not in os.environ:
            raise RunError("Ranks started by another launcher must share a directory: add --run_dir.")
        return Path(os.environ["CODID_RUN_DIR"])
    root = Path(config.trainer.default_root_dir)
    found = Path(config.run_dir) if config.run_dir else None
    if found is None and _resumes(config):
        found = runs.latest_run(root, config_hash(resolved))
    if found is None:
        with runs.writable(root, "--trainer.default_root_dir"):
            names, step = _names(resolved), _slurm_step()
            found = root.joinpath(*names, step) if step else runs.new_run_directory(root, *names)
    with runs.writable(found, "--run_dir"):
        found.mkdir(parents=True, exist_ok=True)
    os.environ |= {"CODID_RUN_DIR": str(found), "CODID_RUN_PID": str(os.getpid())}
    return found


def _was_launched() -> bool:
    """Whether another process started this one as a rank of its run.

    Lightning sets `LOCAL_RANK` also in the process that starts the others, and leaves it there after the run.
    """
    return "LOCAL_RANK" in os.environ and os.environ.get("CODID_RUN_PID") != str(os.getpid())


def _slurm_step() -> str | None:
    """The name of the SLURM job step whose tasks train together; None if this process trains alone or is a child."""
    if not SLURMEnvironment.detect() or os.environ["SLURM_NTASKS"] == "1":
        return None
    return f"slurm-{os.environ.get('SLURM_JOB_ID', '0')}.{os.environ.get('SLURM_STEP_ID', '0')}"


def _is_first_process() -> bool:
    """Whether no other process of this run has started before; the others may find what the first has written."""
    return not _was_launched() and (_slurm_step() is None or os.environ["SLURM_PROCID"] == "0")


def _resumes(config: Namespace) -> bool:
    return bool(config.resume or config.ckpt_path == "last")


def _checkpoint_to_start_from(config: Namespace, resolved: dict[str, Any], directory: Path) -> str | None:
    if not _resumes(config):
        if config.ckpt_path is None and _is_first_process():
            check_not_started(directory)
        path: str | None = config.ckpt_path
        return path
    last = directory / runs.CHECKPOINTS / runs.LAST
    if not last.is_file():
        return None
    before = runs.read_config(directory)
    if config_hash(before) != config_hash(resolved):
        raise RunError(f"{directory} was started with another config: {difference(before, resolved)}.")
    return str(last)


def check_not_started(directory: Path) -> None:
    """Raise if the directory holds a run's checkpoint."""
    if (directory / runs.CHECKPOINTS / runs.LAST).is_file():
        raise RunError(f"{directory} holds a run already. Add --resume true to continue it, or choose another run_dir.")


# ---------------------------------------------------------------------------------------------------------- the objects


def _instantiate(config: Namespace, resolved: dict[str, Any]) -> Namespace:
    """Make data, method, loggers and callbacks; a value they do not accept is an error of the config."""

    def make(class_type: type[Any], *args: Any, applied_instantiation_links: dict[str, Any], **kwargs: Any) -> Any:
        model = resolved["model"]
        facts = {key.rpartition(".")[2]: value for key, value in applied_instantiation_links.items()}
        hparams = {"_class_path": model["class_path"], **model.get("init_args", {}), **facts}
        with recorded_hyperparameters(hparams):
            return class_type(*args, **kwargs)

    try:
        made: Namespace = run_parser().instantiate(config, instantiators=[(make, DisentanglementModule, True)])
    except ValueError as error:
        cause: BaseException = error
        while cause.__cause__ is not None and not isinstance(cause, DataError):  # it says more than its own cause
            cause = cause.__cause__
        if isinstance(cause, ValueError):
            raise RunError(str(cause)) from error
        raise
    return made


def _trainer_arguments(arguments: dict[str, Any], directory: Path | None, selection: str) -> dict[str, Any]:
    """Add checkpoints, progress, signal handling and atomic file writing to the arguments of the config."""
    callbacks: list[Callback] = _as_list(arguments.get("callbacks"))
    if arguments.get("enable_progress_bar") is not False and not any(isinstance(c, AnyProgressBar) for c in callbacks):
        callbacks.append(ProgressBar())
    if directory is not None:
        checkpoints = directory / runs.CHECKPOINTS
        callbacks += [StopOnSignal(), LastCheckpoint(checkpoints)]
        if selection != "last":
            callbacks.append(BestCheckpoint(checkpoints, MONITORS[selection]))
    plugins = [*_as_list(arguments.get("plugins")), AtomicCheckpointIO()]
    return {**arguments, "callbacks": callbacks, "plugins": plugins}


def _as_list(value: Any) -> list[Any]:
    return [] if value is None else list(value) if isinstance(value, list | tuple) else [value]
