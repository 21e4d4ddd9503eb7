"""Reading pictures from disk."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample

from datamodules.base import DataError


def open_image(path: Path, mode: str = "RGB") -> Image.Image:
    """The whole picture in memory; raises here if the file is damaged."""
    try:
        with Image.open(path) as image:
            return image.convert(mode)
    except Exception as error:  # each format raises its own types of errors for damaged files
        raise DataError(f"Cannot read the image {path} ({error}); replace or remove it.") from error


def read_images(paths: Sequence[Path], size: tuple[int, int], mode: str = "RGB") -> Tensor:
    """Pictures as bytes, (N, channels, height, width), resized to `size` (height, width)."""
    channels = len(Image.new(mode, (1, 1)).getbands())
    images = torch.empty(len(paths), channels, *size, dtype=torch.uint8)
    for slot, path in zip(images, paths, strict=True):
        image = open_image(path, mode)
        if image.size != size[::-1]:
            image = image.resize(size[::-1], Image.Resampling.BILINEAR)
        slot.copy_(torch.from_numpy(np.array(image).reshape(*size, channels)).permute(2, 0, 1))
    return images


def crop_and_flip(x: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """A random part of every picture (B, C, H, W), resized to the whole and mirrored in half of the cases.

    The part has 70 to 100 % of the area and sides in a ratio of 3:4 to 4:3, as in common trainings on image folders.
    """

    def drawn(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(len(x), generator=generator)

    area, ratio = drawn(0.7, 1.0), drawn(-math.log(4 / 3), math.log(4 / 3)).exp()
    width, height = (area * ratio).sqrt().clamp(max=1), (area / ratio).sqrt().clamp(max=1)
    side, up = drawn(-1, 1) * (1 - width), drawn(-1, 1) * (1 - height)
    mirror = torch.where(drawn(0, 1) < 0.5, -1.0, 1.0)
    zero = torch.zeros_like(width)
    to_part = torch.stack([width * mirror, zero, side, zero, height, up], dim=1).view(-1, 2, 3).to(x)
    grid = affine_grid(to_part, list(x.shape), align_corners=False)
    return grid_sample(x, grid, padding_mode="border", align_corners=False)


def bytes_to_unit(x: Tensor) -> Tensor:
    """Bytes as floats in [0, 1]."""
    return x.float() / 255
