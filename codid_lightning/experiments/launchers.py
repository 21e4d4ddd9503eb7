"""Many runs at a time: processes on this machine that share its cores and GPUs, or tasks on a Ray cluster."""

from __future__ import annotations

import importlib
import json
import os
import shlex
import subprocess
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any, Literal, Protocol

import torch

from codid_lightning.errors import RunError
from codid_lightning.training.runs import replacing

OUTPUT, FAILURE, LOCK = "output.log", "failure.json", ".lock"
_GRACE = 30.0  # seconds for a run to save its checkpoint after SIGTERM
_POLL = 0.1


class EngineError(RunError):
    """The runs cannot be started with these settings."""


@dataclass(frozen=True)
class Job:
    """One process to run.

    Args:
        name: Its name in messages.
        command: The program and its arguments. No shell is used.
        directory: Folder for its output, its lock and the record of a failure.
        product: A file that exists as soon as the job has finished. None: the job is always started.
        cwd: Working directory of the process.
    """

    name: str
    command: tuple[str, ...]
    directory: Path
    product: Path | None = None
    cwd: Path = field(default_factory=Path.cwd)

    @property
    def finished(self) -> bool:
        """Whether the product exists."""
        return self.product is not None and self.product.is_file()


@dataclass(frozen=True)
class Outcome:
    """How a job ended. If it failed, `error` has the last lines of its output."""

    job: Job
    state: Literal["done", "failed", "busy"]
    seconds: float = 0.0
    error: str = ""


