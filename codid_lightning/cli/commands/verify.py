"""`codid verify`: whether the result of a run is what its checkpoint gives."""

import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from codid_lightning.analysis.verification import TOLERANCE, Verification, verify
from codid_lightning.cli.arguments import without_option
from codid_lightning.errors import RunError


def main(args: list[str]) -> int:
    """Test, compare, print."""
    arguments, text = without_option(args, "--tolerance")
    if not arguments or arguments[0].startswith("-"):
        raise RunError("codid verify needs a run directory as its first argument.")
    tolerance = TOLERANCE if text is None else _number(text)
    found = verify(Path(arguments[0]), arguments[1:])
    Console().print(_table(found, tolerance))
    different, changed = found.different(tolerance), found.changed()
    for what in changed:
        before, now = found.checksums[what]
        print(f"The {what} differs: the checksum was {before}, is {now}.", file=sys.stderr)
    for what, (before, _) in found.checksums.items():
        if before is None:
            print(f"There is no checksum of the {what} to compare with.", file=sys.stderr)
    known = sum(metric.known for metric in found.metrics)
    print(f"{known - len(different)} of {known} test metrics are confirmed by {found.checkpoint.name}.")
    if known < len(found.metrics):
        print(f"{len(found.metrics) - known} metrics are not in the result: it is of an earlier version.")
    if found.others:
        print(f"{found.others} other metrics of the result are not of a test: training, validation, codid evaluate.")
    return int(bool(different or {*changed} & {"data", "config"}))


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < 1:
        raise RunError(f"--tolerance is {text}; it must be a number from 0 to below 1.")
    return number


def _table(found: Verification, tolerance: float) -> Table:
    table = Table("metric", "result.json", "checkpoint", "")
    for metric in found.metrics:
        recorded = "-" if metric.recorded is None else f"{metric.recorded:.6f}"
        verdict = "new" if not metric.known else "equal" if metric.equal(tolerance) else "differs"
        table.add_row(metric.name, recorded, f"{metric.recomputed:.6f}", verdict)
    return table
