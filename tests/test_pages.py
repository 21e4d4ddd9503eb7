"""The code blocks of README, CONTRIBUTING, docs and tutorials: all run, but those whose fence says what they need."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
import pytest

from codid_lightning.cli.console import COMMANDS, TRAINER_COMMANDS
from tests.pages import LANGUAGES, REASONS, ROOT, Block, blocks, pages, run

ALL = [block for page in pages() for block in blocks(page)]
BY_A_TEST_OF_ITS_OWN = {"CONTRIBUTING.md"}  # tests/test_contributing.py follows its recipes in a copy of the repository
RUN = [page for page in pages() if page.name not in BY_A_TEST_OF_ITS_OWN and any(b.runs for b in blocks(page))]

OWN_METHOD = "docs/tutorials/own_method.md"

Names = dict[str, Any]


def visits(rows: int = 400, seed: int = 0) -> pd.DataFrame:
    """A small table with a hidden correlation."""
    rng = np.random.default_rng(seed)
    kind = rng.integers(4, size=rows)
    north = rng.random(rows) < np.take([0.9, 0.1, 0.1, 0.9], kind)
    columns = {f"m{i}": rng.normal(size=rows) + (kind == i) + 0.5 * north for i in range(4)}
    labels = {"diagnosis": np.where(kind < 2, "healthy", "ill"), "site": np.where(north, "north", "south")}
    devices = {"device": rng.choice(["x", "y"], rows), "patient": rng.integers(rows // 2, size=rows)}
    return pd.DataFrame(columns | labels | devices)


def arrays(table: pd.DataFrame, suffix: str = "") -> Names:
    """`x`, `diagnosis` and `site` in memory."""
    columns = {"x": ["m0", "m1", "m2", "m3"], "diagnosis": "diagnosis", "site": "site"}
    return {f"{name}{suffix}": table[column].to_numpy() for name, column in columns.items()}


def tables() -> Names:
    """The files that the page on audits speaks of."""
    visits().to_csv("visits.csv", index=False)
    visits(20, seed=1)[["m0", "m1", "m2", "m3", "site", "device", "patient"]].to_csv("new.csv", index=False)
    pd.DataFrame({"prediction": visits()["diagnosis"]}).to_csv("predictions.csv", index=False)
    return arrays(visits()) | arrays(visits(seed=2), "_new")


def points() -> Names:
    """Two clouds."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 2)) + 8 * rng.integers(2, size=(200, 1))
    return {"X": X, "X_new": X[:3]}


def method_in_a_file() -> Names:
    """The class of the tutorial in a file that a config can name."""
    (cell,) = [block for block in blocks(ROOT / OWN_METHOD) if "class MatchedMeans" in block.code]
    Path("mine.py").write_text(cell.code)
    return {}


PREPARED: dict[str, Callable[[], Names]] = {
    "README.md": tables,
    "docs/audit.md": tables,
    "docs/clustering.md": points,
    OWN_METHOD: method_in_a_file,
}


def check_hospital(names: Names) -> None:
    assert names["audit"]["problems"] == ["shortcut"]
    assert names["worst"].min() < 0.6
    assert names["cells"].min() > names["worst"].min() + 0.15


def check_digits(names: Names) -> None:
    table = names["table"]
    assert table["BASE"][0] - table["BASE"][2] > 15
    assert max(table["CoDID-A"]) - min(table["CoDID-A"]) < 2
    plain, adapted = table["CoDID-A"], table["CoDID-A + 200 unlabelled"]
    assert adapted[0] > plain[0] + 1
    assert adapted[2] > plain[2] + 1


def check_own_method(names: Names) -> None:
    found = names["found"]
    assert found.loc["BASE", "as_in_training"] - found.loc["BASE", "reversed"] > 0.15
    assert found.loc["Matched means, strength 1.0", "reversed"] > found.loc["BASE", "reversed"] + 0.1
    assert Path("mine.py").read_text().count("\n") <= 30


def check_dpgmm(names: Names) -> None:
    assert names["model"].n_clusters_ == 7
    assert names["score"] > 0.9
    assert names["accuracy"] > 0.9
    assert set(names["numbers"].values()) == {7}


def check_many_runs(names: Names) -> None:
    assert {run["method"] for run in names["runs"]} == {"base", "dann"}
    assert "strength" in names["best"].read_text()


def check_python(names: Names) -> None:
    assert names["predictions"]
    assert {"test1/acc", "test3/acc"} <= names["result"].metrics.keys()


def check_clusterer(names: Names) -> None:
    assert names["model"].target_list[0].active.sum(1).tolist() == [3, 3]


CHECKS: dict[str, Callable[[Names], None]] = {
    "docs/tutorials/hospital.md": check_hospital,
    "docs/tutorials/colored_digits.md": check_digits,
    OWN_METHOD: check_own_method,
    "docs/tutorials/dpgmm.md": check_dpgmm,
    "docs/tutorials/many_runs.md": check_many_runs,
    "docs/python.md": check_python,
    "docs/howto/clusterer.md": check_clusterer,
}


def name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def test_every_tutorial_is_checked():
    tutorials = {name(page) for page in pages() if "tutorials" in page.parts and page.name != "index.md"}
    assert tutorials <= CHECKS.keys()
    assert {*CHECKS, *PREPARED} <= {name(page) for page in RUN}


@pytest.mark.parametrize("block", ALL, ids=lambda block: block.name)
def test_a_fence_says_how_to_read_its_block(block: Block):
    """Languages and options that `tests/pages.py` knows; what is not run says why."""
    assert block.language in LANGUAGES, f"give the block a language: {sorted(LANGUAGES)}"
    assert block.options.keys() <= {"needs", "title"}
    assert block.options.get("needs", "data") in REASONS
    if block.language == "sh":
        codid = [arguments[1] for arguments in block.commands if arguments[0] == "codid"]
        assert set(codid) <= {*COMMANDS, *TRAINER_COMMANDS}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("page", RUN, ids=name)
def test_the_blocks_of_a_page_run(page, tmp_path, monkeypatch):
    """One after the other in a folder of their own; then what a tutorial claims is checked."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    matplotlib.use("Agg")
    names = PREPARED.get(name(page), dict)()
    for block in blocks(page):
        if block.runs:
            run(block, names)
    if check := CHECKS.get(name(page)):
        check(names)
    matplotlib.pyplot.close("all")
    assert os.getcwd() == str(tmp_path)


@pytest.mark.parametrize("page", pages(), ids=name)
def test_the_tests_that_a_page_names_exist(page: Path):
    made = {b.options.get("title") for b in blocks(page)}
    for file in set(re.findall(r"`(tests/[\w/]+\.py)", page.read_text())) - made:
        assert (ROOT / file).is_file(), file
