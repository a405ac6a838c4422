"""Connections on which no request comes, or no answer is read, are ended; a half-closed one gets its answer."""

import asyncio
import http.client
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from ocil.serve.limits import RefusedError
from ocil.serve.service import Service
from tests.serving import as_json, picture, png, running

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
pytest.importorskip("python_multipart")

import uvicorn

from ocil.serve import deadlines, run
from ocil.serve.app import create_app

pytestmark = pytest.mark.usefixtures("quick_convolution")
HOUR = 3600.0
GET = b"GET /status HTTP/1.1\r\nHost: localhost\r\n"


@contextmanager
def listening(folder: Path, **options: Any) -> Iterator[tuple[Service, run.Server, int]]:
    """A service on a real socket: the service, its server and the port."""
    with running(folder, **options) as service, run.listen("127.0.0.1", 0) as bound:
        app = create_app(service)
        config = uvicorn.Config(
            app, lifespan="off", log_config=None, ws="none", http=deadlines.Connection, timeout_graceful_shutdown=1
        )
        server = run.Server(config, service)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        try:
            while not server.started:
                time.sleep(0.01)
            yield service, server, bound.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()


def eventually(true: Callable[[], bool], within: float = 300.0) -> bool:
    until = time.monotonic() + within
    while not true() and time.monotonic() < until:
        time.sleep(0.02)
    return true()


def test_a_stop_waits_for_no_long_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A restore that learns thousands of samples again must keep neither clients nor the process waiting."""
    monkeypatch.setattr(run, "STOP_SECONDS", 0.2)
    answers: dict[str, tuple[int, Any]] = {}

    def ask(port: int, method: str, path: str) -> None:
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=300)) as client:
            client.request(method, path)
            answer = client.getresponse()
            answers[path] = answer.status, json.loads(answer.read())

    done = threading.Event()
    with listening(tmp_path) as (service, server, port):
        try:
            service.trainer.between_steps(lambda: done.wait(HOUR))  # the long step
            wanted = (("POST", "/review"), ("GET", "/memory"), ("GET", "/versions/compare"), ("GET", "/backup"))
            clients = [threading.Thread(target=ask, args=(port, *one), daemon=True) for one in wanted]
            for client in clients:
                client.start()
            assert eventually(lambda: len(service.trainer._calls) == 3 and len(service.trainer._changes) == 1)
            server.should_exit = True
            for client in clients:
                client.join(300)
            assert answers.keys() == {path for _, path in wanted}
            assert answers["/review"] == (200, {"change": 1, "repeated": False, "made": False})
            assert [answers[path][0] for path in ("/memory", "/versions/compare", "/backup")] == [503, 503, 503]
            assert answers["/backup"][1]["detail"] == "the service is stopping."
        finally:
            done.set()


def test_what_waits_behind_a_long_call_is_refused_when_it_stops(tmp_path: Path) -> None:
    begun, done = threading.Event(), threading.Event()
    with running(tmp_path) as service:
        try:
            with service.trainer._changed:  # so that the learning thread finds both at once
                service.trainer.between_steps(lambda: (begun.set(), done.wait(HOUR)))
                behind = service.trainer.between_steps(lambda: "answered")
            assert begun.wait(300)
            service.trainer.refuse_calls()
            with pytest.raises(RefusedError, match="the service is stopping"):
                behind.result(0)
        finally:
            done.set()


def test_predictions_do_not_wait_for_backups(tmp_path: Path) -> None:
    """Backups wait for the end of a step, which may be long, and there may be more of them than threads."""
    begun, done = threading.Event(), threading.Event()
    with listening(tmp_path) as (service, _, port):
        try:
            service.trainer.between_steps(lambda: (begun.set(), done.wait(HOUR)))  # the long step
            begun.wait(300)
            waiting = [socket.create_connection(("127.0.0.1", port), timeout=300) for _ in range(40)]
            for connection in waiting:
                connection.sendall(b"GET /backup HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert eventually(lambda: len(service.trainer._calls) > 0)
            with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=60)) as client:
                body = json.dumps({"images": [as_json((png(picture(0)), "a"))["samples"][0]["image"]]})
                client.request("POST", "/predict", body, {"content-type": "application/json"})
                assert client.getresponse().status == 200
        finally:
            done.set()
            for connection in waiting:
                with connection:
                    while connection.recv(2**16):
                        pass


def test_a_request_that_still_arrives_when_it_stops_may_come_again(tmp_path: Path) -> None:
    with listening(tmp_path) as (_, server, port):
        with socket.create_connection(("127.0.0.1", port), timeout=300) as connection:
            connection.sendall(b"POST /learn HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n")
            connection.sendall(b"Content-Type: application/json\r\n\r\n{")
            assert eventually(lambda: len(server.server_state.tasks) == 1)
            server.should_exit = True
            answer = connection.recv(2**16)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert b"retry-after: 5" in answer
        assert b"the service is stopping." in answer


def test_a_request_that_does_not_come_ends_the_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlines, "REQUEST_SECONDS", 3.0)
    with listening(tmp_path) as (_, _, port):
        beginnings = (b"", GET, GET + b"\r\n", GET + b"\r\n" + GET, GET + b"Content-Length: 99999\r\n\r\nx")
        open_ones = [socket.create_connection(("127.0.0.1", port), timeout=0.01) for _ in beginnings]
        for connection, beginning in zip(open_ones, beginnings, strict=True):
            connection.sendall(beginning)
        assert _ended(open_ones, within=300) == len(beginnings)
        while not _stays_open(port):
            pass


def _stays_open(port: int) -> bool:
    """Ask for longer than a client may be silent. False if it was silent for so long, on a machine that is busy."""
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    client.connect()
    first, asked_at = client.sock, [time.monotonic()]
    for _ in range(4):
        client.request("GET", "/status", headers={"Host": "localhost"})
        asked_at.append(time.monotonic())
        assert client.getresponse().read()
        time.sleep(1.0)
    if max(later - one for one, later in pairwise(asked_at)) >= deadlines.REQUEST_SECONDS:
        return False
    assert client.sock is first
    client.close()
    return True


def deaf(port: int, asked: bytes, buffer: int = 4096) -> socket.socket:
    """A client that asks and does not read the answer."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
    connection.connect(("127.0.0.1", port))
    connection.sendall(asked)
    return connection


