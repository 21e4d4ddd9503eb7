"""What importing costs: each part loads what it needs and no more."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from codid_lightning import clustering, metrics
from codid_lightning.analysis.adaptation import MAX_SAMPLES
from codid_lightning.analysis.verification import TOLERANCE
from codid_lightning.cli import arguments
from codid_lightning.cli.commands import audit
from codid_lightning.cli.main import main
from codid_lightning.methods.codid import adaptation

HEAVY = ("lightning", "matplotlib", "pandas", "wandb", "optuna", "ray", "jsonargparse")


def loaded_by(code: str) -> set[str]:
    """Top-level packages in memory after running code in a new process."""
    report = "import sys, json; print('LOADED', json.dumps(sorted({m.split('.')[0] for m in sys.modules})))"
    done = subprocess.run([sys.executable, "-c", f"{code}\n{report}"], capture_output=True, text=True, check=True)
    line = next(line for line in done.stdout.splitlines() if line.startswith("LOADED "))
    return set(json.loads(line.removeprefix("LOADED ")))


def modules_of(code: str) -> int:
    done = subprocess.run([sys.executable, "-c", f"{code}\nimport sys; print(len(sys.modules))"],
                          capture_output=True, text=True, check=True)  # fmt: skip
    return int(done.stdout.split()[-1])


def test_clustering_loads_torch_and_scikit_learn_alone():
    code, floor = "from codid_lightning.clustering import DPGMM", "import torch, sklearn"
    assert (loaded_by(code) - loaded_by(floor)).isdisjoint(HEAVY), "scikit-learn itself may load pandas"
    assert modules_of(code) <= 1.5 * modules_of(floor)


INSTANT = [
    ["--help"],
    ["--version"],
    ["fitt"],
    ["report", "--help"],
    ["report", "runs", "--ouput", "tables.md"],
    ["report"],
    ["figure", "--help"],
    ["figure", "boundary", "runs", "--output", "a.png"],
    ["demo", "--help"],
    *([command, "--help"] for command in ("adapt", "audit", "data", "evaluate", "verify")),
]


@pytest.mark.parametrize("arguments", INSTANT, ids=" ".join)
def test_help_and_mistakes_need_few_modules(arguments):
    code = f"from codid_lightning.cli import main; main({arguments})"
    assert loaded_by(code).isdisjoint({"torch", "numpy", *HEAVY})
    assert modules_of(code) <= 1.25 * modules_of("import rich, yaml, argparse, difflib, pathlib, importlib.util")


def test_a_mistaken_option_is_named_with_the_nearest(capsys):
    assert main(["report", "runs", "--ouput", "tables.md"]) == 2
    assert capsys.readouterr().err == "codid: There is no option `--ouput`. Did you mean `--output`?\n"
    assert main(["report"]) == 2
    assert "required: runs" in capsys.readouterr().err


def test_help_names_the_files_and_limits_of_the_commands():
    assert adaptation.FILE in arguments.USAGES["adapt"]
    assert f"at most {MAX_SAMPLES}" in arguments.USAGES["adapt"]
    assert f"default: {audit.FILE} in the run" in arguments.USAGES["audit"]
    assert f"default {TOLERANCE}." in arguments.USAGES["verify"]


def test_a_public_name_that_does_not_exist_is_an_attribute_error():
    for room in (clustering, metrics):
        with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
            room.Nothing  # noqa: B018
        assert all(hasattr(room, name) for name in room.__all__)


def test_results_are_read_without_lightning():
    assert "torch" not in loaded_by("from codid_lightning.training.runs import read_result")


def test_a_fit_needs_little_beside_lightning(tmp_path):
    fit = ["fit", "-c", "configs/toy/codid.yaml", "--trainer.callbacks=startup.FirstBatch",
           "--trainer.enable_progress_bar=false", f"--trainer.default_root_dir={tmp_path}"]  # fmt: skip
    code = f"""
import os, sys
import lightning
floor = len(sys.modules)
sys.path.append("benchmarks")
def end(code):
    names = sorted({{module.split(".")[0] for module in sys.modules}})
    print(len(sys.modules) / floor, *names, flush=True)
    sys.exit(code)
os._exit = end  # by which the callback stops at the first batch
from codid_lightning.cli import main
main({fit})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    ratio, *loaded = done.stdout.splitlines()[-1].split()
    assert float(ratio) <= 1.3
    assert {"optuna", "ray", "wandb"}.isdisjoint(loaded)


def test_what_was_imported_can_be_collected_when_the_process_ends():
    """Otherwise extension modules report leaks below every command's output."""
    script = (
        "import atexit, gc, sys; from codid_lightning.cli.main import main; "
        "atexit.register(lambda: print('frozen at the end:', gc.get_freeze_count())); "
        "sys.argv = ['codid', 'report', 'there_is_no_such_folder']; main(); print('frozen:', gc.get_freeze_count() > 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-2:] == ["frozen: True", "frozen at the end: 0"]
