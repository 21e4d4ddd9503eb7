"""Features of any inputs: those in which another attribute acts by shifting and scaling, and those that show all."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

SIDE = 12  # of a picture, after pooling
BANDS = 12  # of a spectrum
MAX_COLUMNS = 64  # more are replaced by as many principal components


def content_features(x: Array) -> Array:
    """Features (N, d) in which another attribute acts mostly by shifting and scaling.

    Rows stay as they are. A picture (N, C, H, W) becomes a grey one, the largest of its channels, so that colors do not
    matter. Of a series (N, C, T) the power in bands of frequency counts, in logarithms, so that a gain or a filter is a
    shift.
    """
    if x.ndim == 4:
        x = _pooled(x.astype(np.float32).max(1))
    elif x.ndim == 3:
        x = _bands(x.astype(np.float32))
    return principal(x.reshape(len(x), -1).astype(np.float64), MAX_COLUMNS)


def all_features(x: Array) -> Array:
    """Features (N, d) that show the content, and what else differs between rows, such as colors."""
    flat = x.reshape(len(x), -1).astype(np.float64)
    return (
        flat
        if x.ndim == 2 and x.shape[1] <= MAX_COLUMNS
        else np.concatenate([content_features(x), principal(flat, MAX_COLUMNS)], axis=1)
    )


def principal(x: Array, count: int) -> Array:
    """The columns themselves if they are few, else their principal components."""
    if x.shape[1] <= count:
        return x
    centred = x - x.mean(0)
    _, vectors = np.linalg.eigh(centred.T @ centred)
    found: Array = centred @ vectors[:, ::-1][:, :count]
    return found


def _pooled(pictures: Array) -> Array:
    """Pictures (N, h, w) as means of blocks, at most `SIDE` by `SIDE`."""
    blocks = [np.array_split(np.arange(size), min(size, SIDE)) for size in pictures.shape[1:]]
    rows = np.stack([pictures[:, block].mean(1) for block in blocks[0]], 1)
    return np.stack([rows[:, :, block].mean(2) for block in blocks[1]], 2)


def _bands(series: Array) -> Array:
    """Log power (N, C, bands) of series (N, C, T)."""
    centred = series - series.mean(2, keepdims=True)
    power = np.abs(np.fft.rfft(centred, axis=2))[:, :, 1:] ** 2
    bands = np.array_split(np.arange(power.shape[2]), min(power.shape[2], BANDS))
    pooled = np.stack([power[:, :, band].mean(2) for band in bands], 2)
    log_power: Array = np.log(pooled + 1e-6 * pooled.mean() + 1e-12)
    return log_power
