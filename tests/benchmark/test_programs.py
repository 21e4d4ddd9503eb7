"""Every program and every matrix in benchmarks/ runs, on as little as it takes to get to its end."""

from __future__ import annotations

import json
import re
import runpy
import shlex
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import torch
import yaml

from benchmarks import compat, packages, rows
from codid_lightning.experiments.matrix import Matrix, Pair, Rule
from codid_lightning.training import build, quiet
from tests.commands import codid
from tests.fakes import FAKES, cmnist, hapt, uci_har

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks"
READ = {".py", ".j2", ".css", ".csv", ".typed"}  # files that the installed package reads
PARTS = {"__init__", "clustering_sets", "fuzz_inputs", "mutants", "provenance", "rows"}
PROGRAMS = {file.stem for file in FOLDER.glob("*.py")} - PARTS
MATRICES = sorted({file.stem for file in FOLDER.glob("*.yaml")} - {"sweep"})  # test_dashboard.py runs a sweep
# Arguments of a small run, with folders to be filled in, and the file that it writes.
SMALL = {
    "alignment": (
        "--root {cmnist} --strengths 0 1 --seeds 0 --epochs 1 --samples_per_mode 60 --output {out}/found.md",
        "found.md",
    ),
    "architecture": ("--repeats 1", None),
    "audit_calibration": ("--sets 1 --power_sets 1 --draws 19 --rows 200 --output {out}/found.md", "found.md"),
    "batches": ("--output {out}/found.md --batches 16 --attributes 2 --repeats 1", "found.md"),
    "clustering": ("run --only iris --seeds 1 --output {out}/found.csv --cache {out}/sets", "found.csv"),
    "costs": ("--repeats 1 --uses 1 --samples 50 --clusters 2 --output {out}/found.md", "found.md"),
    "dpgmm_costs": ("--output {out}/found", "found.md"),
    "endings": ("--data {series} --epochs 1 --seeds 0 --runs {out}/runs --output {out}/found.md", "found.md"),
    "fuzz": ("npz csv checkpoint 'run directory' --share 0.02 --output {out}/found.md", "found.md"),
    "ideas": ("--root {cmnist} --only base t_fewer_faster --epochs 9 --output {out}/found.csv", "found.csv"),
    "kills": ("--kills 1 --root {out}/new/folder --output {out}/found.md", "found.md"),
    "overhead": ("--repeats 1 --samples 256", None),
    "quantities": ("--seeds 1 --examples 2 --samples 300 --output {out}/found.md", "found.md"),
    "resumes": ("--points 1 --ranks 1 --workers 0 --root {out}/new/folder --output {out}/found.md", "found.md"),
    "scalings": ("--data {series} --epochs 1 --seeds 0 --root {out}/runs --output {out}/found.md", "found.md"),
    "series": (
        "--root {series} --only UCI-HAR --source uci_har --groups 1 --components 1 --output {out}/found.md",
        "found.md",
    ),
    "splits": ("--root {cmnist} --epochs 3 --start 1 --every 1 --seeds 0 --output {out}/found.md", "found.md"),
    "startup": ("--repeats 1 --fits 1", None),
    "step": ("--repeats 1 --clusters 2", None),
    "strengths": ("--root {out}/runs --only coral --epochs 1 --output {out}/found.csv", "found.csv"),
    "tables": ("--root {cmnist} --seeds 0 --epochs 4 --output {out}/found.md", "found.md"),
    "toy_settings": ("--only toy_base --output {out}/found.csv", "found.csv"),
    "views": ("--only colored_digits --seeds 0 --steps 5 --output {out}/found.md", "found.md"),
    "trap": ("--root {cmnist} --seeds 0 --reconstruction 1.1 --output {out}/found.csv", "found.csv"),
}
SLOW = {"architecture", "dpgmm_costs", "overhead", "startup", "step"}
IN_TESTS_BELOW = {
    "adaptive",
    "advisories",
    "compare",
    "compat",
    "groupings",
    "mutation",
    "packages",
    "refinements",
    "selection",
}

SCARCE = {"canine_bg": {"data.init_args.val_fraction": 0.34}}  # the fake's few pictures

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    """CMNIST with enough digits that every cell of digit and color has some."""
    root = tmp_path_factory.mktemp("cmnist")
    cmnist(root, per_class=100)
    return root


