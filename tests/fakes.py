"""A few kilobytes of every data set in its real on-disk format, for tests that need no download."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image
from scipy.io import savemat

from datamodules.canine_bg import BREEDS, SCENES

PER_CLASS = 12  # samples per class of the fake image sets


def write_idx(path: Path, array: np.ndarray) -> None:
    """An idx file of bytes as MNIST's: magic number, sizes, data."""
    path.parent.mkdir(parents=True, exist_ok=True)
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
    path.write_bytes(header + array.astype(np.uint8).tobytes())


def _idx_images(folder: Path, per_class: int) -> None:
    rng = np.random.default_rng(0)
    for split in ("train", "t10k"):
        labels = rng.permutation(np.repeat(np.arange(10), per_class))
        images = np.zeros((len(labels), 28, 28))
        for image, label in zip(images, labels, strict=True):  # a bar whose place tells the class
            image[2 * label : 2 * label + 6, 4:24] = rng.integers(128, 256)
        write_idx(folder / f"{split}-images-idx3-ubyte", images)
        write_idx(folder / f"{split}-labels-idx1-ubyte", labels)


def cmnist(root: Path, per_class: int = PER_CLASS) -> None:
    _idx_images(root / "MNIST" / "raw", per_class)


def cfashion_mnist(root: Path) -> None:
    _idx_images(root / "FashionMNIST" / "raw", PER_CLASS)


def colored_digits(root: Path) -> None:
    """Nothing: the digits come with scikit-learn."""


def _wave(rng: np.random.Generator, length: int, activity: int, offset: float = 0.0) -> np.ndarray:
    """Three axes whose rhythm tells the activity; coarse, so that it packs well."""
    phase = rng.uniform(0, 2 * np.pi, (1, 3))
    t = np.arange(length)[:, None] / 50
    return np.round(np.sin(2 * np.pi * (activity + 1) / 2 * t + phase) + offset, 1)


def _text(table: np.ndarray, form: str = "%.1f") -> str:
    buffer = io.StringIO()
    np.savetxt(buffer, table, fmt=form)
    return buffer.getvalue()


