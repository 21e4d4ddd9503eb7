"""`codid demo`: train four methods on the toy data, and show their accuracies and decision boundaries."""

from __future__ import annotations

import csv
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from jsonargparse import ArgumentParser
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from codid_lightning.analysis.figures.style import save
from codid_lightning.analysis.figures.toy import decision_boundaries
from codid_lightning.analysis.pages.demo_page import demo_page
from codid_lightning.analysis.pages.page import to_picture
from codid_lightning.analysis.tables.names import method_order, method_title
from codid_lightning.experiments.launchers import OUTPUT, LocalEngine, Outcome, cores
from codid_lightning.experiments.matrix import Experiment, Matrix, Rule, cells_of
from codid_lightning.training import runs

METHODS = ("codid", "t", "a_cmi", "base")  # the longest first: then two processes end at about the same time
SETTINGS = {"trainer.accelerator": "cpu"}  # GPUs are not faster for such small networks
FIGURE, REPORT = "decision_boundaries.png", "report.html"
TESTS = {"test1": "test 1", "test2": "test 2", "test3": "test 3"}
EXPLANATION = (
    "Accuracy of a1 in %. In training, a2 is correlated with the modes of a1. Test 1 is like training. In test 2, a2 "
    "is independent of the modes, and in test 3 the correlations are reversed: a method whose accuracy falls from left "
    "to right relies on a2. CoDID-T knows the true modes of a1, which CoDID has to discover."
)


def main(args: list[str] | None = None) -> int:
    """Train the methods that have no result yet, print the table, write figure and report."""
    parser = ArgumentParser(prog="codid demo", description=__doc__, exit_on_error=False)
    parser.add_argument("--output", type=Path, default=Path("runs/demo"), help="Folder for runs, figure and report.")
    root: Path = parser.parse_args(args).output
    rule = Rule(set=SETTINGS)
    cells = cells_of(Matrix(datasets=["toy"], methods=list(METHODS), rules=[rule], root=str(root)))
    console = Console()
    if kept := sum(cell.finished for cell in cells):
        console.print(f"{kept} finished runs are taken from {root}; without that folder they are trained again.")
    failures = [outcome for outcome in _train(cells, console) if outcome.state == "failed"]
    for failure in failures:
        log = failure.job.directory / OUTPUT
        print(f"codid demo: {failure.job.name} failed: {failure.error.splitlines()[-1]}\n  {log}", file=sys.stderr)
    if failures:
        return 1
    _present(sorted(cells, key=lambda cell: method_order(cell.method)), root, console)
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


def _present(cells: Sequence[Experiment], root: Path, console: Console) -> None:
    """Print the table; write the figure, and a page with both."""
    scores = {method_title(cell.method): _accuracies(cell.directory) for cell in cells}
    figure = decision_boundaries([cell.directory for cell in cells])
    picture = save(figure, root / FIGURE)
    caption = "Training samples, and the a1 that each method predicts at every point of the plane."
    directories = {method_title(cell.method): cell.directory for cell in cells}
    text = demo_page(EXPLANATION, list(TESTS.values()), scores, to_picture(caption, figure), directories)
    with runs.replacing(root / REPORT) as part:
        part.write_text(text, encoding="utf-8")
    console.print(_table(scores))
    console.print(EXPLANATION, highlight=False)
    console.print(f"\nFigure: {picture}\nReport: {root / REPORT}", highlight=False, soft_wrap=True)


def _accuracies(directory: Path) -> list[str]:
    metrics = runs.read_result(directory)["metrics"]
    return [f"{100 * metrics[f'{test}/acc']:.1f}" for test in TESTS]


def _table(scores: Mapping[str, Sequence[str]]) -> Table:
    table = Table("a1", box=box.SIMPLE_HEAD)
    for title in TESTS.values():
        table.add_column(title, justify="right")
    for method, row in scores.items():
        table.add_row(method, *row)
    return table
