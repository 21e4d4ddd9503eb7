"""RealWorld: eight activities of fifteen people, seven sensors each, of which the chest's is used."""

from __future__ import annotations

import io
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd

from datamodules.base import DataError
from datamodules.download import RemoteFile
from datamodules.grouped import Array, GroupedDataModule, Windows, collect, cut, resample

_RATE = 50.0
_STRIDE = 75  # half a window; the paper gives no overlap, its 36,980 windows are near what this yields
_COLUMNS = ["attr_time", "attr_x", "attr_y", "attr_z"]


class RealWorld(GroupedDataModule):
    """Three-axis acceleration at the chest: the activity, in groups of users.

    Reads `proband<n>/data/acc_<activity>_csv.zip` from the unpacked public archive. Some of these zip files contain one
    recording, others contain several zip files of recordings.
    """

    title = "RealWorld"
    input_shape = (3, 150)
    attribute_names = ("activity", "user")
    value_names = (
        (
            "climbing stairs up",
            "climbing stairs down",
            "jumping",
            "lying",
            "standing",
            "sitting",
            "running",
            "walking",
        ),
        tuple(str(user) for user in range(1, 16)),
    )
    file_names = ("climbingup", "climbingdown", "jumping", "lying", "standing", "sitting", "running", "walking")
    groups = 5
    folder = "RealWorld"
    placement = "the folders proband1 to proband15 of realworld2016_dataset.zip"
    remote = (
        RemoteFile(  # no checksum is published
            "realworld2016_dataset.zip",
            ("http://wifo5-14.informatik.uni-mannheim.de/sensor/dataset/realworld2016/realworld2016_dataset.zip",),
        ),
    )

    def locate(self) -> dict[int, Path]:
        """The data folder of every user."""
        found = {path.parent.name: path for path in self.path.glob("**/proband*/data")}
        users = range(1, self.attribute_sizes[1] + 1)
        if not all(f"proband{user}" in found for user in users):  # also where unpacking was interrupted
            raise self.missing()
        return {user: found[f"proband{user}"] for user in users}

    def load(self) -> Windows:
        """All windows; warns if an activity of a user is missing."""
        parts = []
        for user, folder in self.locate().items():
            for activity, name in enumerate(self.file_names):
                file = folder / f"acc_{name}_csv.zip"
                if not file.is_file():
                    warnings.warn(f"{file} is missing; user {user} trains and tests without it.", stacklevel=2)
                    continue
                for recording in _recordings(file):
                    for _, series in resample(recording[:, 0] / 1000, recording[:, 1:], _RATE):  # time is in ms
                        parts.append((*cut(series, self.input_shape[1], _STRIDE), activity, user - 1))
        return collect(parts, self.path)


def _recordings(file: Path) -> Iterator[Array]:
    try:
        with zipfile.ZipFile(file) as packed:
            yield from _chest(packed)
    except Exception as error:  # parsers raise many types of errors for damaged files
        raise DataError(f"Cannot read {file} ({error}); unpack the public archive again.") from error


def _chest(packed: zipfile.ZipFile) -> Iterator[Array]:
    """Time and acceleration (T, 4) of every recording at the chest, also inside of nested zips."""
    for name in sorted(packed.namelist()):
        if name.endswith(".zip"):
            with zipfile.ZipFile(io.BytesIO(packed.read(name))) as nested:
                yield from _chest(nested)
        elif name.lower().endswith("_chest.csv"):
            with packed.open(name) as file:
                yield pd.read_csv(file, usecols=_COLUMNS)[_COLUMNS].to_numpy(np.float64)
