"""Colored images: grey pictures in red or blue; the color is correlated with the modes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import torch
import torchvision
from sklearn.datasets import load_digits
from torch import Tensor

from datamodules.base import DataError
from datamodules.correlated import CorrelatedDataModule
from datamodules.download import RemoteFile, fetch, unpack
from datamodules.images import bytes_to_unit

_COLORS = torch.tensor([[1, 0, 0], [0, 0, 1]], dtype=torch.uint8)  # red, blue


def square_occlusion(count: int, size: int, ratio: float, generator: torch.Generator) -> Tensor:
    """Coverage in [0, 1] of one randomly placed square per image, (count, size, size).

    The square covers exactly `ratio` of the image's area. It is not aligned with the pixels, so that pixels on its
    border are partly covered.
    """
    side = size * ratio**0.5
    low = torch.rand(2, count, 1, generator=generator) * (size - side)
    pixel = torch.arange(size)
    covered = (torch.minimum(pixel + 1, low + side) - torch.maximum(pixel, low)).clamp(0, 1)  # (2, count, size)
    return covered[0, :, :, None] * covered[1, :, None, :]


class ColoredDataModule(CorrelatedDataModule):
    """Grey images colored by a_2, dimmed by a random factor and partly occluded.

    Args:
        noise: Share of the image covered by one black square.
        min_brightness: The color's factor is uniform between this and 1.
    """

    attribute_names = ("shape", "color")
    transform = staticmethod(bytes_to_unit)  # images are stored as bytes: a quarter of the memory
    classes: ClassVar[tuple[int, ...]]  # label of each mode in the source

    def __init__(self, noise: float = 0.2, min_brightness: float = 0.5, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        for name, value in (("noise", noise), ("min_brightness", min_brightness)):
            if not 0 <= value <= 1:
                raise DataError(f"data.{name} is {value}; it must lie in [0, 1].")
        self.noise, self.min_brightness = noise, min_brightness

    def render(self, raw: Tensor, a2: Tensor, generator: torch.Generator) -> Tensor:
        """Dim, occlude and color images of bytes, (N, H, W) to (N, 3, H, W)."""
        factor = self.min_brightness + (1 - self.min_brightness) * torch.rand(len(raw), generator=generator)
        visible = 1 - square_occlusion(len(raw), raw.shape[1], self.noise, generator)
        grey = (raw * factor[:, None, None] * visible).round().byte()
        return grey[:, None] * _COLORS[a2][:, :, None, None]

    def of_modes(self, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The images whose label is one of `classes`, and their modes."""
        mode_of_label = torch.full((int(labels.max()) + 1,), -1)
        for mode, label in enumerate(self.classes):
            if not (labels == label).any():
                raise DataError(f"{type(self).__name__}: no image has the label {label} (mode {mode}); download again.")
            mode_of_label[label] = mode
        modes = mode_of_label[labels]
        return images[modes >= 0], modes[modes >= 0]


class _FromTorchvision(ColoredDataModule):
    """Source images in torchvision's idx files: training from its training split, tests from its test split.

    Args:
        download: Fetch missing files into `root`.
    """

    input_shape = (3, 28, 28)
    source: ClassVar[type[torchvision.datasets.MNIST]]

    def __init__(self, download: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.download = download

    @property
    def folder(self) -> Path:
        """The folder of the idx files, as in torchvision."""
        return Path(self.root) / self.source.__name__ / "raw"

    def prepare_data(self) -> None:
        """Fetch and unpack the idx files that are missing."""
        missing = [(name, md5) for name, md5 in self.source.resources if not (self.folder / name[:-3]).is_file()]
        if missing and not self.download:
            raise DataError(
                f"{self.folder} has no {', '.join(name[:-3] for name, _ in missing)}. Place the unpacked idx files "
                "there, or set data.download to true."
            )
        for name, md5 in missing:
            urls = tuple(f"{mirror}{name}" for mirror in self.source.mirrors)
            unpack(fetch(RemoteFile(name, urls, md5), self.folder), self.folder)

    def load(self, train: bool) -> tuple[Tensor, Tensor]:
        """Images (N, 28, 28) as bytes, and modes, from the public split."""
        try:
            public = self.source(self.root, train=train)
        except Exception as error:  # torchvision raises many types of errors for damaged files
            raise DataError(
                f"Cannot read the {'training' if train else 'test'} files in {self.folder} ({error}); "
                "delete the folder and download again."
            ) from error
        if len(public.data) != len(public.targets):
            raise DataError(
                f"{self.folder} has {len(public.data)} images but {len(public.targets)} labels; delete the folder and "
                "download again."
            )
        return self.of_modes(public.data, public.targets)


class CMNIST(_FromTorchvision):
    """Colored MNIST: the parity of a digit, whose digit (the mode) correlates with its color."""

    title = "CMNIST"
    source = torchvision.datasets.MNIST
    attribute_names = ("parity", "color")
    value_names = (("even", "odd"), ("red", "blue"))
    mode_names = ("8", "4", "2", "3", "9")
    classes = (8, 4, 2, 3, 9)
    modes_per_value = (3, 2)
    p_a2_given_mode = (
        (0.1, 0.9, 0.1, 0.9, 0.1),
        (0.9, 0.1, 0.9, 0.1, 0.9),
    )


class CFashionMNIST(_FromTorchvision):
    """Colored Fashion-MNIST: the style of clothing, whose category (the mode) correlates with its color."""

    title = "CFashion-MNIST"
    source = torchvision.datasets.FashionMNIST
    attribute_names = ("style", "color")
    value_names = (("sporty", "chic"), ("red", "blue"))
    mode_names = ("sneaker", "pullover", "shirt", "sandal", "dress", "bag", "ankle boot")
    classes = (7, 2, 6, 5, 3, 8, 9)
    modes_per_value = (3, 4)
    p_a2_given_mode = (
        (0.9, 0.1, 0.1, 0.1, 0.9, 0.9, 0.1),
        (0.1, 0.9, 0.9, 0.9, 0.1, 0.1, 0.9),
    )


class ColoredDigits(ColoredDataModule):
    """CMNIST's construction on the 8 x 8 digits that come with scikit-learn: nothing to download.

    The last third is held out for the tests. Samples seem to be ordered by writer, so that most writers of the tests
    are not in training.
    """

    title = "Colored digits"
    input_shape = (3, 8, 8)
    attribute_names = CMNIST.attribute_names
    value_names = CMNIST.value_names
    mode_names = CMNIST.mode_names
    classes = CMNIST.classes
    modes_per_value = CMNIST.modes_per_value
    p_a2_given_mode = CMNIST.p_a2_given_mode

    def load(self, train: bool) -> tuple[Tensor, Tensor]:
        """Images (N, 8, 8) as bytes, and modes."""
        images, labels = load_digits(return_X_y=True)
        cut = len(images) * 2 // 3
        part = slice(cut) if train else slice(cut, None)
        grey = (torch.from_numpy(images[part]) * (255 / 16)).round().byte().view(-1, 8, 8)
        return self.of_modes(grey, torch.from_numpy(labels[part]))
