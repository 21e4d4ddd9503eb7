"""Several processes in one run: the death of one is the end of all."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.faults.victims import (
    CODID,
    PATIENCE,
    assert_same_end,
    last_checkpoint,
    load,
    logged,
    run_ranks,
    strike,
)

# Ranks wait for each other for half an hour unless told otherwise.
STRATEGY = {"class_path": "lightning.pytorch.strategies.DDPStrategy", "init_args": {"timeout": "0:00:45"}}
TWO = [*CODID, "--trainer.devices", "2", "--trainer.strategy", json.dumps(STRATEGY), "--trainer.max_epochs", "5000"]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A run of two ranks that has saved a checkpoint, and the process id of its second rank."""
    command = [sys.executable, "-m", "codid_lightning", "fit", *TWO, "--run_dir", str(tmp_path / "run")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    with (tmp_path / "said.txt").open("wb") as said:
        first = subprocess.Popen(command, env=environment, stdout=said, stderr=said, start_new_session=True)
    try:
        deadline = time.monotonic() + PATIENCE
        while not last_checkpoint(tmp_path / "run").exists():
            assert first.poll() is None, (tmp_path / "said.txt").read_text()
            assert time.monotonic() < deadline, (tmp_path / "said.txt").read_text()
            time.sleep(0.2)
        yield first, second_rank(first.pid)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(first.pid, signal.SIGKILL)  # a rank that was stopped outlives the first
        first.wait()


def second_rank(parent: int) -> int:
    """The child process that was told to be rank 1."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            mine = int((process / "stat").read_text().rsplit(")", 1)[1].split()[1]) == parent
            if mine and b"LOCAL_RANK=1" in (process / "environ").read_bytes():
                return int(process.name)
        except OSError:
            continue
    raise AssertionError("there is no second rank")


def gone(pid: int) -> bool:
    try:
        return "Z" in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return True


@pytest.mark.slow
@pytest.mark.parametrize("signum", [signal.SIGKILL, signal.SIGSTOP], ids=["dies", "hangs"])
def test_second_rank(signum: int, pair: tuple[subprocess.Popen[bytes], int], tmp_path: Path) -> None:
    """Nobody waits for it, or not for long: the run ends with an error, the checkpoint stays."""
    first, second = pair
    os.kill(second, signum)
    assert first.wait(PATIENCE) != 0
    assert load(last_checkpoint(tmp_path / "run"))["epoch"] >= 0


@pytest.mark.slow
def test_one_rank_is_asked_to_stop(pair: tuple[subprocess.Popen[bytes], int], tmp_path: Path) -> None:
    """Both stop after the same batch, and both say so by their exit code."""
    first, second = pair
    os.kill(first.pid, signal.SIGTERM)
    assert first.wait(PATIENCE) == 143, (tmp_path / "said.txt").read_text()
    deadline = time.monotonic() + PATIENCE
    while not gone(second):
        assert time.monotonic() < deadline
        time.sleep(0.2)
    said = (tmp_path / "said.txt").read_text()
    assert said.count("--resume true") == 1
    assert "Traceback" not in said
    load(last_checkpoint(tmp_path / "run"))


@pytest.mark.slow
def test_two_ranks_stopped_inside_an_epoch_go_on_exactly(tmp_path: Path) -> None:
    """Also with what only the second knows: the losses of its batches, which the logs have their part of."""
    command = ["fit", *CODID, "--data.init_args.batch_size", "16", "--trainer.max_epochs", "3", "--run_dir", "run"]
    (whole := tmp_path / "whole").mkdir()
    assert [ended.code for ended in run_ranks(command, whole, [None, None])] == [0, 0]
    stop = partial(strike, "DiscriminatorAlignment.discriminate", 3, signal.SIGTERM)
    stopped = run_ranks(command, tmp_path, [None, stop])
    assert [ended.code for ended in stopped] == [143, 143], stopped
    assert load(last_checkpoint(tmp_path / "run"))["global_step"] % 7  # batches of an epoch
    assert [ended.code for ended in run_ranks([*command, "--resume", "true"], tmp_path, [None, None])] == [0, 0]
    assert_same_end(tmp_path / "run", whole / "run")
    assert logged(tmp_path / "run") == logged(whole / "run")
