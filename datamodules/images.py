"""Reading pictures from disk."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

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


def bytes_to_unit(x: Tensor) -> Tensor:
    """Bytes as floats in [0, 1]."""
    return x.float() / 255
