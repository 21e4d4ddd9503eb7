"""CWRU: bearings of Case Western Reserve University under four motor loads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from scipy.signal import resample_poly

from datamodules.base import DataError
from datamodules.download import RemoteFile
from datamodules.grouped import Array, GroupedDataModule, Windows, collect, read_mat

_FILES = (  # per fault type, rows of one fault diameter with the motor loads 0 to 3 hp
    ((97, 98, 99, 100),),
    ((105, 106, 107, 108), (169, 170, 171, 172), (209, 210, 211, 212)),
    ((130, 131, 132, 133), (197, 198, 199, 200), (234, 235, 236, 237)),
)
_HEALTHY = 0


class CWRU(GroupedDataModule):
    """Acceleration at the drive end: the fault type, one motor load left out.

    Faults were recorded at 12 kHz, healthy bearings at 48 kHz (W. A. Smith and R. B. Randall, 2015). The latter are
    decimated: otherwise the class could be predicted from the sampling rate.

    Args:
        windows: Windows per fault type and load, evenly spaced over the recordings. All classes have the same number,
            although there are fewer healthy recordings.
    """

    title = "CWRU"
    input_shape = (1, 1024)
    attribute_names = ("fault", "load")
    value_names = (("healthy", "inner race", "outer race"), ("0 hp", "1 hp", "2 hp", "3 hp"))
    groups = 4
    folder = "CWRU"
    placement = "97.mat to 237.mat of the bearing data center (12 kHz drive end, diameters 0.007, 0.014, 0.021)"
    remote = tuple(
        RemoteFile(f"{number}.mat", (f"https://engineering.case.edu/sites/default/files/{number}.mat",))
        for fault in _FILES  # no checksums are published
        for row in fault
        for number in row
    )

    def __init__(self, windows: int = 600, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if windows < 1:
            raise DataError(f"data.windows is {windows}; it must be at least 1.")
        self.windows = windows

    def locate(self) -> Path:
        """The folder with all the files."""
        if not all((self.path / remote.name).is_file() for remote in self.remote):
            raise self.missing()
        return self.path

    def load(self) -> Windows:
        """All windows, at 12 kHz."""
        folder, length = self.locate(), self.input_shape[1]
        parts = []
        for fault, diameters in enumerate(_FILES):
            for load, numbers in enumerate(zip(*diameters, strict=True)):
                count = -(-self.windows // len(numbers))
                for number in numbers:
                    signal = _drive_end(folder / f"{number}.mat", decimation=4 if fault == _HEALTHY else 1)
                    starts = np.linspace(0, len(signal) - length, count).astype(int)
                    parts.append((signal[starts[:, None] + np.arange(length)][:, None], starts, fault, load))
        return collect(parts, self.path)


def _drive_end(path: Path, decimation: int) -> Array:
    """The drive-end signal; a file may also hold that of another number."""
    signal = read_mat(path, f"X{int(path.stem):03d}_DE_time")
    return resample_poly(signal, 1, decimation, padtype="line").astype(np.float32)  # type: ignore[no-any-return]
