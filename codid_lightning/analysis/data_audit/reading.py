"""Samples from files: tables, arrays, folders of pictures, embeddings beside a table, anybody's predictions."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from codid_lightning.analysis.data_audit.columns import Encoder, fit_encoder, leaking
from codid_lightning.analysis.data_audit.model import as_values
from codid_lightning.analysis.data_audit.samples import Attribute, Samples
from codid_lightning.errors import RunError
from datamodules.tables import Table, label_text, read_table

Array = NDArray[Any]

MOST_LABELS = 50  # different values of the target or of another attribute
MIN_ROWS = 20


def read_samples(
    table: Path,
    target: str,
    others: Sequence[str],
    *,
    features: Path | None = None,
    group: str | None = None,
    split: str | None = None,
    exclude: Sequence[str] = (),
    image_size: int = 32,
) -> Samples:
    """Samples of a table, an archive of arrays or a folder of pictures.

    Args:
        table: `.csv`, `.tsv` or `.parquet`; an `.npz` with inputs `x` and labels; or a folder with `metadata.csv`,
            whose column `path` names pictures.
        target: Column to predict.
        others: Columns that a model should not rely on.
        features: Embeddings (N, d) of the rows, `.npy` or a table of numbers; instead of the table's columns.
        group: Column of the person, device or the like that a row is from.
        split: Column with `train` and the names of test sets.
        exclude: Columns that are no inputs.
        image_size: Side of pictures in pixels.
    """
    columns, pictures = _read(table)
    for name in (target, *others, *((group,) if group else ()), *((split,) if split else ()), *exclude):
        if name not in columns:
            close = difflib.get_close_matches(name, list(columns), n=1)
            hint = f" Did you mean `{close[0]}`?" if close else ""
            raise RunError(f"{table} has no column `{name}`, only {', '.join(list(columns)[:20])}.{hint}")
    if len({target, *others}) <= len(others):
        raise RunError(f"`{target}` is named twice; --target and --other must be different columns.")
    notes: list[str] = []
    keep = _labelled(columns, (target, *others), notes)
    attributes = [_attribute(name, columns[name][keep], table) for name in (target, *others)]
    named = {target, *others, group, split, *exclude}
    free = {name: v[keep] for name, v in columns.items() if name not in named and v.ndim == 1 and name != "path"}
    leaks = leaking(free, attributes[0].labels)
    names: tuple[str, ...] = ()
    encoder: Encoder | None = None
    if features is not None:
        x = _features(features, len(keep))[keep]
    elif pictures is not None:
        x = _pictures(pictures, [str(p) for p in columns["path"][keep]], image_size)
    elif "x" in columns and columns["x"].ndim > 1:
        x = columns["x"][keep]
    else:
        encoder, noticed = fit_encoder(free, keep)
        x, names = encoder.encode(free), encoder.names
        notes += noticed
    if x.shape[1] == 0:
        raise RunError(f"{table} has no column left for the inputs. " + " ".join(notes))
    if len(x) < MIN_ROWS:
        raise RunError(f"{table} has {len(x)} rows with labels; at least {MIN_ROWS} are needed.")
    part = None
    if split:
        part = np.array([label_text(value) for value in columns[split][keep].tolist()])
        if "train" not in part:
            raise RunError(
                f"The column `{split}` of {table} never says `train`, only {', '.join(np.unique(part)[:10])}."
            )
    groups = None if group is None else pd.factorize(columns[group][keep])[0]
    return Samples(
        x,
        attributes[0],
        tuple(attributes[1:]),
        names,
        groups,
        part,
        tuple(notes),
        tuple(leaks),
        table.stem,
        keep,
        encoder,
    )


def read_predictions(file: Path, samples: Samples, column: str | None = None) -> Array:
    """Predicted values (N,) of the samples, -1 where there is none.

    Args:
        file: A table with a column `prediction`, `predicted` or the target's name (or any one column), a row for each
            row of the data; with a column `row` or `index`, rows of the data counted from 0.
        samples: The data.
        column: The column with the predicted values.
    """
    table = read_table(file, "--predictions")
    target = samples.target
    known = (
        (column,)
        if column
        else ("prediction", "predicted", f"predicted_{target.name}", f"{target.name}_predicted", target.name)
    )
    name = next((n for n in known if n in table), None)
    rest = [n for n in table if n not in ("row", "index")]
    if name is None and len(rest) == 1 and not column:
        name = rest[0]
    if name is None:
        raise RunError(f"{file} has no column `{known[0]}`, only {', '.join(table)}; name it with --prediction_column.")
    rows = samples.rows if samples.rows is not None else np.arange(len(samples))
    values = table[name]
    place = next((table[n] for n in ("row", "index") if n in table), None)
    if place is None:
        if len(values) != rows.max() + 1 and len(values) <= rows.max():
            raise RunError(f"{file} has {len(values)} predictions, the data have more rows; add a column `row`.")
        chosen = values[rows]
    else:
        found = {int(row): value for row, value in zip(place.tolist(), values.tolist(), strict=True)}
        chosen = np.array([found.get(int(row)) for row in rows], dtype=object)
    predicted = as_values(target, chosen)
    strange = predicted == len(target.values)
    if strange.any() and strange.sum() >= (predicted >= 0).sum() / 2:
        first = int(np.flatnonzero(strange)[0])
        raise RunError(
            f"The column `{name}` of {file} holds `{chosen[first]}` in row {first + 1}; values of {target.name} are "
            f"{', '.join(target.values[:10])}."
        )
    return predicted


def _read(table: Path) -> tuple[Table, Path | None]:
    """Columns, and the folder of their pictures, if there is one."""
    if table.is_dir():
        if not (table / "metadata.csv").is_file():
            raise RunError(f"The folder {table} has no file metadata.csv with the labels of its pictures.")
        columns = read_table(table / "metadata.csv", "--table")
        if "path" not in columns:
            raise RunError(f"{table / 'metadata.csv'} has no column `path` with the names of the pictures.")
        return columns, table
    columns = read_table(table, "--table")
    lengths = {name: len(v) for name, v in columns.items() if v.ndim}
    if len(set(lengths.values())) > 1:
        raise RunError(f"The arrays of {table} have different lengths: {lengths}.")
    return columns, None


def _labelled(columns: Table, names: Sequence[str], notes: list[str]) -> Array:
    """Rows in which all labels are given."""
    keep = np.ones(len(columns[names[0]]), dtype=bool)
    for name in names:
        empty = pd.isna(pd.Series(columns[name]).replace("", np.nan)).to_numpy()
        if empty.any():
            rows = "1 row" if empty.sum() == 1 else f"{int(empty.sum())} rows"
            notes.append(f"`{name}` is empty in {rows}, first in row {int(np.flatnonzero(empty)[0]) + 1}: left out.")
            keep &= ~empty
    return np.flatnonzero(keep)


def _attribute(name: str, values: Array, table: Path) -> Attribute:
    found = Attribute.of(name, values) if len(values) else Attribute(name, (), np.empty(0, dtype=int))
    if len(found.values) < 2:
        raise RunError(f"`{name}` of {table} has {len(found.values)} different values; at least two are needed.")
    if len(found.values) > MOST_LABELS:
        raise RunError(
            f"`{name}` of {table} has {len(found.values)} different values, such as {', '.join(found.values[:3])}; at "
            f"most {MOST_LABELS} are possible. Put numbers into ranges before, or name another column."
        )
    return found


def _features(file: Path, rows: int) -> Array:
    if file.suffix == ".npy":
        try:
            x: Array = np.load(file, allow_pickle=False)
        except (OSError, ValueError) as error:
            raise RunError(f"Cannot read {file} (--features): {error}.") from error
    else:
        x = np.stack([v.astype(float) for v in read_table(file, "--features").values()], axis=1)
    if len(x) <= rows - 1 or x.ndim < 2:
        raise RunError(f"{file} (--features) has shape {x.shape}; a row for each row of the table is needed.")
    bad = ~np.isfinite(x.reshape(len(x), -1)).all(1)
    if bad.any():
        raise RunError(
            f"{file} (--features) is not finite in {int(bad.sum())} rows, first in row {np.flatnonzero(bad)[0] + 1}."
        )
    return x


def _pictures(folder: Path, paths: Sequence[str], size: int) -> Array:
    from datamodules.own import Pictures

    pictures = Pictures([folder / path for path in paths], size)
    import torch

    return pictures(torch.arange(len(paths))).numpy()
