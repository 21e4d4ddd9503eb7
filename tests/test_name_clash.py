"""A user's own `datamodules` in the current directory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def said(folder: Path, *arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "codid_lightning", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    return done.returncode, done.stderr


@pytest.mark.parametrize("name", ["datamodules/__init__.py", "datamodules.py"])
def test_a_package_that_hides_ours_is_named(tmp_path, name):
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.touch()
    code, message = said(tmp_path, "report", "nowhere")
    assert code == 1
    hiding = file if file.name == "datamodules.py" else file.parent
    assert message.splitlines() == [
        f"codid: {hiding} hides this program's package of the same name. Rename it, or start codid in another folder."
    ]


def test_a_folder_without_modules_does_no_harm(tmp_path):
    (tmp_path / "datamodules").mkdir()
    code, message = said(tmp_path, "report", "nowhere")
    assert (code, "no result.json" in message) == (1, True)
