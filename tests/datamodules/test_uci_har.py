import zipfile

import numpy as np
import pytest
import torch

from datamodules import UCIHAR, DataError
from datamodules.uci_har import body_acceleration
from tests import fakes


def built(root, **arguments):
    module = UCIHAR(root=str(root), **arguments)
    module.prepare_data()
    module.setup()
    return module


@pytest.fixture
def unpacked(tmp_path):
    fakes.uci_har(tmp_path)
    zipfile.ZipFile(tmp_path / "UCIHAR" / "UCI HAR Dataset.zip").extractall(tmp_path / "UCIHAR")
    (tmp_path / "UCIHAR" / "UCI HAR Dataset.zip").unlink()
    return tmp_path


def test_windows_carry_the_files_labels(tmp_path):
    fakes.uci_har(tmp_path)
    windows = UCIHAR(root=str(tmp_path)).load()
    assert windows.x.shape == (180, 3, 128)
    assert windows.a1.tolist() == list(range(6)) * 30
    assert windows.a2.tolist() == [user for user in range(30) for _ in range(6)]


def test_folder_and_zip_read_alike(tmp_path, unpacked):
    fakes.uci_har(tmp_path / "packed")
    one, other = built(unpacked), built(tmp_path / "packed")
    assert torch.equal(one.datasets["train"].x, other.datasets["train"].x)


def test_signal_chooses_the_files(tmp_path):
    fakes.uci_har(tmp_path)
    body, total = (UCIHAR(root=str(tmp_path), signal=s).load().x for s in ("body", "total"))
    assert torch.allclose(total[:, 0] - body[:, 0], torch.tensor(1.0), atol=1e-5)
    assert torch.equal(total[:, 1:], body[:, 1:])


def test_recordings_are_cut_inside_their_segments(tmp_path):
    fakes.hapt(tmp_path)
    windows = UCIHAR(root=str(tmp_path), source="hapt", signal="total").load()
    assert len(windows.x) == 30 * 6 * 2  # 200 samples hold two windows; the postural transition is left out
    assert windows.a1.bincount().tolist() == [60] * 6
    # the rhythm of every window is its own activity's
    strength = torch.fft.rfft(windows.x[:, 0] - windows.x[:, 0].mean(1, keepdim=True)).abs()
    heard = strength.argmax(1) * 50 / 128
    assert torch.allclose(heard, (windows.a1 + 2).float() / 2, atol=0.25)


def test_body_acceleration_loses_gravity_and_keeps_movement():
    t = np.arange(2000) / 50
    movement = np.sin(2 * np.pi * 2 * t)
    series = np.stack([movement + 0.9, movement - 0.3, movement], axis=1)
    assert np.abs(body_acceleration(series)[500:-500] - movement[500:-500, None]).max() < 0.01


def test_missing_body_files_point_to_the_recordings(unpacked):
    for file in unpacked.rglob("body_acc_x_train.txt"):
        file.unlink()
    with pytest.raises(DataError, match=r"no body_acc_\*_train.*data\.source: hapt"):
        built(unpacked)
    assert built(unpacked, signal="total")


def test_rows_that_do_not_match_raise(unpacked):
    file = next(unpacked.rglob("y_train.txt"))
    file.write_text("1\n2\n")
    with pytest.raises(DataError, match="different numbers of rows"):
        built(unpacked)


def test_other_activities_than_expected_raise(unpacked):
    next(unpacked.rglob("activity_labels.txt")).write_text(fakes.ACTIVITIES.replace("LAYING", "FLYING"))
    with pytest.raises(DataError, match="flying"):
        built(unpacked)


@pytest.mark.parametrize("content", ["", "0.1 0.2\nabc 0.3\n"])
def test_damaged_file_is_named(unpacked, content):
    next(unpacked.rglob("body_acc_y_test.txt")).write_text(content)
    with pytest.raises(DataError, match=r"Cannot read .*body_acc_y_test\.txt"):
        built(unpacked)


def test_missing_files_say_what_to_place_where(tmp_path):
    with pytest.raises(DataError, match=r"`UCI HAR Dataset`, as a folder or as the public zip, in .*UCIHAR"):
        built(tmp_path, download=False)


def test_real_windows(configured):
    module = configured("uci_har", "UCIHAR", signal="total", test_group=4)
    windows = module.load()
    assert windows.x.shape[1:] == (3, 128)
    assert len(windows.a2.unique()) == 30
    norm = windows.x.norm(dim=1).mean()  # in g: gravity dominates
    assert norm == pytest.approx(1.03, abs=0.03)
    check_groups(module, set(range(24, 30)))


@pytest.mark.parametrize("signal", ["body", "total"])
def test_real_recordings_give_the_authors_windows(configured, signal):
    module = configured("uci_har", "HAPT", source="hapt", signal=signal, test_group=3)
    windows = module.load()
    assert windows.a1.bincount().tolist() == [1722, 1544, 1407, 1801, 1979, 1958]
    gravity = windows.x.mean(2).norm(dim=1).mean()  # what is left of 1 g after averaging over a window
    assert gravity < 0.1 if signal == "body" else gravity == pytest.approx(1, abs=0.1)
    check_groups(module, set(range(18, 24)))


def check_groups(module, expected):
    """The tested users are never trained on, and training windows alone decide the scaling."""
    tested = set(module.datasets["test"].a[:, 1].tolist())
    trained = module.datasets["train"].x
    users = {int(user) for name in ("train", "val") for user in module.datasets[name].a[:, 1]}
    assert tested == expected
    assert not tested & users
    assert trained.amin((0, 2)).tolist() == pytest.approx([-1] * 3)
    assert trained.amax((0, 2)).tolist() == pytest.approx([1] * 3)
    assert module.datasets["test"].x.abs().amax((0, 2)).tolist() != pytest.approx([1] * 3)
