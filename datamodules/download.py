"""Download and unpack public archives: complete or not at all, checked, by one process at a time."""

from __future__ import annotations

import errno
import gzip
import hashlib
import http.client
import os
import shutil
import stat
import urllib.error
import urllib.request
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath

from filelock import FileLock
from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

from datamodules.base import DataError

_CHUNK = 1 << 20
_MAX_ATTEMPTS = 3  # per address; an interrupted download is continued
_OF_THE_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO}
_TIMEOUT = 30.0  # seconds without data
_MAX_EXPANSION = 200  # unpacked bytes per packed byte; text reaches about 20, a bomb 1000


class DownloadError(DataError):
    """A file could not be fetched or unpacked."""


@dataclass(frozen=True)
class RemoteFile:
    """A public file.

    Args:
        name: Name on disk.
        urls: Addresses, tried in order.
        md5: Its checksum. If none is known (None), the length, the format and the checksums inside of a zip file are
            verified.
    """

    name: str
    urls: tuple[str, ...]
    md5: str | None = None


@contextmanager
def locked(folder: Path, name: str) -> Iterator[None]:
    """Create `folder`, and lock it for other processes."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / name):
            yield
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        raise DownloadError(f"Cannot write to {folder}: {error}. Set data.root to a folder you may write.") from error


def fetch(remote: RemoteFile, folder: Path) -> Path:
    """Path of the file in `folder`, downloaded if it is missing. A file of that name is complete and checked."""
    path = folder / remote.name
    with locked(folder, f"{remote.name}.lock"):
        if not _is_whole(path, remote.md5):
            _download(remote, path)
    return path


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a zip or gz file; files are moved to `folder` after everything is unpacked.

    Raises if a file would be written outside of `folder`, if there are links, or if the archive expands too much.
    """
    staging = folder / f".unpacking-{archive.name}"
    with locked(folder, f".{archive.name}.lock"):
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir()
        try:
            _unpack_into(archive, staging)
            for entry in staging.iterdir():
                _replace(entry, folder / entry.name)
        except Exception as error:  # damaged archives raise many types of errors
            if isinstance(error, DataError) or getattr(error, "errno", None) in _OF_THE_DISK:
                raise
            raise DownloadError(f"{archive} cannot be unpacked ({error}); delete it and download it again.") from error
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def _is_whole(path: Path, md5: str | None) -> bool:
    return path.is_file() and (md5 is None or _md5(path) == md5)


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _download(remote: RemoteFile, path: Path) -> None:
    part = path.with_name(path.name + ".part")
    reasons = []
    for url in remote.urls:
        for _ in range(_MAX_ATTEMPTS):
            try:
                _transfer(url, part, remote.name)
                _verify(part, remote)
            except urllib.error.HTTPError as error:
                reasons.append(f"{url}: {error}")
                break  # the server has answered; asking again will not help
            except (OSError, http.client.HTTPException, DownloadError) as error:
                reasons.append(f"{url}: {error}")
            else:
                os.replace(part, path)
                return
    raise DownloadError(
        f"Could not download {remote.name}:\n  " + "\n  ".join(dict.fromkeys(reasons)) + f"\nPlace the file at {path} "
        "yourself, or try again later; a partial download is continued."
    )


def _transfer(url: str, part: Path, label: str) -> None:
    """Append the missing bytes to `part`; start again if the server cannot continue."""
    if not url.startswith(("http://", "https://")):
        raise DownloadError(f"unsupported address {url}")
    have = part.stat().st_size if part.exists() else 0
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})  # noqa: S310
    try:
        response = urllib.request.urlopen(request, timeout=_TIMEOUT)  # noqa: S310 - the scheme is checked above
    except urllib.error.HTTPError as error:
        if error.code != http.client.REQUESTED_RANGE_NOT_SATISFIABLE:
            raise
        part.unlink()  # longer than the file, or complete but wrong
        raise DownloadError("the partial file did not match and was discarded") from error
    columns = ("{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with response, Progress(*columns, transient=True) as progress:
        resumed = response.status == http.client.PARTIAL_CONTENT
        have = have if resumed else 0
        length = response.headers.get("Content-Length")
        total = have + int(length) if length else None
        task = progress.add_task(label, total=total, completed=have)
        with part.open("ab" if resumed else "wb") as file:
            while chunk := response.read(_CHUNK):
                file.write(chunk)
                progress.advance(task, len(chunk))
    if total is not None and part.stat().st_size != total:
        raise DownloadError(f"the connection ended after {part.stat().st_size} of {total} bytes")


def _verify(part: Path, remote: RemoteFile) -> None:
    if remote.md5 is not None and (found := _md5(part)) != remote.md5:
        part.unlink()
        raise DownloadError(f"checksum {found}, expected {remote.md5}; the download was discarded")
    if remote.md5 is None and not _is_format(part, Path(remote.name).suffix):  # e.g. a login page
        part.unlink()
        raise DownloadError(f"not a sound {Path(remote.name).suffix} file; the download was discarded")


def _is_format(path: Path, suffix: str) -> bool:
    if suffix == ".zip":
        try:
            with zipfile.ZipFile(path) as file:
                return file.testzip() is None
        except (zipfile.BadZipFile, zlib.error):
            return False
    magic = {".gz": b"\x1f\x8b", ".mat": b"MATLAB"}.get(suffix, b"")
    with path.open("rb") as file:
        return file.read(len(magic)) == magic


def _unpack_into(archive: Path, staging: Path) -> None:
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as file:
            members = file.infolist()
            for member in members:
                _check_member(archive, member)
            _check_expansion(archive, sum(m.file_size for m in members))
            file.extractall(staging)
    elif archive.suffix == ".gz":
        _gunzip(archive, staging / archive.stem)
    else:
        raise DownloadError(f"{archive} is neither a zip nor a gz file; delete it and download it again.")


def _gunzip(archive: Path, target: Path) -> None:
    limit = archive.stat().st_size * _MAX_EXPANSION
    with gzip.open(archive) as source, target.open("wb") as file:
        while chunk := source.read(_CHUNK):
            file.write(chunk)
            if file.tell() > limit:
                _check_expansion(archive, file.tell())


def _check_member(archive: Path, member: zipfile.ZipInfo) -> None:
    path = PureWindowsPath(member.filename)  # understands both separators and drive letters
    if path.drive or path.root or ".." in path.parts:
        raise DownloadError(f"{archive} would write outside of its folder ({path}); it was not unpacked.")
    if stat.S_ISLNK(member.external_attr >> 16):
        raise DownloadError(f"{archive} holds a link ({path}); it was not unpacked.")


def _check_expansion(archive: Path, size: int) -> None:
    if size > _MAX_EXPANSION * archive.stat().st_size:
        raise DownloadError(f"{archive} expands to more than {_MAX_EXPANSION} times its size; it was not unpacked.")


def _replace(source: Path, target: Path) -> None:
    if target.is_dir():
        shutil.rmtree(target)
    os.replace(source, target)
