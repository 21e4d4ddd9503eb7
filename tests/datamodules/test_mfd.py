import numpy as np
import pytest
import torch
from scipy.io import savemat

from datamodules import MFD, DataError
from tests import fakes


@pytest.fixture
def root(tmp_path):
    fakes.mfd(tmp_path)
    return tmp_path


def prepared(folder, names="0123", samples=None):
    """AdaTime's files: windows of ones times ten per label plus the condition."""
    folder.mkdir(parents=True, exist_ok=True)
    for condition, name in enumerate(names):
        for split in ("train", "test"):
            labels = torch.tensor([0, 1, 2, 0])
            x = (10 * labels + condition)[:, None].float().repeat(1, 5120) if samples is None else samples
            torch.save({"samples": x, "labels": labels}, folder / f"{split}_{name}.pt")


def test_recordings_are_labelled_by_their_names(root):
    windows = MFD(root=str(root)).load()
    assert windows.x.shape == (4 * 3 * 2, 1, 5120)  # the bearing with both damages is left out
    assert windows.a2.bincount().tolist() == [6] * 4
    # the fake's amplitude tells the fault: 2, 3, 4
    assert torch.equal(windows.x.amax((1, 2)).long() - 2, windows.a1)


def test_recordings_and_stride_limit_what_is_read(root):
    signal = np.zeros(10_240)
    fakes.paderborn_recording(root / "MFD" / "K001" / "N09_M07_F10_K001_2.mat", signal)
    fakes.paderborn_recording(root / "MFD" / "K001" / "N09_M07_F10_K001_3.mat", signal)
    sizes = [len(MFD(root=str(root), recordings=r, stride=s).load().x) for r, s in ((1, 5120), (2, 5120), (None, 2560))]
    assert sizes == [24, 26, 14 * 3]


def test_recording_damaged_in_the_public_archive_is_left_out(root):
    broken = root / "MFD" / "KA08" / "N15_M01_F10_KA08_2.mat"
    broken.parent.mkdir()
    broken.write_bytes(b"damaged")
    assert len(MFD(root=str(root)).load().x) == 24


@pytest.mark.parametrize("content", [b"", b"MATLAB 5.0 MAT-file, but no more"])
def test_other_damaged_recordings_are_named(root, content):
    (root / "MFD" / "KA01" / "N15_M07_F10_KA01_1.mat").write_bytes(content)
    with pytest.raises(DataError, match=r"N15_M07_F10_KA01_1\.mat has no readable"):
        MFD(root=str(root)).load()


def test_recording_without_vibration_raises(root):
    path = root / "MFD" / "KA01" / "N15_M07_F10_KA01_1.mat"
    savemat(path, {path.stem: {"Y": [{"Name": "force", "Data": 0.0}, {"Name": "speed", "Data": 0.0}]}})
    with pytest.raises(DataError, match="no channel `vibration_1`"):
        MFD(root=str(root)).load()


def test_unknown_condition_raises(root):
    fakes.paderborn_recording(root / "MFD" / "K001" / "N99_M07_F10_K001_1.mat", np.zeros(6000))
    with pytest.raises(DataError, match="condition N99_M07_F10"):
        MFD(root=str(root)).load()


@pytest.mark.parametrize("names", ["0123", "abcd"])
@pytest.mark.parametrize("kind", ["tensor", "array", "channel first", "channel last"])
def test_prepared_files_are_read_and_win_over_recordings(root, names, kind):
    values = torch.arange(4.0)[:, None].repeat(1, 5120)
    samples = {
        "tensor": values,
        "array": values.numpy().astype(np.float64),
        "channel first": values[:, None],
        "channel last": values[:, :, None],
    }[kind]
    prepared(root / "MFD", names, samples)
    windows = MFD(root=str(root)).load()
    assert windows.x.shape == (2 * 4 * 4, 1, 5120)
    assert windows.x.dtype == torch.float32
    assert windows.a2.bincount().tolist() == [8] * 4
    assert windows.a1.bincount().tolist() == [16, 8, 8]


def test_prepared_files_keep_labels_and_conditions_together(tmp_path):
    prepared(tmp_path / "MFD")
    windows = MFD(root=str(tmp_path)).load()
    assert torch.equal(windows.x[:, 0, 0].long(), 10 * windows.a1 + windows.a2)


def test_prepared_files_run_no_code(tmp_path):
    class Evil:
        def __reduce__(self):
            return (open, (str(tmp_path / "executed"), "w"))

    (tmp_path / "MFD").mkdir()
    torch.save({"samples": Evil(), "labels": torch.zeros(1)}, tmp_path / "MFD" / "train_0.pt")
    with pytest.raises(DataError, match=r"train_0\.pt"):
        MFD(root=str(tmp_path)).load()
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("stored", [{"samples": torch.zeros(3, 100), "labels": torch.zeros(3)}, {"x": 1}, [1, 2]])
def test_prepared_files_of_another_kind_raise(tmp_path, stored):
    (tmp_path / "MFD").mkdir()
    torch.save(stored, tmp_path / "MFD" / "train_0.pt")
    with pytest.raises(DataError, match=r"train_0\.pt"):
        MFD(root=str(tmp_path)).load()


def test_windows_of_recordings_are_kept(root, monkeypatch):
    module = MFD(root=str(root), test_group=2)
    module.prepare_data()
    monkeypatch.setattr(MFD, "load", lambda self: pytest.fail("read again"))
    module.setup()
    assert module.datasets["test"].a[:, 1].unique().tolist() == [2]


def test_missing_files_say_what_to_place_where(tmp_path):
    with pytest.raises(DataError, match=r"\.mat files of the Paderborn .* in .*MFD"):
        MFD(root=str(tmp_path)).prepare_data()


@pytest.mark.parametrize("arguments", [{"stride": 0}, {"recordings": 0}])
def test_meaningless_arguments_raise(arguments):
    with pytest.raises(DataError, match="at least 1"):
        MFD(**arguments)
