"""Colored glyphs: what is drawn, against Pillow, SciPy and turns by hand."""

from __future__ import annotations

from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw, ImageFont
from scipy.ndimage import affine_transform
from scipy.stats import binom

from datamodules import ColoredGlyphs, DataError
from datamodules.glyphs import CANVAS, FACES, HEIGHT, SCALE, SIZE, distorted, glyph, random_maps

UPRIGHT = torch.eye(3)[None, :2]


@pytest.fixture(scope="module")
def built() -> ColoredGlyphs:
    module = ColoredGlyphs()
    module.setup()
    return module


@pytest.mark.parametrize("face", FACES)
def test_every_face_draws_every_digit_in_the_middle_and_equally_high(face):
    drawn = [glyph(face, str(digit)) for digit in ColoredGlyphs.classes]
    for one in drawn:
        rows, columns = ((one.amax(side) > 0.5).nonzero()[:, 0] for side in (1, 0))
        assert rows[-1] - rows[0] + 1 == pytest.approx(HEIGHT * SCALE, abs=2)
        for line in (rows, columns):
            assert line[0] > 5, "the digit leaves the picture"
            assert line[0] + line[-1] == pytest.approx(CANVAS - 1, abs=2)
    assert len({one.numpy().tobytes() for one in drawn}) == 5


def test_faces_differ():
    assert len({glyph(face, "3").numpy().tobytes() for face in FACES}) == len(FACES) == 21


def test_a_digit_is_the_one_that_pillow_draws():
    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"
    ours = [distorted(glyph("DejaVuSans", digit)[None], UPRIGHT)[0].flatten().numpy() for digit in "84239"]
    for mode, digit in enumerate("84239"):
        picture = Image.new("L", (SIZE, SIZE))
        font = ImageFont.truetype(str(path), HEIGHT / 0.75)  # its digits are about 3/4 of the font's size
        ImageDraw.Draw(picture).text((SIZE / 2, SIZE / 2), digit, fill=255, font=font, anchor="mm")
        alike = [np.corrcoef(one, np.array(picture).ravel())[0, 1] for one in ours]
        assert np.argmax(alike) == mode
        assert ours[mode].mean() == pytest.approx(np.mean(picture), rel=0.15)


def test_a_quarter_turn_and_a_shift_by_whole_pixels_move_pixels_only():
    one = glyph("cmr10", "2")[None]
    plain = distorted(one, UPRIGHT)[0]
    turned = distorted(one, torch.tensor([[[0.0, 1.0, 0.0], [-1.0, 0.0, 0.0]]]))[0]
    assert (turned.int() - plain.rot90(-1).int()).abs().max() <= 1
    shifted = distorted(one, torch.tensor([[[1.0, 0.0, -3.0], [0.0, 1.0, 2.0]]]))[0]
    assert torch.equal(shifted[:-2, 3:], plain[2:, :-3])


def test_maps_are_those_that_scipy_applies():
    maps = random_maps(8, 1.0, torch.Generator().manual_seed(0))
    one = glyph("STIXGeneralBol", "4")
    ours = distorted(one.expand(8, -1, -1), maps)
    size = 2 * SIZE  # points
    for image, own in zip(ours, maps.double().numpy(), strict=True):
        matrix = own[::-1, 1::-1] * SCALE / 2  # SciPy counts rows first
        middle = np.array([CANVAS, CANVAS]) / 2 - 0.5
        offset = middle + SCALE * own[::-1, 2] - matrix @ np.full(2, (size - 1) / 2)
        points = affine_transform(one.double().numpy(), matrix, offset, (size, size), order=1)
        expected = 255 * points.reshape(SIZE, 2, SIZE, 2).mean((1, 3))
        assert np.abs(image.numpy() - expected).max() <= 1


def test_without_distortion_a_face_has_one_image_of_a_digit():
    images, modes = ColoredGlyphs(distortion=0.0).load(train=False)
    for mode in range(5):
        assert len(images[modes == mode].unique(dim=0)) == len(FACES)


def test_images_are_a_function_of_the_seed(built):
    again, other = ColoredGlyphs(), ColoredGlyphs(seed=1)
    assert torch.equal(again.load(False)[0], built.load(False)[0])
    assert not torch.equal(other.load(False)[0], built.load(False)[0])


def test_images_of_training_and_tests_differ(built):
    trained, tested = (set(map(bytes, built.load(train)[0].numpy())) for train in (True, False))
    assert len(trained) == 10_000
    assert len(tested) == 4_000
    assert not trained & tested


def test_sizes_and_correlations_are_those_of_colored_mnist(built):
    p = torch.tensor(built.p_a2_given_mode)
    sizes = {"train": 1800, "val": 200, "test1": 800, "test2": 800, "test3": 800}
    expected = {"train": p, "val": p, "test1": p, "test2": torch.full_like(p, 0.5), "test3": 1 - p}
    for split, size in sizes.items():
        data = built.datasets[split]
        assert data.mode[:, 0].bincount().tolist() == [size] * 5
        for mode in range(5):
            red = int((data.a[data.mode[:, 0] == mode, 1] == 0).sum())
            low, high = binom.interval(1 - 1e-4, size, float(expected[split][0, mode]))
            assert low <= red <= high
    assert torch.equal(built.datasets["test1"].x.amax(1), built.datasets["test3"].x.amax(1)), "the same pictures"


@pytest.mark.parametrize("distortion", [-0.1, 2.1])
def test_an_impossible_distortion_raises(distortion):
    with pytest.raises(DataError, match=r"data.distortion is .*\[0, 2.0\]"):
        ColoredGlyphs(distortion=distortion)


def test_a_missing_font_is_a_clear_error(monkeypatch, tmp_path):
    monkeypatch.setattr(matplotlib, "get_data_path", lambda: str(tmp_path))
    with pytest.raises(DataError, match=r"DejaVuSans.ttf.*matplotlib"):
        ColoredGlyphs().load(train=True)
