"""The documentation site builds without a warning, and its reference has every command and key."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import codid_lightning
from codid_lightning.cli.console import COMMANDS, TRAINER_COMMANDS
from codid_lightning.training import registry

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference", ROOT / "docs" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_key_is_documented(reference):
    classes = [*reference.method_classes(), *reference.dataset_classes(), *reference.part_classes()]
    assert len(classes) > 40
    for cls in classes:
        rows = list(reference.arguments(cls))
        assert all(meaning for _, _, _, meaning in rows), (cls, [row[0] for row in rows if not row[3]])
    for cls in [*reference.method_classes(), *reference.dataset_classes()]:
        assert {f"`{name}`" for name in registry.argument_names(cls)} == {row[0] for row in reference.arguments(cls)}, (
            cls
        )


def test_every_command_is_documented(reference):
    page = reference.commands_page()
    for command in (*TRAINER_COMMANDS, *COMMANDS):
        assert f"## codid {command}\n" in page
        assert f"usage: codid {command}" in page


@pytest.mark.parametrize(
    ("page", "link", "there"),
    [
        ("toys", "[t](../results/toys.md)", "[t](generated/results/toys.md)"),
        ("toys", "[t](../CONTRIBUTING.md)", "[t](generated/contributing.md)"),
        ("tutorials/dpgmm", "[t](../../CONTRIBUTING.md)", "[t](../generated/contributing.md)"),
        ("tutorials/dpgmm", "[t](../../results/toys.md)", "[t](../generated/results/toys.md)"),
        ("tutorials/dpgmm", "[t](../data.md)", "[t](../data.md)"),
        ("generated/contributing", "[t](docs/data.md)", "[t](../data.md)"),
        ("generated/results/toys", "[t](../docs/toys.md)", "[t](../../toys.md)"),
        ("generated/results/toys", "[t](toys.json)", "[t](toys.json)"),
    ],
)
def test_links_lead_to_the_copies_on_the_site(reference, page, link, there):
    assert reference.site_links(page, link) == there


def test_every_method_and_data_set_has_a_card(reference):
    for kind, classes in (("methods", reference.method_classes()), ("datasets", reference.dataset_classes())):
        facts = reference.cards()[kind]
        missing = {cls.__name__ for cls in classes} - facts.keys()
        assert not missing, f"add {sorted(missing)} to docs/cards.yaml"
        for cls in classes:
            assert facts[cls.__name__].keys() == reference.FACTS[kind].keys(), cls
            page = reference.card(cls, kind, facts[cls.__name__])
            assert all(
                f"## {heading}\n\n{facts[cls.__name__][fact]}" in page
                for fact, heading in reference.FACTS[kind].items()
            )
            assert "## Settings" in page


def test_results_of_a_card_are_means_of_the_runs(reference):
    runs = json.loads((ROOT / "results" / "paper_schedule.json").read_text())
    own = [run["metrics"]["test3/acc"] for run in runs if (run["dataset"], run["method"]) == ("cmnist", "irm")]
    (row,) = [
        row for row in reference.results_table(codid_lightning.IRM) if "paper_schedule" in row and "| cmnist" in row
    ]
    cells = [cell.strip() for cell in row.split("|")]
    assert cells[2:4] == ["`irm`", str(len(own))]
    assert cells[4].endswith(f" / {100 * np.mean(own):.1f}")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_site_builds_without_a_warning(tmp_path):
    strict = ("--fail-on-warning", "--keep-going", "--quiet")
    # tests/test_pages.py runs the tutorials; without a kernel their language is not known.
    tutorials = ("-D", "nb_execution_mode=off", "-D", "suppress_warnings=myst-nb.lexer")
    command = [sys.executable, "-m", "sphinx", *strict, *tutorials, "docs", str(tmp_path)]
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    home = (tmp_path / "index.html").read_text()
    for page in (
        "start",
        "tutorials/hospital",
        "howto",
        "howto/slurm",
        "reference",
        "results",
        "design",
        "generated/parts",
        "generated/methods/DANN",
        "generated/datasets/CMNIST",
        "generated/results/index",
    ):
        assert (tmp_path / f"{page}.html").is_file()
    assert "Getting started" in home
