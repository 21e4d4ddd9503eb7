"""A reference partition: one cell per validation sample, read from a file that all methods and trials share.

A config names the file. A resolved config adds the start of a hash of its content, `cells.npz@0123456789abcdef`, so
that a run is known by the content.
"""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from datamodules.base import AttributeDataset, DataError
from datamodules.tables import FORMATS, Array, Table, number, read_table

_KEY = "data.partition"
_PIN = re.compile(r"(?P<path>.+)@(?P<content>[0-9a-f]{16})")


def pinned(path: str) -> str:
    """The path of a partition file and its content; as it is if it has this already, or if there is no such file."""
    file = Path(path)
    if _PIN.fullmatch(path) or file.suffix not in (".npy", *FORMATS) or not file.is_file():
        return path
    return f"{path}@{_content(file)}"


def read_partition(path: str, val: AttributeDataset) -> Tensor:
    """The cell (N,) of every validation sample, counted from 0.

    Args:
        path: A table or archive with a column `cell`, or with one column only; an `.npy` of cells. Rows are in the
            order of the validation set, unless the column `index` says otherwise. Where there is a column `split`,
            rows of other splits than `val` are ignored. An archive's array `a` holds the attributes of the samples
            that the file was made for.
        val: The validation set.
    """
    named = _PIN.fullmatch(path)
    file = Path(named["path"] if named else path)
    if not file.is_file():
        raise DataError(f"There is no file {file} ({_KEY}).")
    if named and named["content"] != _content(file):
        raise DataError(f"{file} ({_KEY}) is not the file that the config was made with: its content has changed.")
    table = _rows_of_validation(_read(file), file)
    cells = table["cell"]
    if len(cells) != len(val):
        raise DataError(f"{file} has {len(cells)} cells, the validation set has {len(val)} samples ({_KEY}).")
    if cells.dtype.kind not in "biuOSU":
        raise DataError(f"The cells of {file} are of type {cells.dtype}, not whole numbers or text ({_KEY}).")
    order = torch.from_numpy(np.asarray(table.get("index", np.arange(len(cells)))))
    if not torch.equal(order.sort().values, torch.arange(len(cells))):
        raise DataError(
            f"The column `index` of {file} must name every validation sample once, from 0 to {len(val) - 1} ({_KEY})."
        )
    if "a" in table and not np.array_equal(table["a"], val.a[order].numpy()):
        raise DataError(
            f"{file} was written for other validation samples ({_KEY}): their attributes differ. Give the data.seed "
            "and the other settings of the data that it was written with."
        )
    return number(cells, "cell", file, key=_KEY)[1][order.argsort()]


def write_partition(file: Path, cells: Tensor, val: AttributeDataset) -> None:
    """Write the cells (N,) of all validation samples as an `.npz`."""
    with file.open("wb") as opened:
        np.savez(
            opened,
            index=np.arange(len(cells)),
            split=np.full(len(cells), "val"),
            cell=cells.numpy(),
            a=val.a.numpy(),
        )


def _read(file: Path) -> Table:
    if file.suffix != ".npy":
        table = read_table(file, _KEY)
        names = list(table)
        if "cell" not in table and len(names) > 1:
            raise DataError(f"{file} has no column `cell`, only {', '.join(names)} ({_KEY}).")
        table = table if "cell" in table else {"cell": table[names[0]]}
    else:
        try:
            table = {"cell": np.load(file, allow_pickle=False)}
        except Exception as error:  # numpy raises many types of errors for damaged files
            raise DataError(f"Cannot read {file} ({_KEY}): {error}.") from error
    if len({values.shape[:1] for name, values in table.items() if name in ("cell", "index", "split", "a")}) > 1:
        raise DataError(f"{file} has columns of different length ({_KEY}).")
    return table


def _rows_of_validation(table: Table, file: Path) -> Table:
    if "split" not in table:
        return table
    rows: Array = table["split"].astype(str) == "val"
    return {name: table[name][rows] for name in ("cell", "index", "a") if name in table}


def _content(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()[:16]
