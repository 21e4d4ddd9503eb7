"""The recipes of CONTRIBUTING.md, executed literally in a copy of the repository."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
FILES = dict(re.findall(r"^```\w+ title=(\S+)\n(.*?)^```$", PAGE, flags=re.M | re.S))
COMMANDS = [
    line for block in re.findall(r"^```console\n(.*?)^```$", PAGE, flags=re.M | re.S) for line in block.splitlines()
]
COPIED = ("codid_lightning", "datamodules", "configs", "tests", "benchmarks", "pyproject.toml")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Path:
    """The repository with the files of all recipes."""
    folder = tmp_path_factory.mktemp("copy")
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, folder / name)
    for name, content in FILES.items():
        assert not (folder / name).exists(), f"{name} is in the repository already"
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(content)
    return folder


def run(folder: Path, *command: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(folder), "COLUMNS": "200"}
    done = subprocess.run([sys.executable, "-m", *command], cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_recipe_is_three_files():
    methods = [name for name in FILES if "mean_match" in name]
    assert sorted(Path(name).suffix for name in methods) == [".py", ".py", ".yaml"]


def test_the_recipes_pass_their_tests(copy):
    run(copy, "ruff", "check", *(name for name in FILES if name.endswith(".py")))
    selected = ("-k", "MeanMatch or mean_match or stripes")
    found = run(copy, "pytest", "-q", "-p", "no:cacheprovider", "tests/baselines", "tests/test_configs.py", *selected)
    assert int(re.search(r"(\d+) passed", found)[1]) >= 6


def test_the_commands_show_the_new_method_and_data_set(copy):
    for command in COMMANDS:
        program, *arguments = shlex.split(command)
        assert program == "codid"
        printed = run(copy, "codid_lightning", *arguments)
    assert "MeanMatch" in printed
    assert "Stripes" in printed
    assert "MeanMatch" in run(copy, "codid_lightning", "fit", "--help")
