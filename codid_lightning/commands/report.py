"""`codid report`: run directories become the paper's tables."""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from jsonargparse import ArgumentParser
from rich.console import Console

from codid_lightning.figures.results import FigureError, complexity, learning_curves, robustness, sensitivity
from codid_lightning.report import Run, build_tables, load_runs, one_setting_each
from codid_lightning.report.names import dataset_title
from codid_lightning.report.page import Picture, drawn, report_page, saved
from codid_lightning.report.render import to_csv, to_latex, to_markdown, to_terminal
from codid_lightning.runs import read_result, replacing

SUFFIXES = {".md": "markdown", ".tex": "latex", ".csv": "csv", ".html": "html", ".json": "json"}
FIGURES = {
    "number of parameters and training duration": complexity,
    "learning curves": learning_curves,
    "robustness": robustness,
    "sensitivity to hyperparameters": sensitivity,
}


def main(args: list[str] | None = None) -> int:
    """Print or write the tables; complaints go to the standard error."""
    parser = ArgumentParser(prog="codid report", description=__doc__, exit_on_error=False)
    parser.add_argument("runs", type=str, nargs="+", help="Run directories, or folders above them.")
    parser.add_argument(
        "--output",
        type=str | None,
        default=None,
        help="File to write: .md (Markdown), .tex (LaTeX), .csv, .html (with figures) or .json (all results); default: "
        "the terminal.",
    )
    parser.add_argument("--datasets", type=str, nargs="+", help="Data sets to show; default: those with runs.")
    options = parser.parse_args(args)
    runs, complaints = load_runs(options.runs)
    main_runs, set_aside = one_setting_each(runs)
    complaints += set_aside
    for complaint in complaints:
        print(f"codid report: {complaint}", file=sys.stderr)
    tables = build_tables(main_runs, options.datasets)
    if not tables:
        print("codid report: no runs to tabulate", file=sys.stderr)
        return 1
    if options.output is None:
        to_terminal(tables, Console())
        return 0
    output = Path(options.output)
    if output.suffix not in SUFFIXES:
        print(f"codid report: {output} should end in one of {', '.join(SUFFIXES)}", file=sys.stderr)
        return 2
    writers: dict[str, Callable[[], str]] = {
        "markdown": lambda: to_markdown(tables),
        "latex": lambda: to_latex(tables),
        "csv": lambda: to_csv(tables),
        "html": lambda: report_page(tables, _pictures(runs), complaints),
        "json": lambda: _results(main_runs, options.datasets),
    }
    with replacing(output) as part:
        part.write_text(writers[SUFFIXES[output.suffix]](), encoding="utf-8")
    print(f"The tables are in {output}.")
    return 0


def _results(runs: Sequence[Run], datasets: Sequence[str] | None) -> str:
    """What each run in the tables left as `result.json`, one line per run: a file to keep beside the tables."""
    chosen = [run for run in runs if datasets is None or run.dataset in datasets]
    chosen.sort(key=lambda run: (run.dataset, run.method, run.seed, -1 if run.group is None else run.group))
    return "[\n" + ",\n".join(json.dumps(read_result(run.directory), sort_keys=True) for run in chosen) + "\n]\n"


def _pictures(runs: Sequence[Run]) -> list[Picture]:
    """What the results of each data set can show, then the figures saved with the runs."""
    pictures = []
    for dataset in sorted({run.dataset for run in runs}):
        directories = [run.directory for run in runs if run.dataset == dataset]
        for caption, draw in FIGURES.items():
            try:
                pictures.append(drawn(f"{dataset_title(dataset)}: {caption}", draw(directories)))
            except FigureError:  # these runs do not vary what it shows
                continue
    return pictures + saved(run.directory for run in runs)
