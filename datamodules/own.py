"""Data of your own: arrays, tables and image folders, described by arguments instead of code."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from datamodules.base import Batch, DataError, seeded_generator
from datamodules.images import bytes_to_unit, crop_and_flip, read_images
from datamodules.labelled import OwnData
from datamodules.scaling import Scaling, ScalingKind
from datamodules.tables import numeric


class OwnArrays(OwnData):
    """An `.npz` of arrays, or a `.csv` or `.parquet` table.

    Args:
        inputs: The array of an `.npz` that holds the inputs, (N, ...), by default `x`; or the columns of a table, by
            default all numeric ones that are not named otherwise; or a column with the names of `.npy` files, one
            array per row. Bytes become numbers in [0, 1].
        scaling: Of every channel (second dimension), with statistics of the training rows, which a checkpoint keeps:
            `standard` to zero mean and unit variance, `minmax` to [-1, 1], `log`, and `window` for series; see
            `Scaling`.
    """

    def __init__(
        self,
        inputs: str | list[str] | None = None,
        scaling: ScalingKind | Literal["none"] = "standard",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.inputs = self._input_names(inputs)
        self.x = self._inputs()
        self.scaling = Scaling(tuple(self.x.shape[1:]), scaling if self.x.is_floating_point() else "none")
        self.input_shape = self.scaling.shape
        if "train" in self.rows:
            self._fit_scaling(self.x[self.rows["train"]])

    def _fit_scaling(self, x: Tensor) -> None:
        try:
            self.scaling.fit(x)
        except DataError as error:
            raise DataError(f"{self.file}: {error}") from error

    def samples(self) -> tuple[Tensor, Callable[[Tensor], Tensor] | None]:
        """The arrays as read; scaling comes with the batch, so that a checkpoint's can take its place."""
        return self.x, self.scaling if self.x.is_floating_point() else bytes_to_unit

    def state_dict(self) -> dict[str, Any]:
        """Names, and the scaling that training fitted."""
        state = super().state_dict()
        state["arguments"]["inputs"] = self.inputs
        return {**state, **self.scaling.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Check the names, and scale as training did."""
        super().load_state_dict(state_dict)
        self.scaling.load_state_dict(state_dict)

    def place_of_bad_values(self, x: Tensor) -> str:
        """The columns of a table, or the array."""
        if self.file.suffix == ".npz" or x.shape[1:] != (len(self.inputs),):
            return f" in the array `{self.inputs[0]}`"
        bad = (~torch.isfinite(x)).any(0).tolist()
        return f" in {', '.join(f'`{name}`' for name, is_bad in zip(self.inputs, bad, strict=True) if is_bad)}"

    def _input_names(self, inputs: str | list[str] | None) -> list[str]:
        if self.file.suffix == ".npz":
            inputs = inputs or "x"
        if inputs:
            return [inputs] if isinstance(inputs, str) else inputs
        named = {*self.attribute_names, self.mode, self.group, self.split, self.partition}
        free = [name for name in self.table if name not in named]
        # pandas calls a column without a header `Unnamed`: the row numbers it wrote itself
        columns = [c for c in free if self.table[c].dtype.kind in "biuf" and not c.startswith("Unnamed:")]
        if not columns:
            raise DataError(f"{self.file} has no numeric column left for the inputs; name them in data.inputs.")
        if unused := [c for c in free if c not in columns]:
            warnings.warn(f"{self.file}: {', '.join(unused)} are not used as inputs (data.inputs).", stacklevel=2)
        return columns

    def _inputs(self) -> Tensor:
        columns = [self.column(name, "inputs") for name in self.inputs]
        named = len(columns) == 1 and columns[0].dtype.kind not in "biufc" and len(columns[0]) > 0
        if named and all(str(entry).endswith(".npy") for entry in columns[0]):
            return read_arrays([self.file.parent / str(entry) for entry in columns[0]])
        values = [numeric(column, name, self.file) for column, name in zip(columns, self.inputs, strict=True)]
        if self.file.suffix != ".npz":
            return torch.stack([v.float() for v in values], dim=1)
        shape = tuple(values[0].shape)
        if len(values) > 1 or len(shape) < 2:
            raise DataError(
                f"data.inputs is {self.inputs}; name one array of shape (samples, ...) of {self.file}"
                + (f", not {shape}." if len(values) == 1 else ".")
            )
        if len(shape) == 4 and shape[3] in (1, 3, 4) and shape[1] not in (1, 3, 4):
            raise DataError(
                f"The inputs `{self.inputs[0]}` of {self.file} have shape {shape}; expected (samples, channels, "
                "height, width): move the last axis to the second place."
            )
        return values[0]


def read_arrays(paths: Sequence[Path]) -> Tensor:
    """Arrays of one shape from `.npy` files, (N, ...), as floats."""
    arrays = []
    for path in paths:
        try:
            arrays.append(torch.from_numpy(np.load(path, allow_pickle=False)).float())
        except (OSError, ValueError, TypeError) as error:
            raise DataError(f"Cannot read the array {path} ({error}); replace or remove it.") from error
        if arrays[-1].shape != arrays[0].shape:
            raise DataError(f"{path} has shape {tuple(arrays[-1].shape)}, {paths[0]} {tuple(arrays[0].shape)}.")
    return torch.stack(arrays)


class OwnImages(OwnData):
    """A folder of images with a table of their labels.

    Args:
        file: The table, relative to `root`; by default `metadata.csv`.
        path: Column with the image files, relative to the table.
        image_size: Height and width of the inputs; images are resized to it.
        in_memory: Read all images once; false reads them with every batch (raise `num_workers` then).
        augment: `crop_flip` trains on random parts of the images, mirrored in half of the cases; null on whole images.
    """

    def __init__(
        self,
        attributes: list[str],
        file: str = "metadata.csv",
        path: str = "path",
        image_size: int = 64,
        in_memory: bool = True,
        augment: Literal["crop_flip"] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(file=file, attributes=attributes, **kwargs)
        self.in_memory, self.augment = in_memory, augment
        self.input_shape = (3, image_size, image_size)
        self.pictures = Pictures([self.file.parent / str(p) for p in self.column(path, "path")], image_size)

    def samples(self) -> tuple[Tensor, Callable[[Tensor], Tensor] | None]:
        """Bytes of all images, or their numbers."""
        numbers = torch.arange(len(self.pictures.paths))
        if self.in_memory:
            return self.pictures.read(numbers), bytes_to_unit
        return numbers, self.pictures

    def on_after_batch_transfer(self, batch: Batch, dataloader_idx: int) -> Batch:
        """Change the images of a training batch, as a function of seed, epoch and sample alone."""
        if self.augment is None or self.trainer is None or not self.trainer.training:
            return batch
        generator = seeded_generator(self.seed, self.trainer.current_epoch, int(batch["index"][0]))
        return Batch(x=crop_and_flip(batch["x"], generator), a=batch["a"], mode=batch["mode"], index=batch["index"])


class Pictures:
    """Image files, read by index."""

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
