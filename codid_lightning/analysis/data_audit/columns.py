"""Columns of a table as numbers. Everything that is noticed and done on the way is said in a sentence."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.tree import DecisionTreeClassifier

from codid_lightning.errors import RunError

Array = NDArray[Any]

MOST_VALUES = 20  # of a text column that is one-hot encoded; with more it is taken for a name or free text
RARE = 5  # rows below which a value of a text column is counted as `other`
NUMBERS = 0.9  # share of a text column's cells that are numbers, from which on it is a column of numbers
LEAK = 0.995  # balanced accuracy of the target from one column alone, from which on the column determines it


@dataclass(frozen=True)
class Column:
    """How a column becomes numbers."""

    name: str
    kind: Literal["number", "date", "text"]
    median: float = 0.0  # in place of gaps
    values: tuple[str, ...] = ()  # of text, one input each

    @property
    def inputs(self) -> list[str]:
        """Names of the inputs that it gives."""
        return [f"{self.name} = {value}" for value in self.values] if self.kind == "text" else [self.name]

    def encode(self, values: Array) -> list[Array]:
        """The inputs (N,) of rows."""
        series = pd.Series(values)
        if self.kind == "text":
            texts = _as_text(series)
            return [(texts == value).to_numpy(dtype=float) for value in self.values]
        numbers = _days(series) if self.kind == "date" else _as_numbers(series)
        filled: Array = numbers.fillna(self.median).to_numpy(dtype=float)
        return [filled]


@dataclass(frozen=True)
class Encoder:
    """How a table becomes inputs; it takes new rows, too."""

    columns: tuple[Column, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the inputs."""
        return tuple(name for column in self.columns for name in column.inputs)

    def encode(self, table: Mapping[str, Array]) -> Array:
        """Inputs (N, d) of rows."""
        if missing := [column.name for column in self.columns if column.name not in table]:
            raise RunError(f"The table has no column {', '.join(f'`{name}`' for name in missing)}.")
        parts = [part for column in self.columns for part in column.encode(table[column.name])]
        return np.stack(parts, 1) if parts else np.empty((len(next(iter(table.values()), ())), 0))


def fit_encoder(table: Mapping[str, Array], rows: Array | None = None) -> tuple[Encoder, list[str]]:
    """How the columns of a table become numbers, and what was noticed.

    Numbers stay, and gaps in them get the median. Text with few values is one-hot encoded, a gap being a value of its
    own. Dates become days. Constants, row numbers, names and free text are left out.

    Args:
        table: Columns (N,).
        rows: Rows (N,) of the file, from 0; sentences count them from 1, without the header.
    """
    columns: list[Column] = []
    notes: list[str] = []
    for name, values in table.items():
        found, note = _column(name, values, np.arange(len(values)) if rows is None else rows)
        columns += [found] if found else []
        notes += note
    return Encoder(tuple(columns)), notes


def _column(name: str, values: Array, rows: Array) -> tuple[Column | None, list[str]]:
    series = pd.Series(values)
    if series.notna().sum() == 0:
        return None, [f"Column `{name}` is empty: left out."]
    if series.nunique(dropna=False) == 1:
        return None, [f"Column `{name}` is {series.iloc[0]} in every row: left out."]
    if name.startswith("Unnamed:") or _numbers_rows(name, series):
        return None, [f"Column `{name}` numbers the rows: left out."]
    filled, numbers = series.notna(), _as_numbers(series)
    if values.dtype.kind in "biuf" or numbers.notna().sum() >= NUMBERS * filled.sum():
        notes = []
        strange = np.flatnonzero(pd.to_numeric(series, errors="coerce").isna() & filled)
        if len(strange):
            first = f"`{series.iloc[strange[0]]}` in row {rows[strange[0]] + 1}"
            cells = "1 cell that is no number" if len(strange) == 1 else f"{len(strange)} cells that are no numbers"
            notes = [f"Column `{name}` has {cells}, first {first}: taken for gaps."]
        median = float(numbers.median()) if numbers.notna().any() else 0.0
        return Column(name, "number", median), [*notes, *_gaps(name, numbers, median, rows)]
    days = _days(series)
    if days.notna().sum() >= NUMBERS * filled.sum():
        median = float(days.median())
        note = f"Column `{name}` has dates: replaced by days since 2000-01-01."
        return Column(name, "date", median), [note, *_gaps(name, days, median, rows)]
    return _text(name, series)