@pytest.fixture(scope="module")
def series(tmp_path_factory) -> Path:
    """UCI-HAR with three windows of every user and activity."""
    root = tmp_path_factory.mktemp("uci_har")
    uci_har(root, windows=3)
    return root


@pytest.fixture
def start(monkeypatch, capsys):
    """Run a program as `python benchmarks/NAME.py` does, in this process; what it prints."""

    def run(name: str, *arguments: object) -> str:
        monkeypatch.chdir(ROOT)
        monkeypatch.setattr(sys, "argv", [f"benchmarks/{name}.py", *map(str, arguments)])
        monkeypatch.setattr(sys, "path", [str(FOLDER), *sys.path])
        monkeypatch.setenv("FORCE_COLOR", "")  # set by a program
        monkeypatch.delenv("CODID_DATA_ROOT", raising=False)
        code: object = None
        try:
            runpy.run_path(str(FOLDER / f"{name}.py"), run_name="__main__")
        except SystemExit as end:
            code = end.code
        assert not code, code
        return capsys.readouterr().out

    return run


def test_every_program_is_tried():
    assert {*SMALL, *IN_TESTS_BELOW} == PROGRAMS


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow if n in SLOW else ()) for n in sorted(SMALL)])
def test_a_small_run_gets_to_its_end(name, start, images, series, tmp_path):
    arguments, written = SMALL[name]
    said = start(name, *(part.format(out=tmp_path, cmnist=images, series=series) for part in shlex.split(arguments)))
    assert said.strip()
    if written is not None:
        assert len((tmp_path / written).read_text().splitlines()) > 1


def test_selection_compares_methods_with_an_accepted_counterfactual_run(start, tmp_path):
    quick = ("--trainer.max_epochs=2", "--trainer.enable_progress_bar=false", "--model.latent_dim=8")
    config = ROOT / "configs" / "colored_digits" / "codid.yaml"
    overlay = ROOT / "configs" / "methods" / "counterfactual.yaml"
    run = tmp_path / "runs" / "one"
    assert codid("fit", "-c", config, "-c", overlay, *quick, "--run_dir", run) == 0
    with pytest.raises(AssertionError, match="holds no run of `counterfactual` that its gate accepted"):
        start("selection", tmp_path / "runs", "--output", tmp_path / "found.csv")
    result = json.loads((run / "result.json").read_text())
    result["metrics"]["gate/accepted"] = 1.0
    (run / "result.json").write_text(json.dumps(result))
    start("selection", tmp_path / "runs", "--output", tmp_path / "found.csv")
    (row,) = rows.rows_of(tmp_path / "found.csv")
    assert row["method"] == "counterfactual"
    assert 0 <= float(row["worst_a1_a2"]) <= float(row["balanced_a1_a2"]) <= 1


def test_refinements_are_rows_of_a_table(start, tmp_path):
    config = ROOT / "configs" / "toy_nine_modes" / "codid.yaml"
    quick = ("--trainer.max_epochs=4", "--trainer.enable_progress_bar=false", "--data.samples_per_mode=50")
    schedule = ("--model.discovery.start=1", "--model.discovery.every=2", "--model.discovery.until=4")
    assert codid("fit", "-c", config, *quick, *schedule, "--run_dir", tmp_path / "runs" / "one") == 0
    start("refinements", tmp_path / "runs", "--output", tmp_path / "found.md")
    rows_found = [line.split(" | ") for line in (tmp_path / "found.md").read_text().splitlines() if line[:2] == "| "]
    assert [row[0] for row in rows_found] == ["| epoch", "| 1", "| 3"]
    assert all(0 < float(row[1]) <= 1 for row in rows_found[1:])


def test_advisories_compares_the_kept_list_where_no_service_is_reached(start, monkeypatch):
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:9")  # nothing listens there
    said = start("advisories")
    assert re.search(r"^[1-9]\d* advisories were compared .*: 0 apply\.$", said, re.MULTILINE)
    assert "pip-audit is left out" in said


def test_compat_counts_the_tests_of_an_environment(monkeypatch, tmp_path):
    monkeypatch.setattr(compat, "FOLDER", tmp_path)
    outcome, seconds = compat.run(
        Path(sys.executable), ["tests/clustering/test_niw.py", "-k", "nothing_has_this_name"], 1
    )
    assert "no tests ran" in outcome or "deselected" in outcome
    assert seconds > 0


