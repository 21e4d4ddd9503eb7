"""MFD: bearings of Paderborn University under four operating conditions."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from datamodules.base import DataError
from datamodules.grouped import Array, GroupedDataModule, Windows, collect, cut, read_mat

_NAME = re.compile(r"(N\d\d_M\d\d_F\d\d)_(K[A-Z0-9]\d\d)_(\d+)\.mat")
_FAULTS = {"K0": 0, "KI": 1, "KA": 2}  # healthy, inner, outer ring; KB bearings have both and are left out
_UNREADABLE = {"N15_M01_F10_KA08_2.mat"}  # damaged in the public archive itself


class MFD(GroupedDataModule):
    """Vibration of a bearing's housing: the fault type, one operating condition left out.

    Reads the public `<condition>_<bearing>_<number>.mat` files in any folder below `root`/MFD. If there are
    `train_<condition>.pt` and `test_<condition>.pt` of AdaTime's preprocessing, it reads these instead. Their
    conditions (0 to 3, or a to d) are in the order of `value_names`, their labels are healthy, inner, outer. They do
    not say which windows are of one recording, so each counts as one: if they overlap, validation does share samples
    with training.

    Args:
        recordings: Recordings read per bearing and condition, of 20; null for all. The paper does not state it; 2
            of all 29 bearings give almost its 10,916 windows.
        stride: Steps between windows of a recording.
    """

    title = "MFD"
    input_shape = (1, 5120)
    attribute_names = ("fault", "condition")
    value_names = (
        ("healthy", "inner-bearing damage", "outer-bearing damage"),
        ("N09_M07_F10", "N15_M01_F10", "N15_M07_F04", "N15_M07_F10"),
    )
    groups = 4
    folder = "MFD"
    placement = (
        "the .mat files of the Paderborn bearing archives (K001.rar, KA01.rar, ..., unpacked by you), or "
        "train_*.pt and test_*.pt as AdaTime prepares them,"
    )

    def __init__(self, recordings: int | None = 2, stride: int = 5120, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if stride < 1 or (recordings is not None and recordings < 1):
            raise DataError(f"data.stride ({stride}) and data.recordings ({recordings}) must be at least 1.")
        self.recordings, self.stride = recordings, stride

    def locate(self) -> list[Path]:
        """The prepared files if there are any, else the recordings."""
        files = sorted(self.path.glob("**/train_?.pt")) + sorted(self.path.glob("**/test_?.pt"))
        files = files or sorted(path for path in self.path.glob("**/*.mat") if self._labels(path) is not None)
        if not files:
            raise self.missing()
        return files

    def cache_key(self) -> tuple[object, ...] | None:
        """The recordings; prepared files need no cache."""
        files = self.locate()
        if files[0].suffix == ".pt":
            return None
        return "mfd", self.stride, [(path.name, path.stat().st_size) for path in files]

    def load(self) -> Windows:
        """All windows."""
        files = self.locate()
        if files[0].suffix == ".pt":
            prepared = Windows(*map(torch.cat, zip(*map(self._prepared, files), strict=True)))
            return prepared._replace(recording=torch.arange(len(prepared.x)))
        parts = []
        for path in files:
            fault, condition = self._labels(path) or (-1, -1)
            parts.append((*cut(_vibration(path)[:, None], self.input_shape[1], self.stride), fault, condition))
        return collect(parts, self.path)

    def _labels(self, path: Path) -> tuple[int, int] | None:
        """Fault and condition from the name of a recording; None for recordings that are not used."""
        match = _NAME.fullmatch(path.name)
        if match is None or path.name in _UNREADABLE or match[2][:2] not in _FAULTS:
            return None
        if self.recordings is not None and int(match[3]) > self.recordings:
            return None
        if match[1] not in self.value_names[1]:
            raise DataError(f"{path} has condition {match[1]}, expected one of {self.value_names[1]}; remove the file.")
        return _FAULTS[match[2][:2]], self.value_names[1].index(match[1])

    def _prepared(self, path: Path) -> Windows:
        stored = _load_tensors(path)
        condition = path.stem[-1]
        number = "0123".find(condition) if condition.isdigit() else "abcd".find(condition)
        length = self.input_shape[1]
        x, labels = (torch.as_tensor(stored[key]) for key in ("samples", "labels"))
        if number < 0 or x[0].numel() != length or len(x) != len(labels):
            raise DataError(
                f"{path} holds {tuple(x.shape)} samples and {len(labels)} labels of condition {condition!r}; expected "
                f"windows of {length} and a condition 0 to 3 or a to d."
            )
        unknown = torch.zeros(len(x), dtype=torch.long)  # the files do not say which windows are of one recording
        return Windows(
            x.reshape(-1, 1, length).float(), labels.long(), torch.full_like(unknown, number), unknown, unknown
        )


def _vibration(path: Path) -> Array:
    """The channel `vibration_1` of a recording, sampled at 64 kHz."""
    for channel in read_mat(path, path.stem)["Y"]:
        if channel["Name"] == "vibration_1":
            return np.asarray(channel["Data"], np.float32)
    raise DataError(f"{path} has no channel `vibration_1`; unpack the archive again.")


def _load_tensors(path: Path) -> dict[str, Tensor | Array]:
    """A dictionary of tensors or arrays; other types are not unpickled."""
    reconstruct: Any = np.empty(0).__reduce__()[0]  # the function by which pickle makes an array
    plain: list[Any] = [np.ndarray, np.dtype, reconstruct, *(type(np.dtype(t)) for t in ("f4", "f8", "i4", "i8", "u1"))]
    plain.append((reconstruct, "numpy.core.multiarray._reconstruct"))  # its name before numpy 2
    try:
        with torch.serialization.safe_globals(plain):
            stored: dict[str, Tensor | Array] = torch.load(path, weights_only=True)
        stored["samples"], stored["labels"]
    except Exception as error:
        raise DataError(f"{path} is no file of `samples` and `labels` ({error}); prepare it again.") from error
    return stored
