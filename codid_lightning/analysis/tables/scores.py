"""Reading the results of runs and averaging them over seeds and held-out groups."""

from __future__ import annotations

import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from codid_lightning.analysis.tables.names import unique_titles
from codid_lightning.training.identity import config_hash, flatten
from codid_lightning.training.runs import CONFIG, RESULT, SCHEMA, read_config

# Keys of the config that may differ between the runs of one average.
REPETITION = {"seed_everything", "data.init_args.seed", "data.init_args.test_group"}


@dataclass(frozen=True)
class Run:
    """The result and the config of one training run."""

    directory: Path
    method: str
    dataset: str
    seed: int
    group: int | None
    parameters: int
    seconds: float
    epochs: int
    metrics: Mapping[str, float]
    config: Mapping[str, Any] = field(default_factory=dict)  # flat, dotted keys; empty where it was not kept
    title: str = ""  # of the method, as its config writes it; empty in runs without one
    undefined: tuple[str, ...] = ()  # metrics that are not finite numbers
    revision: str | None = None  # of the code, in Git
    code: str | None = None  # checksum of the code
    data: str | None = None  # checksum of the data
    other_code: bool = False  # whether most runs on this data set are of other code
    other_data: bool = False  # whether most runs with this held-out group are of other data

    @property
    def setting(self) -> str:
        """Hash of the config without seeds and held-out group."""
        return config_hash({key: value for key, value in self.config.items() if key not in REPETITION})


@dataclass(frozen=True)
class Score:
    """One metric of one method on one data set: a value per seed and held-out group (None: no groups)."""

    values: Mapping[tuple[int, int | None], float]
    partial: bool = False  # whether no seed has all held-out groups
    all_seeds: int = 0  # seeds that were run; those without a finite value, or without all groups, are left out
    other_code: bool = False  # whether some of its runs are of other code than most
    other_data: bool = False  # whether some of its runs are of other data than most

    @cached_property
    def by_seed(self) -> dict[int, float]:
        """A value per seed, the mean over held-out groups."""
        return _means((seed, value) for (seed, _), value in self.values.items())

    @cached_property
    def repetitions(self) -> dict[int, float]:
        """What tests pair and intervals draw: values of seeds, or of held-out groups where there are more."""
        by_group = _means((group, value) for (_, group), value in self.values.items() if group is not None)
        return by_group if len(by_group) > len(self.by_seed) else self.by_seed

    def pairs(self, other: Score) -> list[tuple[float, float]]:
        """The repetitions of the runs that both have."""
        shared = self.values.keys() & other.values.keys()
        own, others = (Score({run: score.values[run] for run in shared}).repetitions for score in (self, other))
        return [(own[name], others[name]) for name in sorted(own)]

    @property
    def mean(self) -> float:
        """Mean over seeds."""
        return statistics.fmean(self.by_seed.values())

    @property
    def std(self) -> float | None:
        """Sample standard deviation over seeds; None for a single seed."""
        return statistics.stdev(self.by_seed.values()) if len(self.by_seed) > 1 else None

    @property
    def seeds(self) -> int:
        """Number of seeds that the mean covers."""
        return len(self.by_seed)


def _means(values: Iterable[tuple[int, float]]) -> dict[int, float]:
    """The mean of the values under each key."""
    found: dict[int, list[float]] = {}
    for key, value in values:
        found.setdefault(key, []).append(value)
    return {key: statistics.fmean(of_key) for key, of_key in found.items()}


def load_runs(paths: Iterable[str | Path]) -> tuple[list[Run], list[str]]:
    """All runs in or below `paths`, and messages about files and metrics that cannot be used.

    If several runs have the same config, seed and group, only the newest is kept.
    """
    found: dict[tuple[str, str, str, int, int | None], Run] = {}
    complaints: list[str] = []
    for file in _by_age(paths, complaints):
        try:
            run = read_run(file.parent)
        except Exception as error:  # one damaged run is no reason to leave out the others
            complaints.append(f"{file}: not a result of schema {SCHEMA} ({type(error).__name__}: {error})")
            continue
        key = (run.dataset, run.method, run.setting, run.seed, run.group)
        if key in found:
            complaints.append(f"{found[key].directory}: left out, {run.directory} is a newer run of the same kind")
        found[key] = run
    complaints += [_undefined(run) for run in found.values() if run.undefined]
    return list(found.values()), complaints


