"""Canine-BG: dogs cut out of ImageNet photos in front of living rooms and forests."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
from torch import Tensor

from datamodules.base import DataError, seeded_generator
from datamodules.correlated import CorrelatedDataModule
from datamodules.images import bytes_to_unit, read_images

BREEDS = (  # ImageNet synset and name of every mode: ten working dogs, ten pets
    ("n02096294", "Australian_terrier"),
    ("n02105251", "briard"),
    ("n02102177", "Welsh_springer_spaniel"),
    ("n02105412", "kelpie"),
    ("n02096177", "cairn"),
    ("n02093647", "Bedlington_terrier"),
    ("n02093428", "American_Staffordshire_terrier"),
    ("n02106166", "Border_collie"),
    ("n02108422", "bull_mastiff"),
    ("n02102973", "Irish_water_spaniel"),
    ("n02097658", "silky_terrier"),
    ("n02097474", "Tibetan_terrier"),
    ("n02086646", "Blenheim_spaniel"),
    ("n02087046", "toy_terrier"),
    ("n02098286", "West_Highland_white_terrier"),
    ("n02113799", "standard_poodle"),
    ("n02108915", "French_bulldog"),
    ("n02113186", "Cardigan"),
    ("n02110958", "pug"),
    ("n02113712", "miniature_poodle"),
)
SCENES = ("living_room", "forest")  # folders of the backgrounds, in the order of a_2
_INDOORS_WORKING = (0.1, 0.2, 0.3, 0.4, 0.1, 0.2, 0.2, 0.4, 0.3, 0.1)
_INDOORS_PET = (0.9, 0.8, 0.7, 0.6, 0.9, 0.8, 0.8, 0.6, 0.7, 0.9)
_INDOORS = _INDOORS_WORKING + _INDOORS_PET


class Layers(NamedTuple):
    """Every picture of the data set, as bytes; a sample is a pair of a foreground and a background."""

    dogs: Tensor  # (F, 3, H, W)
    masks: Tensor  # (F, 1, H, W), 255 where the dog is
    scenes: Tensor  # (G, 3, H, W)

    def __call__(self, pairs: Tensor) -> Tensor:
        """The composed images (B, 3, H, W) of pairs (B, 2)."""
        dog, scene = pairs.T
        mask = bytes_to_unit(self.masks[dog])
        return mask * bytes_to_unit(self.dogs[dog]) + (1 - mask) * bytes_to_unit(self.scenes[scene])


class CanineBG(CorrelatedDataModule):
    """The use of a dog, whose breed (the mode) correlates with where it is shown.

    Reads the folder that `codid prepare canine-bg` writes, `root`/CanineBG with `metadata.csv`, `Images`, `Masks` and
    `Backgrounds`. Images are composed when a batch is drawn, so any P(a_2 | m_1) can be had from the same cut-outs.
    Dogs and backgrounds of the tests are never trained on.

    Args:
        image_size: Height and width of the inputs; other sizes on disk are resized.
        test_fraction: Share of each breed's photos, and of the backgrounds, held out for the tests.
    """

    title = "Canine-BG"
    attribute_names = ("use", "background")
    value_names = (("working", "pet"), ("indoors", "outdoors"))
    mode_names = tuple(name for _, name in BREEDS)
    modes_per_value = (10, 10)
    p_a2_given_mode = (_INDOORS, tuple(round(1 - p, 1) for p in _INDOORS))

    def __init__(self, image_size: int = 128, test_fraction: float = 0.2, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if image_size < 32 or not 0 < test_fraction < 1:
            raise DataError(
                f"data.image_size is {image_size}, data.test_fraction {test_fraction}; the size must be at least 32, "
                "the share between 0 and 1."
            )
        self.image_size, self.test_fraction = image_size, test_fraction
        self.input_shape = (3, image_size, image_size)

    @property
    def path(self) -> Path:
        """The prepared folder."""
        return Path(self.root) / "CanineBG"

    def prepare_data(self) -> None:
        """Check that the folder exists: ImageNet and Places cannot be downloaded without an account."""
        if not (self.path / "metadata.csv").is_file():
            raise DataError(
                f"{self.path} has no metadata.csv. Build the folder from your ImageNet and Places copies with `codid "
                f"prepare canine-bg --imagenet DIR --places DIR --out {self.path}`."
            )

    @cached_property
    def table(self) -> pd.DataFrame:
        """The rows of metadata.csv, after a check of breeds, modes and uses."""
        self.prepare_data()
        file = self.path / "metadata.csv"
        try:
            table = pd.read_csv(file)[["image", "mask", "a1", "m1", "breed"]]
        except (ValueError, KeyError) as error:
            raise DataError(f"{file} needs the columns image, mask, a1, m1 and breed ({error}).") from error
        expected = {(name, mode, mode // self.modes_per_value[0]) for mode, name in enumerate(self.mode_names)}
        strange = set(zip(table["breed"], table["m1"], table["a1"], strict=True)) - expected
        if strange:
            raise DataError(f"{file} has breeds, modes or uses that do not belong together: {sorted(strange)[:3]}.")
        return table

    @cached_property
    def scene_paths(self) -> list[list[Path]]:
        """The background files of each value of a_2."""
        found = [sorted((self.path / "Backgrounds" / scene).glob("*.jpg")) for scene in SCENES]
        if min(map(len, found)) < 2:
            raise DataError(f"{self.path / 'Backgrounds'} needs at least 2 jpg files in each of {', '.join(SCENES)}.")
        return found

    @cached_property
    def transform(self) -> Layers:  # type: ignore[override]
        """All pictures, read once."""
        size = (self.image_size, self.image_size)
        dogs, masks = ([self.path / name for name in self.table[column]] for column in ("image", "mask"))
        scenes = [path for paths in self.scene_paths for path in paths]
        return Layers(read_images(dogs, size), read_images(masks, size, "L"), read_images(scenes, size))

    def load(self, train: bool) -> tuple[Tensor, Tensor]:
        """Rows of the table with a flag for held-out rows, (N, 2), and their modes."""
        modes = torch.tensor(self.table["m1"].to_numpy())
        held_out = torch.zeros(len(modes), dtype=torch.bool)
        for mode in range(len(BREEDS)):
            held_out[self._held_out((modes == mode).nonzero().flatten(), mode)] = True
        rows = (held_out != train).nonzero().flatten()
        return torch.stack([rows, held_out[rows].long()], dim=1), modes[rows]

    def render(self, raw: Tensor, a2: Tensor, generator: torch.Generator) -> Tensor:
        """Pairs of a dog and a background (N, 2); held-out dogs get held-out backgrounds."""
        position = torch.rand(len(raw), generator=generator)
        pairs = torch.stack([raw[:, 0], torch.empty_like(a2)], dim=1)
        start = 0
        for value, paths in enumerate(self.scene_paths):
            scenes = torch.arange(start, start + len(paths))
            held_out = self._held_out(scenes, len(BREEDS) + value)
            for flag, pool in enumerate((scenes[~torch.isin(scenes, held_out)], held_out)):
                chosen = (a2 == value) & (raw[:, 1] == flag)
                pairs[chosen, 1] = pool[(position[chosen] * len(pool)).long()]
            start += len(paths)
        return pairs

    def _held_out(self, candidates: Tensor, stream: int) -> Tensor:
        """A random share of the candidates, the same in every call."""
        order = torch.randperm(len(candidates), generator=seeded_generator(self.seed, 5, stream))
        count = min(max(1, round(len(candidates) * self.test_fraction)), len(candidates) - 1)
        return candidates[order[:count]].sort().values
