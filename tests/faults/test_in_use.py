"""Two processes, one directory: the second is refused, and nothing of the first is touched."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import time
from functools import partial
from pathlib import Path

import pytest

from tests.faults.victims import CODID, PATIENCE, Victim, assert_same_end, at, run

FIT = ["fit", *CODID, "--run_dir", "run"]


def pause(paused: Path, go: Path) -> None:
    """Say that this process waits, and wait."""
    paused.touch()
    wait_for(go)


def wait_for(mark: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while not mark.exists():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("function", ["CoDID.inform", "ModesPerValue.refine", "DisentanglementModule.test_step"])
def test_directory_in_which_another_process_trains(
    function: str, undisturbed: tuple[Path, float], tmp_path: Path
) -> None:
    """Before the first checkpoint, between two, and after the last: with and without `--resume`."""
    paused, go = tmp_path / "paused", tmp_path / "go"
    first = Victim(FIT, tmp_path, partial(at, function, 1, partial(pause, paused, go)))
    wait_for(paused)
    part = tmp_path / "run" / ".last.ckpt.part"
    part.touch()  # what the first might be writing
    second = run([*FIT, "--resume", "true"], tmp_path)
    third = run(FIT, tmp_path)
    kept = part.exists()
    part.unlink(missing_ok=True)
    go.touch()
    ended = first.wait()
    assert kept
    assert second.code == third.code == 1, second.said + third.said
    assert f"codid: run is in use by process {first.process.pid} on " in second.said
    assert "--run_dir" in second.said
    assert "Traceback" not in second.said + third.said
    assert ended.code == 0, ended.said
    assert_same_end(tmp_path / "run", undisturbed[0])


def leave_orphan(go: Path) -> None:
    """Die, but not a child that holds all open files but pipes, on which others would wait: a loader process, say."""
    if os.fork():
        signal.raise_signal(signal.SIGKILL)
    for number in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            if stat.S_ISFIFO(os.fstat(number).st_mode):
                os.close(number)
    wait_for(go)
    os._exit(0)


def test_orphans_of_a_killed_run_do_not_hold_up_the_next(undisturbed: tuple[Path, float], tmp_path: Path) -> None:
    """Loader processes notice only after seconds that nobody reads from them."""
    command, go = [*FIT, "--data.init_args.num_workers", "1"], tmp_path / "go"
    killed = run(command, tmp_path, partial(at, "DiscriminatorAlignment.discriminate", 3, partial(leave_orphan, go)))
    assert killed.code == -signal.SIGKILL, killed.said
    ended = run([*command, "--resume", "true"], tmp_path)
    go.touch()
    assert ended.code == 0, ended.said
    assert_same_end(tmp_path / "run", undisturbed[0])
