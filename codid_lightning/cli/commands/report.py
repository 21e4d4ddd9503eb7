"""`codid report`: make the paper's tables from run directories."""

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from rich.console import Console

from codid_lightning.analysis.figures.ranks import average_ranks
from codid_lightning.analysis.figures.results import FigureError, complexity, learning_curves, robustness, sensitivity
from codid_lightning.analysis.pages.page import Picture, saved_pictures, to_picture
from codid_lightning.analysis.pages.report_page import report_page
from codid_lightning.analysis.tables import Run, build_tables, load_runs, marked, not_shown, one_setting_each
from codid_lightning.analysis.tables.names import OURS, dataset_title
from codid_lightning.analysis.tables.render import to_csv, to_latex, to_markdown, to_terminal
from codid_lightning.cli.arguments import report_parser
from codid_lightning.training.runs import read_result, write_output

FIGURES = {
    "number of parameters and training duration": complexity,
    "learning curves": learning_curves,
    "robustness": robustness,
    "sensitivity to hyperparameters": sensitivity,
}


def main(args: list[str]) -> int:
    """Print or write the tables; messages about other runs go to the standard error."""
    options = report_parser().parse_args(args)
    runs, complaints = load_runs(options.runs)
    kept, set_aside = one_setting_each(runs)
    kept, origins = marked(kept)
    methods = sorted({run.method for run in kept})
    if options.reference is not None and options.reference not in methods:
        print(f"codid report: --reference is {options.reference}; runs are of {', '.join(methods)}", file=sys.stderr)
        return 2
    reference = options.reference or OURS
    choices = {"metrics": options.metrics, "reference": reference, "intervals": options.intervals}
    tables = build_tables(kept, options.datasets, **choices)
    shown = [run for run in kept if options.datasets is None or run.dataset in options.datasets]
    complaints += [*set_aside, *origins, *not_shown(shown, tables)]
    for complaint in complaints:
        print(f"codid report: {complaint}", file=sys.stderr)
    if not tables:
        print("codid report: no runs to tabulate", file=sys.stderr)
        return 1
    if options.output is None:
        to_terminal(tables, Console())
        return 0
    writers: dict[str, Callable[[], str]] = {
        ".md": lambda: to_markdown(tables),
        ".tex": lambda: to_latex(tables),
        ".csv": lambda: to_csv(tables),
        ".html": lambda: report_page(tables, _pictures(runs), [_without_places(c, options.runs) for c in complaints]),
        ".json": lambda: _results(shown),
    }
    return _write(Path(options.output), writers)


def _write(output: Path, writers: Mapping[str, Callable[[], str]]) -> int:
    """Write the file with the writer for its ending; the exit code."""
    if output.suffix not in writers:
        print(f"codid report: {output} should end in one of {', '.join(writers)}", file=sys.stderr)
        return 2
    write_output(output, writers[output.suffix](), "--output")
    print(f"The tables are in {output}.")
    return 0


def _results(runs: Sequence[Run]) -> str:
    """The `result.json` of each run in the tables, one line per run."""
    order = sorted(runs, key=lambda run: (run.dataset, run.method, run.seed, -1 if run.group is None else run.group))
    return "[\n" + ",\n".join(json.dumps(read_result(run.directory), sort_keys=True) for run in order) + "\n]\n"


def _pictures(runs: Sequence[Run]) -> list[Picture]:
    """Figures of the results of each data set, then the figures saved with the runs."""
    pictures = []
    for dataset in sorted({run.dataset for run in runs}):
        directories = [run.directory for run in runs if run.dataset == dataset]
        for caption, draw in FIGURES.items():
            try:
                pictures.append(to_picture(f"{dataset_title(dataset)}: {caption}", draw(directories)))
            except FigureError:  # the runs do not have what it needs
                continue
    with suppress(FigureError):  # fewer than two data sets
        pictures.append(to_picture("Average ranks over data sets", average_ranks([run.directory for run in runs])))
    named = [(" ".join(_words(run)), run.directory) for run in runs]
    return pictures + saved_pictures(named)


def _words(run: Run) -> list[str]:
    group = [] if run.group is None else [f"group {run.group}"]
    return [run.method, "on", f"{dataset_title(run.dataset)},", f"seed {run.seed}", *group]


def _without_places(complaint: str, given: Sequence[str]) -> str:
    """The message with paths as seen from the folders that were given: a page may be handed on."""
    for path in given:
        for root in {str(Path(path).resolve()), path}:
            complaint = complaint.replace(f"{root}{os.sep}", "").replace(root, "the run")
    return complaint
