"""A matrix killed half-way and taken up again, by this machine's processes and by Ray, against one left in peace."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from codid_lightning.cli.main import main
from codid_lightning.experiments.launchers import LocalEngine
from codid_lightning.experiments.matrix import Experiment, Matrix, Rule, cells_of
from codid_lightning.training import runs

DATASETS, METHODS, SEEDS = ["toy", "toy_nine_modes"], ["base", "dann", "codid"], [0, 1]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def cells(matrix: str, root: Path) -> list[Experiment]:
    content = yaml.safe_load(Path(matrix).read_text())
    return cells_of(Matrix(**{**content, "rules": [Rule(**r) for r in content["rules"]], "root": str(root)}))


def numbers(cell: Experiment) -> dict[str, Any]:
    """What a run found out, without what depends on the clock and the machine."""
    result = runs.read_result(cell.directory)
    return {name: result[name] for name in ("config_hash", "seed", "epochs", "parameters", "metrics")}


def half_trained(cell: Experiment) -> bool:
    return not cell.finished and (cell.directory / runs.CHECKPOINTS / runs.LAST).is_file()


def kill_half_way(matrix: str, root: Path) -> None:
    """Start the matrix and end all its processes at once, when some runs are over and one has a checkpoint only."""
    command = (sys.executable, "-m", "codid_lightning", "benchmark", "-c", matrix, "--root", str(root), "--jobs", "2")
    started = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL)
    every = cells(matrix, root)
    while sum(cell.finished for cell in every) < 6 or not any(map(half_trained, every)):
        assert started.poll() is None, "the matrix ended before it could be killed"
        time.sleep(0.01)
    os.killpg(started.pid, signal.SIGKILL)
    started.wait()


@pytest.fixture
def interrupted(matrix_file, tmp_path: Path) -> tuple[str, Path, list[dict[str, Any]]]:
    """A matrix file, the runs of its killed start, and the results of runs that nothing disturbed."""
    epochs = {"set": {"trainer.max_epochs": 8}}  # long enough to be met between the first checkpoint and the result
    matrix = matrix_file(DATASETS, METHODS, SEEDS, rules=[epochs])
    undisturbed = cells(matrix, tmp_path / "undisturbed")
    before, threads = torch.get_num_threads(), LocalEngine(jobs=2).threads
    torch.set_num_threads(threads)
    for cell in undisturbed:
        assert main(list(cell.job().command[3:])) == 0
    torch.set_num_threads(before)
    kill_half_way(matrix, tmp_path / "killed")
    return matrix, tmp_path / "killed", [numbers(cell) for cell in undisturbed]


def test_a_killed_matrix_ends_like_an_undisturbed_one(interrupted, tmp_path: Path) -> None:
    matrix, killed, expected = interrupted
    local = cells(matrix, killed)
    assert len(local) == 12
    assert 6 <= sum(cell.finished for cell in local) < 12
    assert any(map(half_trained, local))
    distributed = cells(matrix, Path(shutil.copytree(killed, tmp_path / "ray")))

    assert main(["benchmark", "-c", matrix, "--root", str(killed), "--jobs", "2"]) == 0
    assert [numbers(cell) for cell in local] == expected

    ray = pytest.importorskip("ray", reason="Ray is not installed: the matrix was not run through a Ray cluster")
    try:
        ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
        arguments = ("--root", str(tmp_path / "ray"), "--engine", "ray", "--address", "local")
        assert main(["benchmark", "-c", matrix, *arguments]) == 0
    finally:
        ray.shutdown()
    assert [numbers(cell) for cell in distributed] == expected
