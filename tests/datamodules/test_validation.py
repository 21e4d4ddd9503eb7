"""Validation windows share no sample with training windows: by property, on fakes of every format, on real files."""

from __future__ import annotations

from itertools import count

import numpy as np
import pytest
import torch
from scipy.io import savemat

import datamodules
from datamodules import CWRU
from datamodules.validation import hold_out
from tests import fakes

LENGTH = 12


def planned(seed):
    """Random recordings of random cells, with windows that overlap as they like and gaps within recordings."""
    rng = np.random.default_rng(seed)
    cells, recording, start = [], [], []
    for number in range(rng.integers(6, 30)):
        stride, size = rng.integers(1, 2 * LENGTH), rng.integers(1, 40)
        steps = np.where(rng.random(size) < 0.05, 10 * LENGTH, stride)
        cells += [(rng.integers(2), rng.integers(3))] * size
        recording += [number] * size
        start += steps.cumsum().tolist()
    order = rng.permutation(len(start))
    return torch.tensor(np.array(cells))[order], torch.tensor(recording)[order], torch.tensor(start)[order]


def sharing(recording, start, one, other):
    """For each window of `one`, whether it has samples in common with one of `other`."""
    same = recording[one][:, None] == recording[other]
    return (same & ((start[one][:, None] - start[other]).abs() < LENGTH)).any(1)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("seed", range(30))
def test_whatever_the_recordings_no_sample_is_shared_and_no_window_is_lost_in_vain(seed, whole):
    cells, recording, start = planned(seed)
    train, val = hold_out(cells, recording, start, LENGTH, 0.2, seed, whole)
    assert not sharing(recording, start, val, train).any()
    left_out = torch.tensor(sorted({*range(len(start))} - {*train.tolist()} - {*val.tolist()}), dtype=torch.long)
    assert sharing(recording, start, left_out, val).all()
    assert len(train) + len(val) + len(left_out) == len(start)
    assert train.tolist() == sorted(train.tolist())
    for cell in cells.unique(dim=0):
        rows = (cells == cell).all(1).nonzero().flatten()
        apart = any(start[r] - start[s] >= LENGTH for r in rows for s in rows if recording[r] == recording[s])
        if apart and len(rows) > 2:
            assert torch.isin(rows, val).any()
            assert torch.isin(rows, train).any()


