"""Windows of time series, tested on groups of the second attribute that are not in training."""

from __future__ import annotations

import hashlib
import os
import warnings
import zipfile
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.io import loadmat
from scipy.signal import resample_poly
from torch import Tensor

from datamodules.base import AttributeDataModule, AttributeDataset, DataError, split_indices, stack_columns
from datamodules.download import RemoteFile, fetch, locked, unpack
from datamodules.scaling import Scaling, ScalingKind
from datamodules.validation import hold_out

Array = NDArray[Any]
Folder = Path | zipfile.Path  # unpacked or inside of a zip file
_OVERSAMPLING = 4


class MissingDataError(DataError):
    """The files of a data set are not in its folder."""


class Windows(NamedTuple):
    """All windows of a data set with both attributes as indices."""

    x: Tensor  # (N, C, T)
    a1: Tensor  # (N,)
    a2: Tensor  # (N,)
    recording: Tensor  # (N,) number of the recording that each window was cut from
    start: Tensor  # (N,) its first sample, counted within the recording


class GroupedDataModule(AttributeDataModule):
    """Leaves one group of values of a_2 out for the test; the other groups are for training and validation.

    Channels are scaled with statistics of the training windows. A data set sets the class attributes and implements
    `locate` and `load`.

    Args:
        test_group: The group to test, 0 to `groups` - 1; all have the same number of values of a_2.
        val_fraction: Share of the windows of the other groups held out for validation.
        val_split: How they are chosen. Windows of a recording may overlap in time. `blocks`: the first or last part of
            long recordings and whole short ones, under every (a_1, a_2); windows that share samples with validation
            are left out of training. `recordings`: the same, but whole recordings wherever an (a_1, a_2) has several.
            `random`: single windows, as in the paper. Then validation shares samples with training.
        scaling: Of every channel, see `Scaling`: `minmax` (the paper), `standard`, `log` or `window`.
        download: Fetch missing files into `root`.
    """

    test_names = ("test",)
    test_attributes = (0,)
    mode_sizes = (None, None)
    folder: str  # below `root`
    placement: str  # the files that belong there, for the error message
    remote: tuple[RemoteFile, ...] = ()

    def __init__(
        self,
        test_group: int = 0,
        val_fraction: float = 0.2,
        val_split: Literal["blocks", "recordings", "random"] = "blocks",
        scaling: ScalingKind = "minmax",
        download: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if not 0 <= test_group < self.groups:
            raise DataError(
                f"data.test_group is {test_group}; {type(self).__name__} has groups 0 to {self.groups - 1}."
            )
        if not 0 < val_fraction < 1:
            raise DataError(f"data.val_fraction is {val_fraction}; it must lie between 0 and 1.")
        self.test_group, self.val_fraction, self.val_split = test_group, val_fraction, val_split
        self.scaling, self.download = Scaling(self.input_shape, scaling), download
        self.input_shape = self.scaling.shape

    @property
    def path(self) -> Path:
        """The folder of this data set."""
        return Path(self.root) / self.folder

    @abstractmethod
    def locate(self) -> Any:
        """The files to read; raises `MissingDataError` if they are missing."""

    @abstractmethod
    def load(self) -> Windows:
        """Read the files."""

    def cache_key(self) -> tuple[object, ...] | None:
        """Everything that the windows depend on, for data sets that take minutes to read; None for no cache."""
        return None

    def missing(self) -> MissingDataError:
        """The error for missing files, which names the files and the folder."""
        return MissingDataError(f"{type(self).__name__} needs {self.placement} in {self.path}.")

    def prepare_data(self) -> None:
        """Download missing files, and write the cache of slow files."""
        try:
            self.locate()
        except MissingDataError:
            if not (self.download and self.remote):
                raise
            self._fetch()
        if (cache := self._cache()) is not None and not cache.is_file():
            _save(cache, self.load())

    def _fetch(self) -> None:
        """Download and unpack in one process; other processes wait and find the files."""
        with locked(self.path, f".{type(self).__name__}.lock"):
            try:
                self.locate()
            except MissingDataError:
                for remote in self.remote:
                    file = fetch(remote, self.path)
                    if file.suffix == ".zip":
                        unpack(file, self.path)

    def build(self) -> dict[str, AttributeDataset]:
        """Train, validation and test, scaled with statistics of the training windows."""
        cache = self._cache()
        windows = _read(cache) if cache is not None and cache.is_file() else self.load()
        a = stack_columns([windows.a1, windows.a2])
        test = self.group_of(windows.a2) == self.test_group
        train, val = self._divide(windows, a, (~test).nonzero().flatten())
        x = self.scaling.fit(windows.x[train])(windows.x)
        chosen = {"train": train, "val": val, "test": test}
        return {name: AttributeDataset(x[part], a[part]) for name, part in chosen.items()}

    def _divide(self, windows: Windows, a: Tensor, rest: Tensor) -> tuple[Tensor, Tensor]:
        """Training and validation windows among those of the training groups."""
        if self.val_split == "random":
            parts = split_indices(len(rest), self.val_fraction, self.seed)
        else:
            places = (a[rest], windows.recording[rest], windows.start[rest], windows.x.shape[-1])
            parts = hold_out(*places, self.val_fraction, self.seed, whole=self.val_split == "recordings")
        return rest[parts[0]], rest[parts[1]]

    def group_of(self, a2: Tensor) -> Tensor:
        """The group of each value of a_2: consecutive values, the same number in each group."""
        return a2 // (self.attribute_sizes[1] // self.groups)

    def _cache(self) -> Path | None:
        key = self.cache_key()
        if key is None:
            return None
        content = repr((*key, Windows._fields)).encode()
        return self.path / f"windows-{hashlib.sha256(content).hexdigest()[:16]}.npz"


def cut(series: Array, length: int, stride: int) -> tuple[Array, Array]:
    """Windows (N, C, length) of a series (T, C), and their first samples (N,); none if the series is too short."""
    if len(series) < length:
        return np.empty((0, series.shape[1], length), dtype=np.float32), np.empty(0, dtype=np.int64)
    view = np.lib.stride_tricks.sliding_window_view(series, length, axis=0)[::stride]
    return view.astype(np.float32), stride * np.arange(len(view))


def resample(times: Array, series: Array, rate: float, max_gap: float = 1.0) -> list[tuple[float, Array]]:
    """Resample unevenly sampled series to a common rate.

    Args:
        times: Seconds, (T,).
        series: Values, (T, C); rows holding NaN or infinity are left out.
        rate: Samples per second wanted.
        max_gap: The series is divided at gaps of more seconds, and where time decreases.

    Returns:
        For each part the time of its first sample, and an array (T', C). Values are interpolated on a finer grid, then
        low-pass filtered and decimated, to avoid aliasing for devices faster than `rate`.
    """
    valid = np.isfinite(series).all(1)
    times, series = times[valid], series[valid]
    steps = np.diff(times)
    breaks = np.flatnonzero((steps > max_gap) | (steps < 0)) + 1
    stretches = []
    for t, values in zip(np.split(times, breaks), np.split(series, breaks), strict=True):
        fine = np.arange(t[0], t[-1], 1 / (rate * _OVERSAMPLING)) if len(t) > 1 else np.empty(0)
        if len(fine) > _OVERSAMPLING:
            dense = np.stack([np.interp(fine, t, channel) for channel in values.T], axis=1)
            even = resample_poly(dense, 1, _OVERSAMPLING, axis=0, padtype="line").astype(np.float32)
            stretches.append((float(t[0]), even))
    return stretches


def collect(recordings: Sequence[tuple[Array, Array, int, int]], where: Path) -> Windows:
    """Join recordings: their windows (N, C, T) with their first samples (N,), one a_1 and one a_2."""
    parts = [part for part in recordings if len(part[0])]
    if not parts:
        raise DataError(f"The files in {where} have no complete window; download them again.")
    windows, starts, *labels = zip(*parts, strict=True)
    sizes = torch.tensor([len(x) for x in windows])
    a1, a2, recording = (torch.tensor(v).repeat_interleave(sizes) for v in (*labels, range(len(parts))))
    x, start = (torch.from_numpy(np.concatenate(part)) for part in (windows, starts))
    return Windows(x, a1, a2, recording, start)


def archive(folder: Path, name: str, marker: str) -> Folder | None:
    """The folder with a file `marker`: `folder` / `name` or `folder`, unpacked or inside of `name`.zip."""
    packed = folder / f"{name}.zip"
    candidates: list[Folder] = [folder / name, folder]
    if packed.is_file():
        try:
            candidates += [zipfile.Path(packed, f"{name}/"), zipfile.Path(packed)]
        except zipfile.BadZipFile as error:
            raise DataError(f"{packed} is not a sound zip file; delete it and download it again.") from error
    return next((place for place in candidates if (place / marker).exists()), None)


def read_mat(path: Path, variable: str) -> Any:
    """One variable of a MATLAB file, structs as dictionaries."""
    try:
        return loadmat(path, variable_names=[variable], simplify_cells=True)[variable]
    except Exception as error:  # scipy raises many types of errors for damaged files
        raise DataError(f"{path} has no readable `{variable}` ({error!r}); download the file again.") from error


def _save(path: Path, windows: Windows) -> None:
    part = path.with_name(f"{path.name}.{os.getpid()}.part")  # several runs may write at the same time
    try:
        with part.open("wb") as file:
            np.savez(file, **{name: values.numpy() for name, values in windows._asdict().items()})
        os.replace(part, path)
    except OSError as error:
        part.unlink(missing_ok=True)
        warnings.warn(f"Cannot write the cache {path} ({error}); every run will read the files.", stacklevel=2)


def _read(path: Path) -> Windows:
    try:
        with np.load(path, allow_pickle=False) as stored:
            return Windows(*(torch.from_numpy(stored[name]) for name in Windows._fields))
    except Exception as error:  # numpy raises many types of errors for damaged files
        raise DataError(f"The cache {path} cannot be read ({error}); delete it.") from error
