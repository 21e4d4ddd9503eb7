"""A user's own `datamodules` in the current directory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def said(folder: Path, *arguments: str, path: tuple[Path, ...] = (ROOT,)) -> tuple[int, str]:
    command = [sys.executable, "-m", "codid_lightning", *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    return done.returncode, done.stderr


@pytest.mark.parametrize("name", ["datamodules/__init__.py", "datamodules.py"])
def test_the_current_folder_does_not_hide_ours_unless_python_is_told_to_look_there_first(tmp_path, name):
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.touch()
    code, message = said(tmp_path, "report", "nowhere")
    assert (code, "no result.json" in message) == (1, True)
    code, message = said(tmp_path, "report", "nowhere", path=(tmp_path, ROOT))
    assert code == 1
    hiding = file if file.name == "datamodules.py" else file.parent
    assert message.splitlines() == [
        f"codid: {hiding} hides this program's package of the same name. Rename it, or start in another folder."
    ]


def test_folders_of_other_projects_do_no_harm_and_their_classes_can_be_named(tmp_path):
    """A folder `configs` has its own files; those that it does not have are the shipped ones."""
    (tmp_path / "datamodules").mkdir()
    own = tmp_path / "configs" / "toy" / "mine.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("model: {class_path: my_method.Mine, init_args: {latent_dim: 3}}")
    (tmp_path / "my_method.py").write_text(
        "from codid_lightning import Base\n\nclass Mine(Base):\n    title = 'Mine'\n"
    )
    configs = ("-c", "configs/toy/base.yaml", "-c", "configs/toy/mine.yaml")
    few = ("--trainer.fast_dev_run=1", "--data.samples_per_mode=40", "--trainer.enable_progress_bar=false")
    assert said(tmp_path, "fit", *configs, *few)[0] == 0


@pytest.mark.parametrize("imported", ["codid_lightning import CoDID", "codid_lightning.training import build"])
def test_a_script_beside_such_a_folder_is_told(tmp_path, imported):
    (tmp_path / "datamodules").mkdir()
    (tmp_path / "datamodules" / "__init__.py").touch()
    script = tmp_path / "train.py"
    script.write_text(f"from {imported}\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"ImportError: {tmp_path / 'datamodules'} hides this program's package of the same name.")
