"""Build Canine-BG: cut dogs out of ImageNet photos with SAM and CLIP, and collect backgrounds from Places."""

from __future__ import annotations

import csv
import importlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from rich.progress import track

from datamodules.base import DataError
from datamodules.canine_bg import BREEDS, SCENES
from datamodules.images import open_image

Mask = NDArray[np.bool_]  # (H, W)
_PHOTOS = {".jpeg", ".jpg", ".png"}
_SCENE_FOLDERS = {  # names of the two scenes in Places' releases
    "living_room": ("living_room",),
    "forest": ("forest", "forest/broadleaf", "forest-broadleaf"),
}
_MARGIN = 1.1  # side of the square around a dog, relative to its larger extent


class SegmentationError(Exception):
    """A photo in which no dog could be found."""


class Segmenter(Protocol):
    """Finds the dog in a photo."""

    def __call__(self, photo: Image.Image, breed: str) -> Mask:
        """The mask of the dog; raises `SegmentationError` if there is none."""


class SamClip:
    """SAM proposes masks; CLIP chooses the one most similar to "a photo of a {breed}".

    Args:
        sam: Name or folder of a SAM model.
        clip: Name or folder of a CLIP model.
        device: Where both run.
        min_area: Masks covering less of the photo are not considered, nor those covering more than `max_area`.
        max_area: See `min_area`.
        thresholds: Arguments of SAM's mask generation, e.g. `pred_iou_thresh`.
    """

    def __init__(
        self,
        sam: str = "facebook/sam-vit-huge",
        clip: str = "openai/clip-vit-large-patch14",
        device: str = "cpu",
        min_area: float = 0.03,
        max_area: float = 0.95,
        thresholds: dict[str, float] | None = None,
    ) -> None:
        try:
            transformers: Any = importlib.import_module("transformers")
        except ImportError as error:
            raise DataError("SAM and CLIP come with `pip install codid-lightning[canine]`.") from error
        self.proposals = transformers.pipeline("mask-generation", model=sam, device=torch.device(device))
        self.clip = transformers.CLIPModel.from_pretrained(clip).to(device).eval()
        self.processor = transformers.CLIPProcessor.from_pretrained(clip)
        self.min_area, self.max_area, self.thresholds = min_area, max_area, thresholds or {}

    @torch.inference_mode()
    def __call__(self, photo: Image.Image, breed: str) -> Mask:
        """The proposed mask whose cut-out fits the breed best."""
        proposed = [np.asarray(m, dtype=bool) for m in self.proposals(photo, **self.thresholds)["masks"]]
        masks = [mask for mask in proposed if self.min_area <= mask.mean() <= self.max_area]
        if not masks:
            raise SegmentationError(f"none of {len(proposed)} masks has a plausible size")
        pictures = [_cut_out(photo, mask) for mask in masks]
        prompt = f"a photo of a {breed.replace('_', ' ')}"
        inputs = self.processor(text=[prompt], images=pictures, return_tensors="pt", padding=True)
        scores = self.clip(**inputs.to(self.clip.device)).logits_per_image[:, 0]
        return masks[int(scores.argmax())]


@dataclass(frozen=True)
class Preparation:
    """The result of a preparation."""

    prepared: int
    failed: list[tuple[str, str]]  # file and reason


def prepare(
    imagenet: Path,
    places: Path,
    out: Path,
    segmenter: Segmenter,
    size: int = 128,
    per_breed: int = 600,
    per_scene: int = 1000,
) -> Preparation:
    """Write the folder that `CanineBG` reads.

    A repeated call continues an interrupted one: photos with a mask are done, and photos that failed are listed in
    `failed.csv`. `metadata.csv`, which `CanineBG` needs, is written last.

    Args:
        imagenet: Folder with the synsets' folders (`n02096294`, ...), at any depth the public archives use.
        places: Folder with `living_room` and `forest` or `forest/broadleaf`, likewise.
        out: Folder to write.
        segmenter: Finds the dog in a photo.
        size: Side of the pictures written.
        per_breed: Largest number of photos of a breed.
        per_scene: Largest number of backgrounds of a scene.
    """
    photos = [_photos(_breed_folder(imagenet, synset), per_breed) for synset, _ in BREEDS]
    for scene in SCENES:
        _copy_scene(places, scene, out, size, per_scene)
    failed = _read_failures(out)
    todo = [(mode, photo) for mode, paths in enumerate(photos) for photo in paths]
    for mode, photo in track(todo, description="Cutting out dogs"):
        image, mask = _targets(out, mode, photo)
        if mask.is_file() or photo.name in failed:
            continue
        try:
            _prepare_photo(photo, image, mask, BREEDS[mode][1], segmenter, size)
        except (SegmentationError, DataError) as error:
            failed[photo.name] = str(error)
            _note_failure(out, photo.name, str(error))
    rows = [(mode, *_targets(out, mode, photo)) for mode, photo in todo if _targets(out, mode, photo)[1].is_file()]
    _write_metadata(out, rows)
    return Preparation(len(rows), sorted(failed.items()))