class Engine(Protocol):
    """Runs several jobs at a time."""

    parallel: int  # how many run at the same time

    def run(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        """Run all jobs, and yield each outcome when the job has ended."""
        ...


class Attempt:
    """A running job. Its process holds the lock of the job's directory until it ends.

    The process keeps the lock even if the program that started it is killed. So a job never runs twice at a time.
    Several programs can share a list of jobs, also on several machines if their file system supports `flock`.
    """

    def __init__(self, job: Job, environment: Mapping[str, str], lock: IO[bytes]) -> None:
        self.job, self.lock = job, lock
        self.began = time.monotonic()
        with (job.directory / OUTPUT).open("ab") as output:
            output.write(f"$ {shlex.join(job.command)}\n".encode())
            self.offset = output.tell()
            output.flush()
            self.process = subprocess.Popen(  # noqa: S603
                job.command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **environment},
                cwd=job.cwd,
                pass_fds=(lock.fileno(),),
            )

    @classmethod
    def start(cls, job: Job, environment: Mapping[str, str]) -> Attempt | Outcome:
        """Start the job. If it is finished, runs elsewhere or cannot be started, return the outcome instead."""
        try:
            job.directory.mkdir(parents=True, exist_ok=True)
            lock = try_lock(job.directory)
            if lock is None:
                return Outcome(job, "busy")
            if job.finished:
                lock.close()
                return Outcome(job, "done")
            return cls(job, environment, lock)
        except OSError as error:
            return Outcome(job, "failed", error=f"could not start: {error}")

    def poll(self) -> Outcome | None:
        """The outcome if the job has ended, else None."""
        code = self.process.poll()
        return None if code is None else self._conclude(code)

    def wait(self) -> Outcome:
        """Wait until the job ends, and return the outcome. If this is interrupted, stop the job."""
        try:
            return self._conclude(self.process.wait())
        finally:
            self.stop()

    def stop(self) -> None:
        """Send SIGTERM, so that a run saves its checkpoint and ends. If this takes too long, kill the process."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(_GRACE)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.lock.close()

    def _conclude(self, code: int) -> Outcome:
        seconds = time.monotonic() - self.began
        record = self.job.directory / FAILURE
        if code == 0 and (self.job.product is None or self.job.finished):
            record.unlink(missing_ok=True)
            outcome = Outcome(self.job, "done", seconds)
        else:
            error = _tail(self.job.directory / OUTPUT, self.offset) or f"no output, exit code {code}"
            content = {"command": self.job.command, "exit_code": code, "seconds": round(seconds, 3), "output": error}
            with replacing(record) as part:
                part.write_text(json.dumps(content, indent=2) + "\n")
            outcome = Outcome(self.job, "failed", seconds, error)
        self.lock.close()
        return outcome


def try_lock(directory: Path) -> IO[bytes] | None:
    """The lock of a directory as an open file, or None if another process holds it.

    The lock ends when this process and all child processes that inherited the file have closed it or ended. `filelock`
    does not pass its lock to a child process: a job would lose its lock if the process that started it were killed.
    """
    try:
        import fcntl
    except ImportError as error:
        raise EngineError("Benchmarks and searches need the file locks of a Unix system.") from error
    file = (directory / LOCK).open("wb")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        return None
    return file


def _tail(path: Path, start: int, lines: int = 20) -> str:
    """The last lines of a file, of those that were written after byte `start`."""
    with path.open("rb") as file:
        file.seek(max(start, path.stat().st_size - 8192))
        return "\n".join(file.read().decode(errors="replace").splitlines()[-lines:]).strip()


class LocalEngine:
    """Runs jobs as processes on this machine.

    Each process has its share of the cores as threads, at most `OMP_NUM_THREADS` if this is set.

    Args:
        jobs: Number of processes at a time. Default: as many as the GPUs have room for, or one without GPUs.
        gpus_per_run: GPUs of one run. With a fraction, several runs share a GPU; 0 uses none.
        devices: The GPUs to use. Default: all that are visible.
    """

    def __init__(
        self, jobs: int | None = None, gpus_per_run: float = 1.0, devices: Sequence[str] | None = None
    ) -> None:
        if jobs is not None and jobs < 1:
            raise EngineError(f"jobs is {jobs}; at least one process must run.")
        places = gpu_shares(visible_gpus() if devices is None else devices, gpus_per_run)
        self.parallel = (len(places) or 1) if jobs is None else min(jobs, len(places) or jobs)
        self.threads = min(max(1, cores() // self.parallel), wanted_threads())
        self.places: list[str | None] = list(places[: self.parallel]) or [None] * self.parallel

    def run(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        """Run all jobs. Jobs that another process is running come last."""
        waiting, free = deque(jobs), list(self.places)
        running: dict[Attempt, str | None] = {}
        try:
            while waiting or running:
                yield from self._fill(waiting, free, running)
                time.sleep(_POLL)
                for attempt in list(running):
                    outcome = attempt.poll()
                    if outcome is not None:
                        free.append(running.pop(attempt))
                        yield outcome
        finally:
            for attempt in running:
                attempt.process.terminate()
            for attempt in running:
                attempt.stop()

    def _fill(
        self, waiting: deque[Job], free: list[str | None], running: dict[Attempt, str | None]
    ) -> Iterator[Outcome]:
        """Start jobs while there is room. A busy job goes to the end of the queue."""
        for _ in range(len(waiting)):
            if not free:
                return
            job = waiting.popleft()
            started = Attempt.start(job, environment(self.threads, free[0]))
            if isinstance(started, Attempt):
                running[started] = free.pop(0)
            elif started.state == "busy":
                waiting.append(job)
            else:
                yield started


def cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def wanted_threads() -> int:
    """Largest number of threads of one run: `OMP_NUM_THREADS` if it is set, else the number of cores."""
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    return int(wanted) if wanted.isdigit() and int(wanted) > 0 else cores()


def environment(threads: int, devices: str | None = None) -> dict[str, str]:
    """Environment variables that limit a process to its share of the machine."""
    share = {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    return share if devices is None else {**share, "CUDA_VISIBLE_DEVICES": devices}


def visible_gpus() -> list[str]:
    """Names of the GPUs that this process may use, as `CUDA_VISIBLE_DEVICES` writes them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name for name in named.split(",") if name]
    return [str(i) for i in range(torch.cuda.device_count())]


def gpu_shares(devices: Sequence[str], gpus_per_run: float) -> list[str]:
    """For each run at a time, its GPUs: one of its own, one that it shares, or several."""
    if gpus_per_run == 0 or not devices:
        return []
    if gpus_per_run < 0 or (gpus_per_run > 1 and gpus_per_run != int(gpus_per_run)):
        raise EngineError(f"gpus_per_run is {gpus_per_run}; it must be a fraction of one GPU or a whole number.")
    if gpus_per_run <= 1:
        return [device for _ in range(int(1 / gpus_per_run)) for device in devices]
    size = int(gpus_per_run)
    if size > len(devices):
        raise EngineError(f"gpus_per_run is {size}, but there are {len(devices)} GPUs.")
    return [",".join(devices[i : i + size]) for i in range(0, len(devices) - size + 1, size)]


