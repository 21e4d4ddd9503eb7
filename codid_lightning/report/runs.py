"""Reading the results of runs and averaging them over seeds and groups."""

import json
import statistics
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RESULT_FILE = "result.json"
SCHEMA = 1


@dataclass(frozen=True)
class Run:
    """What one training run left behind."""

    directory: Path
    method: str
    dataset: str
    seed: int
    group: int | None
    config_hash: str
    parameters: int
    seconds: float
    epochs: int
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class Score:
    """One metric of one method on one data set: a value per seed, already averaged over held-out groups."""

    by_seed: Mapping[int, float]
    partial: bool = False  # some held-out group is missing for every seed

    @property
    def mean(self) -> float:
        """Mean over seeds."""
        return statistics.fmean(self.by_seed.values())

    @property
    def std(self) -> float | None:
        """Sample standard deviation over seeds; unknown for a single one."""
        return statistics.stdev(self.by_seed.values()) if len(self.by_seed) > 1 else None

    @property
    def seeds(self) -> int:
        """Number of seeds."""
        return len(self.by_seed)


def load_runs(paths: Iterable[str | Path]) -> tuple[list[Run], list[str]]:
    """All runs at or below `paths`, and complaints about files that cannot be used.

    Of several results of the same method, data set, seed and group the most recently written one counts.
    """
    found: dict[tuple[str, str, int, int | None], Run] = {}
    complaints: list[str] = []
    for file in _by_age(paths, complaints):
        try:
            run = _read(file)
        except (OSError, ValueError, KeyError, TypeError) as error:
            complaints.append(f"{file}: not a result of schema {SCHEMA} ({type(error).__name__}: {error})")
            continue
        key = (run.dataset, run.method, run.seed, run.group)
        if key in found:
            complaints.append(f"{found[key].directory}: left out, {run.directory} is a newer run of the same kind")
        found[key] = run
    return list(found.values()), complaints + _mixtures(found.values())


def _by_age(paths: Iterable[str | Path], complaints: list[str]) -> list[Path]:
    files: set[Path] = set()
    for path in map(Path, paths):
        below = {path} if path.name == RESULT_FILE else set(path.rglob(RESULT_FILE))
        if not below or not path.exists():
            complaints.append(f"{path}: no {RESULT_FILE} at or below it")
        files |= {file.resolve() for file in below if file.exists()}
    return sorted(files, key=lambda file: (file.stat().st_mtime_ns, str(file)))


def _read(file: Path) -> Run:
    record: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    if record["schema"] != SCHEMA:
        raise ValueError(f"schema is {record['schema']}")
    return Run(
        directory=file.parent,
        method=str(record["method"]),
        dataset=str(record["dataset"]),
        seed=int(record["seed"]),
        group=None if record.get("group") is None else int(record["group"]),
        config_hash=str(record.get("config_hash", "")),
        parameters=int(record["parameters"]),
        seconds=float(record["seconds"]),
        epochs=int(record["epochs"]),
        metrics={str(name): float(value) for name, value in record["metrics"].items() if value is not None},
    )


def _mixtures(runs: Iterable[Run]) -> list[str]:
    """Averages over seeds mean something only if nothing but the seed and the group differs."""
    hashes: dict[tuple[str, str], set[str]] = {}
    for run in runs:
        hashes.setdefault((run.dataset, run.method), set()).add(run.config_hash)
    return [
        f"{method} on {dataset}: the runs mix {len(kinds)} configurations"
        for (dataset, method), kinds in sorted(hashes.items())
        if len(kinds) > 1
    ]


def score(runs: Iterable[Run], dataset: str, method: str, metric: str) -> Score | None:
    """The metric per seed. With held-out groups a seed's value is the mean over them.

    Only seeds that have every group any run of the data set has are used; if there is none, all are, and the score
    is marked as partial.
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
    by_seed = {seed: statistics.fmean(chosen[seed].values()) for seed in sorted(chosen)}
    return Score(by_seed, partial=not complete)
