"""Rows of a table with labels in columns, and the protocols that split them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from datamodules.base import AttributeDataModule, AttributeDataset, DataError, split_indices, stack_columns
from datamodules.tables import Array, label_text, label_texts, number, number_modes, positions, read_table

Numbered = tuple[tuple[str, ...], Tensor]  # names of the labels, and the number of each row's label among them
NUMBERED_SPLITS = {"0": "train", "1": "val", "2": "test"}  # as in the metadata of WILDS
Protocol = Literal["random", "split_column", "leave_one_group_out", "predict"]


class OwnData(AttributeDataModule):
    """Labels by column name, and a protocol that splits the rows.

    Labels may be text or numbers. They are numbered in sorted order, and a checkpoint contains their names: `codid
    predict` writes these names, and uses them to read new rows, which may have only some of the labels or none.

    Args:
        file: Table with a row per sample, relative to `root`.
        attributes: Columns of the attributes; the first is the one to disentangle.
        protocol: `random` splits the rows by `val_fraction` and `test_fraction`. `split_column` reads `split`: train,
            optionally val, and names starting with test, each a test set; or 0, 1 and 2 for train, val and test.
            `leave_one_group_out` tests the group `test_group` of the column `group`. `predict` takes all rows as the
            test set, labelled or not.
        mode: Column with the true modes of the first attribute, if known; only the evaluation uses them.
        group: Column for `leave_one_group_out`.
        split: Column for `split_column`.
        folds: Divide the group column's values into this many groups; null makes each value a group.
        test_group: The group to test under `leave_one_group_out`, counted from 0.
        val_fraction: Share of the training rows held out for validation.
        test_fraction: Share of all rows tested under `random`.
        labels: Values of each attribute in the order of their numbers; null reads them from the checkpoint if one is
            given, else from the file.
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
        test_group: int | None = None,
        val_fraction: float = 0.1,
        test_fraction: float = 0.2,
        labels: dict[str, list[Any]] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if len(attributes) < 2 or len(set(attributes)) < len(attributes):
            raise DataError(f"data.attributes is {attributes}; name at least two different columns.")
        for name, share in (("val_fraction", val_fraction), ("test_fraction", test_fraction)):
            if not 0 < share < 1:
                raise DataError(f"data.{name} is {share}; it must lie between 0 and 1.")
        self.file = Path(self.root) / file
        self.attribute_names = tuple(attributes)
        self.protocol, self.mode, self.group, self.split = protocol, mode, group, split
        self.folds, self.test_group = folds, test_group
        self.val_fraction, self.test_fraction = val_fraction, test_fraction
        self.table = read_table(self.file)
        self.measure = next((name for name in attributes if name in self.table), next(iter(self.table)))
        self._number_labels(labels or {})
        self._number_modes()
        self.rows = self._divide()
        self.test_names = tuple(name for name in self.rows if name not in ("train", "val"))
        self.test_attributes = self._known_at_test()

    @property
    def origin(self) -> str:
        """The user's file."""
        return str(self.file)

    @abstractmethod
    def samples(self) -> tuple[Tensor, Callable[[Tensor], Tensor] | None]:
        """Inputs of all rows, and the function that converts a batch of them to model inputs."""

    def build(self) -> dict[str, AttributeDataset]:
        """The splits of the protocol."""
        x, transform = self.samples()
        return {
            name: AttributeDataset(x[rows], self.a[rows], self.modes[rows], transform, rows)
            for name, rows in self.rows.items()
        }

    def test_dataloader(self) -> Any:
        """One loader per test name; needs labels."""
        if 0 not in self.test_attributes:
            raise DataError(
                f"{self.file} does not label every row with a known {self.attribute_names[0]}, so nothing can be "
                "tested; use `codid predict`."
            )
        return super().test_dataloader()

    def predict_dataloader(self) -> Any:
        """The test sets, labelled or not."""
        return super().test_dataloader()

    def state_dict(self) -> dict[str, Any]:
        """Names, also as arguments to read new files in the same way."""
        labels = dict(zip(self.attribute_names, map(list, self.value_names), strict=True))
        return {**super().state_dict(), "arguments": {"labels": labels}}

    def reference_cells(self) -> Tensor | None:
        """The cell (N,) of every validation sample, from a column of the user's file or from another file."""
        rows = self.datasets["val"].rows if "val" in self.datasets else None
        if self.partition not in self.table or rows is None:
            return super().reference_cells()
        return self._numbers(self.partition, "partition")[1][rows]

    def column(self, name: str | None, argument: str) -> Array:
        """The column of the file that an argument names."""
        if name is None or name not in self.table:
            raise DataError(f"data.{argument} is {name}; {self.file} has {', '.join(sorted(self.table))}.")
        values, measure = self.table[name], self.table[self.measure]
        if values.shape[:1] != measure.shape[:1]:
            raise DataError(
                f"{self.file} has different numbers of rows: `{name}` has shape {values.shape}, `{self.measure}` "
                f"{measure.shape}."
            )
        return values

    def _numbers(self, name: str | None, argument: str, known: tuple[str, ...] | None = None) -> Numbered:
        return number(self.column(name, argument), str(name), self.file, known, f"data.{argument}")

    def _number_labels(self, labels: dict[str, list[Any]]) -> None:
        if strange := [name for name in labels if name not in self.attribute_names]:
            raise DataError(f"data.labels names {', '.join(strange)}; data.attributes are {self.attribute_names}.")
        known = {name: tuple(map(label_text, values)) for name, values in labels.items()}
        if repeated := [name for name, values in known.items() if len(set(values)) < len(values)]:
            raise DataError(f"data.labels names a value of {', '.join(repeated)} twice.")
        numbered = [self._labels_of(name, known.get(name)) for name in self.attribute_names]
        self.value_names = tuple(names for names, _ in numbered)
        for name, values in zip(self.attribute_names, self.value_names, strict=True):
            if len(values) < 2:
                raise DataError(
                    f"The column `{name}` of {self.file} has the single value {''.join(values)}; an attribute "
                    "needs at least two. Name another column in data.attributes."
                )
        self.a = stack_columns([index for _, index in numbered])

    def _labels_of(self, name: str, known: tuple[str, ...] | None) -> Numbered:
        """Labels of an attribute; for rows to predict, -1 if a label is missing or was not in training."""
        if self.protocol == "predict" and known is None and name not in self.table:
            raise DataError(
                f"{self.file} has no column {name}; give the checkpoint to predict with (--ckpt_path), which has its "
                "values, or list them in data.labels."
            )
        if self.protocol != "predict" or known is None:
            return self._numbers(name, "attributes", known)
        if name not in self.table:
            return known, torch.full((len(self.table[self.measure]),), -1)
        return known, positions(label_texts(self.column(name, "attributes"), name, self.file), known)

    def _number_modes(self) -> None:
        """Number the modes over all values of the first attribute; one name under two values is two modes."""
        self.modes = torch.full_like(self.a, -1)
        self.mode_sizes: tuple[tuple[int, ...] | None, ...] = (None,) * len(self.attribute_names)
        if self.mode is None or self.protocol == "predict":
            return
        names, index = self._numbers(self.mode, "mode")
        self.modes[:, 0], sizes, named = number_modes(self.a[:, 0], index, self.attribute_sizes[0])
        self.mode_sizes = (sizes, *self.mode_sizes[1:])
        self.mode_names = tuple(names[m] for m in named)

    def _divide(self) -> dict[str, Tensor]:
        everything = torch.arange(len(self.a))
        if self.protocol == "predict":
            return {"test": everything}
        if self.protocol == "split_column":
            return self._by_column()
        if self.protocol == "leave_one_group_out":
            groups = self._groups()
            rest, test = everything[groups != self.test_group], everything[groups == self.test_group]
            return {**self._with_validation(rest), "test": test}
        rest, test = split_indices(len(self.a), self.test_fraction, self.seed)
        return {**self._with_validation(rest), "test": test}

    def _with_validation(self, rows: Tensor) -> dict[str, Tensor]:
        train, val = split_indices(len(rows), self.val_fraction, self.seed)
        return {"train": rows[train], "val": rows[val]}

    def _by_column(self) -> dict[str, Tensor]:
        names, index = self._numbers(self.split, "split")
        if set(names) <= set(NUMBERED_SPLITS):
            names = tuple(NUMBERED_SPLITS[name] for name in names)
        strange = [name for name in names if name not in ("train", "val") and not name.startswith("test")]
        tests = [name for name in names if name.startswith("test")]
        if strange or "train" not in names or not tests:
            raise DataError(
                f"The column {self.split} of {self.file} holds {', '.join(names)}; expected train, optionally val, and "
                "one or more names starting with test; or 0, 1 and 2."
            )
        rows = {name: (index == i).nonzero().flatten() for i, name in enumerate(names)}
        first = {"train": rows["train"], "val": rows["val"]} if "val" in rows else self._with_validation(rows["train"])
        return {**first, **{name: rows[name] for name in tests}}

    def _groups(self) -> Tensor:
        names, index = self._numbers(self.group, "group")
        folds = len(names) if self.folds is None else self.folds
        if not 2 <= folds <= len(names):
            raise DataError(
                f"The column {self.group} of {self.file} has {len(names)} values, which cannot make {folds} groups; "
                "at least 2 groups and one value in each are needed (data.folds)."
            )
        if self.test_group is None or not 0 <= self.test_group < folds:
            raise DataError(f"data.test_group is {self.test_group}; there are groups 0 to {folds - 1}.")
        return index * folds // len(names)

    def _known_at_test(self) -> tuple[int, ...]:
        test = self.a[torch.cat([self.rows[name] for name in self.test_names])]
        if self.protocol == "predict":
            return tuple(q for q in range(test.shape[1]) if bool((test[:, q] >= 0).all()))
        train = self.a[self.rows["train"]]
        return tuple(q for q in range(test.shape[1]) if bool(torch.isin(test[:, q], train[:, q]).all()))
