"""`codid evaluate`: every metric of one run, added to its result."""

import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from codid_lightning.analysis.evaluation import evaluate, load_run, record
from codid_lightning.analysis.modes import reference_cells
from codid_lightning.cli.arguments import without_path
from codid_lightning.errors import RunError
from codid_lightning.training.loading import LoadedRun
from codid_lightning.training.runs import replacing, writable
from datamodules.partition import write_partition


def main(args: list[str]) -> int:
    """Evaluate, print, record."""
    arguments, partition = without_path(args, "--partition")
    if partition is not None and partition.suffix != ".npz":
        raise RunError(f"--partition is {partition}; it must end in .npz.")
    run = load_run(arguments)
    if partition is not None:
        return _write_partition(run, partition)
    scores = evaluate(run)
    table = Table("metric", "value", title=run.name)
    for name, score in sorted(scores.items()):
        table.add_row(name, f"{score:.4f}")
    Console().print(table)
    path = record(run, scores)
    print(f"The result is in {path}." if path else "There is no result.json to add this to.", file=sys.stderr)
    return 0


def _write_partition(run: LoadedRun, file: Path) -> int:
    cells = reference_cells(run)
    with writable(file, "--partition"):
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file) as part:
            write_partition(part, cells, run.data.datasets["val"])
    print(f"{len(cells.unique())} cells of {len(cells)} validation samples are in {file}: give it as data.partition.")
    return 0
