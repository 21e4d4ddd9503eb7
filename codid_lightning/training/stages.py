"""Stages of a run: train, validate, test, predict; `fit` does all that a result needs."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import torch
import yaml
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.utilities.exceptions import SIGTERMException

from codid_lightning.errors import CheckpointError, RunError
from codid_lightning.training import runs
from codid_lightning.training.callbacks.checkpoint import NO_CANDIDATE, AtomicCheckpointIO, LastCheckpoint
from codid_lightning.training.callbacks.predictions import PredictionWriter
from codid_lightning.training.callbacks.stopping import StopOnSignal, Stopped
from codid_lightning.training.lightning_adapter import batches_of_epoch
from codid_lightning.training.loading import use_adaptation
from codid_lightning.training.messages import exact_resume
from codid_lightning.training.run import Run, check_not_started

AnyCallback = TypeVar("AnyCallback", bound=Callback)


def fit(run: Run) -> runs.Result:
    """Train, test the selected epoch, and write `result.json` last; no other process may use the directory meanwhile.

    Raises:
        RunError: Another process trains in the directory, or memory does not suffice.
        Stopped: A signal ended the training; a checkpoint was written.
    """
    if run.directory is None or not run.trainer.is_global_zero:
        return _fit(run)
    with runs.exclusive_run_dir(run.directory):
        if run.checkpoint is None:
            check_not_started(run.directory)  # another process may have trained here since the run was built
        return _fit(run)


def train(run: Run) -> None:
    """Train and validate, and read no test data. The run's directory gets the config and checkpoints."""
    if run.config["adapted"] is not False:
        raise RunError("`adapted` is for test and predict: a model is adapted after its training, by `codid adapt`.")
    problem = run.module.schedule_problem(run.trainer.max_epochs or 0)
    if problem is not None and not run.trainer.fast_dev_run:  # type: ignore[attr-defined]
        raise RunError(problem)
    if run.directory is not None and run.trainer.is_global_zero:
        runs.remove_partial_files(run.directory)
        with runs.replacing(run.directory / runs.CONFIG) as part:
            part.write_text(yaml.safe_dump(run.config, sort_keys=False))
    try:
        with _naming_checkpoint(run), exact_resume() if _is_own_checkpoint(run.checkpoint) else nullcontext():
            run.trainer.fit(run.module, datamodule=run.data, ckpt_path=run.checkpoint)
    except SIGTERMException as error:
        if run.directory is None:
            raise
        raise _stopped(run) from error
    except (MemoryError, RuntimeError) as error:
        if not _is_out_of_memory(error):
            raise
        raise RunError(
            f"Out of memory with data.batch_size {run.data.batch_size}: lower it or model.latent_dim. "
            "The last epoch's checkpoint is kept."
        ) from error
    except OSError as error:  # loggers write without naming the file
        error.filename = error.filename or str(run.directory or ".")
        raise


def validate(run: Run) -> dict[str, float]:
    """Metrics on validation data."""
    _prepare(run)
    with _naming_checkpoint(run):
        run.trainer.validate(run.module, datamodule=run.data, ckpt_path=run.checkpoint, verbose=False)
    return _metrics(run)


def test(run: Run) -> dict[str, float]:
    """Metrics on the test sets."""
    _prepare(run)
    with _naming_checkpoint(run):
        run.trainer.test(run.module, datamodule=run.data, ckpt_path=run.checkpoint, verbose=False)
    return _metrics(run)


def predict(run: Run) -> Path:
    """Write predictions and representations of the test sets; the folder they are in."""
    _prepare(run)
    folder = _prediction_folder(run)
    runs.make_folder(folder, "--run_dir")
    callbacks: list[Callback] = run.trainer.callbacks  # type: ignore[attr-defined]
    callbacks.append(PredictionWriter(folder))
    with _naming_checkpoint(run):
        run.trainer.predict(run.module, datamodule=run.data, ckpt_path=run.checkpoint, return_predictions=False)
    return folder


@contextmanager
def _naming_checkpoint(run: Run) -> Iterator[None]:
    """Add the file to messages about a checkpoint that does not fit."""
    try:
        yield
    except CheckpointError as error:
        if run.checkpoint is None or str(run.checkpoint) in str(error):
            raise
        raise CheckpointError(f"{run.checkpoint}: {error}") from error