def _breed_folder(imagenet: Path, synset: str) -> Path:
    for base in (imagenet, imagenet / "train", imagenet / "ILSVRC/Data/CLS-LOC/train", imagenet / "Images"):
        for folder in (base / synset, *base.glob(f"{synset}-*")):
            if folder.is_dir():
                return folder
    raise DataError(f"{imagenet} has no folder {synset}; point --imagenet at the folder of ImageNet's synsets.")


def _scene_folder(places: Path, scene: str) -> Path:
    bases = (places, places / "train", places / "data_256" / scene[0], places / "data_large" / scene[0])
    for base in bases:
        for name in _SCENE_FOLDERS[scene]:
            if (base / name).is_dir() and any(_files(base / name)):
                return base / name
    raise DataError(f"{places} has no pictures of {' or '.join(_SCENE_FOLDERS[scene])}; point --places at Places365.")


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in folder.iterdir() if path.suffix.lower() in _PHOTOS)


def _photos(folder: Path, limit: int) -> list[Path]:
    return sorted(_files(folder))[:limit]


def _targets(out: Path, mode: int, photo: Path) -> tuple[Path, Path]:
    folder = "-".join(BREEDS[mode])
    return out / "Images" / folder / f"{photo.stem}.jpg", out / "Masks" / folder / f"{photo.stem}.png"


def _copy_scene(places: Path, scene: str, out: Path, size: int, limit: int) -> None:
    for source in _photos(_scene_folder(places, scene), limit):
        target = out / "Backgrounds" / scene / f"{source.stem}.jpg"
        if not target.is_file():
            picture = open_image(source)
            side = min(picture.size)
            left, top = (picture.width - side) // 2, (picture.height - side) // 2
            _save(picture.resize((size, size), box=(left, top, left + side, top + side)), target)


def _prepare_photo(photo: Path, image: Path, mask: Path, breed: str, segmenter: Segmenter, size: int) -> None:
    picture = open_image(photo)
    found = segmenter(picture, breed)
    box = _square_around(found)
    _save(_crop(picture, box, size), image)
    _save(_crop(Image.fromarray(found), box, size), mask)  # last: it marks the photo as done


def _square_around(mask: Mask) -> tuple[int, int, int, int]:
    """Left, top, right and bottom of a square with the dog in its centre; it may extend beyond the photo."""
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    if not len(rows):
        raise SegmentationError("the mask is empty")
    side = round(_MARGIN * max(np.ptp(rows), np.ptp(columns)) + 1)
    left, top = ((int(c[0]) + int(c[-1]) + 1 - side) // 2 for c in (columns, rows))
    return left, top, left + side, top + side


def _crop(picture: Image.Image, box: tuple[int, int, int, int], size: int) -> Image.Image:
    # `crop` fills what lies outside of the photo with black, which the mask excludes.
    nearest = Image.Resampling.NEAREST if picture.mode == "1" else Image.Resampling.BILINEAR
    return picture.crop(box).resize((size, size), nearest)


def _cut_out(photo: Image.Image, mask: Mask) -> Image.Image:
    """The dog on grey, the input of CLIP."""
    alone = Image.composite(photo, Image.new("RGB", photo.size, (128, 128, 128)), Image.fromarray(mask))
    return alone.crop(_square_around(mask))


def _save(picture: Image.Image, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")
    options: dict[str, Any] = {"quality": 95} if path.suffix == ".jpg" else {}
    picture.save(part, format="JPEG" if path.suffix == ".jpg" else "PNG", **options)
    os.replace(part, path)


def _read_failures(out: Path) -> dict[str, str]:
    file = out / "failed.csv"
    if not file.is_file():
        return {}
    with file.open(newline="") as stream:
        return {row[0]: row[1] for row in csv.reader(stream) if len(row) == 2}


def _note_failure(out: Path, name: str, reason: str) -> None:
    with (out / "failed.csv").open("a", newline="") as stream:
        csv.writer(stream).writerow((name, reason))


def _write_metadata(out: Path, rows: list[tuple[int, Path, Path]]) -> None:
    part = out / "metadata.csv.part"
    with part.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(("image", "mask", "a1", "m1", "breed"))
        for mode, image, mask in rows:
            names = (path.relative_to(out).as_posix() for path in (image, mask))
            writer.writerow((*names, mode // (len(BREEDS) // 2), mode, BREEDS[mode][1]))
    os.replace(part, out / "metadata.csv")
