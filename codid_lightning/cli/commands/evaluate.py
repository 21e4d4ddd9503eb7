"""`codid evaluate`: every metric of one run, added to its result."""

import sys

from rich.console import Console
from rich.table import Table

from codid_lightning.analysis.evaluation import evaluate, load_run, record
from codid_lightning.cli.commands import help_or_arguments

USAGE = """usage: codid evaluate RUN_DIRECTORY [--key value ...]
       codid evaluate -c CONFIG ... --ckpt_path CHECKPOINT [--key value ...]

Computes accuracy, worst groups, leakage, MI, DCI-I, A-distance and cluster scores of a trained run, prints them and
adds them to the run's result.json, from which `codid report` makes tables."""


def main(args: list[str] | None = None) -> int:
    """Evaluate, print, record."""
    arguments = help_or_arguments(args, USAGE)
    if arguments is None:
        return 0
    run = load_run(arguments)
    scores = evaluate(run)
    table = Table("metric", "value", title=run.name)
    for name, score in sorted(scores.items()):
        table.add_row(name, f"{score:.4f}")
    Console().print(table)
    path = record(run, scores)
    print(f"The result is in {path}." if path else "There is no result.json to add this to.", file=sys.stderr)
    return 0