def _prepare(run: Run) -> None:
    """Check that the model is trained, and adapt it if the config says so."""
    _check_trained(run)
    if run.config["adapted"] is not False and run.checkpoint is not None:
        state = AtomicCheckpointIO().load_checkpoint(run.checkpoint, map_location="cpu")
        use_adaptation(run.module, run.config["adapted"], Path(run.checkpoint), state["state_dict"])


def _check_trained(run: Run) -> None:
    """Raise if the weights are random: they come from no checkpoint, and this run has not trained."""
    fast: bool = run.trainer.fast_dev_run  # type: ignore[attr-defined]
    if run.checkpoint is None and run.trainer.global_step == 0 and not fast:
        raise RunError("The model is not trained: add --ckpt_path CHECKPOINT (ckpt_path in Python), or train it first.")


def _fit(run: Run) -> runs.Result:
    # Before training: afterwards, somebody may have edited the files or made a commit.
    code = (runs.git_revision(), runs.code_checksum())
    train(run)
    epochs, seconds, metrics = run.trainer.current_epoch, 0.0, dict[str, float]()
    selected: dict[str, Any] = {"model": run.module, "datamodule": run.data, "verbose": False}
    if run.directory is not None:
        last = _callback(run, LastCheckpoint)
        seconds, metrics = last.seconds, dict(last.metrics)
        if run.config["selection"] != "last":
            if not run.best.is_file():
                raise RunError(NO_CANDIDATE)
            selected["ckpt_path"] = run.best
            run.trainer.validate(**selected)
            metrics |= _metrics(run)
    run.trainer.test(**selected)
    metrics |= _metrics(run)
    result = _result(run, metrics, epochs, seconds, code)
    if run.directory is not None and run.trainer.is_global_zero:
        result.write(run.directory)
    return result


def _result(
    run: Run, metrics: dict[str, float], epochs: int, seconds: float, code: tuple[str | None, str]
) -> runs.Result:
    return runs.Result(
        method=run.config["method"],
        title=run.config["title"],
        dataset=run.config["dataset"],
        seed=run.config["seed_everything"],
        group=run.group,
        config_hash=run.identity,
        epochs=epochs,
        seconds=round(seconds, 3),
        parameters=sum(p.numel() for p in run.module.parameters()),
        selection=run.config["selection"],
        metrics=metrics,
        versions=runs.package_versions(),
        data_checksum=run.data.checksum() if run.trainer.is_global_zero else None,
        git_revision=code[0],
        code_checksum=code[1],
    )


def _stopped(run: Run) -> Stopped:
    signum = signal.Signals(_callback(run, StopOnSignal).signum or signal.SIGTERM)
    message = (
        f"Stopped by {signum.name} in epoch {run.trainer.current_epoch} after {batches_of_epoch(run.trainer)} batches. "
        f"The checkpoint is {run.last}; the same command with --resume true continues from there."
    )
    return Stopped(message if run.trainer.is_global_zero else "", signum)


def _prediction_folder(run: Run) -> Path:
    if run.config["run_dir"]:
        return Path(run.config["run_dir"]) / "predictions"
    directory = runs.run_of(Path(run.checkpoint)) if run.checkpoint else None
    return (directory or Path(run.config["trainer"]["default_root_dir"])) / "predictions"


def _callback(run: Run, kind: type[AnyCallback]) -> AnyCallback:
    callbacks: list[Callback] = run.trainer.callbacks  # type: ignore[attr-defined]
    return next(callback for callback in callbacks if isinstance(callback, kind))


def _metrics(run: Run) -> dict[str, float]:
    return {name: float(value) for name, value in run.trainer.callback_metrics.items()}


def _is_out_of_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def _is_own_checkpoint(checkpoint: str | Path | None) -> bool:
    """Whether `LastCheckpoint` or `BestCheckpoint` wrote a checkpoint, to judge by its place in a run directory."""
    if checkpoint is None:
        return False
    path = Path(checkpoint)
    return path.name in (runs.LAST, runs.BEST) and runs.run_of(path) is not None