def _numbers_rows(name: str, series: pd.Series) -> bool:
    if series.dtype.kind not in "iu" or not series.is_unique:
        return False
    steps = set(np.diff(series.to_numpy()).tolist())
    named = name.lower() in ("id", "index", "row") or name.lower().endswith("_id")
    return steps in ({1}, {-1}) or named


def _as_numbers(series: pd.Series) -> pd.Series:
    return pd.to_numeric(series, errors="coerce").astype(float).replace([np.inf, -np.inf], np.nan)


def _days(series: pd.Series) -> pd.Series:
    dates = pd.to_datetime(series.astype(str).where(series.notna()), errors="coerce", format="ISO8601")
    return (dates - pd.Timestamp("2000-01-01")) / pd.Timedelta(days=1)


def _as_text(series: pd.Series) -> pd.Series:
    return series.astype(str).where(series.notna(), "(empty)")


def _gaps(name: str, numbers: pd.Series, median: float, rows: Array) -> list[str]:
    gaps = np.flatnonzero(numbers.isna())
    if not len(gaps):
        return []
    count, first = "1 row" if len(gaps) == 1 else f"{len(gaps)} rows", rows[gaps[0]] + 1
    return [f"Column `{name}` has no number in {count}, first in row {first}: replaced by the median, {median:g}."]


def _text(name: str, series: pd.Series) -> tuple[Column | None, list[str]]:
    counts = _as_text(series).value_counts()
    rare = counts[counts < RARE].index
    kept = tuple(str(value) for value in sorted(counts.index.difference(rare)))
    if len(kept) > MOST_VALUES or len(kept) == 0:
        return None, [f"Column `{name}` has text with {len(counts)} different values: left out as a name or free text."]
    note = f"Column `{name}` has text: one column of zeros and ones for each of its {len(kept)} values"
    if len(rare):
        note += f"; {len(rare)} values with fewer than {RARE} rows have none"
    return Column(name, "text", values=kept), [f"{note}."]


def leaking(table: Mapping[str, Array], target: Array, seed: int = 0) -> dict[str, float]:
    """Columns that determine the target (N,) alone, with the balanced accuracy of a small tree on rows held out."""
    if np.bincount(target).min() < 3:
        return {}
    found = {}
    folds = StratifiedKFold(3, shuffle=True, random_state=seed)
    for name, values in table.items():
        series = pd.Series(values)
        codes = series.to_numpy(dtype=float) if values.dtype.kind in "biuf" else _by_target(series, target)
        if codes is None:
            continue
        codes = np.where(np.isfinite(codes), codes, -1e9)[:, None]
        tree = DecisionTreeClassifier(max_leaf_nodes=4 * (int(target.max()) + 1), min_samples_leaf=2, random_state=seed)
        predicted = cross_val_predict(tree, codes, target, cv=folds)
        accuracy = float(np.mean([(predicted[target == v] == v).mean() for v in np.unique(target)]))
        if accuracy >= LEAK:
            found[name] = accuracy
    return found


def _by_target(series: pd.Series, target: Array) -> Array | None:
    """Numbers of text values, ordered by the target, so that a small tree can tell them apart; None for names."""
    codes, values = pd.factorize(series)
    if len(values) > len(series) / 3:
        return None
    means = [target[codes == i].mean() for i in range(len(values))]
    numbers: Array = np.array([*means, -1.0])[codes]
    return numbers
