"""Two tasks of a SLURM job, simulated by the variables that SLURM sets, are one run in one directory."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path

import pytest

from tests.codid.ranks import free_port
from tests.faults.victims import CODID, Ended, Victim, last_checkpoint, run

TOGETHER = ["--trainer.devices", "2", "--trainer.strategy", "ddp", "--selection", "val"]


def become_task(task: int, port: int, tasks: int = 2) -> None:
    """What `srun` tells a process."""
    os.environ |= {
        "SLURM_JOB_ID": "4711",
        "SLURM_STEP_ID": "3",
        "SLURM_JOB_NAME": "codid",
        "SLURM_NTASKS": str(tasks),
        "SLURM_NTASKS_PER_NODE": str(tasks),
        "SLURM_NNODES": "1",
        "SLURM_NODEID": "0",
        "SLURM_PROCID": str(task),
        "SLURM_LOCALID": str(task),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def srun(command: list[str], folder: Path) -> list[Ended]:
    """Run a command as two tasks, to their end."""
    port = free_port()
    return [v.wait() for v in [Victim(command, folder, partial(become_task, task, port)) for task in range(2)]]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_both_tasks_share_a_directory(tmp_path: Path) -> None:
    """Also the best checkpoint, which is tested at the end; a second start in the same step is an error."""
    command = ["fit", *CODID, *TOGETHER]
    ended = srun(command, tmp_path)
    assert [task.code for task in ended] == [0, 0], ended
    (result,) = tmp_path.rglob("result.json")
    assert result.parent.name == "slurm-4711.3"
    assert json.loads(result.read_text())["selection"] == "val"
    assert [path.parent.parent for path in tmp_path.rglob("last.ckpt")] == [result.parent]
    assert last_checkpoint(result.parent).is_file()


def test_a_task_alone_is_a_process_like_any_other(tmp_path: Path) -> None:
    ended = run(["fit", *CODID, "--trainer.devices", "1"], tmp_path, partial(become_task, 0, free_port(), 1))
    assert ended.code == 0, ended.said
    (result,) = tmp_path.rglob("result.json")
    assert not result.parent.name.startswith("slurm")
