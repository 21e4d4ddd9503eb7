"""What importing costs: each part loads what it needs and no more."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

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


@pytest.mark.parametrize("arguments", [[], ["--help"], ["--version"], ["fitt"]], ids=str)
def test_help_and_typos_load_no_torch(arguments):
    loaded = loaded_by(f"from codid_lightning.cli import main; main({arguments})")
    assert loaded.isdisjoint({"torch", "numpy", *HEAVY})


def test_results_are_read_without_lightning():
    assert "torch" not in loaded_by("from codid_lightning.training.runs import read_result")


def test_a_fit_without_wandb_does_not_import_it(tmp_path):
    arguments = ["fit", "-c", "configs/toy/base.yaml", "--data.samples_per_mode=20", "--trainer.max_epochs=1",
                 "--trainer.enable_progress_bar=false", f"--trainer.default_root_dir={tmp_path}"]  # fmt: skip
    loaded = loaded_by(f"import codid_lightning\nfrom codid_lightning.cli import main\nassert main({arguments}) == 0")
    assert "lightning" in loaded
    assert "wandb" not in loaded
