"""Run a matrix of data sets, methods, seeds and groups, and print the report."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from jsonargparse import ArgumentParser
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from codid_lightning.analysis.tables import build_tables, load_runs, marked, not_shown, one_setting_each
from codid_lightning.analysis.tables.render import to_terminal
from codid_lightning.experiments.launchers import OUTPUT, Outcome, make_engine
from codid_lightning.experiments.matrix import Experiment, Forecast, Matrix, Rule, cells_of, run_cells
from codid_lightning.training.config_files import packaged_configs
from codid_lightning.training.runs import make_folder


def main(args: list[str]) -> int:
    """Run the experiments that have no result yet; the exit code is 1 if a run failed."""
    parser = ArgumentParser(prog="codid benchmark", description=__doc__, exit_on_error=False)
    parser.add_argument("-c", "--config", action="config", help="The matrix, for example benchmarks/quick.yaml.")
    parser.add_argument("--dry_run", action="store_true", help="List what would run, and stop.")
    matrix_fields = parser.add_class_arguments(Matrix)
    engine_fields = parser.add_function_arguments(make_engine)
    options = parser.parse_args(packaged_configs(args))
    options.rules = [Rule(**vars(rule)) for rule in options.rules]
    cells = cells_of(Matrix(**{name: options[name] for name in matrix_fields}))
    console = Console()
    if options.dry_run:
        _list(cells, console)
        return 0
    make_folder(Path(options.root), "--root")
    engine = make_engine(**{name: options[name] for name in engine_fields})
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that runs are stopped with us
    forecast = Forecast(cells, engine.parallel)
    failures = _show(run_cells(cells, engine, forecast), forecast, console)
    _report(cells, console)
    _summarise(failures, len(cells), console)
    return 1 if failures else 0


def _list(cells: Sequence[Experiment], console: Console) -> None:
    """One line per run that is still to do, then how many there are."""
    waiting = [cell for cell in cells if not cell.finished]
    for cell in waiting:
        state = "failed before" if cell.failed else "to do"
        console.print(f"{state:<13}  {cell.name}  {cell.directory}", highlight=False, soft_wrap=True)
    console.print(f"{len(cells)} runs: {len(cells) - len(waiting)} finished, {len(waiting)} to do.", highlight=False)


def _show(outcomes: Iterator[Outcome], forecast: Forecast, console: Console) -> list[Outcome]:
    """Print each outcome as it comes, with a bar below them in a terminal; the failures."""
    failures = []
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task(_left(forecast), total=forecast.total, completed=forecast.finished)
        for outcome in outcomes:
            progress.update(bar, completed=forecast.finished, description=_left(forecast))
            console.print(f"[{forecast.finished}/{forecast.total}]", style="dim", end=" ", markup=False)
            color = "red" if outcome.state == "failed" else "green"
            line = f"[{color}]{outcome.state}[/{color}] {escape(outcome.job.name)} in {duration(outcome.seconds)}"
            console.print(f"{line}; {_left(forecast)}", highlight=False)
            failures += [outcome] if outcome.state == "failed" else []
    return failures


def _left(forecast: Forecast) -> str:
    left = forecast.left()
    return "time left unknown" if left is None else f"about {duration(left)} left"


def duration(seconds: float) -> str:
    """Seconds as text in a suitable unit."""
    for unit, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name}"
    return f"{seconds:.0f} s"


def _report(cells: Sequence[Experiment], console: Console) -> None:
    finished = [cell.directory for cell in cells if cell.finished]
    if finished:
        found, complaints = load_runs(finished)
        kept, set_aside = one_setting_each(found)
        kept, origins = marked(kept)
        tables = build_tables(kept)
        to_terminal(tables, console)
        for complaint in (*complaints, *set_aside, *origins, *not_shown(kept, tables)):
            console.print(complaint, style="yellow", markup=False)


def _summarise(failures: Sequence[Outcome], total: int, console: Console) -> None:
    """What failed, why, and where to read more."""
    if not failures:
        console.print(f"All {total} runs are finished.", highlight=False)
        return
    console.print(f"{len(failures)} of {total} runs failed; the same command tries them again:", style="red")
    for failure in failures:
        reason = failure.error.splitlines()[-1]
        console.print(f"  {failure.job.name}: {reason}", markup=False, highlight=False, soft_wrap=True)
        console.print(f"    {failure.job.directory / OUTPUT}", style="dim", highlight=False, soft_wrap=True)