def test_the_share_is_kept_in_every_cell_and_the_seed_chooses():
    recording = torch.arange(6).repeat_interleave(100)
    start, cells = torch.arange(100).repeat(6), torch.stack([recording // 3, recording % 3], 1)
    train, val = hold_out(cells, recording, 6 * start, LENGTH, 0.2, 0)
    assert recording[val].bincount().tolist() == [20] * 6  # each recording is long
    assert recording[train].bincount().tolist() == [79] * 6  # one window reaches over the border
    again, other = (hold_out(cells, recording, 6 * start, LENGTH, 0.2, seed)[1] for seed in (0, 1))
    assert torch.equal(val, again)
    assert not torch.equal(val, other)


@pytest.mark.parametrize(("windows", "expected"), [(4, 4), (5, 5), (40, 40)])
def test_of_short_recordings_whole_ones_are_held_out(windows, expected):
    recording = torch.arange(5).repeat_interleave(windows)
    start = (LENGTH // 2) * torch.arange(windows).repeat(5)
    cells = torch.zeros(len(start), 2, dtype=torch.long)
    train, val = hold_out(cells, recording, start, LENGTH, 0.2, 0, whole=True)
    assert len(val) == expected
    assert len(recording[val].unique()) == 1
    assert len(train) + len(val) == len(start)


def test_cells_of_one_window_share_validation_with_their_value():
    cells = torch.stack([torch.arange(60) % 2, torch.arange(60) // 2], 1)
    _, val = hold_out(cells, torch.arange(60), torch.zeros(60, dtype=torch.long), LENGTH, 0.2, 0)
    assert cells[val, 0].bincount().tolist() == [6, 6]


# ------------------------------------------------------------------------------------------ files in the real formats


@pytest.fixture
def ramps(monkeypatch):
    """Fakes of movements whose samples are all different: they count up."""
    counter = count()

    def wave(rng, length, activity, offset=0.0):
        first = 1000 * next(counter)
        return np.tile(np.arange(first, first + length, dtype=float)[:, None], 3)

    monkeypatch.setattr(fakes, "_wave", wave)


def uci_har(root):
    fakes.uci_har(root, windows=6)


def hapt(root):
    fakes.hapt(root, samples=640)


def realworld(root):
    fakes.realworld(root, samples=700)


def hhar(root):
    """Two phones that a user wears at the same time, 12 seconds per activity, a number per moment."""
    lines = ["Index,Arrival_Time,Creation_Time,x,y,z,User,Model,Device,gt"]
    for u, user in enumerate("adg"):
        for phone, rate in (("nexus4_1", 200), ("nexus4_2", 50)):
            for activity, name in enumerate(("bike", "sit", "stand", "walk", "stairsup", "stairsdown")):
                for i in range(12 * rate):
                    second = 100 * (6 * u + activity) + i / rate
                    lines.append(f"{i},0,{int(1e9 * second)},{second},0,0,{user},nexus4,{phone},{name}")
    (root / "HHAR").mkdir()
    (root / "HHAR" / "Phones_accelerometer.csv").write_text("\n".join(lines))


def cwru(root):
    (root / "CWRU").mkdir()
    for number, remote in enumerate(CWRU.remote):
        signal = np.arange(24_000.0)[:, None] + 30_000 * number
        savemat(root / "CWRU" / remote.name, {f"X{int(remote.name[:-4]):03d}_DE_time": signal})


def mfd(root):
    starts = count(step=30_000)
    for condition in fakes.CONDITIONS:
        for bearing in ("K001", "KI01", "KA01"):
            path = root / "MFD" / bearing / f"{condition}_{bearing}_1.mat"
            fakes.paderborn_recording(path, np.arange(25_600.0) + next(starts))


FORMATS = {
    "uci_har": (uci_har, "UCIHAR", {"test_group": 1}),
    "hapt": (hapt, "UCIHAR", {"source": "hapt", "signal": "total", "test_group": 1}),
    "realworld": (realworld, "RealWorld", {"test_group": 1}),  # the user whose recordings the fake repeats
    "hhar": (hhar, "HHAR", {"test_group": 2}),
    "cwru": (cwru, "CWRU", {"windows": 120}),
    "mfd": (mfd, "MFD", {"stride": 2560}),
}


def shared(data):
    """The share of validation windows with samples of training windows, where samples count up."""
    (low, high), (lows, highs) = (
        (x[:, 0].amin(1).double(), x[:, 0].amax(1).double())
        for x in (data.datasets[split].x for split in ("val", "train"))
    )
    common = torch.minimum(high[:, None], highs) - torch.maximum(low[:, None], lows)
    return float((common > 0.02 * (high - low)[:, None]).any(1).double().mean())


@pytest.mark.parametrize("name", FORMATS)
def test_no_sample_is_in_training_and_validation(name, tmp_path, ramps):
    write, cls, arguments = FORMATS[name]
    write(tmp_path)
    found = {}
    for split in ("random", "blocks", "recordings"):
        data = getattr(datamodules, cls)(root=str(tmp_path), val_split=split, **arguments)
        data.prepare_data()
        data.setup()
        found[split] = shared(data)
        cells = [set(map(tuple, data.datasets[part].a.tolist())) for part in ("train", "val")]
        assert split == "random" or cells[0] == cells[1]  # every cell has samples in both
        share = len(data.datasets["val"]) / sum(len(data.datasets[part]) for part in ("train", "val"))
        assert 0.12 < share < 0.45
    assert found["random"] > 0.4
    assert found["blocks"] == found["recordings"] == 0


def traces(x, size=16):
    """A number for every `size` successive samples of the first channel, (N, T - size + 1); equal for equal samples."""
    bits = np.lib.stride_tricks.sliding_window_view(x[:, 0].contiguous().numpy().view(np.uint32), size, axis=1)
    weights = np.random.default_rng(0).integers(1, 2**63, size, dtype=np.uint64)
    found = np.zeros(bits.shape[:2], dtype=np.uint64)
    for place, weight in enumerate(weights):
        found += bits[:, :, place] * weight
    return found


@pytest.mark.parametrize(
    ("dataset", "folder", "changes"),
    [
        ("uci_har", "UCIHAR", {"signal": "total"}),
        ("uci_har", "HAPT", {"source": "hapt"}),
        ("cwru", "CWRU", {}),
    ],
)
def test_real_windows_of_training_and_validation_share_nothing(dataset, folder, changes, configured):
    found = {}
    for split in ("random", "blocks"):
        data = configured(dataset, folder, val_split=split, **changes)
        x = data.datasets["train"].x
        ends = np.concatenate([traces(x[:, :, :16]), traces(x[:, :, -16:])])
        found[split] = float(np.isin(traces(data.datasets["val"].x), ends).any(1).mean())
        assert torch.equal(*(data.datasets[part].a.unique(dim=0) for part in ("train", "val")))
    assert found["random"] > 0.9
    assert found["blocks"] == 0
