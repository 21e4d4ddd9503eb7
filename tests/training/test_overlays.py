"""Config files that name others to be read after them."""

from __future__ import annotations

import pytest

from codid_lightning.errors import RunError
from codid_lightning.training import resolve

BASE = "configs/toy/base.yaml"


def write(folder, **files):
    for name, text in files.items():
        (folder / f"{name}.yaml").write_text(text)
    return str(folder / f"{next(iter(files))}.yaml")


def test_overlays_are_read_after_their_file_and_in_order(tmp_path):
    first = write(
        tmp_path,
        first="trainer: {max_epochs: 1}\nseed_everything: 1\noverlays: [second.yaml, third.yaml]\n",
        second="trainer: {max_epochs: 2, accelerator: cpu}\n",
        third="trainer: {max_epochs: 3}\n",
    )
    found = resolve(["-c", BASE, "-c", first])
    assert (found["trainer"]["max_epochs"], found["trainer"]["accelerator"], found["seed_everything"]) == (3, "cpu", 1)


def test_what_follows_on_the_command_line_overrides_overlays(tmp_path):
    first = write(tmp_path, first="overlays: second.yaml\n", second="trainer: {max_epochs: 2}\n")
    assert resolve(["-c", BASE, "-c", first, "--trainer.max_epochs=7"])["trainer"]["max_epochs"] == 7
    assert resolve([f"--config={BASE}", f"--config={first}", "-c", BASE])["trainer"]["max_epochs"] == 30


def test_overlays_have_overlays_relative_to_their_own_folder(tmp_path):
    (tmp_path / "below").mkdir()
    write(tmp_path / "below", second="overlays: third.yaml\n", third="trainer: {max_epochs: 4}\n")
    first = write(tmp_path, first="overlays: below/second.yaml\n")
    assert resolve(["-c", BASE, "-c", first])["trainer"]["max_epochs"] == 4


def test_files_that_a_config_refers_to_are_found_beside_it():
    assert resolve(["-c", "configs/cmnist/codid.yaml"])["data"]["class_path"].endswith("CMNIST")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("overlays: missing.yaml\n", r"first\.yaml: there is no file .*missing\.yaml, which `overlays` names"),
        ("overlays: first.yaml\n", r"first\.yaml: its overlays lead back to itself"),
        ("overlays: {a: 1}\n", "`overlays` is {'a': 1}; it must be the name of a file"),
    ],
)
def test_wrong_overlays_name_the_file(tmp_path, text, message):
    with pytest.raises(RunError, match=message):
        resolve(["-c", BASE, "-c", write(tmp_path, first=text)])
