import hashlib
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.data.tiny_sources import TINY_CIFAR10, write_cifar_archive

from ocil.data import CATALOG, load
from ocil.data.catalog import DatasetInfo
from ocil.data.download import download, fetch, fetch_from_any
from ocil.errors import OcilError, WriteError


class Server(ThreadingHTTPServer):
    """Serves one file, as badly as told."""

    daemon_threads = True
    content = b""
    ranges = True  # answer Range requests
    cuts: tuple[int, ...] = ()  # bytes after which to cut the connection, one a request
    status: tuple[int, ...] = ()  # answers to give instead, one a request
    wrong_range = False
    redirect = ""
    endless = False  # go on sending for as long as the client reads, and say nothing of how much

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[str | None] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/file.tar.gz"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        server, wanted = self.server, self.headers.get("Range")
        server.asked.append(wanted)
        if server.redirect:
            self.answer(302, Location=server.redirect)
        elif server.endless:
            self.send_response(200)
            self.end_headers()
            with suppress(OSError):
                while True:
                    self.wfile.write(server.content)
        elif server.status:
            code, server.status = server.status[0], server.status[1:]
            self.answer(code)
        else:
            self.send_content(wanted)

    def send_content(self, wanted: str | None) -> None:
        server = self.server
        start = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted and server.ranges else 0
        if wanted and start >= len(server.content):
            self.answer(416)
            return
        body = server.content[start:]
        headers = {"Content-Length": str(len(body))}
        if wanted and server.ranges:
            headers["Content-Range"] = (
                f"bytes {start + server.wrong_range}-{len(server.content) - 1}/{len(server.content)}"
            )
        self.send_response(206 if "Content-Range" in headers else 200)
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()
        if server.cuts:
            body, server.cuts = body[: server.cuts[0]], server.cuts[1:]
        self.wfile.write(body)

    def answer(self, code: int, **headers: str) -> None:
        self.send_response(code)
        for key, value in {**headers, "Content-Length": "0"}.items():
            self.send_header(key, value)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr("ocil.data.download.BACKOFF_S", (0.01, 0.01))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with Server() as made:
        made.content = write_cifar_archive("cifar10", tmp_path / "published.tar.gz").read_bytes()
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def info(server: Server) -> DatasetInfo:
    md5 = hashlib.md5(server.content).hexdigest()
    return replace(TINY_CIFAR10, urls=(server.url,), md5=md5, size=len(server.content))


def names(folder: Path) -> list[str]:
    found = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return sorted(name for name in found if name != "downloads/.lock")


