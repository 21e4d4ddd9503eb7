"""The numbers of the paper, by the names that this library uses.

`numbers.csv` holds one number per line: data set, method, metric, mean and, where printed, standard deviation.
Accuracies and F1 scores are fractions. The method `truth` is the true number of modes.
"""

import csv
from functools import cache
from importlib.resources import files
from typing import NamedTuple


class Printed(NamedTuple):
    """One number of the paper."""

    mean: float
    std: float | None


@cache
def paper_numbers() -> dict[tuple[str, str, str], Printed]:
    """All numbers by (data set, method, metric)."""
    with files(__name__).joinpath("numbers.csv").open(encoding="utf-8") as lines:
        return {
            (row["dataset"], row["method"], row["metric"]): Printed(
                float(row["mean"]), float(row["std"]) if row["std"] else None
            )
            for row in csv.DictReader(lines)
        }
