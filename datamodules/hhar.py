"""HHAR: six activities of nine people with eight smartphones at the waist."""

from __future__ import annotations

import zipfile
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from datamodules.base import DataError
from datamodules.download import RemoteFile
from datamodules.grouped import Array, Folder, GroupedDataModule, Windows, archive, collect, cut, resample

_RATE = 50.0  # of the slowest phone; the others record at 100, 150 and 200 Hz
_STRIDE = 64
_FILE = "Phones_accelerometer.csv"
_TYPES = {
    "Creation_Time": np.int64,
    "x": np.float32,
    "y": np.float32,
    "z": np.float32,
    "User": str,
    "Model": str,
    "Device": str,
    "gt": str,
}


class HHAR(GroupedDataModule):
    """Three-axis acceleration of phones around the waist: the activity, in groups of users.

    Reads `Phones_accelerometer.csv` (1.3 GB) once, in parts, and writes a cache of the windows to the same folder.

    Args:
        models: Phone models to use, of nexus4, s3, s3mini and samsungold; null for all. The paper does not
            name them; both phones of one model give almost its 14,772 windows.
    """

    title = "HHAR"
    input_shape = (3, 128)
    attribute_names = ("activity", "user")
    value_names = (
        ("biking", "sitting", "standing", "walking", "stair up", "stair down"),
        tuple("abcdefghi"),
    )
    file_names = ("bike", "sit", "stand", "walk", "stairsup", "stairsdown")
    groups = 3
    folder = "HHAR"
    placement = f"`Activity recognition exp` with {_FILE}, as a folder or as the public zip,"
    remote = (
        RemoteFile(  # no checksum is published
            "download.zip",
            ("https://archive.ics.uci.edu/static/public/344/heterogeneity+activity+recognition.zip",),
        ),
    )

    def __init__(self, models: list[str] | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.models = models

    def locate(self) -> Folder:
        """The file with the phones' acceleration."""
        found = archive(self.path, "Activity recognition exp", _FILE)
        if found is None:
            raise self.missing()
        return found / _FILE

    def cache_key(self) -> tuple[object, ...]:
        """The file and the choice of phones."""
        file = self.locate()
        source = Path(str(file.root.filename)) if isinstance(file, zipfile.Path) else file
        return "hhar", source.name, source.stat().st_size, sorted(self.models or [])

    def load(self) -> Windows:
        """All windows, at a common rate."""
        recordings: dict[tuple[str, str, str], list[Array]] = defaultdict(list)
        for rows in self._rows():
            for key, own in rows.groupby(["User", "Device", "gt"], sort=False):
                recordings[key].append(own[["Creation_Time", "x", "y", "z"]].to_numpy(np.float64))
        parts = []
        for (user, _, activity), pieces in sorted(recordings.items()):
            whole = np.concatenate(pieces)
            labels = self._index(0, activity), self._index(1, user)
            for seconds, series in resample(whole[:, 0] / 1e9, whole[:, 1:], _RATE):  # time is in ns
                x, start = cut(series, self.input_shape[1], _STRIDE)
                parts.append((x, start + round(seconds * _RATE), *labels))
        windows = collect(parts, self.path)
        # A user's phones record the same movements: one recording, so that only one split has a movement.
        return windows._replace(recording=windows.a1 * self.attribute_sizes[1] + windows.a2)

    def _rows(self) -> Iterable[pd.DataFrame]:
        """Parts of the file, with the chosen phones and a known activity (not "null")."""
        file = self.locate()
        try:
            with file.open("rb") as stream:
                for rows in pd.read_csv(stream, usecols=list(_TYPES), dtype=_TYPES, chunksize=500_000):
                    known = rows["gt"].notna() & (rows["Model"].isin(self.models) if self.models else True)
                    yield rows[known]
        except Exception as error:  # parsers raise many types of errors for damaged files
            raise DataError(f"Cannot read {file} ({error}); download it again.") from error

    def _index(self, attribute: int, label: str) -> int:
        names = (self.file_names, self.value_names[1])[attribute]
        if label not in names:
            raise DataError(f"{self.locate()} has the {self.attribute_names[attribute]} {label!r}, expected {names}.")
        return names.index(label)
