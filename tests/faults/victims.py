"""Real processes to be killed, starved and lied to.

They are forked from a server that has imported everything, so that a run costs a second and not seven. What a victim
does to itself before it starts (a limit, a signal at a certain function) is a picklable function.
"""

from __future__ import annotations

import csv
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from tests.codid.ranks import RANKS, become_rank, free_port

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the server must not start threads that a fork would lose
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["codid_lightning.cli.main", "codid_lightning.analysis.evaluation"])
PATIENCE = 300.0  # seconds; a victim that takes longer hangs

ROOT = Path(__file__).parents[2]
CODID = [
    "-c", str(ROOT / "configs/toy/codid.yaml"),
    "--data.init_args.samples_per_mode", "40",
    "--data.init_args.batch_size", "64",
    "--model.init_args.latent_dim", "8",
    "--model.init_args.lr", "0.001",
    "--model.init_args.discovery.init_args.n_clusters", "6",
    "--model.init_args.alignment.init_args.steps", "2",
    "--model.init_args.discovery.init_args.start", "1",
    "--model.init_args.discovery.init_args.every", "1",
    "--trainer.max_epochs", "5",
    "--trainer.accelerator", "cpu",
    "--trainer.enable_progress_bar", "false",
]  # fmt: skip


@dataclass(frozen=True)
class Ended:
    """How a victim ended: its exit code (negative: the signal that killed it), what it said, how long it took."""

    code: int
    said: str
    seconds: float


class Victim:
    """A `codid` command in a process of its own.

    Args:
        command: The command's arguments.
        folder: Its working directory; what it says goes to a file there.
        first: What it does before the command.
    """

    def __init__(self, command: Sequence[object], folder: Path, first: Callable[[], None] | None = None) -> None:
        self.output = folder / f"said-{time.monotonic_ns()}.txt"
        self.began = time.monotonic()
        arguments = ([str(c) for c in command], folder, self.output, first)
        self.process = CONTEXT.Process(target=_live, args=arguments)
        self.process.start()

    def wait(self, timeout: float = PATIENCE) -> Ended:
        """Wait for its end; one that hangs is a failure."""
        self.process.join(timeout)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
            raise AssertionError(f"The process hung. It said: {self._said()}")
        return Ended(self.process.exitcode or 0, self._said(), time.monotonic() - self.began)

    def send(self, signum: int) -> None:
        """Send a signal, if it still lives."""
        if self.process.is_alive() and self.process.pid:
            os.kill(self.process.pid, signum)

    def _said(self) -> str:
        return self.output.read_text() if self.output.exists() else ""


def run(command: Sequence[object], folder: Path, first: Callable[[], None] | None = None) -> Ended:
    """Run a command to its end."""
    return Victim(command, folder, first).wait()


def run_ranks(command: Sequence[object], folder: Path, firsts: Sequence[Callable[[], None] | None]) -> list[Ended]:
    """Run a command to its end in as many processes as there are `firsts`, which train together if there are two."""
    if len(firsts) == 1:
        return [run(command, folder, firsts[0])]
    port = free_port()
    together = [*command, "--trainer.devices", RANKS, "--trainer.strategy", "ddp"]
    victims = [Victim(together, folder, partial(_join, rank, port, first)) for rank, first in enumerate(firsts)]
    return [victim.wait() for victim in victims]


def _join(rank: int, port: int, first: Callable[[], None] | None) -> None:
    become_rank(rank, port)
    if first is not None:
        first()


def _live(command: list[str], folder: Path, output: Path, first: Callable[[], None] | None) -> None:
    from codid_lightning.cli.main import main

    multiprocessing.set_start_method("fork", force=True)  # as in a process from the shell: its workers are its children
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a suite that a shell put in the background ignores it
    os.chdir(folder)
    sink = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    sys.stdout, sys.stderr = (os.fdopen(n, "w", buffering=1, closefd=False) for n in (1, 2))
    if first is not None:
        first()
    sys.exit(main(command))


def strike(function: str, nth: int = 1, signum: int = signal.SIGKILL, times: int = 1) -> None:
    """Have this process send itself a signal, or several, as it enters a function the nth time."""

    def signals() -> None:
        for _ in range(times):
            signal.raise_signal(signum)

    at(function, nth, signals)


def at(function: str, nth: int, action: Callable[[], object]) -> None:
    """Have this process do something as it enters a function the nth time.

    Python functions go by their qualified name, those written in C by their plain one or, as texts have a `replace`,
    too, with their module; `a|b` is either of two.
    """
    calls, names = 0, function.split("|")

    def watch(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        if event not in ("call", "c_call"):
            return
        called = frame.f_code.co_qualname if event == "call" else argument.__name__
        if called in names or (event == "c_call" and f"{argument.__module__}.{called}" in names):
            calls += 1
            if calls == nth:
                sys.setprofile(None)
                action()

    sys.setprofile(watch)


def other_filesystem() -> Path:
    """A folder in memory, which is another filesystem than temporary files; theirs where the system has none."""
    memory = Path("/dev/shm")
    return memory if memory.is_dir() else Path(tempfile.gettempdir())


# --------------------------------------------------------------------------------------------------------- what is left


def last_checkpoint(run_dir: Path) -> Path:
    return run_dir / "checkpoints" / "last.ckpt"


def load(checkpoint: Path) -> dict[str, Any]:
    return torch.load(checkpoint, weights_only=True)


def result(run_dir: Path) -> dict[str, Any]:
    """What a run found, without how long it took and whether somebody edited the code or made a commit meanwhile."""
    found = json.loads((run_dir / "result.json").read_text())
    return {name: value for name, value in found.items() if name not in ("seconds", "git_revision", "code_checksum")}


def logged(run_dir: Path) -> set[tuple[tuple[str, str], ...]]:
    """All rows of the logs of a run, which has one for each time it was started; an empty field is none."""
    rows = [row for log in run_dir.glob("logs/*/metrics.csv") for row in csv.DictReader(log.open())]
    return {tuple(sorted((name, value) for name, value in row.items() if value)) for row in rows}


def leftovers(folder: Path) -> list[Path]:
    """Temporary files."""
    return [p for p in folder.rglob("*") if p.suffix in (".part", ".tmp") or p.name.startswith("tmp")]


def assert_same_end(one: Path, other: Path) -> None:
    """Two runs ended with the same parameters, optimizers, clusters and metrics, bit for bit."""
    ends = [load(last_checkpoint(run_dir)) for run_dir in (one, other)]
    for part in ("state_dict", "optimizer_states", "epoch", "global_step"):
        assert_identical(ends[0][part], ends[1][part], part)
    for name, state in ends[0]["callbacks"].items():
        if "ModeDiscovery" in name:
            assert_identical(state, ends[1]["callbacks"][name], name)
    assert_identical(result(one), result(other), "result")


def assert_identical(one: Any, other: Any, path: str) -> None:
    """Nested containers of tensors and plain values are the same, with NaN equal to NaN."""
    if isinstance(one, torch.Tensor):
        assert isinstance(other, torch.Tensor), path
        assert one.dtype == other.dtype, path
        assert torch.equal(one.nan_to_num(1e30), other.nan_to_num(1e30)), path
    elif isinstance(one, dict):
        assert one.keys() == other.keys(), path
        for key in one:
            assert_identical(one[key], other[key], f"{path}.{key}")
    elif isinstance(one, list | tuple):
        assert len(one) == len(other), path
        for i, (left, right) in enumerate(zip(one, other, strict=True)):
            assert_identical(left, right, f"{path}[{i}]")
    else:
        assert one == other or (one != one and other != other), f"{path}: {one} and {other}"
