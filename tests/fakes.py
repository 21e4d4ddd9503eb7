"""A few kilobytes of every data set in its real on-disk format, for tests that need no download."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np

PER_CLASS = 12  # samples per class of the fake image sets


def write_idx(path: Path, array: np.ndarray) -> None:
    """An idx file of bytes as MNIST's: magic number, sizes, data."""
    path.parent.mkdir(parents=True, exist_ok=True)
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    path.write_bytes(header + array.astype(np.uint8).tobytes())


def _idx_images(folder: Path) -> None:
    rng = np.random.default_rng(0)
    for split in ("train", "t10k"):
        labels = rng.permutation(np.repeat(np.arange(10), PER_CLASS))
        images = np.zeros((len(labels), 28, 28))
        for image, label in zip(images, labels, strict=True):  # a bar whose place tells the class
            image[2 * label : 2 * label + 6, 4:24] = rng.integers(128, 256)
        write_idx(folder / f"{split}-images-idx3-ubyte", images)
        write_idx(folder / f"{split}-labels-idx1-ubyte", labels)


def cmnist(root: Path) -> None:
    _idx_images(root / "MNIST" / "raw")


def cfashion_mnist(root: Path) -> None:
    _idx_images(root / "FashionMNIST" / "raw")


def colored_digits(root: Path) -> None:
    """Nothing: the digits come with scikit-learn."""


FAKES: dict[str, Callable[[Path], None]] = {
    "cmnist": cmnist,
    "cfashion_mnist": cfashion_mnist,
    "colored_digits": colored_digits,
}
