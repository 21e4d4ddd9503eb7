"""`codid adapt`: adapt a trained model to its place of use, from unlabelled samples."""

from __future__ import annotations

import argparse
from pathlib import Path

from matplotlib.figure import Figure
from rich import box
from rich.console import Console
from rich.table import Table

from codid_lightning.analysis import adaptation as analysis
from codid_lightning.analysis.adaptation import CANDIDATES, Place
from codid_lightning.analysis.evaluation import LoadedRun
from codid_lightning.analysis.figures.adaptation import adaptation as draw
from codid_lightning.analysis.figures.style import save
from codid_lightning.errors import RunError
from codid_lightning.methods.codid.adaptation import FILE, Adaptation
from codid_lightning.methods.codid.module import CoDID
from codid_lightning.training.runs import replacing, writable

MAX_ROWS = 24  # of the table of modes; the JSON has all of them


def main(args: list[str]) -> int:
    """Adapt, write, print and draw."""
    options, rest = _parser().parse_known_args(args)
    if options.output is not None and options.output.suffix != ".json":
        raise RunError(f"--output is {options.output}; it should end in .json.")
    run, place = analysis.load(rest, options.data, options.split)
    place = place.some(options.samples, options.seed)
    found = analysis.adapt(run, place, options.predict_others == "true")
    output = options.output or run.checkpoint.parent / FILE
    with writable(output, "--output"):
        output.parent.mkdir(parents=True, exist_ok=True)
        with replacing(output) as part:
            found.save(part)
    figure = None if found.dial is None and found.clusters is None else _figure(found, run, place)
    picture = None if figure is None else save(figure, output.with_suffix(".png"))
    _show(found, run, place, Console())
    print(f"The adaptation is in {output}{'' if picture is None else f', the figure in {picture}'}.")
    adapted = "true" if options.output is None else output
    print(f"`codid test` and `codid predict` use it with `--adapted {adapted}`.")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="codid adapt", add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument("--data", required=True)
    parser.add_argument("--split")
    parser.add_argument("--samples", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--predict_others", choices=("true", "false"), default="false")
    parser.add_argument("--output", type=Path)
    return parser


def _figure(found: Adaptation, run: LoadedRun, place: Place) -> Figure:
    values = [] if found.clusters is None else found.clusters.value.tolist()
    data = run.data
    return draw(
        found,
        attributes=(data.attribute_names[0], analysis.others_name(data)),
        first=data.value_names[0],
        others=analysis.others_values(data),
        modes=analysis.mode_titles(values, data.value_names[0]),
        title=f"{run.name}, {place.name}: {place.size}",
    )


def _show(found: Adaptation, run: LoadedRun, place: Place, console: Console) -> None:
    """Everything in the order in which it was decided."""

    def say(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    given = f"{'is' if len(run.data.attribute_names) == 2 else 'are'} {'given' if found.others_given else 'predicted'}"
    say(f"{run.name}, {place.name}: {place.size}; {analysis.others_name(run.data)} {given}.")
    if isinstance(run.model, CoDID) and len(run.model.target_list) > 1:
        say(f"Only predictions of {run.data.attribute_names[0]}, the first attribute, are adapted.")
    for line in analysis.dial_lines(found, run.data):
        say(line)
    console.print(_candidates(found))
    _show_modes(found, run, console)
    say(analysis.conclusion(found, run.data))


def _candidates(found: Adaptation) -> Table:
    table = Table("candidate", "held-out log-likelihood", "", box=box.SIMPLE_HEAD)
    for name, score in found.likelihoods.items():
        table.add_row(CANDIDATES[name], f"{score:.4f}", "chosen" if name == found.chosen else "")
    return table


def _show_modes(found: Adaptation, run: LoadedRun, console: Console) -> None:
    rows = analysis.shares(found, run.data)
    if not rows:
        return
    table = Table("mode", analysis.others_name(run.data), "in training", "now", box=box.SIMPLE_HEAD)
    chosen = sorted(rows, key=lambda row: abs(row.now - row.train), reverse=True)[:MAX_ROWS]
    for row in rows:
        if row in chosen:
            table.add_row(row.mode, row.others, f"{row.train:.3f}", f"{row.now:.3f}")
    if len(rows) > MAX_ROWS:
        table.caption = f"the {MAX_ROWS} of {len(rows)} that changed most"
    console.print(table)
