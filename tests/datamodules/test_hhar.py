import zipfile

import pytest
import torch

from datamodules import HHAR, DataError
from tests import fakes


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hhar")
    fakes.hhar(folder)
    return folder


def unpacked(root, tmp_path):
    zipfile.ZipFile(root / "HHAR" / "Activity recognition exp.zip").extractall(tmp_path / "HHAR")
    return next(tmp_path.rglob("Phones_accelerometer.csv"))


def test_phones_of_all_rates_give_windows_of_one_rate(root):
    both, fast, slow = (HHAR(root=str(root), models=m).load() for m in (None, ["nexus4"], ["samsungold"]))
    assert fast.x.shape == slow.x.shape == (9 * 6, 3, 128)
    assert len(both.x) == 2 * 9 * 6
    assert both.a1.bincount().tolist() == [18] * 6  # "null" is no activity
    assert both.a2.bincount().tolist() == [12] * 9
    for windows in (fast, slow):  # the same movement, whatever the phone
        strength = torch.fft.rfft(windows.x[:, 0]).abs()
        heard = strength[:, 1:].argmax(1) + 1
        assert torch.allclose(heard * 50 / 128, (windows.a1 + 1).float() / 2, atol=0.25)
    assert torch.allclose(both.x[:, 2], torch.tensor(9.8), atol=0.05)


def test_file_is_read_in_pieces_with_the_same_result(root, monkeypatch):
    import pandas as pd

    whole, read_csv = HHAR(root=str(root)).load(), pd.read_csv
    monkeypatch.setattr(pd, "read_csv", lambda *a, **k: read_csv(*a, **{**k, "chunksize": 997}))
    pieces = HHAR(root=str(root)).load()
    assert torch.equal(whole.x, pieces.x)
    assert torch.equal(whole.a1, pieces.a1)


def test_prepared_windows_are_kept_per_choice_of_phones(root, monkeypatch):
    for models in (["nexus4"], None):
        module = HHAR(root=str(root), models=models)
        module.prepare_data()
        expected = module.load()
        with monkeypatch.context() as patch:
            patch.setattr(HHAR, "load", lambda self: pytest.fail("read again"))
            module.prepare_data()
            module.setup()
        assert sum(len(d) for d in module.datasets.values()) == len(expected.x)


def test_unknown_activity_raises(root, tmp_path):
    file = unpacked(root, tmp_path)
    file.write_text(file.read_text().replace("stairsup", "flying"))
    with pytest.raises(DataError, match="activity 'flying'"):
        HHAR(root=str(tmp_path)).load()


@pytest.mark.parametrize(
    "content",
    ["a,b,c\n1,2,3\n", "", "Index,Arrival_Time,Creation_Time,x,y,z,User,Model,Device,gt\n1,2,3,up,5,6,a,b,c,sit\n"],
)
def test_damaged_table_is_named(root, tmp_path, content):
    unpacked(root, tmp_path).write_text(content)
    with pytest.raises(DataError, match=r"Cannot read .*Phones_accelerometer\.csv"):
        HHAR(root=str(tmp_path)).load()


def test_unknown_phone_leaves_no_window(root):
    with pytest.raises(DataError, match="no complete window"):
        HHAR(root=str(root), models=["iphone"]).load()


def test_missing_file_says_what_to_place_where(tmp_path):
    with pytest.raises(DataError, match=r"Phones_accelerometer\.csv.* in .*HHAR"):
        HHAR(root=str(tmp_path), download=False).prepare_data()
