"""Connections on which no request comes are ended."""

import http.client
import socket
import threading
import time
from pathlib import Path

import pytest

from tests.serving import running

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
pytest.importorskip("python_multipart")

import uvicorn

from ocil.serve import run
from ocil.serve.app import create_app

pytestmark = pytest.mark.usefixtures("quick_convolution")
GET = b"GET /status HTTP/1.1\r\nHost: localhost\r\n"


def test_a_request_that_does_not_come_ends_the_connection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "REQUEST_SECONDS", 1.0)
    with running(tmp_path) as service, run.listen("127.0.0.1", 0) as bound:
        app = create_app(service)
        config = uvicorn.Config(app, lifespan="off", log_config=None, ws="none", http=run.Connection)
        server = run.Server(config, service)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        address = bound.getsockname()
        thread.start()
        try:
            while not server.started:
                time.sleep(0.01)
            beginnings = (b"", GET, GET + b"\r\n", GET + b"\r\n" + GET, GET + b"Content-Length: 99999\r\n\r\nx")
            open_ones = [socket.create_connection(address, timeout=0.01) for _ in beginnings]
            for connection, beginning in zip(open_ones, beginnings, strict=True):
                connection.sendall(beginning)
            assert _ended(open_ones, within=20) == len(beginnings)
            client = http.client.HTTPConnection("127.0.0.1", address[1], timeout=10)
            client.connect()
            first = client.sock
            for _ in range(4):  # longer than that in all, but never silent for so long
                client.request("GET", "/status", headers={"Host": "localhost"})
                assert client.getresponse().read()
                time.sleep(0.4)
            assert client.sock is first
            client.close()
        finally:
            server.should_exit = True
            thread.join()


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
