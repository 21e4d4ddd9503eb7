"""Hyperparameter search: Optuna's TPE over a method's search space, on validation data only."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import optuna
import yaml
from filelock import BaseFileLock, FileLock
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import WandbLogger
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, Trial, TrialState

from codid_lightning.errors import DivergenceError, RunError
from codid_lightning.experiments.launchers import Job, try_lock
from codid_lightning.experiments.spaces import read_space
from codid_lightning.training import Run, build, runs, train
from codid_lightning.training.callbacks.checkpoint import NO_CANDIDATE, is_selectable
from codid_lightning.training.config import MONITORS, Objective, check_selection, key_arguments, parse, resolve
from codid_lightning.training.config_files import packaged_configs, read_yaml
from codid_lightning.training.identity import config_hash, flatten

OVERLAY, JOURNAL, TRIALS, WORKERS = "best.yaml", "study.journal", "trials", "workers"
_STARTUP = 10  # random trials before TPE has anything to go by


class Search:
    """A study in a directory that any number of processes, also on several machines, work on at the same time.

    The directory's name holds the hash of config, space and objective, so that the same command works on the same
    study. A trial is a run below `trials`. The process that trains it holds its lock. If a process dies, another one
    finds the lock free and continues the trial from its last checkpoint.

    Args:
        arguments: Config files and keys, as `codid fit` takes them.
        objective: What to maximise, on validation data only: what a test set says is no reason to choose.
        trials: Trials of the whole study.
        space: Search space file; default: `space` of the config.
        root: Where studies go.
        warmup: Epochs in which no trial is pruned; default: half of all epochs.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        objective: Objective = "val_worst",
        trials: int = 50,
        space: str | None = None,
        root: str = "runs/tune",
        warmup: int | None = None,
    ) -> None:
        self.arguments, self.objective, self.trials = list(arguments), objective, trials
        self.config = resolve(self.arguments)
        check_selection(objective, self.config)
        dataset, method = self.config["dataset"], self.config["method"]
        self.file = None if space is None else Path(packaged_configs([space])[0])
        self.space = {key: s for key, s in self._read_space().items() if not _of_missing_part(self.config, key)}
        self.parameters = read_space(self.space)
        key = config_hash({**self.config, "objective": objective, "searched": self.space})
        if self.config["selection"] not in ("last", objective):
            raise RunError(f"selection is {self.config['selection']}: choose `last` or the objective, {objective}.")
        self.directory = Path(root).absolute().joinpath(dataset, f"{method}-{objective}-{key}")
        epochs = self.config["trainer"]["max_epochs"] or 0
        self.warmup = epochs // 2 if warmup is None else warmup
        self.pruner = optuna.pruners.MedianPruner(_STARTUP // 2, self.warmup)
        self.study = self._open()

    def _read_space(self) -> dict[str, Any]:
        """The search space of the file given, or of the config."""
        if self.file is None and not self.config["space"]:
            method = self.config["method"] or self.config["model"]["class_path"]
            raise RunError(f"The config of {method} has no search space: add the key `space`, or give --space FILE.")
        if self.file is not None and not self.file.is_file():
            raise RunError(f"There is no search space {self.file}.")
        content = self.config["space"] if self.file is None else read_yaml(self.file)
        if not isinstance(content, dict) or not all(isinstance(given, dict) for given in content.values()):
            raise RunError(f"{self.file or 'space'} must map config keys to their search space.")
        return content

    def _open(self) -> optuna.Study:
        """The study. The first process creates it and enqueues the given config, if the space contains it."""
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        runs.make_folder(self.directory, "--root")
        with self._exclusive():
            self.storage = JournalStorage(JournalFileBackend(str(self.directory / JOURNAL)))
            study = optuna.create_study(
                storage=self.storage, pruner=self.pruner, study_name="study", direction="maximize", load_if_exists=True
            )
            if not study.get_trials(deepcopy=False):
                self._check_keys()
                given = dict(flatten(self.config))
                named = [parameter.named(given.get(parameter.key)) for parameter in self.parameters]
                if all(name is not None for name in named):
                    study.enqueue_trial({k: v for name in named if name is not None for k, v in name.items()})
        return study

    def _check_keys(self) -> None:
        """Raise before the first trial if the method does not have the keys of the space."""
        sampled = optuna.create_study(sampler=optuna.samplers.RandomSampler(0)).ask()
        resolve([*self.arguments, *key_arguments({p.key: p.suggest(sampled) for p in self.parameters})])

    # --------------------------------------------------------------------------------------------------- its progress

    def count(self, *states: TrialState) -> int:
        """How many trials are in one of these states."""
        return len(self.study.get_trials(deepcopy=False, states=states))

    @property
    def missing(self) -> int:
        """Trials that are not over."""
        return max(0, self.trials - self.count(TrialState.COMPLETE, TrialState.PRUNED, TrialState.FAIL))

    @property
    def best(self) -> FrozenTrial | None:
        """The best trial, once one is complete."""
        return self.study.best_trial if self.count(TrialState.COMPLETE) else None

    # -------------------------------------------------------------------------------------------------------- workers

    def job(self, number: int, name: str) -> Job:
        """One trial as a process: the same command, which stops after one."""
        ours = ("--objective", self.objective, "--trials", str(self.trials), "--root", str(self.directory.parents[1]))
        more = ("--warmup", str(self.warmup), *(() if self.file is None else ("--space", str(self.file.absolute()))))
        command = (sys.executable, "-m", "codid_lightning", "tune", *self.arguments, *ours, *more, "--limit", "1")
        return Job(f"process {number}", command, self.directory / WORKERS / f"{name}-{number}")

    def run(self, limit: int | None = None) -> Iterator[FrozenTrial]:
        """Train trials until the study is complete, or `limit` of them; each as it ends."""
        done = 0
        while (limit is None or done < limit) and (taken := self._take()) is not None:
            trial, lock = taken
            try:
                self._train(trial)
            finally:
                lock.close()
            done += 1
            yield self.study.get_trials(deepcopy=False)[trial.number]

    def _take(self) -> tuple[Trial, IO[bytes]] | None:
        """A trial whose process died, or a new one; None if all have ended or run in other processes."""
        with self._exclusive():
            known = self.study.get_trials(deepcopy=False)
            for one in known:
                if one.state == TrialState.RUNNING and (lock := self._lock(one.number)) is not None:
                    return Trial(self.study, self._trial_id(one.number)), lock
            started = sum(one.state != TrialState.WAITING for one in known)
            if started >= self.trials:
                return None
            # Seeded by the trial: processes that start together do not draw the same, and one alone can be repeated.
            seed = int(self.config["seed_everything"]) * 100_003 + started
            self.study.sampler = optuna.samplers.TPESampler(
                n_startup_trials=_STARTUP, seed=seed, multivariate=False, constant_liar=True
            )
            trial = self.study.ask()
            for parameter in self.parameters:
                parameter.suggest(trial)
            lock = self._lock(trial.number)
            if lock is None:
                raise RunError(f"{self.folder(trial.number)} is locked by another process.")
            return trial, lock

    def _trial_id(self, number: int) -> int:
        study = self.storage.get_study_id_from_name(self.study.study_name)
        found: int = self.storage.get_trial_id_from_study_id_trial_number(study, number)
        return found

    def folder(self, number: int) -> Path:
        """The run directory of a trial."""
        return self.directory / TRIALS / f"{number:04d}"

    def _lock(self, number: int) -> IO[bytes] | None:
        self.folder(number).mkdir(parents=True, exist_ok=True)
        return try_lock(self.folder(number))

    def _exclusive(self) -> BaseFileLock:
        """A lock within which no other process takes a trial."""
        return FileLock(self.directory / ".lock")

    def _train(self, trial: Trial) -> None:
        """Train one trial and record its state; a trial that diverges fails, any other error ends the search."""
        folder = self.folder(trial.number)
        report = ReportToOptuna(trial, self.objective)
        values = {parameter.key: parameter.suggest(trial) for parameter in self.parameters}
        place = ("--run_dir", str(folder), "--resume", "true", "--trainer.enable_progress_bar", "false")
        try:
            arguments = [*self.arguments, *key_arguments(values), *place, "--trainer.devices", "1"]
            _train_reporting(build(parse(arguments)), report)
        except optuna.TrialPruned:
            self.study.tell(trial, state=TrialState.PRUNED)
        except DivergenceError as error:
            trial.set_user_attr("error", str(error))
            self.study.tell(trial, state=TrialState.FAIL)
        else:
            self.study.tell(trial, report.last if self.config["selection"] == "last" else report.best)
        shutil.rmtree(folder / runs.CHECKPOINTS, ignore_errors=True)

    # --------------------------------------------------------------------------------------------------------- result

    def write_best(self) -> Path | None:
        """The best values as an overlay for `-c`."""
        best = self.best
        if best is None:
            return None
        overlay: dict[str, Any] = {}
        for parameter in self.parameters:
            *parents, leaf = parameter.key.split(".")
            place, original = overlay, self.config
            for name in parents:
                place, original = place.setdefault(name, {}), original[name]
                if "class_path" in original:
                    place["class_path"] = original["class_path"]
            place[leaf] = parameter.value(best.params)
        space = "the config's space" if self.file is None else self.file.name
        title = f"# {self.objective} {best.value:.4f}, trial {best.number} of {self.trials} over {space}.\n"
        path = self.directory / OVERLAY
        with runs.replacing(path) as part:
            part.write_text(title + yaml.safe_dump(overlay, sort_keys=False))
        return path


def _train_reporting(run: Run, report: ReportToOptuna) -> None:
    """Train without looking at test data, and report after every epoch."""
    run.trainer.callbacks.insert(0, report)  # type: ignore[attr-defined]
    try:
        train(run)
    finally:
        for logger in run.trainer.loggers:
            if isinstance(logger, WandbLogger):  # the next trial is another run
                logger.experiment.finish()


class ReportToOptuna(Callback):
    """Reports the objective to the study after every epoch and ends the trial if the study prunes it.

    Epochs in which the method is not `selectable` (CoDID before it has clusters) are not reported.

    Args:
        trial: The trial this run is.
        objective: Name of the objective.
    """

    def __init__(self, trial: Trial, objective: Objective) -> None:
        self.trial, self.metric = trial, MONITORS[objective]

    @property
    def values(self) -> dict[int, float]:
        """Reported values by epoch, including those from before an interruption."""
        return self.trial.study.get_trials(deepcopy=False)[self.trial.number].intermediate_values

    @property
    def last(self) -> float:
        """The objective after the last epoch: what a run that selects the last epoch is worth."""
        return self._candidates()[-1]

    @property
    def best(self) -> float:
        """The objective after the best epoch: what a run that selects by the objective is worth."""
        return max(self._candidates())

    def _candidates(self) -> list[float]:
        """The reported values in the order of epochs."""
        values = self.values
        if not values:
            raise RunError(NO_CANDIDATE)
        return [values[epoch] for epoch in sorted(values)]

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Report if the epoch is a candidate, and end the trial if the study prunes it."""
        if not is_selectable(pl_module):
            return
        if self.metric not in trainer.callback_metrics:
            raise RunError(
                f"{self.metric} cannot be computed: no cell of the validation data has enough samples. "
                "Choose --objective val."
            )
        if trainer.current_epoch not in self.values:  # a trial taken up again may repeat an epoch
            self.trial.report(float(trainer.callback_metrics[self.metric]), trainer.current_epoch)
        if self.trial.should_prune():
            raise optuna.TrialPruned


def _of_missing_part(config: Mapping[str, Any], key: str) -> bool:
    """Whether a key is a setting of a part that the config sets to null: to search it would bring the part back."""
    value: Any = config
    for name in key.split(".")[:-1]:
        if not isinstance(value, Mapping) or name not in value:
            return False
        value = value[name]
        if value is None:
            return True
    return False
