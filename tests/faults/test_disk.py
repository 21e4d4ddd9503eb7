"""Full and read-only disks: a clear error, and nothing that was written before is lost."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import struct
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.faults.victims import CODID, ROOT, Ended, assert_same_end, at, last_checkpoint, leftovers, load, run

NOBODY = 65534
FIT = ["fit", *CODID, "--run_dir", "run"]


@pytest.fixture
def small_disk(tmp_path: Path, undisturbed: tuple[Path, float]) -> Iterator[Path]:
    """A disk with room for two checkpoints: the last one and the next."""
    room = 2 * last_checkpoint(undisturbed[0]).stat().st_size + 200_000
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={room}", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"mounting a small disk needs root: {mounted.stderr.decode().strip()}")
    yield folder
    while folder.is_mount():  # once more where a read-only view lies over it
        subprocess.run(["umount", "--lazy", folder], check=True)


def fill(folder: Path) -> None:
    """Use up all space."""
    with (folder / "filler").open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            return


def limit_files(size: int) -> None:
    """No file may grow beyond a size: what a quota does, without root."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))


def make_read_only(folder: Path) -> None:
    """From now on, and also while a file in it is open for writing: a read-only view is laid over the folder."""
    subprocess.run(["mount", "--bind", folder, folder], check=True)
    subprocess.run(["mount", "-o", "remount,bind,ro", folder], check=True)


def fail_to_sync() -> None:
    """From now on the kernel answers our fsync with an I/O error, as it does once a disk has lost a write."""
    fsync = {"x86_64": 74, "aarch64": 82}[platform.machine()]
    load, jump_if_equal, answer = 0x20, 0x15, 0x06  # of the filter's machine: BPF_LD, BPF_JEQ, BPF_RET
    program = [(load, 0, 0, 0), (jump_if_equal, 0, 1, fsync)]  # the system call's number; unless fsync, skip the next
    program += [(answer, 0, 0, 0x00050000 | errno.EIO), (answer, 0, 0, 0x7FFF0000)]  # this error; go on
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in program))
    filter_ = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program), ctypes.addressof(code)))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    no_new_privileges, seccomp, by_filter = 38, 22, 2
    for arguments in ((no_new_privileges, 1, 0, 0, 0), (seccomp, by_filter, filter_, 0, 0)):
        if prctl(*arguments):
            raise OSError(ctypes.get_errno(), "the kernel takes no filter")


def check_told(ended: Ended, path: str) -> None:
    """The error is one message that names the path."""
    assert ended.code == 1, ended.said
    assert path in ended.said
    assert "Traceback" not in ended.said
    assert len(ended.said[ended.said.index("codid:") :].splitlines()) <= 5, ended.said


def test_no_room_for_a_checkpoint(undisturbed: tuple[Path, float], tmp_path: Path) -> None:
    """The third checkpoint cannot be written: the second stays, and with room again the run goes on from it."""
    limit = partial(limit_files, last_checkpoint(undisturbed[0]).stat().st_size // 2)
    ended = run(FIT, tmp_path, partial(at, "AtomicCheckpointIO.save_checkpoint", 3, limit))
    check_told(ended, "run/checkpoints/last.ckpt")
    assert "bytes are free" in ended.said
    assert load(last_checkpoint(tmp_path / "run"))["epoch"] == 1
    assert not leftovers(tmp_path / "run")
    assert run([*FIT, "--resume", "true"], tmp_path).code == 0
    assert_same_end(tmp_path / "run", undisturbed[0])


@pytest.mark.skipif(platform.machine() not in {"x86_64", "aarch64"}, reason="numbers of system calls are not known")
def test_a_checkpoint_the_disk_did_not_take(undisturbed: tuple[Path, float], tmp_path: Path) -> None:
    """A disk reports lost writes at fsync. What it did not take never becomes the checkpoint to resume from."""
    ended = run(FIT, tmp_path, partial(at, "AtomicCheckpointIO.save_checkpoint", 3, fail_to_sync))
    check_told(ended, "run/checkpoints/last.ckpt")
    assert os.strerror(errno.EIO) in ended.said
    assert load(last_checkpoint(tmp_path / "run"))["epoch"] == 1
    assert not leftovers(tmp_path / "run")
    assert run([*FIT, "--resume", "true"], tmp_path).code == 0
    assert_same_end(tmp_path / "run", undisturbed[0])


def test_no_room_for_a_log(undisturbed: tuple[Path, float], tmp_path: Path) -> None:
    """The logger's own error does not say where; the message does."""
    ended = run(FIT, tmp_path, partial(at, "DictWriter.writerows", 9, partial(limit_files, 1000)))
    check_told(ended, "run")
    assert "File too large: run." in ended.said
    assert "checkpoint" not in ended.said
    load(last_checkpoint(tmp_path / "run"))
    assert run([*FIT, "--resume", "true"], tmp_path).code == 0
    assert_same_end(tmp_path / "run", undisturbed[0])


@pytest.mark.parametrize(
    ("function", "nth"),
    [("AtomicCheckpointIO.save_checkpoint", 3), ("ModesPerValue.refine", 2), ("Result.write", 1)],
)
def test_disk_runs_full(function: str, nth: int, undisturbed: tuple[Path, float], small_disk: Path) -> None:
    """Whether a checkpoint, a log or the result is the first to find no room."""
    command = ["fit", *CODID, "--run_dir", small_disk / "run"]
    ended = run(command, small_disk.parent, partial(at, function, nth, partial(fill, small_disk)))
    check_told(ended, str(small_disk / "run"))
    assert load(last_checkpoint(small_disk / "run"))["epoch"] == {"Result.write": 4}.get(function, 1 if nth == 3 else 2)
    (small_disk / "filler").unlink()
    assert run([*command, "--resume", "true"], small_disk.parent).code == 0
    assert_same_end(small_disk / "run", undisturbed[0])


@pytest.mark.parametrize("nth", [None, 3])
def test_disk_is_read_only(nth: int | None, undisturbed: tuple[Path, float], small_disk: Path) -> None:
    """From the start, or from the third checkpoint on."""
    turn: Callable[[], None] = partial(make_read_only, small_disk)
    first = turn if nth is None else partial(at, "AtomicCheckpointIO.save_checkpoint", nth, turn)
    ended = run(["fit", *CODID, "--run_dir", small_disk / "run"], small_disk.parent, first)
    check_told(ended, str(small_disk / "run"))
    if nth:
        assert load(last_checkpoint(small_disk / "run"))["epoch"] == 1


def test_directory_is_not_ours(tmp_path: Path) -> None:
    """Root may write everywhere, so it becomes nobody as it enters the directory."""
    tmp_path.chmod(0o755)
    (tmp_path / "runs").mkdir(mode=0o555)
    lesser = partial(at, "new_run_directory", 1, partial(os.seteuid, NOBODY)) if os.geteuid() == 0 else None
    check_told(run(["fit", *CODID], tmp_path, lesser), "runs")


def test_data_folder_is_read_only(small_disk: Path) -> None:
    make_read_only(small_disk)
    command = ["fit", "-c", ROOT / "configs/uci_har/base.yaml", "--data.init_args.root", small_disk]
    ended = run(command, small_disk.parent)
    check_told(ended, str(small_disk))
    assert "data.root" in ended.said