@pytest.mark.slow
def test_packages_hold_what_commands_read(tmp_path):
    """The wheel has configs and templates; the source distribution has the tests, too."""
    wheel, source = packages.built(tmp_path)
    with zipfile.ZipFile(wheel) as archive:
        held = set(archive.namelist())
    shipped = {f"codid_lightning/{file.relative_to(ROOT)}" for file in (ROOT / "configs").rglob("*.yaml")}
    shipped -= {name for name in shipped if "/local/" in name}
    folders = (ROOT / "codid_lightning", ROOT / "datamodules")
    read = {str(file.relative_to(ROOT)) for folder in folders for file in folder.rglob("*") if file.suffix in READ}
    assert len(shipped) > 50
    assert not shipped - held
    assert not read - held
    with tarfile.open(source) as archive:
        names = {name.split("/", 1)[1] for name in archive.getnames() if "/" in name}
    assert {"tests/test_cli.py", "configs/toy/base.yaml", "datamodules/base.py"} <= names


def test_adaptive_measures_the_runs_of_groupings(start, images, tmp_path):
    """CoDID-A's, and those of BASE, which cannot be adapted."""
    small = ("--root", images, "--epochs", 4, "--groupings", 0, "--runs", tmp_path / "runs")
    start("groupings", *small, "--output", tmp_path / "groupings.md")
    assert "| 0 |" in (tmp_path / "groupings.md").read_text()
    start("adaptive", tmp_path / "runs", "--samples", "100", "--output", tmp_path / "found.md")
    measured = json.loads((tmp_path / "found.json").read_text())
    tests = {entry["method"]: len(entry["adapted"]) for entry in measured.values()}
    assert tests == {"base": 0, "codid_adaptive": 3}
    assert "CoDID-A" in (tmp_path / "found.md").read_text()


@pytest.mark.slow
def test_compare_divides_by_the_other_trees_figures(start, tmp_path):
    """The other tree is one whose step costs next to nothing."""
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "benchmarks" / "step.py").write_text("print('base 0.001 ms')\nprint('codid/base 0.001')\n")
    said = start("compare", tmp_path, "step", "--rounds", 2, "--arguments=--repeats 1 --clusters 2")
    figures = dict(re.findall(r"^\| (\S+) \| 0.001 \| \S+ \| (\S+) \|", said, re.MULTILINE))
    assert float(figures["codid/base"]) > 1000


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name == "paper" else ()) for name in MATRICES]
)
def test_every_matrix_can_be_listed(name, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert codid("benchmark", "-c", FOLDER / f"{name}.yaml", "--dry_run", "--seeds=[0]") == 0
    assert " to do." in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", MATRICES)
def test_every_matrix_trains_on_all_its_data_sets(name, tmp_path):
    """Two steps of the last method on each, with the changes of the matrix's rules."""
    content = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    matrix = Matrix(**{**content, "rules": [Rule(**rule) for rule in content.get("rules", [])]})
    for dataset in matrix.datasets:
        pair = next(pair for method in reversed(matrix.methods) if (pair := Pair.of(matrix, dataset, method)))
        keys = {"trainer.fast_dev_run": 2, "trainer.enable_progress_bar": False, "trainer.accelerator": "cpu"}
        keys |= {"data.init_args.batch_size": 8, "model.init_args.latent_dim": 8}
        if dataset in FAKES:
            root = tmp_path / dataset
            keys |= {"data.init_args.root": str(root), **SCARCE.get(dataset, {})}
            (hapt if pair.config["data"]["init_args"].get("source") == "hapt" else FAKES[dataset])(root)
        if "discovery" in pair.config["model"]["init_args"]:
            keys["model.init_args.discovery.init_args.start"] = 0
        with quiet():
            run = build(dict(pair.config), keys, record=False)
            run.trainer.fit(run.module, datamodule=run.data)
        assert all(torch.isfinite(parameter).all() for parameter in run.module.parameters())


def test_a_matrix_trains_what_it_lists(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    few = {"set": {"trainer.max_epochs": 1, "trainer.limit_train_batches": 2, "trainer.accelerator": "cpu"}}
    matrix = ("-c", FOLDER / "quick.yaml", "--seeds=[0]", "--methods=[base]", "--datasets=[toy]")
    assert codid("benchmark", *matrix, f"--rules=[{json.dumps(few)}]") == 0
    assert len(list(tmp_path.rglob("result.json"))) == 1
