"""Tables that grow row by row: what has been measured is on disk, and is not measured again."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any


def rows_of(path: Path) -> Iterator[dict[str, str]]:
    """What has been measured before."""
    if path.is_file():
        with path.open(newline="") as file:
            yield from csv.DictReader(file)


def append_row(path: Path, fields: Sequence[str], row: Mapping[str, Any]) -> None:
    """One more row, below a header in a new file."""
    new = not path.is_file()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, fields, lineterminator="\n")
        if new:
            writer.writeheader()
        writer.writerow(row)
