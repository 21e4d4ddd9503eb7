"""Run directories: one per run, with the resolved config, the checkpoint and `result.json`."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

import yaml

from codid_lightning.errors import RunError
from codid_lightning.training import migration
from codid_lightning.training.identity import config_hash

SCHEMA = 1
RESULT, CONFIG, CHECKPOINTS, LAST, BEST = "result.json", "config.yaml", "checkpoints", "last.ckpt", "best.ckpt"
IN_USE = ".in-use"  # locked while a process trains


@dataclass
class Result:
    """The result of a run, from which tables and figures are made."""

    method: str
    dataset: str
    seed: int
    group: int | None
    config_hash: str
    epochs: int = 0
    seconds: float = 0.0
    parameters: int = 0
    selection: str = "last"
    metrics: dict[str, float] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    git_revision: str | None = None
    code_checksum: str | None = None
    data_checksum: str | None = None
    title: str = ""
    schema: int = SCHEMA

    def write(self, directory: Path) -> Path:
        """Write `result.json` completely or not at all."""
        path = directory / RESULT
        with replacing(path) as part:
            part.write_text(json.dumps(asdict(self), indent=2, sort_keys=True) + "\n")
        return path


def read_result(directory: Path) -> dict[str, Any]:
    """The `result.json` of a run."""
    result: dict[str, Any] = json.loads((directory / RESULT).read_text())
    return result


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary name beside `path`; on success it is synced and renamed, on failure removed.

    A reader of `path` sees the old file or the new one, also after a crash.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield part
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        error.filename = str(path)  # the error of a full disk names no file
        raise
    finally:
        with suppress(OSError):  # of a folder that is none, which the error above is about
            part.unlink(missing_ok=True)


def remove_partial_files(directory: Path) -> None:
    """Remove the temporary files of a process that was killed while it wrote."""
    for part in directory.rglob(".*.part"):
        part.unlink(missing_ok=True)


@contextmanager
def writable(path: Path, key: str) -> Iterator[None]:
    """Raise `RunError` if the system does not create `path`; the message names the path and the key that chose it."""
    try:
        yield
    except OSError as error:
        raise RunError(
            f"Cannot write to {path} ({error.strerror}): choose a folder that can be written with {key}."
        ) from error


def write_output(path: Path, text: str, key: str) -> None:
    """Write the file that a command's `key` names, with its folder."""
    with writable(path, key):
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as part:
            part.write_text(text, encoding="utf-8")


def make_folder(path: Path, key: str) -> None:
    """Make the folder that a command's `key` names."""
    with writable(path, key):
        path.mkdir(parents=True, exist_ok=True)


@contextmanager
def exclusive_run_dir(directory: Path) -> Iterator[None]:
    """Lock a directory for this process; raise `RunError` if another process trains in it.

    The end of the process, also by a crash, releases the lock. It is a POSIX lock rather than `filelock`'s `flock`,
    because forks do not inherit it: loader processes that outlive a killed run for a moment do not block the next one.
    """
    with writable(directory, "--run_dir or --trainer.default_root_dir"):
        opened = (directory / IN_USE).open("ab+", buffering=0)
    with opened as file:
        try:
            _lock(file)
        except (BlockingIOError, PermissionError) as error:
            file.seek(0)
            owner = file.read().decode(errors="replace") or "another process"
            raise RunError(
                f"{directory} is in use by {owner}. Wait until it has finished, stop it, or choose another --run_dir."
            ) from error
        except OSError as error:  # some network filesystems and Windows have no such locks
            warnings.warn(f"Cannot lock {directory} ({error}): start no second process in it.", stacklevel=3)
        with suppress(OSError):  # only the message above needs it
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}".encode())
        yield


def _lock(file: IO[bytes]) -> None:
    try:
        import fcntl
    except ImportError as error:
        raise OSError("this system has no POSIX locks") from error
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def new_run_directory(root: Path, *names: str) -> Path:
    """A new directory below `root/names`; runs that start at the same moment get different ones."""
    parent = root.joinpath(*names)
    parent.mkdir(parents=True, exist_ok=True)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    for attempt in range(10_000):
        path = parent / (stamp if attempt == 0 else f"{stamp}-{attempt}")
        try:
            path.mkdir()
        except FileExistsError:
            continue
        return path
    raise RuntimeError(f"Could not create a run directory below {parent}.")


def read_config(directory: Path) -> dict[str, Any]:
    """The resolved config of a run, as this version writes it."""
    try:
        config: dict[str, Any] = yaml.safe_load((directory / CONFIG).read_text())
    except (OSError, yaml.YAMLError, ValueError, RecursionError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise RunError(f"{directory / CONFIG} is not a plain config: {reason}.") from error
    if not isinstance(config, dict):
        raise RunError(f"{directory / CONFIG} is not a plain config: it holds no keys.")
    if not migration.is_outdated(config):
        return config
    from codid_lightning.training.config import as_dict, combine  # loads torch, which readers of results do not need

    return as_dict(combine(migration.upgrade(config)))


def run_of(checkpoint: Path) -> Path | None:
    """The run directory that holds a checkpoint; None if it lies elsewhere."""
    return next((p for p in checkpoint.resolve().parents[:2] if (p / CONFIG).is_file()), None)


def latest_run(root: Path, identity: str) -> Path | None:
    """The newest run below `root` with this config hash."""
    runs = [p.parent for p in root.rglob(CONFIG) if (p.parent / CHECKPOINTS).is_dir()]
    same = [run for run in runs if config_hash(read_config(run)) == identity]
    return max(same, key=lambda run: run.stat().st_mtime, default=None)


def package_versions() -> dict[str, str]:
    """Versions of the packages that determine a run's numbers."""
    found = {}
    for name in ("codid-lightning", "torch", "lightning", "torchmetrics", "scikit-learn", "numpy"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def git_revision() -> str | None:
    """Git revision of the source tree; None for an installed package, also inside somebody's repository."""
    git = ["git", "-C", str(Path(__file__).parent)]
    try:
        for command in (["ls-files", "--error-unmatch", Path(__file__).name], ["rev-parse", "HEAD"]):
            found = subprocess.run([*git, *command], capture_output=True, text=True, timeout=5, check=True)  # noqa: S603
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip()


@cache
def code_checksum() -> str:
    """A hash of the source of both packages: it differs where files were edited after the revision, too."""
    digest = hashlib.sha256()
    other = find_spec("datamodules")  # importing it would load torch
    for folder in (Path(__file__).parents[1], Path(str(other and other.origin)).parent):
        for file in sorted(folder.rglob("*.py")):
            digest.update(f"{folder.name}/{file.relative_to(folder).as_posix()}".encode())
            digest.update(hashlib.sha256(file.read_bytes()).digest())
    return digest.hexdigest()[:16]
