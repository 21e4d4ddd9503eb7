"""benchmarks/mutation.py makes every change it lists, runs the tests that run its line, and tells whether one fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mutmut", reason="the changes are mutmut's: pip install mutmut")
from benchmarks import mutants, mutation

ROOT = Path(__file__).parents[2]
HALF = """LIMIT = 3

def half(x: int = 5) -> float:
    return x / 2 if x > LIMIT else 0

class Pair:
    def __init__(self, one: int) -> None:
        self.one = one

    @property
    def double(self) -> int:
        return 2 * self.one
"""
TESTS = """from codid_lightning.half import Pair, half

def test_half():
    assert half(4) == 2

def test_pair():
    assert Pair(3).double == 6
"""
TRY_ALL = """
import argparse, json, pathlib, sys
from benchmarks import mutation
copy = pathlib.Path(sys.argv[1])
mutation.ROOMS = {"half": mutation.Room(("codid_lightning/half.py",), ("tests/test_half.py",))}
options = argparse.Namespace(rooms=["half"], per_room=99, seed=0, again=False, cpu=1e9, seconds=9, revision="1")
options.kept, options.output = copy / "kept", copy / "found.csv"
mutation.start(copy, options)
"""


@pytest.fixture(scope="module")
def tried(tmp_path_factory) -> dict[str, tuple[str, str]]:
    """Outcome and failing test by change."""
    folder = tmp_path_factory.mktemp("copy")
    for name, text in {"codid_lightning/half.py": HALF, "tests/test_half.py": TESTS, "pyproject.toml": ""}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    for package in ("codid_lightning", "tests"):
        (folder / package / "__init__.py").touch()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])}
    command = [sys.executable, "-c", TRY_ALL, str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (folder / "codid_lightning" / "half.py").read_text() == HALF
    return {row["change"]: (row["outcome"], row["noticed_by"]) for row in mutation.rows_of(folder / "found.csv")}


@pytest.mark.parametrize(
    ("change", "outcome"),
    {
        "5 -> 6": "survived",
        "2 -> 3": "killed",
        "> LIMIT -> >= LIMIT": "survived",
        "3 -> 4": "killed",
        "x / 2 -> x * 2": "killed",
        "0 -> 1": "survived",
        "2 * self.one -> 2 / self.one": "killed",
    }.items(),
)
def test_changes_that_a_test_notices_are_told_from_others(tried, change, outcome):
    assert tried[change][0] == outcome, json.dumps(tried)


def test_only_tests_that_run_a_line_are_tried(tried):
    assert tried["x / 2 -> x * 2"][1] == "tests/test_half.py::test_half"
    assert tried["2 * self.one -> 2 / self.one"][1] == "tests/test_half.py::test_pair"


@pytest.mark.parametrize("room", mutation.ROOMS)
def test_changes_are_code_and_their_rooms_exist(room):
    files, tests = mutation.ROOMS[room]
    assert all((ROOT / test).is_file() for test in tests)
    modules = {file: mutants.module_of(ROOT / file, file) for file in files}
    changes = [change for module in modules.values() for change in module.changes]
    assert len(changes) > 100
    for change in changes[::20]:
        compile(modules[change.file].with_change(change.number), change.file, "exec")


def test_a_function_gets_its_new_code_only_if_its_body_changes():
    module = mutants.Module(HALF, "half.py")
    names = {change.change: module.function_of(change) for change in module.changes}
    assert names["x / 2 -> x * 2"] == "half"
    assert names["2 * self.one -> 2 / self.one"] == "Pair.double"
    assert names["5 -> 6"] == names["3 -> 4"] == ""