def _undefined(run: Run) -> str:
    what = "is not a finite number" if len(run.undefined) == 1 else "are not finite numbers"
    it = "it" if len(run.undefined) == 1 else "them"
    return f"{run.directory}: {', '.join(run.undefined)} {what}; means leave {it} out"


def _by_age(paths: Iterable[str | Path], complaints: list[str]) -> list[Path]:
    files: set[Path] = set()
    for path in map(Path, paths):
        below = {path} if path.name == RESULT else set(path.rglob(RESULT))
        below = {file.resolve() for file in below if file.is_file()}
        if not below:
            complaints.append(f"{path}: no {RESULT} at or below it")
        files |= below
    return sorted(files, key=lambda file: (file.stat().st_mtime_ns, str(file)))


def read_run(directory: Path) -> Run:
    """The run in one directory."""
    record: dict[str, Any] = json.loads((directory / RESULT).read_text(encoding="utf-8"))
    if record["schema"] != SCHEMA:
        raise ValueError(f"schema is {record['schema']}")
    metrics = _numbers(record["metrics"])
    return Run(
        directory=directory,
        method=str(record["method"]),
        dataset=str(record["dataset"]),
        seed=int(record["seed"]),
        group=None if record["group"] is None else int(record["group"]),
        parameters=int(record["parameters"]),
        seconds=float(record["seconds"]),
        epochs=int(record["epochs"]),
        metrics=metrics,
        config=dict(flatten(read_config(directory))) if (directory / CONFIG).is_file() else {},
        title=str(record.get("title") or ""),
        undefined=tuple(name for name in record["metrics"] if name not in metrics),
        revision=_text(record.get("git_revision")),
        code=_text(record.get("code_checksum")),
        data=_text(record.get("data_checksum")),
    )


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    """Metrics that are finite numbers. A `Score` counts the seeds that lack one."""
    numbers = {name: float(value) for name, value in metrics.items() if value is not None}
    return {name: value for name, value in numbers.items() if math.isfinite(value)}


def one_setting_each(runs: Sequence[Run]) -> tuple[list[Run], list[str]]:
    """The runs of one config for each method and data set, and messages about the others.

    An average must not mix different noise, correlations or hyperparameters. The config with the most runs is kept; if
    two have as many, the newer one.
    """
    kinds: dict[tuple[str, str], dict[str, list[Run]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:  # oldest first
        kinds[run.dataset, run.method][run.setting].append(run)
    kept: list[Run] = []
    complaints = []
    for (dataset, method), settings in kinds.items():
        best = max(reversed(settings.values()), key=len)
        kept += best
        if len(settings) > 1:
            others = sum(map(len, settings.values())) - len(best)
            complaints.append(
                f"{method} on {dataset}: {len(settings)} different configs; the tables use the one with "
                f"{len(best)} runs (as in {best[-1].directory}) and leave {others} runs out"
            )
    return kept, complaints


def titles(runs: Iterable[Run]) -> dict[str, str]:
    """How to write each method of the runs."""
    return unique_titles({run.method: run.title for run in runs})


def recorded_needs(runs: Iterable[Run]) -> dict[str, Sequence[str] | None]:
    """What each method of the runs must know, as their configs say; None where they say nothing."""
    return {run.method: run.config.get("needs") for run in runs}


def score(runs: Iterable[Run], dataset: str, method: str, metric: str) -> Score | None:
    """The metric per seed; where the data set has held-out groups, the mean over them.

    Only seeds with finite values of all groups are used. If no seed has all of them, every seed with a finite value is
    used and the score is partial. `all_seeds` counts the seeds that were run.
    """
    here = [run for run in runs if run.dataset == dataset]
    groups = {run.group for run in here}
    values: dict[int, dict[int | None, float]] = {}
    for run in here:
        if run.method == method and metric in run.metrics:
            values.setdefault(run.seed, {})[run.group] = run.metrics[metric]
    if not values:
        return None
    complete = {seed: by_group for seed, by_group in values.items() if set(by_group) == groups}
    chosen = complete or values
    kept = {(seed, group): value for seed in sorted(chosen) for group, value in chosen[seed].items()}
    own = [run for run in here if run.method == method]
    marks = {name: any(getattr(run, name) for run in own) for name in ("other_code", "other_data")}
    return Score(kept, partial=not complete, all_seeds=len({run.seed for run in own}), **marks)