def test_download_imports_and_tells_progress(server: Server, tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    data = tmp_path / "data"

    def progress(done: int, total: int | None) -> None:
        # Until it is complete, nothing has its final name.
        assert names(data) == ["downloads/cifar-10-python.tar.gz.part"]
        seen.append((done, total))

    path = download(info(server), data, progress)
    size = len(server.content)
    assert path == data / "cifar10.npz"
    assert seen[0] == (0, size)
    assert seen[-1] == (size, size)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert names(data) == ["cifar10.npz", "downloads/cifar-10-python.tar.gz"]
    assert load("cifar10", data).num_classes == 10


def test_nothing_is_fetched_twice(server: Server, tmp_path: Path) -> None:
    download(info(server), tmp_path / "data")
    download(info(server), tmp_path / "data")
    assert len(server.asked) == 1
    (tmp_path / "data" / "cifar10.npz").write_text("damaged")
    download(info(server), tmp_path / "data")
    assert len(server.asked) == 1  # made anew from the archive that is there
    assert load("cifar10", tmp_path / "data").num_classes == 10


def test_a_cut_connection_is_resumed(server: Server, tmp_path: Path) -> None:
    server.cuts = (1000, 5000)
    download(info(server), tmp_path / "data")
    assert server.asked == [None, "bytes=1000-", "bytes=6000-"]


def test_a_later_run_resumes(server: Server, tmp_path: Path) -> None:
    server.cuts = (1000, 0, 0, 0)
    with pytest.raises(OcilError, match="The first 1000 bytes are kept; the same command resumes"):
        download(info(server), tmp_path / "data")
    assert names(tmp_path / "data") == ["downloads/cifar-10-python.tar.gz.part"]
    server.asked.clear()
    download(info(server), tmp_path / "data")
    assert server.asked == ["bytes=1000-"]


@pytest.mark.parametrize("fault", ["ranges", "wrong_range"])
def test_a_server_that_cannot_resume_starts_over(server: Server, fault: str, tmp_path: Path) -> None:
    setattr(server, fault, fault == "wrong_range")
    server.cuts = (1000,)
    seen: list[int] = []
    download(info(server), tmp_path / "data", lambda done, _: seen.append(done))
    assert seen.count(0) == 2
    assert load("cifar10", tmp_path / "data").num_classes == 10


def test_a_complete_part_is_used(server: Server, tmp_path: Path) -> None:
    part = tmp_path / "data" / "downloads" / "cifar-10-python.tar.gz.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(server.content)
    download(info(server), tmp_path / "data")
    assert server.asked == [f"bytes={len(server.content)}-"]


def test_a_part_of_something_longer_is_dropped(server: Server, tmp_path: Path) -> None:
    part = tmp_path / "data" / "downloads" / "cifar-10-python.tar.gz.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(server.content + b"more")
    download(info(server), tmp_path / "data")
    assert server.asked[-1] is None
    assert load("cifar10", tmp_path / "data").num_classes == 10


def test_wrong_md5_is_deleted(server: Server, tmp_path: Path) -> None:
    with pytest.raises(OcilError, match="wrong md5 sum, so it was deleted") as caught:
        download(replace(info(server), md5="0" * 32), tmp_path / "data")
    assert "give another address of the file: --url ADDRESS" in str(caught.value)  # the same one may send the same
    assert names(tmp_path / "data") == []


def test_a_server_that_never_ends_does_not_fill_the_disk(server: Server, tmp_path: Path) -> None:
    server.endless = True
    seen: list[int] = []
    with pytest.raises(OcilError, match=r"sends more than the [0-9,]+ bytes of cifar-10-python\.tar\.gz") as caught:
        download(info(server), tmp_path / "data", lambda done, _: seen.append(done))
    assert "\n" not in str(caught.value)
    assert max(seen) <= len(server.content)
    assert len(server.asked) == 1
    assert names(tmp_path / "data") == []


def test_a_file_that_is_too_long_is_not_begun(server: Server, tmp_path: Path) -> None:
    known = info(server)
    server.content += b"more"
    seen: list[int] = []
    with pytest.raises(OcilError, match="sends more than"):
        download(known, tmp_path / "data", lambda done, _: seen.append(done))
    assert not seen
    assert names(tmp_path / "data") == []


def test_two_downloads_to_one_folder_do_not_mix(server: Server, tmp_path: Path) -> None:
    """The second gives way at once, and the part of the first is left alone."""
    refused: list[str] = []

    def meanwhile(done: int, _: int | None) -> None:
        if not refused:
            with pytest.raises(OcilError, match="another process downloads to") as caught:
                download(info(server), tmp_path / "data")
            refused.append(str(caught.value))

    download(info(server), tmp_path / "data", meanwhile)
    assert len(refused) == len(server.asked) == 1
    assert load("cifar10", tmp_path / "data").num_classes == 10


def test_a_busy_server_is_asked_again(server: Server, tmp_path: Path) -> None:
    server.status = (503, 429)
    download(info(server), tmp_path / "data")
    assert len(server.asked) == 3


def test_a_wrong_address_is_not_asked_again(server: Server, tmp_path: Path) -> None:
    server.status = (404, 404)
    with pytest.raises(OcilError, match=r"the server answered 404 .*Nothing was received; give another") as caught:
        download(info(server), tmp_path / "data")
    assert "\n" not in str(caught.value)
    assert len(server.asked) == 1
    assert names(tmp_path / "data") == []


def test_redirects_stay_on_the_web(server: Server, tmp_path: Path) -> None:
    for address in (f"file://{tmp_path}/published.tar.gz", f"ftp://127.0.0.1:{server.server_address[1]}/x"):
        server.redirect = address
        with pytest.raises(OcilError, match=r"127\.0\.0\.1"):
            fetch(server.url, tmp_path / "x", None, 100, lambda _done, _total: None)
        assert not (tmp_path / "x").exists()


def test_a_mirror_is_checked_too(server: Server, tmp_path: Path) -> None:
    known = replace(info(server), urls=("http://127.0.0.1:1/absent",))
    download(known, tmp_path / "data", url=server.url)
    assert load("cifar10", tmp_path / "data").num_classes == 10


def test_no_connection(tmp_path: Path, server: Server) -> None:
    with pytest.raises(OcilError, match=r"refused.*run the same command again"):
        download(info(server), tmp_path / "data", url="http://127.0.0.1:1/absent")


@pytest.mark.parametrize("url", ["file:///etc/hostname", "ftp://127.0.0.1/x", "nonsense", "http://", "http://[x/"])
def test_only_web_addresses(url: str, tmp_path: Path) -> None:
    with pytest.raises(OcilError, match="is not an http or https address"):
        download(CATALOG["cifar10"], tmp_path, url=url)


def test_a_dataset_without_address(tmp_path: Path) -> None:
    with pytest.raises(OcilError, match="ocil data import mini_imagenet PATH"):
        download(CATALOG["mini_imagenet"], tmp_path)


def test_a_folder_that_cannot_be_written(server: Server, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OcilError, match="is a file, not the folder of the datasets"):
        download(info(server), tmp_path / "file")
    with pytest.raises(WriteError, match="cannot write"):
        fetch_from_any((server.url, server.url), tmp_path / "file" / "x", None, 100, lambda _done, _total: None)
    assert not server.asked  # the second address would not help


def test_mirrors_are_tried_in_order(server: Server, tmp_path: Path) -> None:
    absent = "http://127.0.0.1:1/absent"
    download(replace(info(server), urls=(absent, server.url)), tmp_path / "data")
    assert len(load("cifar10", tmp_path / "data").train_y) == 100


def test_a_mirror_goes_on_where_another_stopped(server: Server, tmp_path: Path) -> None:
    server.cuts, server.status = (1000,), ()
    half = len(server.content) // 2
    part = tmp_path / "data" / "downloads" / "cifar-10-python.tar.gz.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(server.content[:half])
    download(replace(info(server), urls=("http://127.0.0.1:1/absent", server.url)), tmp_path / "data")
    assert server.asked[0] == f"bytes={half}-"
    assert not part.exists()


def test_a_mirror_with_another_file_is_passed_over(server: Server, tmp_path: Path) -> None:
    with Server() as other:
        other.content = b"x" * len(server.content)
        thread = threading.Thread(target=other.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            download(replace(info(server), urls=(other.url, server.url)), tmp_path / "data")
        finally:
            other.shutdown()
            thread.join()
        assert len(other.asked) == 1
    assert load("cifar10", tmp_path / "data").num_classes == 10


def test_if_all_mirrors_fail_the_reason_of_each_is_given(server: Server, tmp_path: Path) -> None:
    server.status = (404,)
    absent = "http://127.0.0.1:1/absent"
    with pytest.raises(OcilError, match=r"127\.0\.0\.1:1/absent: .*404") as error:
        download(replace(info(server), urls=(absent, server.url)), tmp_path / "data")
    assert "\n" not in str(error.value)
