"""`codid demo`: four methods on the toy data, their accuracies, their decision boundaries."""

from __future__ import annotations

import csv
import html
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from jsonargparse import ArgumentParser
from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from codid_lightning import runs
from codid_lightning.benchmark import Cell, Matrix, Rule, cells_of
from codid_lightning.engines import OUTPUT, LocalEngine, Outcome, cores
from codid_lightning.figures.style import save
from codid_lightning.figures.toy import decision_boundaries
from codid_lightning.report.names import method_order, method_title
from codid_lightning.report.page import drawn, page

METHODS = ("codid", "t", "a_cmi", "base")  # the longest first, so that two processes end at about the same time
SETTINGS = {"trainer.accelerator": "cpu"}  # such small networks are no faster elsewhere
FIGURE, REPORT = "decision_boundaries.png", "report.html"
TESTS = {"test1": "test 1", "test2": "test 2", "test3": "test 3"}
EXPLANATION = (
    "Accuracy of a1 in %. In training, a2 goes with the modes of a1. Test 1 is like training, in test 2 the two are "
    "independent, in test 3 their correlations are reversed: what falls from left to right relies on a2."
)
TRUE_MODES = "CoDID-T is told the modes of a1 that CoDID has to discover."


def main(args: list[str] | None = None) -> int:
    """Train what has no result yet, print the table, write figure and report."""
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
    """A bar per run, in epochs, read from what the runs write."""

    def __init__(self, cells: Sequence[Cell], console: Console) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("epochs"))
        super().__init__(*columns, TimeElapsedColumn(), console=console, refresh_per_second=4)
        self.cells: dict[TaskID, Cell] = {}
        for cell in cells:
            self.cells[self.add_task(method_title(cell.method), total=None, start=False)] = cell

    def refresh(self) -> None:
        """Look where the runs are, then draw."""
        for task, cell in getattr(self, "cells", {}).items():  # the first drawing precedes the runs
            done, total = epochs(cell.directory)
            if total is not None:
                self.start_task(task)
                self.update(task, completed=done, total=total)
                if done == total:
                    self.stop_task(task)
        super().refresh()


def epochs(directory: Path) -> tuple[int, int | None]:
    """Epochs a run has finished and epochs it will have; None as long as it has not begun."""
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


def _train(cells: Sequence[Cell], console: Console) -> list[Outcome]:
    engine = LocalEngine(jobs=min(2, cores()), gpus_per_run=0)
    with EpochBars(cells, console):
        return list(engine.run([cell.job() for cell in cells]))


def _present(cells: Sequence[Cell], root: Path, console: Console) -> None:
    """One table in the terminal, the same with the figure as a page."""
    scores = {method_title(cell.method): _accuracies(cell.directory) for cell in cells}
    figure = decision_boundaries([cell.directory for cell in cells])
    picture = save(figure, root / FIGURE)
    caption = "Training samples and the a1 that each method predicts all over the plane."
    body = f"<p>{html.escape(EXPLANATION)} {html.escape(TRUE_MODES)}</p>\n{_html_table(scores)}\n"
    body += drawn(caption, figure).html() + _html_list(cells)
    with runs.replacing(root / REPORT) as part:
        part.write_text(page("CoDID on toy data", body), encoding="utf-8")
    console.print(_table(scores))
    console.print(f"{EXPLANATION} {TRUE_MODES}", highlight=False)
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


def _html_table(scores: Mapping[str, Sequence[str]]) -> str:
    head = _html_row("th", ["a1", *TESTS.values()])
    rows = "".join(_html_row("td", [method, *row]) for method, row in scores.items())
    return f"<table><thead>{head}</thead><tbody>{rows}</tbody></table>"


def _html_row(tag: str, texts: Iterable[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{html.escape(text)}</{tag}>" for text in texts) + "</tr>"


def _html_list(cells: Sequence[Cell]) -> str:
    items = (f"<li>{html.escape(method_title(c.method))}: {html.escape(str(c.directory))}</li>" for c in cells)
    return f"\n<h2>Runs</h2>\n<ul>{''.join(items)}</ul>"
