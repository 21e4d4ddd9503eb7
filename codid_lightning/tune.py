"""Hyperparameter search: Optuna's TPE over a method's search space, on validation data only."""

from __future__ import annotations

import fcntl
import json
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal

import optuna
import yaml
from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback
from lightning.pytorch.loggers import WandbLogger
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import FrozenTrial, Trial, TrialState

from codid_lightning import runs
from codid_lightning.benchmark import Resolver
from codid_lightning.cli import CLI, MONITORS, packaged_configs
from codid_lightning.engines import Job, try_lock
from codid_lightning.module import DivergenceError
from codid_lightning.runs import RunError
from codid_lightning.spaces import read_space, space_file

Objective = Literal["val", "val_balanced", "val_worst"]  # validation only: what a test set says is no reason to choose
OVERLAY, JOURNAL, TRIALS, WORKERS = "best.yaml", "study.journal", "trials", "workers"
_STARTUP = 10  # random trials before TPE has anything to go by


class Search:
    """A study in a directory that any number of processes, also on several machines, work on at the same time.

    The directory's name holds the hash of config, space and objective: whoever gives the same command works on the
    same study. A trial is a run of its own below `trials`; whoever trains it holds its lock, so the trial of a process
    that died is found and taken up again from its last checkpoint.

    Args:
        arguments: Config files and keys, as `codid fit` takes them.
        objective: What to maximise.
        trials: Trials of the whole study.
        space: Search space file; default: the one shipped for the method.
        root: Where studies go.
        warmup: Epochs in which no trial is pruned; default: half of them all.
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
        resolver: Resolver = Resolver.run([], run=False)
        self.config = resolver.resolve(self.arguments)
        dataset, method = self.config["dataset"] or "data", self.config["method"] or "model"
        self.file = space_file(method, dataset) if space is None else Path(packaged_configs([space])[0])
        self.parameters = read_space(self.file)
        identity = {**self.config, "objective": objective, "space": yaml.safe_load(self.file.read_text())}
        key = runs.config_hash(identity)
        if self.config["selection"] not in ("last", objective):
            raise RunError(f"selection is {self.config['selection']}: choose `last` or the objective, {objective}.")
        self.directory = Path(root).absolute() / dataset / f"{method}-{objective}-{key}"
        epochs = self.config["trainer"]["max_epochs"] or 0
        self.pruner = optuna.pruners.MedianPruner(_STARTUP // 2, epochs // 2 if warmup is None else warmup)
        self.study = self._open(resolver)

    def _open(self, resolver: Resolver) -> optuna.Study:
        """The study, made by whoever comes first, with the config as given for its first trial if space allows."""
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.directory.mkdir(parents=True, exist_ok=True)
        with self._alone():
            storage = JournalStorage(JournalFileBackend(str(self.directory / JOURNAL)))
            study = optuna.create_study(
                storage=storage, pruner=self.pruner, study_name="study", direction="maximize", load_if_exists=True
            )
            if not study.get_trials(deepcopy=False):
                self._check_keys(resolver)
                given = dict(runs.flatten(self.config))
                named = [parameter.named(given.get(parameter.key)) for parameter in self.parameters]
                if all(name is not None for name in named):
                    study.enqueue_trial({k: v for name in named if name is not None for k, v in name.items()})
        return study

    def _check_keys(self, resolver: Resolver) -> None:
        """A space for another method is noticed before anything runs."""
        sampled = optuna.create_study(sampler=optuna.samplers.RandomSampler(0)).ask()
        resolver.resolve([*self.arguments, *_keys({p.key: p.suggest(sampled) for p in self.parameters})])

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
        warmup = ("--warmup", str(self.pruner._n_warmup_steps), "--space", str(self.file.absolute()))
        command = (sys.executable, "-m", "codid_lightning", "tune", *self.arguments, *ours, *warmup, "--limit", "1")
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
        """A trial whose process died, or a new one; None when all are over or in somebody's hands."""
        with self._alone():
            known = self.study.get_trials(deepcopy=False)
            for one in known:
                if one.state == TrialState.RUNNING and (lock := self._lock(one.number)) is not None:
                    return Trial(self.study, one._trial_id), lock
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
                raise RunError(f"{self.folder(trial.number)} is locked by somebody else.")
            return trial, lock

    def folder(self, number: int) -> Path:
        """The run directory of a trial."""
        return self.directory / TRIALS / f"{number:04d}"

    def _lock(self, number: int) -> IO[bytes] | None:
        self.folder(number).mkdir(parents=True, exist_ok=True)
        return try_lock(self.folder(number))

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Nobody else takes a trial meanwhile."""
        with (self.directory / ".lock").open("wb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def _train(self, trial: Trial) -> None:
        """Train one trial and tell the study how it went; a diverging one fails, anything else ends the search."""
        folder = self.folder(trial.number)
        report = Report(trial, self.objective)
        values = {parameter.key: parameter.suggest(trial) for parameter in self.parameters}
        place = ("--run_dir", str(folder), "--resume", "true", "--trainer.enable_progress_bar", "false")
        try:
            TrainOnly.run(["fit", *self.arguments, *_keys(values), *place, "--trainer.devices", "1"]).report_to(report)
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
        title = f"# {self.objective} {best.value:.4f}, trial {best.number} of {self.trials} over {self.file.name}.\n"
        path = self.directory / OVERLAY
        with runs.replacing(path) as part:
            part.write_text(title + yaml.safe_dump(overlay, sort_keys=False))
        return path


def _keys(values: Mapping[str, Any]) -> list[str]:
    return [f"--{key}={v if isinstance(v, str) else json.dumps(v)}" for key, v in values.items()]


class TrainOnly(CLI):
    """`codid fit` that stops before any test set is looked at."""

    def fit(self, **kwargs: Any) -> None:
        """Keep the arguments until there is a report to send."""
        self.arguments = kwargs

    def report_to(self, report: Report) -> None:
        """Train, and report after every epoch."""
        self.trainer.callbacks.insert(0, report)  # type: ignore[attr-defined]
        try:
            self.train(**self.arguments)
        finally:
            for logger in self.trainer.loggers:
                if isinstance(logger, WandbLogger):  # the next trial is another run
                    logger.experiment.finish()


class Report(Callback):
    """Tells the study the objective after every epoch and ends the trial if the study has seen enough.

    Args:
        trial: The trial this run is.
        objective: Name of the objective.
    """

    def __init__(self, trial: Trial, objective: Objective) -> None:
        self.trial, self.metric = trial, MONITORS[objective]

    @property
    def values(self) -> dict[int, float]:
        """What was reported so far, by epoch, also before the trial was taken up again."""
        return self.trial.study.get_trials(deepcopy=False)[self.trial.number].intermediate_values

    @property
    def last(self) -> float:
        """The objective after the last epoch: what a run that selects the last epoch is worth."""
        return self.values[max(self.values)]

    @property
    def best(self) -> float:
        """The objective after the best epoch: what a run that selects by the objective is worth."""
        return max(self.values.values())

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Report, and stop if told so."""
        if self.metric not in trainer.callback_metrics:
            raise RunError(
                f"{self.metric} cannot be computed: no cell of the validation data has enough samples. "
                "Choose --objective val."
            )
        if trainer.current_epoch not in self.values:  # a trial taken up again may repeat an epoch
            self.trial.report(float(trainer.callback_metrics[self.metric]), trainer.current_epoch)
        if self.trial.should_prune():
            raise optuna.TrialPruned