def _zip(path: Path, files: dict[str, str | bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for name, content in files.items():
            packed.writestr(name, content)


ACTIVITIES = "1 WALKING\n2 WALKING_UPSTAIRS\n3 WALKING_DOWNSTAIRS\n4 SITTING\n5 STANDING\n6 LAYING\n"


def uci_har(root: Path, windows: int = 1) -> None:
    """The public zip: users 1 to 21 in train, 22 to 30 in test, windows of one recording per activity."""
    rng = np.random.default_rng(0)
    files: dict[str, str | bytes] = {"UCI HAR Dataset/activity_labels.txt": ACTIVITIES}
    for split, users in (("train", range(1, 22)), ("test", range(22, 31))):
        recorded = [(user, activity) for user in users for activity in range(1, 7)]
        waves = [_wave(rng, 64 * (windows + 1), activity) for _, activity in recorded]
        body = np.stack([wave[64 * i : 64 * i + 128] for wave in waves for i in range(windows)])  # (N, 128, 3)
        rows = [labels for labels in recorded for _ in range(windows)]
        for signal, gravity in (("body", 0.0), ("total", 1.0)):
            for axis, name in enumerate("xyz"):
                path = f"UCI HAR Dataset/{split}/Inertial Signals/{signal}_acc_{name}_{split}.txt"
                files[path] = _text(body[:, :, axis] + gravity * (axis == 0))
        files[f"UCI HAR Dataset/{split}/subject_{split}.txt"] = _text(np.array(rows)[:, 0], "%d")
        files[f"UCI HAR Dataset/{split}/y_{split}.txt"] = _text(np.array(rows)[:, 1], "%d")
    _zip(root / "UCIHAR" / "UCI HAR Dataset.zip", files)


def hapt(root: Path, samples: int = 200) -> None:
    """The raw recordings: one per user, so many samples of each activity and one postural transition."""
    rng = np.random.default_rng(0)
    files: dict[str, str | bytes] = {"HAPT Data Set/activity_labels.txt": ACTIVITIES + "7 STAND_TO_SIT\n"}
    segments = []
    for user in range(1, 31):
        recording = np.concatenate([_wave(rng, samples, activity, offset=1.0) for activity in range(1, 8)])
        files[f"HAPT Data Set/RawData/acc_exp{user:02d}_user{user:02d}.txt"] = _text(recording)
        segments += [(user, user, a, samples * (a - 1) + 1, samples * a) for a in range(1, 8)]
    files["HAPT Data Set/RawData/labels.txt"] = _text(np.array(segments), "%d")
    _zip(root / "HAPT" / "HAPT Data Set.zip", files)


def _csv(times: np.ndarray, series: np.ndarray) -> str:
    rows = (f"{i},{int(t)},{','.join(map(str, v))}" for i, (t, v) in enumerate(zip(times, series, strict=True), 1))
    return "id,attr_time,attr_x,attr_y,attr_z\n" + "\n".join(rows) + "\n"


def realworld(root: Path, samples: int = 250) -> None:
    """A zip per user and activity with chest and waist; user 4 climbs in nested zips of several recordings."""
    rng = np.random.default_rng(0)
    names = ("climbingup", "climbingdown", "jumping", "lying", "standing", "sitting", "running", "walking")
    for user in range(1, 16):
        for activity, name in enumerate(names):
            times = 1_435_993_000_000 + np.cumsum(rng.integers(18, 23, samples))  # about 50 Hz, in ms
            chest = _csv(times, _wave(rng, samples, activity))
            files: dict[str, str | bytes] = {f"acc_{name}_chest.csv": chest, f"acc_{name}_waist.csv": chest[:200]}
            if user == 4 and name.startswith("climbing"):
                inner = io.BytesIO()
                with zipfile.ZipFile(inner, "w") as packed:
                    packed.writestr(f"acc_{name}_2_chest.csv", chest)
                files = {f"acc_{name}_{part}_csv.zip": inner.getvalue() for part in (1, 2)}
            _zip(root / "RealWorld" / f"proband{user}" / "data" / f"acc_{name}_csv.zip", {**files, "readMe": ""})


def hhar(root: Path) -> None:
    """One zipped table with two phones of different rates per user, and some rows of no activity."""
    rng = np.random.default_rng(0)
    lines = ["Index,Arrival_Time,Creation_Time,x,y,z,User,Model,Device,gt"]
    for user in "abcdefghi":
        for model, device, rate in (("nexus4", "nexus4_1", 200), ("samsungold", "samsungold_1", 50)):
            start = 1_424_696_631_913_248_572
            for activity, name in enumerate(("bike", "sit", "stand", "walk", "stairsup", "stairsdown", "null")):
                length = 3 * rate
                seconds = np.arange(length) / rate
                wave = np.round(np.sin(2 * np.pi * (activity + 1) / 2 * seconds), 1)
                for i, value in enumerate(wave):
                    time = start + int(i * 1e9 / rate + rng.integers(0, 1000))
                    lines.append(f"{i},{time // 1_000_000},{time},{value},0.5,9.8,{user},{model},{device},{name}")
                start += 5_000_000_000
    content = "\n".join(lines) + "\n"
    _zip(root / "HHAR" / "Activity recognition exp.zip", {"Activity recognition exp/Phones_accelerometer.csv": content})


CONDITIONS = ("N09_M07_F10", "N15_M01_F10", "N15_M07_F04", "N15_M07_F10")


def paderborn_recording(path: Path, vibration: np.ndarray) -> None:
    """A .mat file as the Paderborn archives hold: one struct with the channels in its array Y."""
    channel = [("Name", object), ("Type", object), ("Path", object), ("Raster", object), ("Data", object)]
    channels = np.empty((1, 2), dtype=channel)
    channels[0, 0] = ("force", "Measurement", "", "Mech_4kHz", vibration[None, :8] * 0)
    channels[0, 1] = ("vibration_1", "Measurement", "", "HostService", vibration[None])
    path.parent.mkdir(parents=True, exist_ok=True)
    savemat(path, {path.stem: {"Info": "", "X": 0, "Y": channels, "Description": ""}}, do_compression=True)


def mfd(root: Path) -> None:
    """One healthy, inner and outer bearing, one recording of two windows per condition; a KB bearing to ignore."""
    rng = np.random.default_rng(0)
    for condition in CONDITIONS:
        for fault, bearing in enumerate(("K001", "KI01", "KA01", "KB23")):
            signal = rng.integers(-2 - fault, 3 + fault, 10_400).astype(float)
            paderborn_recording(root / "MFD" / bearing / f"{condition}_{bearing}_1.mat", signal)


def cwru(root: Path) -> None:
    """All 28 files; 99.mat also holds another file's signal, as the published one does."""
    rng = np.random.default_rng(0)
    (root / "CWRU").mkdir(parents=True)
    groups = (97, 105, 130, 169, 197, 209, 234)
    for number in (first + load for first in groups for load in range(4)):
        signal = rng.integers(-3, 4, (6000 if number <= 100 else 1500, 1)).astype(np.float32)
        content = {f"X{number:03d}_DE_time": signal, f"X{number:03d}RPM": 1797}
        if number == 99:
            content["X098_DE_time"] = signal * 0
        savemat(root / "CWRU" / f"{number}.mat", content, do_compression=True)


def canine_bg(root: Path) -> None:
    """The prepared folder: six square dogs of every breed, four backgrounds of each scene, 16 x 16."""
    rng = np.random.default_rng(0)
    out = root / "CanineBG"
    rows = ["image,mask,a1,m1,breed"]

    def picture(array: np.ndarray, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(array).save(path)

    for mode, (synset, breed) in enumerate(BREEDS):
        for number in range(6):
            names = [f"{kind}/{synset}-{breed}/{synset}_{number}" for kind in ("Images", "Masks")]
            names = [f"{name}.{suffix}" for name, suffix in zip(names, ("jpg", "png"), strict=True)]
            mask = np.zeros((16, 16), dtype=bool)
            mask[4:12, 4:12] = True
            picture(np.full((16, 16, 3), 10 * mode + 20, dtype=np.uint8), out / names[0])
            picture(mask, out / names[1])
            rows.append(f"{names[0]},{names[1]},{mode // 10},{mode},{breed}")
    for scene in SCENES:
        for number in range(4):
            color = rng.integers(0, 256, 3, dtype=np.uint8)
            picture(np.tile(color, (16, 16, 1)), out / "Backgrounds" / scene / f"{number:08d}.jpg")
    (out / "metadata.csv").write_text("\n".join(rows) + "\n")


FAKES: dict[str, Callable[[Path], None]] = {
    "cmnist": cmnist,
    "cfashion_mnist": cfashion_mnist,
    "colored_digits": colored_digits,
    "canine_bg": canine_bg,
    "uci_har": uci_har,
    "realworld": realworld,
    "hhar": hhar,
    "mfd": mfd,
    "cwru": cwru,
}
