"""UCI-HAR: six activities of thirty people with a smartphone at the waist."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import pandas as pd
import torch
from scipy.signal import butter, sosfiltfilt
from torch import Tensor

from datamodules.base import DataError
from datamodules.download import RemoteFile
from datamodules.grouped import Array, Folder, GroupedDataModule, Windows, archive, collect, cut

_RATE = 50.0
_GRAVITY_BELOW = 0.3  # Hz; gravity varies more slowly, as the data set's authors assume
_STRIDE = 64  # the public windows overlap by half
_UCI = "https://archive.ics.uci.edu/static/public"


class UCIHAR(GroupedDataModule):
    """Three-axis acceleration at the waist: the activity, in groups of users.

    Reads the public windows (`UCI HAR Dataset`, folder or zip), or cuts windows in the same way from the raw recordings
    of the same study (`HAPT Data Set`), without the postural transitions.

    Args:
        source: `uci_har` for the windows, `hapt` for the recordings.
        signal: `body`: acceleration without gravity; `total`: with gravity, which shows the orientation of the phone.
            The paper does not state which it uses; its BASE row fits `body`.
    """

    title = "UCI-HAR"
    input_shape = (3, 128)
    attribute_names = ("activity", "user")
    value_names = (
        ("walking", "walking upstairs", "walking downstairs", "sitting", "standing", "laying"),
        tuple(str(user) for user in range(1, 31)),
    )
    groups = 5

    def __init__(
        self,
        source: Literal["uci_har", "hapt"] = "uci_har",
        signal: Literal["body", "total"] = "body",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.source, self.signal = source, signal
        # The publisher states no checksums.
        if source == "uci_har":
            self.folder, self.archive_name, self.marker = "UCIHAR", "UCI HAR Dataset", "train"
            url = f"{_UCI}/240/human+activity+recognition+using+smartphones.zip"
        else:
            self.folder, self.archive_name, self.marker = "HAPT", "HAPT Data Set", "RawData"
            url = f"{_UCI}/341/smartphone+based+recognition+of+human+activities+and+postural+transitions.zip"
        self.placement = f"`{self.archive_name}`, as a folder or as the public zip,"
        self.remote = (RemoteFile("download.zip", (url,)),)

    def locate(self) -> Folder:
        """The unpacked or packed data set."""
        found = archive(self.path, self.archive_name, self.marker)
        if found is None:
            raise self.missing()
        return found

    def load(self) -> Windows:
        """All windows of both public splits, or of all recordings."""
        folder = self.locate()
        self._check_activities(folder)
        return self._public_windows(folder) if self.source == "uci_har" else self._recorded_windows(folder)

    def _check_activities(self, folder: Folder) -> None:
        names = [line[1].lower().replace("_", " ") for line in _table(folder / "activity_labels.txt", object)]
        if tuple(names[:6]) != self.value_names[0]:
            raise DataError(f"{folder / 'activity_labels.txt'} lists {names[:6]}, expected {self.value_names[0]}.")

    def _public_windows(self, folder: Folder) -> Windows:
        parts = []
        for split in ("train", "test"):
            signals = folder / split / "Inertial Signals"
            files = [signals / f"{self.signal}_acc_{axis}_{split}.txt" for axis in "xyz"]
            if not all(file.exists() for file in files):
                raise DataError(
                    f"{signals} has no {self.signal}_acc_*_{split}.txt. Place them there, or read the recordings with "
                    "data.source: hapt."
                )
            x = [_table(file) for file in files]
            labels = [_table(folder / split / f"{name}_{split}.txt", np.int64) for name in ("y", "subject")]
            if len({len(rows) for rows in (*x, *labels)}) > 1:
                raise DataError(f"The files of {folder / split} have different numbers of rows.")
            parts.append((np.stack(x, axis=1), labels[0][:, 0] - 1, labels[1][:, 0] - 1))
        windows, a1, a2 = (torch.from_numpy(np.concatenate(column)) for column in zip(*parts, strict=True))
        return Windows(windows, a1, a2, *_recordings(windows))

    def _recorded_windows(self, folder: Folder) -> Windows:
        raw = folder / "RawData"
        segments = _table(raw / "labels.txt", np.int64)  # experiment, user, activity, first and last sample
        parts = []
        for experiment, user in np.unique(segments[:, :2], axis=0):
            recording = _table(raw / f"acc_exp{experiment:02d}_user{user:02d}.txt")
            if self.signal == "body":
                recording = body_acceleration(recording)
            own = segments[(segments[:, 0] == experiment) & (segments[:, 1] == user)]
            for _, _, activity, first, last in own[own[:, 2] <= self.attribute_sizes[0]]:
                windows = cut(recording[first - 1 : last], self.input_shape[1], _STRIDE)
                parts.append((*windows, activity - 1, user - 1))
        return collect(parts, self.path)


def _recordings(x: Tensor) -> tuple[Tensor, Tensor]:
    """Recording and first sample of each window; a window that begins with the second half of the last continues it."""
    continues = (x[:-1, :, _STRIDE:] == x[1:, :, :_STRIDE]).flatten(1).all(1)
    first = torch.cat([torch.ones(1, dtype=torch.bool), ~continues])
    recording = first.long().cumsum(0) - 1
    return recording, _STRIDE * (torch.arange(len(x)) - first.nonzero().flatten()[recording])


def body_acceleration(series: Array) -> Array:
    """Acceleration (T, 3) without gravity, by a zero-phase Butterworth high-pass filter."""
    sections = butter(3, _GRAVITY_BELOW, "highpass", fs=_RATE, output="sos")
    return sosfiltfilt(sections, series, axis=0).astype(np.float32)  # type: ignore[no-any-return]


def _table(path: Folder, dtype: Any = np.float32) -> Array:
    """Numbers separated by blanks."""
    try:
        with path.open("rb") as file:
            return pd.read_csv(file, sep=r"\s+", header=None).to_numpy(dtype)  # type: ignore[no-any-return]
    except Exception as error:  # parsers raise many types of errors for damaged files
        raise DataError(f"Cannot read {path} ({error}); download it again.") from error
