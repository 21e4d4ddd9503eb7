"""Read tables and archives of arrays by column name, and number their labels."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from datamodules.base import DataError

Array = NDArray[Any]
Table = dict[str, Array]
_SEPARATORS = {".csv": ",", ".tsv": "\t"}
FORMATS = (".npz", ".parquet", *_SEPARATORS)


def read_table(file: Path, key: str = "data.file") -> Table:
    """Columns of a table, or arrays of an archive, by name; code in the file is not executed.

    Messages name the `key` that chose the file.
    """
    if file.suffix not in FORMATS:
        raise DataError(f"{key} is {file}; it should end in .npz, .csv, .tsv or .parquet.")
    if not file.is_file():
        raise DataError(f"There is no file {file}; {key} must be relative to data.root.")
    try:
        table = _archive(file) if file.suffix == ".npz" else _columns(file)
    except ImportError as error:
        raise DataError("Parquet files need `pip install codid-lightning[parquet]`.") from error
    except Exception as error:  # parsers raise many types of errors for damaged files
        hint = " Save text as an array of strings, not of objects." if "allow_pickle" in str(error) else ""
        reason = " ".join(str(error).split()).rstrip(".")
        raise DataError(f"Cannot read {file} ({key}): {reason}.{hint}") from error
    if not table or not any(values.size for values in table.values()):
        raise DataError(f"{file} ({key}) has no rows.")
    return table


def _archive(file: Path) -> Table:
    with zipfile.ZipFile(file):  # numpy would also take a lone array or a pickle under this name
        pass
    with np.load(file, allow_pickle=False) as stored:
        members = {name: stored[name] for name in stored.files}
    if strange := [name for name, values in members.items() if not isinstance(values, np.ndarray)]:
        raise ValueError(f"{strange[0]} is no array")
    return members


def _columns(file: Path) -> Table:
    if file.suffix == ".parquet":
        frame = pd.read_parquet(file)
    else:
        frame = pd.read_csv(file, sep=_SEPARATORS[file.suffix], low_memory=False)
    return {str(name): _values(frame[name]) for name in frame.columns}


def _values(column: pd.Series) -> Array:
    if pd.api.types.is_numeric_dtype(column) and column.isna().any():  # integers with gaps would become objects
        gapped: Array = column.to_numpy(dtype=np.float64, na_value=np.nan)
        return gapped
    values: Array = column.to_numpy()
    return values


def numeric(values: Array, name: str, file: Path) -> Tensor:
    """Inputs as floats; bytes stay bytes."""
    if values.dtype.kind not in "biuf":
        raise DataError(f"The inputs `{name}` of {file} are not numbers{_first_text(values)} (data.inputs).")
    tensor = torch.from_numpy(np.array(values))  # a copy: columns of a table may be read-only
    return tensor if values.dtype == np.uint8 else tensor.float()


def _first_text(values: Array) -> str:
    """The first row that is no number, if the values are one per row."""
    if values.ndim != 1:
        return f" but of type {values.dtype}"
    strange = np.flatnonzero(pd.to_numeric(pd.Series(values), errors="coerce").isna() & ~pd.isna(values))
    if len(strange) == 0:
        return f" but of type {values.dtype}"
    return f": row {strange[0]}, counted from 0, holds `{values[strange[0]]}`"


def label_texts(values: Array, name: str, file: Path) -> list[str | None]:
    """Each row's label as text, None where it is empty."""
    if values.ndim != 1 or not all(map(pd.api.types.is_scalar, values[:1])):  # parquet columns may hold lists
        raise DataError(f"The labels `{name}` of {file} must be one value per row; their shape is {values.shape}.")
    return [None if pd.isna(value) else label_text(value) for value in values.tolist()]


def label_names(texts: Iterable[str | None]) -> tuple[str, ...]:
    """The distinct labels: numbers by size, anything else in alphabetical order."""
    found = {text for text in texts if text is not None}
    return tuple(sorted(found, key=lambda text: (float(text), text)) if all(map(_is_number, found)) else sorted(found))


def number(
    values: Array, name: str, file: Path, known: Sequence[str] | None = None, key: str = "data.attributes"
) -> tuple[tuple[str, ...], Tensor]:
    """Names of the labels (`known`, or those of the column), and the number of each row's label.

    Messages name the column, the file and the `key` that chose the column.
    """
    texts = label_texts(values, name, file)
    if empty := [row for row, text in enumerate(texts) if text is None]:
        raise DataError(
            f"{len(empty)} labels `{name}` of {file} are empty, the first in rows {empty[:5]}, counted from 0 ({key})."
        )
    names = label_names(texts) if known is None else tuple(known)
    index = positions(texts, names)
    if strange := sorted({str(texts[row]) for row in (index < 0).nonzero().flatten().tolist()}):
        raise DataError(f"The labels `{name}` of {file} hold {_few(strange)}; known are {_few(names)}.")
    return names, index


def number_modes(target: Tensor, mode: Tensor, values: int) -> tuple[Tensor, tuple[int, ...], list[int]]:
    """Number modes over all values of the target; the same mode under two values makes two.

    Args:
        target: Number (N,) of each sample's value of the target.
        mode: Number (N,) of each sample's mode as named by the user.
        values: How many values the target has.

    Returns:
        New numbers (N,), the number of modes under each value, and the user's number of each mode.
    """
    pairs, numbers = torch.unique(torch.stack([target, mode], 1), dim=0, return_inverse=True)
    return numbers, tuple(pairs[:, 0].bincount(minlength=values).tolist()), pairs[:, 1].tolist()


def positions(texts: Sequence[str | None], names: Sequence[str]) -> Tensor:
    """The number of each label among `names`, -1 for labels not among them."""
    place = {name: i for i, name in enumerate(names)}
    return torch.tensor([-1 if text is None else place.get(text, -1) for text in texts], dtype=torch.long)


def label_text(label: object) -> str:
    """A label as text; whole numbers without the fraction that they have in tables with gaps."""
    if isinstance(label, float) and label.is_integer():
        return str(int(label))
    return label.decode(errors="replace") if isinstance(label, bytes) else str(label)


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _few(names: Sequence[str], limit: int = 10) -> str:
    return ", ".join(names[:limit]) + (", ..." if len(names) > limit else "")