class RayEngine:
    """Runs jobs as tasks on a Ray cluster. Every machine needs the package and access to the same run directories.

    Args:
        address: The cluster. `auto` finds a running one, `local` starts one on this machine.
        cpus_per_run: Cores of one run, and its number of threads.
        gpus_per_run: GPUs of one run. With a fraction, several runs share a GPU. Default: 1 if the cluster has any.
    """

    def __init__(self, address: str = "auto", cpus_per_run: int = 1, gpus_per_run: float | None = None) -> None:
        try:
            ray: Any = importlib.import_module("ray")
        except ImportError as error:
            raise EngineError("The Ray engine needs Ray: pip install 'codid-lightning[ray]'.") from error
        try:
            # The dashboard accepts jobs from anybody who can reach it.
            ray.init(address=address, ignore_reinit_error=True, log_to_driver=False, include_dashboard=False)
        except ConnectionError as error:
            raise EngineError(f"There is no Ray cluster at `{address}`: {error}") from error
        total = ray.cluster_resources()
        cores, gpus = total.get("CPU", 0.0), total.get("GPU", 0.0)
        if gpus_per_run is None:
            gpus_per_run = 1.0 if gpus else 0.0
        self.ray, self.cpus = ray, cpus_per_run
        self.needs = {"num_cpus": cpus_per_run, "num_gpus": gpus_per_run}
        self.parallel = int(min(cores / cpus_per_run, gpus / gpus_per_run if gpus_per_run else cores))
        if self.parallel < 1:
            raise EngineError(f"The cluster has {cores:g} cores and {gpus:g} GPUs, but one run needs {self.needs}.")

    def run(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        """Submit all jobs. Ray chooses the machines, and repeats a job if its machine is lost."""
        task = self.ray.remote(run_here).options(**self.needs)
        share = environment(self.cpus)
        pending: list[Any] = [task.remote(job, share) for job in jobs]
        try:
            while pending:
                (ready,), pending = self.ray.wait(pending, num_returns=1)
                outcome: Outcome = self.ray.get(ready)
                if outcome.state == "busy":
                    time.sleep(1)
                    pending.append(task.remote(outcome.job, share))
                else:
                    yield _checked_here(outcome)
        finally:
            for reference in pending:
                self.ray.cancel(reference)
            if pending:
                self.ray.wait(pending, num_returns=len(pending), timeout=_GRACE)


def run_here(job: Job, share: Mapping[str, str]) -> Outcome:
    """Run one job on the machine that Ray has chosen for this task."""
    started = Attempt.start(job, share)
    return started.wait() if isinstance(started, Attempt) else started


def _checked_here(outcome: Outcome) -> Outcome:
    """The outcome; a failure if this machine does not see the job's product, because the report will read it here."""
    if outcome.state == "failed" or outcome.job.product is None or outcome.job.finished:
        return outcome
    return replace(outcome, state="failed", error=f"{outcome.job.product} is not visible here; is the path shared?")


def make_engine(
    engine: Literal["local", "ray"] = "local",
    jobs: int | None = None,
    cpus_per_run: int = 1,
    gpus_per_run: float | None = None,
    address: str = "auto",
) -> Engine:
    """The engine that runs the jobs.

    Args:
        engine: `local`: processes on this machine. `ray`: tasks on a Ray cluster.
        jobs: Local processes at a time, which share the cores. Default: as many as the GPUs have room for, or 1.
        cpus_per_run: Cores of one run on a Ray cluster.
        gpus_per_run: GPUs of one run. With a fraction, runs share a GPU; 0 uses none. Default: 1 if there are any.
        address: The Ray cluster. `auto` finds a running one, `local` starts one on this machine.
    """
    if engine == "ray":
        return RayEngine(address, cpus_per_run, gpus_per_run)
    return LocalEngine(jobs, 1.0 if gpus_per_run is None else gpus_per_run)
