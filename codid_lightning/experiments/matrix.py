"""The matrix of data sets, methods, seeds and held-out groups: each cell is one run of the command line."""

from __future__ import annotations

import difflib
import importlib
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from codid_lightning.errors import RunError
from codid_lightning.experiments.launchers import FAILURE, Engine, Job, Outcome
from codid_lightning.training import runs
from codid_lightning.training.config import key_arguments, resolve
from codid_lightning.training.config_files import packaged_configs
from codid_lightning.training.identity import config_hash


@dataclass
class Rule:
    """Changes for some cells; without data sets or methods it is for all of them.

    Args:
        datasets: Data sets it is for.
        methods: Methods it is for.
        configs: Further config files, read after the method's own.
        set: Config keys and their values, as on the command line: `trainer.max_epochs: 10`.
        skip: Leave these cells out.
    """

    datasets: list[str] = field(default_factory=list)
    methods: list[str] = field(default_factory=list)
    configs: list[str] = field(default_factory=list)
    set: dict[str, Any] = field(default_factory=dict)
    skip: bool = False

    def applies(self, dataset: str, method: str) -> bool:
        """Whether it is for this data set and method."""
        return (not self.datasets or dataset in self.datasets) and (not self.methods or method in self.methods)


@dataclass
class Matrix:
    """What to run.

    Args:
        datasets: Folders below `configs`.
        methods: `base`, `codid`, a file of `configs/baselines`, `variants` or `methods`, or any other file in the
            data sets' folders; names without the ending.
        seeds: Of data, initialisation and training: for each, all methods see the same data.
        groups: Held-out groups, where a data set has them; None takes all.
        rules: Changes for some cells, later ones after earlier ones.
        root: Where the runs go.
    """

    datasets: list[str]
    methods: list[str]
    seeds: list[int] = field(default_factory=lambda: [0])
    groups: list[int] | None = None
    rules: list[Rule] = field(default_factory=list)
    root: str = "runs/benchmark"


@dataclass(frozen=True)
class Experiment:
    """One run: its arguments and the hash of the config they resolve to."""

    dataset: str
    method: str
    seed: int
    group: int | None
    arguments: tuple[str, ...]
    key: str
    root: Path

    @property
    def name(self) -> str:
        """Name of the cell in messages."""
        group = "" if self.group is None else f", group {self.group}"
        return f"{self.dataset}, {self.method}, seed {self.seed}{group}"

    @cached_property
    def directory(self) -> Path:
        """The run directory; another config is another directory.

        A directory of an earlier version, whose name has another hash, is used if its upgraded config is the same.
        """
        group = "" if self.group is None else f"-group{self.group}"
        folder, repetition = self.root / self.dataset / self.method, f"seed{self.seed}{group}"
        own = folder / f"{repetition}-{self.key}"
        earlier = () if own.is_dir() else sorted(folder.glob(f"{repetition}-{'[0-9a-f]' * len(self.key)}"))
        return next((run for run in earlier if _has_identity(run, self.key)), own)

    @property
    def finished(self) -> bool:
        """Whether it has a result."""
        return (self.directory / runs.RESULT).is_file()

    @property
    def failed(self) -> bool:
        """Whether its last attempt ended with an error."""
        return (self.directory / FAILURE).is_file()

    def job(self) -> Job:
        """The process that computes the result, from the last checkpoint if there is one."""
        directory = self.directory
        display = ("--trainer.enable_progress_bar", "false")
        where = ("--run_dir", str(directory), "--resume", "true")
        command = (sys.executable, "-m", "codid_lightning", "fit", *self.arguments, *display, *where)
        return Job(self.name, command, directory, directory / runs.RESULT)


def _has_identity(run: Path, key: str) -> bool:
    return (run / runs.CONFIG).is_file() and config_hash(runs.read_config(run)) == key


def method_configs(dataset: str, method: str) -> tuple[str, ...]:
    """The files that make up a method on a data set: its own, or an overlay on BASE's or CoDID's."""
    candidates = (
        (f"configs/{dataset}/{method}.yaml",),
        (f"configs/{dataset}/base.yaml", f"configs/baselines/{method}.yaml"),
        (f"configs/{dataset}/codid.yaml", f"configs/variants/{method}.yaml"),
        (f"configs/{dataset}/codid.yaml", f"configs/methods/{method}.yaml"),
    )
    for files in candidates:
        found = packaged_configs(list(files))
        if all(Path(file).is_file() for file in found):
            return tuple(found)
    folder = Path(packaged_configs(["configs/toy/base.yaml"])[0]).parents[1]
    known = [file for kind in ("baselines", "variants", "methods", dataset) for file in folder.glob(f"{kind}/*.yaml")]
    close = difflib.get_close_matches(method, [file.stem for file in known], n=1)
    hint = f" Did you mean `{close[0]}`?" if close else ""
    raise RunError(f"There is no config for the method `{method}` on `{dataset}`.{hint}")


