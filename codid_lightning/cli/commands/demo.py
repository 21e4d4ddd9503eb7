"""`codid demo`: train a plain network and CoDID on colored digits, and show how they do where the colors are others."""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import cast

import torch
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from codid_lightning.analysis.evaluation import LoadedRun, encode, load_run, prediction_scores
from codid_lightning.analysis.figures.shifted_tests import shifted_tests
from codid_lightning.analysis.figures.style import save
from codid_lightning.analysis.pages.demo_page import demo_page
from codid_lightning.analysis.pages.page import to_picture
from codid_lightning.analysis.tables.names import method_title
from codid_lightning.cli.arguments import demo_parser
from codid_lightning.experiments.launchers import OUTPUT, LocalEngine, Outcome, cores
from codid_lightning.experiments.matrix import Experiment, Matrix, Rule, cells_of
from codid_lightning.methods.codid.module import CoDID
from codid_lightning.training import runs
from datamodules.base import seeded_generator
from datamodules.correlated import CorrelatedDataModule

METHODS = ("codid_adaptive", "base")  # the longest first: then two processes end at about the same time
SETTINGS = {"trainer.accelerator": "cpu"}  # GPUs are not faster for such small networks
FIGURE, REPORT = "demo.png", "report.html"
UNLABELLED = 200
TESTS = {"test1": "as in training", "test2": "at random", "test3": "reversed"}  # the colors
QUESTION = "Is the digit even or odd? Three tests with the same partly covered pictures in other colors"
EXPLANATION = (
    "A network learns whether a digit is even or odd. In training the color gives hints: 8, 2 and 9 are mostly blue, "
    "4 and 3 mostly red. The three tests have the same pictures and differ in their colors. BASE is a plain network. "
    "It uses the hints, so it falls where the colors change. {codid} learns to answer from the shape alone, so its "
    "answers do not depend on the colors. In the last line it has also seen {unlabelled} pictures of the test without "
    "the right answers. From these it estimates how colors and shapes go together there. Then hints help again, also "
    "where they are reversed."
)


def main(args: list[str]) -> int:
    """Train what has no result yet, adapt, print the table, write figure and report."""
    root: Path = demo_parser().parse_args(args).output
    rule = Rule(set=SETTINGS)
    cells = cells_of(Matrix(datasets=["glyphs"], methods=list(METHODS), rules=[rule], root=str(root)))
    runs.make_folder(root, "--output")
    console = Console()
    if kept := sum(cell.finished for cell in cells):
        console.print(f"{kept} finished runs are taken from {root}; without that folder they are trained again.")
    failures = [outcome for outcome in _train(cells, console) if outcome.state == "failed"]
    for failure in failures:
        log = failure.job.directory / OUTPUT
        print(f"codid demo: {failure.job.name} failed: {failure.error.splitlines()[-1]}\n  {log}", file=sys.stderr)
    if failures:
        return 1
    _present({cell.method: cell.directory for cell in cells}, root, console)
    return 0


class EpochBars(Progress):
    """A progress bar per run, in epochs, read from the files of the runs."""

    def __init__(self, cells: Sequence[Experiment], console: Console) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("epochs"))
        super().__init__(*columns, TimeElapsedColumn(), console=console, refresh_per_second=4)
        self.cells: dict[TaskID, Experiment] = {}
        for cell in cells:
            self.cells[self.add_task(method_title(cell.method), total=None, start=False)] = cell

    def refresh(self) -> None:
        """Read the progress of the runs, then draw."""
        for task, cell in getattr(self, "cells", {}).items():  # the first drawing precedes the runs
            done, total = epochs(cell.directory)
            if total is not None:
                self.start_task(task)
                self.update(task, completed=done, total=total)
                if done == total:
                    self.stop_task(task)
        super().refresh()


def epochs(directory: Path) -> tuple[int, int | None]:
    """Numbers of finished and of all epochs of a run; None before it has started."""
    if not (directory / runs.CONFIG).is_file():
        return 0, None
    total = int(runs.read_config(directory)["trainer"]["max_epochs"])
    if (directory / runs.RESULT).is_file():
        return total, total
    done = 0
    for log in directory.glob("logs/*/metrics.csv"):
        with log.open(newline="") as file:
            done = max([done, *(int(row["epoch"]) + 1 for row in csv.DictReader(file) if row.get("epoch"))])
    return min(done, total), total


def _train(cells: Sequence[Experiment], console: Console) -> list[Outcome]:
    engine = LocalEngine(jobs=min(2, cores()), gpus_per_run=0)
    with EpochBars(cells, console):
        return list(engine.run([cell.job() for cell in cells]))


def _present(directories: Mapping[str, Path], root: Path, console: Console) -> None:
    """Print the table; write the figure, and a page with both."""
    codid = method_title("codid_adaptive")
    run = load_run([str(directories["codid_adaptive"])])
    adapted, readings = _adapt(run)
    scores = {
        f"{method_title('base')}, a plain network": _accuracies(directories["base"]),
        codid: _accuracies(directories["codid_adaptive"]),
        f"{codid} + {UNLABELLED} unlabelled pictures": adapted,
    }
    titles = [f"colors {text}" for text in TESTS.values()]
    figure = shifted_tests(cast(CorrelatedDataModule, run.data), QUESTION, titles, scores)
    picture = save(figure, root / FIGURE)
    explanation = EXPLANATION.format(codid=codid, unlabelled=UNLABELLED)
    if readings:
        explanation += f" It found {', '.join(readings)}, where 1 is training's correlation and -1 the reverse."
    runs_by_title = {method_title(m): os.path.relpath(directory, root) for m, directory in directories.items()}
    text = demo_page(explanation, titles, scores, to_picture(QUESTION, figure), runs_by_title)
    with runs.replacing(root / REPORT) as part:
        part.write_text(text, encoding="utf-8")
    console.print(_table(scores))
    console.print(explanation, highlight=False)
    console.print(f"\nFigure: {picture}\nReport: {root / REPORT}", highlight=False, soft_wrap=True)


def _accuracies(directory: Path) -> list[float]:
    metrics = runs.read_result(directory)["metrics"]
    return [100 * metrics[f"{test}/acc"] for test in TESTS]


def _adapt(run: LoadedRun) -> tuple[list[float], list[str]]:
    """Accuracies in % after adaptation to some samples of each test, and the correlation read from these."""
    codid, scores, readings = cast(CoDID, run.model), [], []
    for test, title in TESTS.items():
        data = run.data.datasets[test]
        some = data[torch.randperm(len(data), generator=seeded_generator(run.data.seed))[:UNLABELLED]]
        adaptation = codid.adapt(some["x"], some["a"][:, 1:])
        scores.append(100 * prediction_scores(test, encode(codid, data), run.data)[f"{test}/acc"])
        if adaptation.dial is not None:
            readings.append(f"{fmean(adaptation.dial):.1f} with colors {title}")
    return scores, readings


def _table(scores: Mapping[str, Sequence[float]]) -> Table:
    table = Table("right answers in %, colors", box=box.SIMPLE_HEAD)
    for title in TESTS.values():
        table.add_column(title, justify="right")
    for method, row in scores.items():
        table.add_row(method, *(f"{score:.1f}" for score in row))
    return table
