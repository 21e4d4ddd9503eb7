"""Arrays in memory as a data module, for programs that have their data already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from torch import Tensor

from datamodules.base import AttributeDataModule, AttributeDataset, DataError, split_indices, stack_columns
from datamodules.images import bytes_to_unit
from datamodules.scaling import Scaling, ScalingKind
from datamodules.tables import Array, label_names, label_texts, number, number_modes, numeric

_ORIGIN = Path("the arrays")  # where messages say that data come from


class ArrayDataModule(AttributeDataModule):
    """Arrays with labels of two or more attributes. `from_arrays` makes one.

    Args:
        splits: Inputs (N, ...), labels (N, Q) and modes (N, Q) of `train`, `val` and each test set.
        attribute_names: Name of each attribute; the first is the one to disentangle.
        value_names: Names of the values of each attribute, in the order of their numbers.
        mode_sizes: Number of true modes under each value of the first attribute, where known.
        mode_names: Names of the true modes of the first attribute, where known.
        scaling: How to scale each channel, see `Scaling`; statistics are those of the training samples.
        kwargs: Arguments of `AttributeDataModule`.
    """

    def __init__(
        self,
        splits: Mapping[str, tuple[Tensor, Tensor, Tensor]],
        attribute_names: Sequence[str],
        value_names: Sequence[Sequence[str]],
        mode_sizes: tuple[int, ...] | None = None,
        mode_names: Sequence[str] = (),
        scaling: ScalingKind | Literal["none"] = "standard",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.splits = dict(splits)
        self.attribute_names, self.mode_names = tuple(attribute_names), tuple(mode_names)
        self.value_names = tuple(tuple(names) for names in value_names)
        self.mode_sizes = (mode_sizes, *(None for _ in attribute_names[1:]))
        self.test_names = tuple(name for name in splits if name not in ("train", "val"))
        x, a, _ = self.splits["train"]
        tested = torch.cat([self.splits[name][1] for name in self.test_names or ("val",)])
        self.test_attributes = tuple(q for q in range(a.shape[1]) if bool(torch.isin(tested[:, q], a[:, q]).all()))
        self.scaling = Scaling(tuple(x.shape[1:]), scaling if x.is_floating_point() else "none").fit(x)
        self.input_shape = self.scaling.shape

    @classmethod
    def from_arrays(
        cls,
        x: Any,
        *,
        target: Any,
        other: Any,
        modes: Any = None,
        test: Mapping[str, tuple[Any, Any, Any]] | None = None,
        val_fraction: float = 0.1,
        **kwargs: Any,
    ) -> Self:
        """Make a data module from arrays or tensors.

        Args:
            x: Training inputs (N, ...); bytes become numbers in [0, 1].
            target: Labels (N,) of the attribute to disentangle, strings or whole numbers.
            other: Labels (N,) of the other attribute, or a list of such for several other attributes.
            modes: True modes (N,) of the target, where known; they serve evaluation only.
            test: Test sets by name, each with its inputs, target and other; a metric is then called `name/acc`.
            val_fraction: Share of the training samples for validation.
            kwargs: `attribute_names`, `scaling`, and arguments of `AttributeDataModule` such as `batch_size`, `seed`.
        """
        given = {"train": (x, target, other), **(test or {})}
        if not 0 < val_fraction < 1 or "val" in given:
            raise DataError(f"val_fraction is {val_fraction}; it must lie between 0 and 1, and no test set be `val`.")
        names = list(kwargs.pop("attribute_names", ("target", *_names_of_others(other))))
        columns = {split: _columns(split, part, names) for split, part in given.items()}
        values = [_value_names(names[q], [of_split[q] for of_split in columns.values()]) for q in range(len(names))]
        splits = {split: _split(split, given[split][0], columns[split], names, values) for split in given}
        x, a, mode = splits.pop("train")
        sizes: tuple[int, ...] | None = None
        mode_names: tuple[str, ...] = ()
        if modes is not None:
            _check_lengths("modes", len(_array(modes)), len(a))
            known, index = number(_array(modes), "modes", _ORIGIN)
            mode[:, 0], sizes, named = number_modes(a[:, 0], index, len(values[0]))
            mode_names = tuple(known[m] for m in named)
        rows = split_indices(len(a), val_fraction, kwargs.get("seed", 0))
        divided = {split: (x[r], a[r], mode[r]) for split, r in zip(("train", "val"), rows, strict=True)}
        return cls({**divided, **splits}, names, values, sizes, mode_names, **kwargs)

    @property
    def origin(self) -> str:
        """What the data are called in messages."""
        return str(_ORIGIN)

    def build(self) -> dict[str, AttributeDataset]:
        """The splits."""
        return {
            name: AttributeDataset(x, a, mode, self.scaling if x.is_floating_point() else bytes_to_unit)
            for name, (x, a, mode) in self.splits.items()
        }

    def state_dict(self) -> dict[str, Any]:
        """Names of labels, and the scaling fitted in training."""
        return {**super().state_dict(), **self.scaling.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Check the names, and scale as in training."""
        super().load_state_dict(state_dict)
        self.scaling.load_state_dict(state_dict)


def _array(values: Any) -> Array:
    array: Array = values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)
    return array


def _others(other: Any) -> list[Any]:
    """Labels of the other attributes, one entry each."""
    several = isinstance(other, list | tuple) and len(other) > 0 and np.ndim(other[0]) > 0
    return list(other) if several else [other]


def _names_of_others(other: Any) -> list[str]:
    count = len(_others(other))
    return ["other"] if count == 1 else [f"other{q + 1}" for q in range(count)]


def _columns(split: str, part: tuple[Any, Any, Any], names: Sequence[str]) -> list[Array]:
    """Labels of one split, an array per attribute."""
    columns = [_array(column) for column in (part[1], *_others(part[2]))]
    if len(columns) != len(names):
        raise DataError(f"`{split}` has labels of {len(columns)} attributes, expected {', '.join(names)}.")
    return columns


def _value_names(attribute: str, columns: Sequence[Array]) -> tuple[str, ...]:
    """Names of an attribute's values in all splits."""
    names = label_names(text for column in columns for text in label_texts(column, attribute, _ORIGIN))
    if len(names) < 2:
        raise DataError(f"All labels `{attribute}` are the same ({', '.join(names)}); at least two values are needed.")
    return names


def _split(
    split: str, inputs: Any, columns: Sequence[Array], names: Sequence[str], values: Sequence[Sequence[str]]
) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, labels and unknown modes of one split."""
    x = numeric(_array(inputs), split, _ORIGIN)
    if x.dim() < 2:
        raise DataError(f"The inputs of `{split}` have shape {tuple(x.shape)}; expected (samples, ...).")
    for name, column in zip(names, columns, strict=True):
        _check_lengths(f"{split} {name}", len(column), len(x))
    a = stack_columns([number(c, names[q], _ORIGIN, values[q])[1] for q, c in enumerate(columns)])
    return x, a, torch.full_like(a, -1)


def _check_lengths(what: str, labels: int, samples: int) -> None:
    if labels != samples:
        raise DataError(f"There are {labels} labels `{what}`, but {samples} inputs.")