@pytest.mark.parametrize("end", ["", "Connection: close\r\n"])
def test_a_client_that_does_not_read_its_answer_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str
) -> None:
    """Its memory is given back, however large the answer is, and others are answered meanwhile."""
    answered: list[Any] = []
    monkeypatch.setattr(deadlines, "ANSWER_SECONDS", 1.0)
    monkeypatch.setattr("ocil.serve.routes._stored_images", lambda _: (answered.append(_), b" " * 2**24)[1])
    with listening(tmp_path) as (_, server, port):
        asked = f"GET /memory HTTP/1.1\r\nHost: localhost\r\n{end}\r\n".encode()
        clients = [deaf(port, asked) for _ in range(3)]
        assert eventually(lambda: len(answered) == 3)
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
        client.request("GET", "/status", headers={"Host": "localhost", "Connection": "close"})
        assert client.getresponse().status == 200
        client.close()
        assert eventually(lambda: not server.server_state.connections)
        assert eventually(lambda: not server.server_state.tasks)
        for one in clients:
            one.close()


def read_slowly(connection: socket.socket) -> tuple[int, float]:
    """Bytes that come until the connection ends, a few at a time, and the longest pause between two parts."""
    count, longest, last = 0, 0.0, time.monotonic()
    with suppress(ConnectionError):
        while part := connection.recv(2**16):
            longest, last = max(longest, time.monotonic() - last), time.monotonic()
            count += len(part)
            time.sleep(0.1)
    return count, longest


LONG = 2**22
ASK_FOR_LONG = b"GET /memory HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


def test_a_client_that_reads_slowly_gets_all_of_its_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes several times as long as a client may take nothing."""
    monkeypatch.setattr(deadlines, "ANSWER_SECONDS", 2.0)
    monkeypatch.setattr("ocil.serve.routes._stored_images", lambda _: b" " * LONG)
    with listening(tmp_path) as (_, server, port):
        longest: float = deadlines.ANSWER_SECONDS
        while longest >= deadlines.ANSWER_SECONDS:  # it took nothing for too long, on a machine that is busy
            with deaf(port, ASK_FOR_LONG, 2**16) as connection:
                count, longest = read_slowly(connection)
        assert count > LONG
        assert eventually(lambda: not server.server_state.connections)


def test_a_client_that_reads_for_too_long_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadlines, "WHOLE_ANSWER_SECONDS", 1.0)
    monkeypatch.setattr("ocil.serve.routes._stored_images", lambda _: b" " * LONG)
    with listening(tmp_path) as (_, server, port), deaf(port, ASK_FOR_LONG, 2**16) as connection:
        assert 0 < read_slowly(connection)[0] < LONG
        assert eventually(lambda: not server.server_state.tasks)


def test_small_answers_that_nobody_reads_do_not_keep_a_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many requests on one connection, so that their answers fill every buffer."""
    monkeypatch.setattr(deadlines, "ANSWER_SECONDS", 1.0)
    monkeypatch.setattr(deadlines, "REQUEST_SECONDS", 2.0)
    made: list[Any] = []
    begin = deadlines.Connection.connection_made
    monkeypatch.setattr(deadlines.Connection, "connection_made", lambda *of: (begin(*of), made.append(of))[0])
    with listening(tmp_path) as (_, server, port):
        connection = deaf(port, b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * 400)
        assert eventually(lambda: bool(made))
        assert eventually(lambda: not server.server_state.connections)
        connection.close()


