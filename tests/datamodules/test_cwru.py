import numpy as np
import pytest
import torch
from scipy.io import savemat
from scipy.signal import welch

from datamodules import CWRU, DataError
from datamodules.cwru import _drive_end
from tests import fakes


@pytest.fixture
def root(tmp_path):
    fakes.cwru(tmp_path)
    return tmp_path


def test_every_fault_and_load_has_equally_many_windows(root):
    windows = CWRU(root=str(root), windows=30).load()
    assert windows.x.shape == (3 * 4 * 30, 1, 1024)
    assert (torch.bincount(windows.a1 * 4 + windows.a2) == 30).all()


def test_files_are_labelled_by_their_numbers(root):
    # every file constant at its own number, so that a window tells its file
    groups = {97: 0, 105: 1, 169: 1, 209: 1, 130: 2, 197: 2, 234: 2}
    for first in groups:
        for load in range(4):
            number = first + load
            name = f"X{number:03d}_DE_time"
            savemat(root / "CWRU" / f"{number}.mat", {name: np.full((5000, 1), float(number))})
    windows = CWRU(root=str(root), windows=3).load()
    numbers = windows.x[:, 0, 500].round().long()
    first = {
        number: (fault, load) for start, fault in groups.items() for load, number in enumerate(range(start, start + 4))
    }
    assert [first[n] for n in numbers.tolist()] == list(zip(windows.a1.tolist(), windows.a2.tolist(), strict=True))


def test_healthy_bearings_are_brought_to_the_faults_rate(root):
    # the same 300 Hz tone in all files, sampled at 48 kHz where the bearing is healthy
    for remote in CWRU.remote:
        number = int(remote.name[:-4])
        rate = 48_000 if number <= 100 else 12_000
        tone = np.sin(2 * np.pi * 300 * np.arange(rate) / rate)[:, None]
        savemat(root / "CWRU" / remote.name, {f"X{number:03d}_DE_time": tone})
    windows = CWRU(root=str(root), windows=6).load()
    heard = torch.fft.rfft(windows.x[:, 0]).abs().argmax(1) * 12_000 / 1024
    assert torch.allclose(heard, torch.tensor(300.0), atol=12)


def test_missing_file_says_what_to_place_where(root):
    (root / "CWRU" / "133.mat").unlink()
    with pytest.raises(DataError, match=r"97\.mat to 237\.mat .* in .*CWRU"):
        CWRU(root=str(root), download=False).prepare_data()


def test_missing_files_are_fetched(root, monkeypatch):
    asked = []
    (root / "CWRU" / "133.mat").unlink()
    monkeypatch.setattr(
        "datamodules.grouped.fetch", lambda remote, folder: asked.append(remote.name) or folder / remote.name
    )
    CWRU(root=str(root)).prepare_data()
    assert "133.mat" in asked


@pytest.mark.parametrize("content", [b"", b"<html>"])
def test_damaged_file_is_named(root, content):
    (root / "CWRU" / "133.mat").write_bytes(content)
    with pytest.raises(DataError, match=r"133\.mat has no readable `X133_DE_time`"):
        CWRU(root=str(root)).load()


def test_meaningless_number_of_windows_raises():
    with pytest.raises(DataError, match=r"data\.windows"):
        CWRU(windows=0)


def test_real_files(configured):
    module = configured("cwru", "CWRU", test_group=1)
    assert [len(d) for d in module.datasets.values()] == [4244, 1080, 1800]
    assert module.datasets["test"].a[:, 1].unique().tolist() == [1]
    assert 1 not in module.datasets["train"].a[:, 1]


def test_real_healthy_recordings_show_the_mains_where_it_belongs(real):
    # The sixth harmonic of 60 Hz is the sharpest line; with the wrong rate it would stand at a quarter.
    signal = _drive_end(real("CWRU") / "97.mat", decimation=4)
    frequency, power = welch(signal, fs=12_000, nperseg=12_000)
    near = (frequency > 340) & (frequency < 380)
    assert frequency[near][power[near].argmax()] == pytest.approx(360, abs=1)
