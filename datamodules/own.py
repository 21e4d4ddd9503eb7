"""Data of your own: arrays, tables and image folders, described by arguments instead of code."""

from __future__ import annotations

import zipfile
from abc import abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from datamodules.base import AttributeDataModule, AttributeDataset, DataError, split_indices, stack_columns
from datamodules.images import bytes_to_unit, read_images
from datamodules.scaling import Scaling

Array = NDArray[Any]
Table = dict[str, Array]
Protocol = Literal["random", "split_column", "leave_one_group_out", "predict"]


class OwnData(AttributeDataModule):
    """Labels by column name and a protocol that divides the rows.

    Labels may be text or numbers; they are numbered in sorted order, and a checkpoint keeps the names. To predict on
    new rows use the protocol `predict`, where label columns may be absent.

    Args:
        file: Table with a row per sample, relative to `root`.
        attributes: Columns of the attributes; the first is the one to disentangle.
        protocol: `random` divides the rows by `val_fraction` and `test_fraction`. `split_column` reads `split`: train,
            optionally val, and names starting with test, each a test set. `leave_one_group_out` tests the group
            `test_group` of the column `group`. `predict` takes all rows as the test set.
        mode: Column with the true modes of the first attribute, where known; they only serve evaluation.
        group: Column for `leave_one_group_out`.
        split: Column for `split_column`.
        folds: Divide the group column's values into this many groups; null makes each value a group.
        test_group: The group to test.
        val_fraction: Share of the training rows held out for validation.
        test_fraction: Share of all rows tested under `random`.
        labels: Values of an attribute in the order of their numbers, by attribute; null reads them off the file.
    """

    def __init__(
        self,
        file: str,
        attributes: list[str],
        protocol: Protocol = "random",
        mode: str | None = None,
        group: str | None = None,
        split: str | None = None,
        folds: int | None = None,
        test_group: int = 0,
        val_fraction: float = 0.1,
        test_fraction: float = 0.2,
        labels: dict[str, list[str]] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if len(attributes) < 2 or len(set(attributes)) < len(attributes):
            raise DataError(f"data.attributes is {attributes}; name at least two different columns.")
        self.file = Path(self.root) / file
        self.attribute_names = tuple(attributes)
        self.mode, self.group, self.split, self.folds, self.test_group = mode, group, split, folds, test_group
        self.val_fraction, self.test_fraction = val_fraction, test_fraction
        self.table = read_table(self.file)
        self.labelled = protocol != "predict" or all(name in self.table for name in attributes)
        self._number_labels(labels or {})
        self._number_modes()
        self.rows = self._divide(protocol)
        self.test_names = tuple(name for name in self.rows if name not in ("train", "val"))
        self.test_attributes = self._known_at_test()

    @abstractmethod
    def samples(self) -> tuple[Tensor, Callable[[Tensor], Tensor] | None]:
        """Inputs of all rows, and what turns a batch of them into model inputs."""

    def build(self) -> dict[str, AttributeDataset]:
        """The splits of the protocol."""
        x, transform = self.samples()
        if len(x) != len(self.a):
            raise DataError(f"{self.file} has {len(x)} inputs but {len(self.a)} labels.")
        return {
            name: AttributeDataset(x[rows], self.a[rows], self.modes[rows], transform)
            for name, rows in self.rows.items()
        }

    def test_dataloader(self) -> Any:
        """One loader per test name; needs labels."""
        if not self.labelled:
            raise DataError(
                f"{self.file} lacks {' or '.join(self.attribute_names)}; without labels use `codid predict`."
            )
        return super().test_dataloader()

    def predict_dataloader(self) -> Any:
        """The test sets, labelled or not."""
        return super().test_dataloader()

    def column(self, name: str | None, argument: str) -> Array:
        """A column of the file, named by an argument."""
        if name is None or name not in self.table:
            raise DataError(f"data.{argument} is {name}; {self.file} has {', '.join(sorted(self.table))}.")
        return self.table[name]

    def _number_labels(self, labels: dict[str, list[str]]) -> None:
        if not self.labelled:
            if missing := [name for name in self.attribute_names if name not in labels]:
                raise DataError(f"{self.file} has no labels; name the values of {', '.join(missing)} in data.labels.")
            self.value_names = tuple(tuple(labels[name]) for name in self.attribute_names)
            self.a = torch.zeros(len(next(iter(self.table.values()))), len(self.attribute_names), dtype=torch.long)
            return
        numbered = [number(self.column(n, "attributes"), n, labels.get(n)) for n in self.attribute_names]
        self.value_names = tuple(names for names, _ in numbered)
        self.a = stack_columns([index for _, index in numbered])

    def _number_modes(self) -> None:
        """Modes count over all values of the first attribute; one name under two values makes two modes."""
        self.modes = torch.full_like(self.a, -1)
        self.mode_sizes: tuple[tuple[int, ...] | None, ...] = (None,) * len(self.attribute_names)
        if self.mode is None or (not self.labelled and self.mode not in self.table):
            return
        names, index = number(self.column(self.mode, "mode"), self.mode)
        pairs, modes = torch.unique(torch.stack([self.a[:, 0], index], 1), dim=0, return_inverse=True)
        self.modes[:, 0] = modes
        sizes = pairs[:, 0].bincount(minlength=self.attribute_sizes[0])
        self.mode_sizes = (tuple(sizes.tolist()), *self.mode_sizes[1:])
        self.mode_names = tuple(names[m] for m in pairs[:, 1].tolist())

    def _divide(self, protocol: Protocol) -> dict[str, Tensor]:
        everything = torch.arange(len(self.a))
        if protocol == "predict":
            return {"test": everything}
        if protocol == "split_column":
            return self._by_column()
        if protocol == "leave_one_group_out":
            test = self._groups() == self.test_group
            return {**self._with_validation(everything[~test]), "test": everything[test]}
        rest, test = split_indices(len(self.a), self.test_fraction, self.seed)
        return {**self._with_validation(rest), "test": test}

    def _with_validation(self, rows: Tensor) -> dict[str, Tensor]:
        train, val = split_indices(len(rows), self.val_fraction, self.seed)
        return {"train": rows[train], "val": rows[val]}

    def _by_column(self) -> dict[str, Tensor]:
        names, index = number(self.column(self.split, "split"), str(self.split))
        strange = [name for name in names if name not in ("train", "val") and not name.startswith("test")]
        tests = [name for name in names if name.startswith("test")]
        if strange or "train" not in names or not tests:
            raise DataError(
                f"The column {self.split} of {self.file} holds {', '.join(names)}; expected train, optionally val, and "
                "one or more names starting with test."
            )
        rows = {name: (index == i).nonzero().flatten() for i, name in enumerate(names)}
        first = {"train": rows["train"], "val": rows["val"]} if "val" in rows else self._with_validation(rows["train"])
        return {**first, **{name: rows[name] for name in tests}}

    def _groups(self) -> Tensor:
        names, index = number(self.column(self.group, "group"), str(self.group))
        folds = len(names) if self.folds is None else self.folds
        if not 2 <= folds <= len(names):
            raise DataError(
                f"The column {self.group} of {self.file} has {len(names)} values, which cannot make {folds} groups; "
                "at least 2 groups and one value in each are needed (data.folds)."
            )
        if not 0 <= self.test_group < folds:
            raise DataError(f"data.test_group is {self.test_group}; there are groups 0 to {folds - 1}.")
        return index * folds // len(names)

    def _known_at_test(self) -> tuple[int, ...]:
        if "train" not in self.rows:
            return tuple(range(len(self.attribute_names))) if self.labelled else ()
        train, test = self.a[self.rows["train"]], self.a[torch.cat([self.rows[name] for name in self.test_names])]
        return tuple(q for q in range(self.a.shape[1]) if bool(torch.isin(test[:, q], train[:, q]).all()))


class OwnArrays(OwnData):
    """An `.npz` of arrays, or a `.csv` or `.parquet` table.

    Args:
        inputs: The array of an `.npz` that holds the inputs, (N, ...), by default `x`; or the columns of a table, by
            default all numeric ones that are not named otherwise. Bytes become numbers in [0, 1].
        scaling: Of every channel (second dimension), with statistics of the training rows that a checkpoint keeps:
            `standard` to zero mean and unit variance, `minmax` to [-1, 1].
    """

    def __init__(
        self,
        inputs: str | list[str] | None = None,
        scaling: Literal["standard", "minmax", "none"] = "standard",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.x = self._inputs(inputs)
        self.input_shape = tuple(self.x.shape[1:])
        self.scaling = Scaling(self.x.shape[1])
        if scaling != "none" and self.x.is_floating_point() and "train" in self.rows:
            self.scaling.fit(self.x[self.rows["train"]], scaling)

    def samples(self) -> tuple[Tensor, Callable[[Tensor], Tensor] | None]:
        """The arrays as read; scaling comes with the batch, so that a checkpoint's can take its place."""
        return self.x, self.scaling if self.x.is_floating_point() else bytes_to_unit

    def state_dict(self) -> dict[str, Any]:
        """Names, and the scaling that training fitted."""
        return {**super().state_dict(), "center": self.scaling.center, "spread": self.scaling.spread}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Check the names, and scale as training did."""
        super().load_state_dict(state_dict)
        self.scaling.center, self.scaling.spread = state_dict["center"], state_dict["spread"]

    def _inputs(self, inputs: str | list[str] | None) -> Tensor:
        if self.file.suffix == ".npz":
            name = inputs if isinstance(inputs, str) else "x"
            return _numeric(self.column(name, "inputs"), name, self.file)
        named = {*self.attribute_names, self.mode, self.group, self.split}
        columns = [inputs] if isinstance(inputs, str) else inputs
        if columns is None:
            columns = [c for c, v in self.table.items() if c not in named and v.dtype.kind in "biuf"]
        if not columns:
            raise DataError(f"{self.file} has no numeric column left for the inputs; name them in data.inputs.")
        values = [_numeric(self.column(c, "inputs"), c, self.file).float() for c in columns]
        return torch.stack(values, dim=1)


class OwnImages(OwnData):
    """A folder of images with a table of their labels.

    Args:
        file: The table, relative to `root`; by default `metadata.csv`.
        path: Column with the image files, relative to the table.
        image_size: Height and width of the inputs; images are resized to it.
        in_memory: Read all images once; false reads them with every batch (raise `num_workers` then).
    """

    def __init__(
        self,
        attributes: list[str],
        file: str = "metadata.csv",
        path: str = "path",
        image_size: int = 64,
        in_memory: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(file=file, attributes=attributes, **kwargs)
        self.in_memory = in_memory
        self.input_shape = (3, image_size, image_size)
        self.pictures = Pictures([self.file.parent / str(p) for p in self.column(path, "path")], image_size)

    def samples(self) -> tuple[Tensor, Callable[[Tensor], Tensor] | None]:
        """Bytes of all images, or their numbers."""
        numbers = torch.arange(len(self.pictures.paths))
        if self.in_memory:
            return self.pictures.read(numbers), bytes_to_unit
        return numbers, self.pictures


class Pictures:
    """Image files, read by number."""

    def __init__(self, paths: Sequence[Path], size: int) -> None:
        missing = [path for path in paths if not path.is_file()]
        if missing:
            raise DataError(f"{len(missing)} image files are missing, the first is {missing[0]}.")
        self.paths, self.size = paths, size

    def __call__(self, numbers: Tensor) -> Tensor:
        """Inputs (B, 3, size, size)."""
        return bytes_to_unit(self.read(numbers))

    def read(self, numbers: Tensor) -> Tensor:
        """The images as bytes."""
        return read_images([self.paths[i] for i in numbers.tolist()], (self.size, self.size))


def read_table(file: Path) -> Table:
    """Columns of a table, or arrays of an archive, by name."""
    try:
        if file.suffix == ".npz":
            with np.load(file, allow_pickle=False) as stored:
                return {name: stored[name] for name in stored.files}
        if file.suffix == ".parquet":
            frame = pd.read_parquet(file)
        elif file.suffix in (".csv", ".tsv"):
            frame = pd.read_csv(file, sep="," if file.suffix == ".csv" else "\t")
        else:
            raise DataError(f"data.file is {file}; it should end in .npz, .csv, .tsv or .parquet.")
    except FileNotFoundError as error:
        raise DataError(f"There is no file {file}; set data.root and data.file.") from error
    except ImportError as error:
        raise DataError("Parquet files need `pip install codid-lightning[parquet]`.") from error
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        if isinstance(error, DataError):
            raise
        hint = " Save arrays of text as dtype str, not object." if "allow_pickle" in str(error) else ""
        raise DataError(f"Cannot read {file} ({error}).{hint}") from error
    return {str(name): frame[name].to_numpy() for name in frame.columns}


def number(values: Array, name: str, known: Sequence[str] | None = None) -> tuple[tuple[str, ...], Tensor]:
    """Names of the distinct labels in sorted order (or as given), and each row's number among them."""
    column = pd.Series(values.ravel() if values.ndim == 1 else list(values))
    if values.ndim != 1 or column.isna().any():
        bad = np.flatnonzero(column.isna())[:5].tolist() if values.ndim == 1 else []
        raise DataError(f"The labels `{name}` must be one value per row; shape {values.shape}, rows {bad} are empty.")
    found = sorted(column.unique().tolist(), key=lambda v: (isinstance(v, str), v))
    names = tuple(map(_text, found)) if known is None else tuple(known)
    if strange := [label for label in map(_text, found) if label not in names]:
        raise DataError(f"The labels `{name}` hold {', '.join(strange[:5])}; known are {', '.join(names)}.")
    position = {label: names.index(_text(label)) for label in found}
    return names, torch.tensor([position[label] for label in column.tolist()])


def _text(label: object) -> str:
    """A label's name; numbers that are whole lose their fraction, which tables with gaps add."""
    return str(int(label)) if isinstance(label, float) and label.is_integer() else str(label)


def _numeric(values: Array, name: str, file: Path) -> Tensor:
    if values.dtype.kind not in "biuf":
        raise DataError(f"The inputs `{name}` of {file} are of type {values.dtype}, not numbers.")
    tensor = torch.from_numpy(np.ascontiguousarray(values))
    return tensor if values.dtype == np.uint8 else tensor.float()
