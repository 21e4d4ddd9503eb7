import gzip
import hashlib
import io
import multiprocessing
import os
import re
import shutil
import threading
import time
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from datamodules.download import DownloadError, RemoteFile, fetch, unpack
from datamodules.grouped import GroupedDataModule

BODY = np.random.default_rng(0).bytes(300_000)


def zipped(**files: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return buffer.getvalue()


class Handler(BaseHTTPRequestHandler):
    """Serves one body; the path says how badly."""

    def do_GET(self):
        requests = self.server.requests
        requests.append((self.path, self.headers.get("Range")))
        if self.path.startswith("/missing"):
            self.send_error(404)
            return
        body = b"<html>please log in</html>" if self.path.startswith("/html") else self.server.body
        start = int((self.headers.get("Range") or "bytes=0-")[6:-1])
        if start and not self.path.startswith("/no-range"):
            if start >= len(body):
                self.send_error(416)
                return
            self.send_response(206)
            body = body[start:]
        else:
            self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.path.startswith("/slow"):
            time.sleep(1)
        first_time = len([p for p, _ in requests if p == self.path]) == 1
        if "truncated" in self.path or ("drops" in self.path and first_time):
            self.wfile.write(body[: len(body) // 2])
            return  # HTTP/1.0: the connection closes here
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.fixture
def server():
    instance = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    instance.body, instance.requests = BODY, []
    instance.url = f"http://127.0.0.1:{instance.server_port}"
    thread = threading.Thread(target=instance.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield instance
    instance.shutdown()
    instance.server_close()


def remote(server, *paths, name="file.bin", checked=True):
    md5 = hashlib.md5(server.body).hexdigest() if checked else None
    return RemoteFile(name, tuple(f"{server.url}/{path}" for path in paths), md5)


def leftovers(folder):
    return {p.name for p in folder.iterdir()} - {"file.bin.lock"}


def test_whole_file_is_fetched_once(server, tmp_path):
    for _ in range(2):
        path = fetch(remote(server, "good"), tmp_path / "new" / "folder")
        assert path.read_bytes() == BODY
    assert len(server.requests) == 1
    assert leftovers(path.parent) == {"file.bin"}


@pytest.mark.parametrize("path", ["drops", "no-range-drops"])
def test_dropped_connection_goes_on_where_it_stopped(server, tmp_path, path):
    assert fetch(remote(server, path), tmp_path).read_bytes() == BODY
    assert [r for _, r in server.requests] == [None, "bytes=150000-"]
    assert leftovers(tmp_path) == {"file.bin"}


def test_server_that_cannot_continue_is_read_from_the_start(server, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(BODY[:1000])
    assert fetch(remote(server, "no-range"), tmp_path).read_bytes() == BODY


def test_partial_file_of_an_interrupted_process_is_continued(server, tmp_path):
    (tmp_path / "file.bin.part").write_bytes(BODY[:1000])
    assert fetch(remote(server, "good"), tmp_path).read_bytes() == BODY
    assert server.requests == [("/good", "bytes=1000-")]


@pytest.mark.parametrize("stale", [b"x" * 1000, b"x" * 300_000, b"x" * 400_000])
def test_partial_file_of_something_else_is_discarded(server, tmp_path, stale):
    (tmp_path / "file.bin.part").write_bytes(stale)
    assert fetch(remote(server, "good"), tmp_path).read_bytes() == BODY


@pytest.mark.parametrize("checked", [True, False])
def test_truncated_body_never_becomes_the_file(server, tmp_path, checked):
    with pytest.raises(DownloadError, match=r"ended after \d+ of \d+ bytes"):
        fetch(remote(server, "no-range-truncated", "truncated", checked=checked), tmp_path)
    assert leftovers(tmp_path) == {"file.bin.part"}


def test_wrong_checksum_raises_and_leaves_nothing(server, tmp_path):
    wrong = RemoteFile("file.bin", (f"{server.url}/good",), "0" * 32)
    with pytest.raises(DownloadError, match="expected 00000000000000000000000000000000"):
        fetch(wrong, tmp_path)
    assert not leftovers(tmp_path)


def test_file_on_disk_with_wrong_checksum_is_replaced(server, tmp_path):
    (tmp_path / "file.bin").write_bytes(BODY[:-1])
    assert fetch(remote(server, "good"), tmp_path).read_bytes() == BODY


def test_missing_page_is_asked_once_then_the_mirror(server, tmp_path):
    assert fetch(remote(server, "missing", "good"), tmp_path).read_bytes() == BODY
    assert [p for p, _ in server.requests] == ["/missing", "/good"]


def test_failure_names_every_address_and_what_to_do(server, tmp_path):
    with pytest.raises(DownloadError, match=r"(?s)/missing: .*404.*Place the file at .*file\.bin"):
        fetch(remote(server, "missing"), tmp_path)


def test_unreachable_host_is_a_clear_error(tmp_path):
    with pytest.raises(DownloadError, match=r"127\.0\.0\.1:9"):
        fetch(RemoteFile("file.bin", ("http://127.0.0.1:9/file",)), tmp_path)


@pytest.mark.parametrize("name", ["data.zip", "data.gz", "97.mat"])
def test_page_in_place_of_a_file_raises(server, tmp_path, name):
    with pytest.raises(DownloadError, match="not a sound"):
        fetch(remote(server, "html", name=name, checked=False), tmp_path)
    assert leftovers(tmp_path) == {f"{name}.lock"}


def test_damaged_zip_without_known_checksum_raises(server, tmp_path):
    server.body = bytearray(zipped(data=BODY))
    server.body[5000] ^= 0xFF
    with pytest.raises(DownloadError, match=r"not a sound \.zip"):
        fetch(remote(server, "good", name="data.zip", checked=False), tmp_path)


def test_only_web_addresses_are_opened(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("x")
    with pytest.raises(DownloadError, match="unsupported address"):
        fetch(RemoteFile("file.bin", (secret.as_uri(),)), tmp_path)


def fetch_as_nobody(remote, folder, answer):
    """Root may write everywhere, so it becomes nobody first."""
    os.chdir(folder)
    if os.geteuid() == 0:
        os.seteuid(65534)
    try:
        fetch(remote, Path("closed") / "new")
    except DownloadError as error:
        answer.send(str(error))


def test_unwritable_folder_is_a_clear_error(server, tmp_path):
    tmp_path.chmod(0o755)
    (tmp_path / "closed").mkdir(mode=0o555)
    context = multiprocessing.get_context("fork")
    answer, question = context.Pipe(duplex=False)
    process = context.Process(target=fetch_as_nobody, args=(remote(server, "good"), tmp_path, question))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert re.match(r"Cannot write to closed/new: .*Permission denied.* data\.root", answer.recv())
    assert not list((tmp_path / "closed").iterdir())


def at_once(target, *args):
    """Exit codes of four processes that run the same."""
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=target, args=args) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    return [worker.exitcode for worker in workers]


def test_processes_download_once(server, tmp_path):
    assert at_once(fetch, remote(server, "slow"), tmp_path) == [0] * 4
    assert len(server.requests) == 1
    assert (tmp_path / "file.bin").read_bytes() == BODY


class Folders(GroupedDataModule):
    """Twenty folders with a file each, in a zip."""

    input_shape = (1, 1)
    attribute_names = ("a1", "a2")
    value_names = (("x", "y"), ("p", "q"))
    groups = 2
    folder = "folders"
    placement = "twenty folders"

    def locate(self):
        files = [self.path / f"{i}" / "file.txt" for i in range(20)]
        if not all(file.is_file() for file in files):
            raise self.missing()
        return files

    def load(self):
        for _ in range(50):  # while another process might still be unpacking over it
            content = [file.read_text() for file in self.locate()]
        assert content == ["x" * 1000] * 20


def test_processes_unpack_once_and_never_under_each_others_hands(server, tmp_path):
    server.body = zipped(**{f"{i}/file.txt": b"x" * 1000 for i in range(20)})

    class Served(Folders):
        remote = (remote(server, "slow", name="folders.zip"),)

    def run():
        data = Served(root=str(tmp_path))
        data.prepare_data()
        data.load()

    assert at_once(run) == [0] * 4
    assert len(server.requests) == 1


def test_unpacking_that_was_killed_is_done_again(server, tmp_path):
    server.body = zipped(**{f"{i}/file.txt": b"x" * 1000 for i in range(20)})

    class Served(Folders):
        remote = (remote(server, "good", name="folders.zip"),)

    data = Served(root=str(tmp_path))
    data.prepare_data()
    shutil.rmtree(data.path / "7")
    data.prepare_data()
    data.load()
    assert len(server.requests) == 1  # the file itself was whole


def test_a_bar_shows_the_progress(server, tmp_path, monkeypatch):
    console = Console(file=io.StringIO(), force_terminal=True, width=100)
    monkeypatch.setattr("rich.progress.get_console", lambda: console)
    fetch(remote(server, "drops"), tmp_path)
    shown = console.file.getvalue()
    assert "file.bin" in shown
    assert "300.0/300.0 kB" in shown


def test_archives_are_unpacked(tmp_path):
    (tmp_path / "a.zip").write_bytes(zipped(**{"data.txt": b"hello", "folder/inner.txt": b"inner"}))
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"hello"))
    for name in ("a.zip", "b.txt.gz"):
        unpack(tmp_path / name, tmp_path / "out")
    found = {p.relative_to(tmp_path / "out").as_posix(): p.read_text() for p in (tmp_path / "out").rglob("*.txt")}
    assert found == {"data.txt": "hello", "folder/inner.txt": "inner", "b.txt": "hello"}
    assert not list((tmp_path / "out").glob(".unpacking*"))


def zip_with_link() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        member = zipfile.ZipInfo("link")
        member.external_attr = 0o120777 << 16
        archive.writestr(member, "/etc/passwd")
    return buffer.getvalue()


HOSTILE = {
    "parent.zip": zipped(**{"fine.txt": b"x", "../evil.txt": b"x"}),
    "windows-parent.zip": zipped(**{"..\\evil.txt": b"x"}),
    "absolute.zip": zipped(**{"/tmp/evil.txt": b"x"}),
    "drive.zip": zipped(**{"C:/evil.txt": b"x"}),
    "link.zip": zip_with_link(),
    "bomb.zip": zipped(zeros=bytes(3_000_000)),
    "bomb.gz": gzip.compress(bytes(3_000_000)),
    "truncated.zip": zipped(data=BODY)[:-1000],
    "truncated.gz": gzip.compress(BODY)[:-1000],
    "text.gz": b"no archive at all",
    "text.rar": b"no archive at all",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_and_broken_archives_leave_nothing(tmp_path, name):
    archive = tmp_path / name
    archive.write_bytes(HOSTILE[name])
    out = tmp_path / "deep" / "out"
    with pytest.raises(DownloadError, match=name):
        unpack(archive, out)
    assert [p for p in (tmp_path / "deep").rglob("*") if p.is_file() and not p.name.endswith(".lock")] == []
    assert not (tmp_path / "evil.txt").exists()


def test_corrupt_member_leaves_nothing(tmp_path):
    content = bytearray(zipped(data=BODY))
    content[5000] ^= 0xFF
    (tmp_path / "bad.zip").write_bytes(content)
    with pytest.raises(DownloadError, match="cannot be unpacked"):
        unpack(tmp_path / "bad.zip", tmp_path / "out")
    assert not (tmp_path / "out" / "data").exists()


def test_unpacking_again_replaces_what_is_there(tmp_path):
    (tmp_path / "data.zip").write_bytes(zipped(**{"folder/new.txt": b"x"}))
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "old.txt").write_text("x")
    unpack(tmp_path / "data.zip", tmp_path)
    assert [p.name for p in (tmp_path / "folder").iterdir()] == ["new.txt"]
