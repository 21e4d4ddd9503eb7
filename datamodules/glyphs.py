"""Colored glyphs: digits drawn from the fonts that come with matplotlib, colored and occluded as CMNIST's."""

from __future__ import annotations

from math import radians
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from datamodules.base import DataError, seeded_generator
from datamodules.colored import CMNIST, ColoredDataModule

FACES = (
    *("DejaVuSans", "DejaVuSans-Oblique", "DejaVuSans-Bold", "DejaVuSans-BoldOblique"),
    *("DejaVuSansMono", "DejaVuSansMono-Oblique", "DejaVuSansMono-Bold", "DejaVuSansMono-BoldOblique"),
    *("DejaVuSerif", "DejaVuSerif-Italic", "DejaVuSerif-Bold", "DejaVuSerif-BoldItalic"),
    *("STIXGeneral", "STIXGeneralItalic", "STIXGeneralBol", "STIXGeneralBolIta"),
    *("cmr10", "cmti10", "cmb10", "cmss10", "cmtt10"),
)
SIZE = 28
HEIGHT = 19  # of a digit, in pixels
MAX_DISTORTION = 2.0
RESIZE, TURN, SLANT, SHIFT = 1.25, radians(18), 0.3, 2.5  # at most, for a distortion of 1
CANVAS = 80  # side of the picture that a digit is drawn on
SCALE = 3  # pixels of that picture per pixel of an image
PART = 100  # images that are distorted at once


class ColoredGlyphs(ColoredDataModule):
    """CMNIST's construction on digits of 21 font faces: nothing to download.

    Every image has its own size, slant, rotation and place. Training and tests have different images of the same faces.
    Images may differ slightly between versions of Pillow.

    Args:
        distortion: 0 draws all digits upright, in the middle and equally high. With 1 they are up to 1.25 times
            larger or smaller, turned by up to 18 degrees, slanted by up to 0.3, and shifted by up to 2.5 pixels.
    """

    title = "Colored glyphs"
    input_shape = (3, SIZE, SIZE)
    attribute_names = CMNIST.attribute_names
    value_names = CMNIST.value_names
    mode_names = CMNIST.mode_names
    classes = CMNIST.classes
    modes_per_value = CMNIST.modes_per_value
    p_a2_given_mode = CMNIST.p_a2_given_mode
    images_per_mode = {True: 2000, False: 800}  # noqa: RUF012

    def __init__(self, distortion: float = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not 0 <= distortion <= MAX_DISTORTION:
            raise DataError(f"data.distortion is {distortion}; it must lie in [0, {MAX_DISTORTION}].")
        self.distortion = distortion

    def load(self, train: bool) -> tuple[Tensor, Tensor]:
        """Images (N, 28, 28) as bytes, and modes."""
        generator = seeded_generator(self.seed, 5 if train else 6)
        modes = torch.arange(len(self.classes)).repeat_interleave(self.images_per_mode[train])
        face = torch.randint(len(FACES), (len(modes),), generator=generator)
        maps = random_maps(len(modes), self.distortion, generator)
        drawn = torch.stack([glyph(name, str(digit)) for name in FACES for digit in self.classes])
        chosen = (face * len(self.classes) + modes).split(PART)
        parts = [distorted(drawn[index], own) for index, own in zip(chosen, maps.split(PART), strict=True)]
        return torch.cat(parts), modes


def glyph(face: str, text: str) -> Tensor:
    """A character in the middle of a picture (CANVAS, CANVAS), HEIGHT pixels of an image high, in [0, 1]."""
    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{face}.ttf"
    try:
        with path.open("rb") as file:  # given a path, Pillow would also look for the font elsewhere
            font = ImageFont.truetype(file, CANVAS, layout_engine=ImageFont.Layout.BASIC)
    except OSError as error:
        raise DataError(f"Cannot read a font of matplotlib ({error}); install matplotlib again.") from error
    sheet = Image.new("L", (3 * CANVAS, 3 * CANVAS))
    ImageDraw.Draw(sheet).text((CANVAS, CANVAS), text, fill=255, font=font)
    ink = sheet.crop(sheet.getbbox())
    ink = ink.resize((round(ink.width * HEIGHT * SCALE / ink.height), HEIGHT * SCALE))
    picture = Image.new("L", (CANVAS, CANVAS))
    picture.paste(ink, ((CANVAS - ink.width) // 2, (CANVAS - ink.height) // 2))
    return torch.from_numpy(np.array(picture)).float() / 255


def random_maps(count: int, distortion: float, generator: torch.Generator) -> Tensor:
    """Affine maps from places in an image to places in the picture of a glyph, (N, 2, 3), in pixels from the middle."""
    size, turn, slant, right, down = distortion * (2 * torch.rand(5, count, generator=generator) - 1)
    factor, angle, zero, one = RESIZE**-size, TURN * turn, torch.zeros(count), torch.ones(count)
    rotation = torch.stack([angle.cos(), angle.sin(), -angle.sin(), angle.cos()]).view(2, 2, count)
    shear = torch.stack([one, SLANT * slant, zero, one]).view(2, 2, count)
    linear = torch.einsum("ijn,jkn->nik", shear, rotation) * factor[:, None, None]
    shift = SHIFT * torch.stack([right, down], dim=1)
    return torch.cat([linear, -(linear @ shift[:, :, None])], dim=2)


def distorted(glyphs: Tensor, maps: Tensor) -> Tensor:
    """Images (N, SIZE, SIZE) of bytes from pictures of glyphs (N, CANVAS, CANVAS)."""
    scaled = maps * maps.new_tensor([SIZE, SIZE, 2]) * SCALE / CANVAS  # from and to the interval [-1, 1]
    grid = F.affine_grid(scaled, [len(maps), 1, 2 * SIZE, 2 * SIZE], align_corners=False)
    points = F.grid_sample(glyphs[:, None], grid, align_corners=False)
    return (255 * F.avg_pool2d(points, 2)[:, 0]).round().byte()  # a pixel is the mean of four points