def answers_after_half_close(port: int, asked: bytes) -> list[bytes]:
    """The status lines of what comes when the client has closed its writing side."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(asked)
        connection.shutdown(socket.SHUT_WR)
        content = b""
        while part := connection.recv(65536):
            content += part
    return re.findall(rb"HTTP/1.1 \d+ \w+", content)


def test_a_half_closed_request_is_answered(tmp_path: Path) -> None:
    body = json.dumps(as_json((png(picture(0)), "a"))).encode()
    head = "POST /learn?wait=true HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    learn = f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
    whole = GET + b"\r\n"
    with listening(tmp_path) as (service, server, port):
        assert answers_after_half_close(port, learn) == [b"HTTP/1.1 200 OK"]
        assert service.statistics.samples == 1
        assert answers_after_half_close(port, whole) == [b"HTTP/1.1 200 OK"]
        assert answers_after_half_close(port, learn + whole + learn) == [b"HTTP/1.1 200 OK"] * 3
        assert service.statistics.samples == 3
        for unfinished in (b"", GET, learn[:-1]):
            answers_after_half_close(port, unfinished)
            assert answers_after_half_close(port, whole + unfinished) == [b"HTTP/1.1 200 OK"]
        assert service.writer.acknowledged == 3
        assert eventually(lambda: not server.server_state.connections)


def in_chunks(body: bytes, size: int) -> bytes:
    parts = (body[first : first + size] for first in range(0, len(body), size))
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts) + b"0\r\n\r\n"


def test_far_more_chunks_than_bytes_need_are_refused(tmp_path: Path) -> None:
    """A hundred kilobytes of them would keep all other clients waiting for a second, with a token or without."""
    body = json.dumps(as_json((png(picture(7)), "a"))).encode().ljust(6000)
    asked = b"POST /learn HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    asked += b"Transfer-Encoding: chunked\r\n"
    with listening(tmp_path) as (service, _, port):
        whole = asked + b"\r\n" + in_chunks(body, 6)
        assert answers_after_half_close(port, whole)[0].startswith(b"HTTP/1.1 200 ")
        begun = asked + b"\r\n" + in_chunks(body, 4)
        with socket.create_connection(("127.0.0.1", port), timeout=300) as client:
            client.sendall(begun)
            answer = b"".join(iter(lambda: client.recv(2**16), b""))
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"in far more chunks than its bytes need: send larger ones." in answer
        assert service.writer.acknowledged == 1


def test_chunks_behind_an_answer_end_the_connection(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A body that nobody waited for may still be refused, when nothing can be said about it any more."""
    with listening(tmp_path) as (_, _, port), socket.create_connection(("127.0.0.1", port), timeout=300) as client:
        client.sendall(GET + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
        assert client.recv(2**16).startswith(b"HTTP/1.1 200 ")
        with suppress(OSError):
            client.sendall(5000 * b"1\r\na\r\n")
            while client.recv(2**16):
                pass
    assert "protocol.data_received() call failed" not in caplog.text


def _ended(connections: list[socket.socket], within: float) -> int:
    """How many were closed by the other side, although they go on to send."""
    left, until = list(connections), time.monotonic() + within
    while left and time.monotonic() < until:
        for connection in list(left):
            try:
                if connection is not connections[0]:  # that one says nothing at all
                    connection.send(b"x")
                if not connection.recv(65536):
                    left.remove(connection)
            except TimeoutError:
                pass
            except OSError:
                left.remove(connection)
        time.sleep(0.1)
    for connection in connections:
        connection.close()
    return len(connections) - len(left)


class Recorder:
    """A transport that notes down what it is told."""

    def __init__(self) -> None:
        self.done: list[Any] = []

    def write(self, data: bytes) -> None:
        self.done.append(data)

    def close(self) -> None:
        self.done.append("closed")

    def get_write_buffer_size(self) -> int:
        return 3

    def is_closing(self) -> bool:
        return "closed" in self.done


def test_headers_and_body_are_sent_at_once() -> None:
    async def write() -> list[Any]:
        under = Recorder()
        transport = deadlines.Gathering(under, asyncio.get_running_loop())  # type: ignore[arg-type]
        transport.write(b"headers ")
        transport.write(b"body")
        assert (under.done, transport.get_write_buffer_size()) == ([], 15)
        await asyncio.sleep(0)
        transport.write(b"more ")
        transport.write(b"x" * deadlines.GATHERED_BYTES)
        assert len(under.done) == 2
        transport.write(b"the end")
        transport.close()
        assert transport.is_closing()
        await asyncio.sleep(0)
        return under.done

    assert asyncio.run(write()) == [b"headers body", b"more " + b"x" * deadlines.GATHERED_BYTES, b"the end", "closed"]
