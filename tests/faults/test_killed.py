"""Runs killed at any moment go on as if nothing had happened."""

from __future__ import annotations

import random
import signal
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.faults.victims import CODID, ROOT, Victim, assert_same_end, last_checkpoint, leftovers, load, run, strike

# Functions during which a run is killed, and at which of their calls: in a refinement, while a checkpoint is written
# (one tensor into the file, before the sync, before the renaming), before the result is renamed.
PLACES = [
    ("ModeDiscovery.encode", 1), ("ModeDiscovery.encode", 3), ("ModesPerValue.fit", 1), ("ModesPerValue.refine", 2),
    ("Target.adopt", 2), ("carry_over", 1),
    ("write_record", 20), ("write_record", 150), ("posix.fsync", 3), ("posix.replace", 4),
    ("posix.replace", 7),
]  # fmt: skip
RANDOM_TIMES = 10


def go_on(folder: Path, undisturbed: Path) -> None:
    """The same command again finishes the run as if it had never been interrupted."""
    whole = last_checkpoint(folder / "run")
    epochs = load(whole)["epoch"] if whole.exists() else None  # reading it shows that it is not torn
    ended = run(["fit", *CODID, "--run_dir", "run", "--resume", "true"], folder)
    assert ended.code == 0, ended.said
    assert_same_end(folder / "run", undisturbed)
    assert not leftovers(folder)
    assert epochs is None or epochs <= load(whole)["epoch"]


@pytest.mark.parametrize(("function", "nth"), PLACES)
def test_killed_inside_a_function(function: str, nth: int, undisturbed: tuple[Path, float], tmp_path: Path) -> None:
    killed = run(["fit", *CODID, "--run_dir", "run"], tmp_path, partial(strike, function, nth))
    assert killed.code == -signal.SIGKILL, killed.said
    go_on(tmp_path, undisturbed[0])


def test_killed_while_a_method_draws_at_random(tmp_path: Path) -> None:
    """IDE-VC samples its representations from the generator that all of torch shares."""
    configs = [ROOT / "configs/toy/base.yaml", ROOT / "configs/baselines/ide_vc.yaml"]
    command = ["fit", "-c", configs[0], "-c", configs[1], *CODID[2:6], *CODID[-6:-4], *CODID[-4:], "--run_dir", "run"]
    for name, first in (("whole", None), ("killed", partial(strike, "AdversarialModule.training_step", 5))):
        (tmp_path / name).mkdir()
        ended = run(command, tmp_path / name, first)
        assert ended.code == (-signal.SIGKILL if first else 0), ended.said
    ended = run([*command, "--resume", "true"], tmp_path / "killed")
    assert ended.code == 0, ended.said
    assert_same_end(tmp_path / "killed" / "run", tmp_path / "whole" / "run")


@pytest.mark.parametrize("moment", range(RANDOM_TIMES))
def test_killed_at_a_random_time(moment: int, undisturbed: tuple[Path, float], tmp_path: Path) -> None:
    share = (moment + random.Random(moment).random()) / RANDOM_TIMES
    kill_after(share * undisturbed[1], tmp_path)
    go_on(tmp_path, undisturbed[0])


def kill_after(seconds: float, folder: Path) -> None:
    """Kill a run after some time; one that was faster is started again and given less."""
    victim = Victim(["fit", *CODID, "--run_dir", "run"], folder)
    victim.process.join(seconds)
    victim.send(signal.SIGKILL)
    if victim.wait().code != -signal.SIGKILL:
        for file in sorted((folder / "run").rglob("*"), reverse=True):
            file.rmdir() if file.is_dir() else file.unlink()
        kill_after(seconds / 2, folder)


@pytest.fixture
def other_filesystem() -> Iterator[Path]:
    """A folder on another filesystem than the temporary one."""
    memory = Path("/dev/shm")
    if not memory.is_dir() or memory.stat().st_dev == Path(tempfile.gettempdir()).stat().st_dev:
        pytest.skip("there is no second filesystem at /dev/shm")
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)


@pytest.mark.parametrize(("function", "nth"), [("write_record", 150), ("posix.sendfile|posix.replace", 4)])
def test_killed_while_writing_to_another_filesystem(
    function: str, nth: int, undisturbed: tuple[Path, float], other_filesystem: Path
) -> None:
    """As the checkpoint is renamed, or copied: what Lightning's own way to save does from one filesystem to another."""
    killed = run(["fit", *CODID, "--run_dir", "run"], other_filesystem, partial(strike, function, nth))
    assert killed.code == -signal.SIGKILL, killed.said
    go_on(other_filesystem, undisturbed[0])


def test_a_run_is_found_again_by_its_config(undisturbed: tuple[Path, float], tmp_path: Path) -> None:
    """Without a directory of its own, `--ckpt_path last` goes on with the newest run of the same config."""
    killed = run(["fit", *CODID], tmp_path, partial(strike, "ModesPerValue.refine", 2))
    assert killed.code == -signal.SIGKILL, killed.said
    (run_dir,) = (tmp_path / "runs").glob("*/*/*/*")
    assert load(last_checkpoint(run_dir))["epoch"] == 2
    assert run(["fit", *CODID, "--ckpt_path", "last"], tmp_path).code == 0
    assert list((tmp_path / "runs").glob("*/*/*/*")) == [run_dir]
    assert_same_end(run_dir, undisturbed[0])
