import shutil
import zipfile

import pytest

from datamodules import DataError, RealWorld
from tests import fakes


@pytest.fixture
def root(tmp_path):
    fakes.realworld(tmp_path)
    return tmp_path


def test_all_users_and_activities_are_read(root):
    windows = RealWorld(root=str(root)).load()
    assert windows.x.shape[1:] == (3, 150)
    assert windows.a1.unique().tolist() == list(range(8))
    assert windows.a2.unique().tolist() == list(range(15))
    # 5 s make two overlapping windows; user 4's climbing has two recordings in nested zips
    nested = (windows.a2 == 3) & (windows.a1 < 2)
    assert len(windows.x) == 15 * 8 * 2 + 4
    assert nested.sum() == 8


def test_chest_only(root):
    folder = root / "RealWorld" / "proband1" / "data"
    expected = RealWorld(root=str(root)).load().x[0]
    with zipfile.ZipFile(folder / "acc_climbingup_csv.zip", "a") as packed:
        packed.writestr("acc_climbingup_head.csv", "id,attr_time,attr_x,attr_y,attr_z\n1,0,9,9,9\n")
    assert (RealWorld(root=str(root)).load().x[0] == expected).all()


def test_folders_may_lie_one_level_deeper(root):
    windows = RealWorld(root=str(root)).load()
    inner = root / "RealWorld" / "realworld2016_dataset"
    inner.mkdir()
    for folder in (root / "RealWorld").glob("proband*"):
        shutil.move(folder, inner / folder.name)
    assert len(RealWorld(root=str(root)).load().x) == len(windows.x)


def test_missing_activity_is_warned_of(root):
    (root / "RealWorld" / "proband6" / "data" / "acc_jumping_csv.zip").unlink()
    with pytest.warns(UserWarning, match="user 6"):
        windows = RealWorld(root=str(root)).load()
    assert not ((windows.a2 == 5) & (windows.a1 == 2)).any()


@pytest.mark.parametrize("content", [b"PK broken", None])
def test_damaged_zip_is_named(root, content):
    file = root / "RealWorld" / "proband6" / "data" / "acc_jumping_csv.zip"
    if content is None:
        with zipfile.ZipFile(file, "w") as packed:
            packed.writestr("acc_jumping_chest.csv", "some,other,columns\n1,2,3\n")
    else:
        file.write_bytes(content)
    with pytest.raises(DataError, match=r"proband6/data/acc_jumping_csv\.zip"):
        RealWorld(root=str(root)).load()


def test_missing_folder_says_what_to_place_where(tmp_path):
    with pytest.raises(DataError, match=r"proband1 to proband15 .* in .*RealWorld"):
        RealWorld(root=str(tmp_path), download=False).prepare_data()


def test_interrupted_unpacking_is_not_taken_for_the_whole(root):
    shutil.rmtree(root / "RealWorld" / "proband9")
    with pytest.raises(DataError, match="proband1 to proband15"):
        RealWorld(root=str(root), download=False).prepare_data()
