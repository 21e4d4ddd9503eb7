"""`codid repair`: fit the last layer of a run again, to balanced cells of its validation data."""

from __future__ import annotations

import time

from rich import box
from rich.console import Console
from rich.table import Table

from codid_lightning.analysis.repair import FILE, Repair, repair, write
from codid_lightning.cli.arguments import without_path
from codid_lightning.errors import RunError
from codid_lightning.training.loading import LoadedRun, load_run


def main(args: list[str]) -> int:
    """Fit, write, print."""
    arguments, output = without_path(args, "--output")
    if output is not None and output.suffix != ".ckpt":
        raise RunError(f"--output is {output}; it should end in .ckpt.")
    began = time.perf_counter()
    run = load_run(arguments)
    found = repair(run)
    path = output or run.checkpoint.parent / FILE
    write(run, found, path)
    Console().print(_table(run, found))
    before, after = found.worst()
    print(f"Worst cell: {100 * before:.1f} % before, {100 * after:.1f} % after, on validation data.")
    if after <= before:
        print("The worst cell has gained nothing: keep the run's own checkpoint.")
    print(f"The repaired checkpoint is in {path}, made in {time.perf_counter() - began:.1f} seconds.")
    config = "" if run.directory is not None and output is None else "-c CONFIG "
    print(f"Use it with `codid test {config}--ckpt_path {path}`, and so with `codid predict`.")
    return 0


def _table(run: LoadedRun, found: Repair) -> Table:
    """Accuracy in every cell; it has as many columns as there are attributes, and four more."""
    table = Table(*run.data.attribute_names, "samples", "before", "after", "gain", box=box.SIMPLE_HEAD)
    table.title = f"{run.name}: accuracy of {run.data.attribute_names[0]} in % on validation data"
    for cell in found.cells:
        gain = 100 * (cell.after - cell.before)
        table.add_row(
            *cell.values, str(cell.samples), f"{100 * cell.before:.1f}", f"{100 * cell.after:.1f}", f"{gain:+.1f}"
        )
    return table