def cells_of(matrix: Matrix) -> list[Experiment]:
    """All cells of a matrix, seeds outermost: a matrix stopped half-way has whole tables of fewer seeds."""
    pairs = [Pair.of(matrix, dataset, method) for dataset in matrix.datasets for method in matrix.methods]
    return [
        pair.cell(seed, group, Path(matrix.root).absolute())
        for seed in matrix.seeds
        for pair in pairs
        if pair is not None
        for group in pair.groups
    ]


@dataclass(frozen=True)
class Pair:
    """A method on a data set, before seeds and groups."""

    dataset: str
    method: str
    arguments: tuple[str, ...]
    config: Mapping[str, Any]
    groups: Sequence[int | None]

    @classmethod
    def of(cls, matrix: Matrix, dataset: str, method: str) -> Pair | None:
        """Resolve the config once for all seeds and groups; None where a rule leaves the pair out."""
        rules = [rule for rule in matrix.rules if rule.applies(dataset, method)]
        if any(rule.skip for rule in rules):
            return None
        files = [*method_configs(dataset, method), *(file for rule in rules for file in rule.configs)]
        values = {key: value for rule in rules for key, value in rule.set.items()}
        arguments = [part for file in files for part in ("-c", file)]
        arguments += key_arguments({**values, "dataset": dataset, "method": method})
        config = resolve(arguments)
        return cls(dataset, method, tuple(arguments), config, _groups(config, matrix.groups))

    def cell(self, seed: int, group: int | None, root: Path) -> Experiment:
        """One run of the pair."""
        chosen = {"seed": seed} if group is None else {"seed": seed, "test_group": group}
        config = deepcopy(dict(self.config))
        config["seed_everything"] = seed
        config["data"]["init_args"].update(chosen)
        arguments = [f"--seed_everything={seed}", *(f"--data.init_args.{name}={v}" for name, v in chosen.items())]
        key = config_hash(config)
        return Experiment(self.dataset, self.method, seed, group, (*self.arguments, *arguments), key, root)


def _groups(config: Mapping[str, Any], wanted: Sequence[int] | None) -> Sequence[int | None]:
    """The held-out groups to run; [None] for data without groups."""
    module, _, name = config["data"]["class_path"].rpartition(".")
    count: int = getattr(importlib.import_module(module), name).groups
    if not count:
        return [None]
    missing = sorted(set(wanted or []) - set(range(count)))
    if missing:
        raise RunError(f"{name} has groups 0 to {count - 1}, not {missing[0]}.")
    return list(range(count)) if wanted is None else list(wanted)


# ------------------------------------------------------------------------------------------------------------- running


class Forecast:
    """How long the remaining cells will take, from those that are finished.

    A cell is expected to take the mean of its method on its data set, or of its data set, or of all.
    """

    def __init__(self, cells: Sequence[Experiment], parallel: int) -> None:
        self.total, self.parallel = len(cells), parallel
        self.waiting = {cell for cell in cells if not cell.finished}
        self.seconds: dict[tuple[str, ...], list[float]] = {}
        for cell in set(cells) - self.waiting:
            self._learn(cell, runs.read_result(cell.directory)["seconds"])

    @property
    def finished(self) -> int:
        """Number of cells that have ended, including the failed ones."""
        return self.total - len(self.waiting)

    def update(self, cell: Experiment, seconds: float) -> None:
        """Count a cell that has ended."""
        self.waiting.discard(cell)
        self._learn(cell, seconds)

    def left(self) -> float | None:
        """Expected seconds until all cells have ended; None before the first has."""
        if not self.seconds:
            return None
        return sum(map(self.expected, self.waiting)) / min(self.parallel, max(1, len(self.waiting)))

    def expected(self, cell: Experiment) -> float:
        """Expected seconds of one cell."""
        return statistics.fmean(next(self.seconds[kind] for kind in _kinds(cell) if kind in self.seconds))

    def _learn(self, cell: Experiment, seconds: float) -> None:
        for kind in _kinds(cell):
            self.seconds.setdefault(kind, []).append(seconds)


def _kinds(cell: Experiment) -> tuple[tuple[str, ...], ...]:
    return (cell.dataset, cell.method), (cell.dataset,), ()


def run_cells(cells: Sequence[Experiment], engine: Engine, forecast: Forecast) -> Iterator[Outcome]:
    """Run every cell that has no result yet; a failure is recorded and the others continue."""
    waiting = {cell.directory: cell for cell in cells if not cell.finished}
    for outcome in engine.run([cell.job() for cell in waiting.values()]):
        forecast.update(waiting[outcome.job.directory], outcome.seconds)
        yield outcome
