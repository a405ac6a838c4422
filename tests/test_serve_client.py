"""``ocil.serve.Client``: what it sends, what it sends again, and what it does not; a stop under load."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ocil.errors import OcilError
from ocil.serve import Client, ServiceError
from tests.serving import batches_of, picture, png

Answer = tuple[int, dict[str, str], Any]


@contextmanager
def scripted(*answers: Answer | None) -> Iterator[tuple[str, list[tuple[str, str, dict[str, str], Any]]]]:
    """A server that gives these answers in turn; None: it hangs up. Its address, and the requests that came."""
    seen: list[tuple[str, str, dict[str, str], Any]] = []
    left = list(answers)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            seen.append((self.command, self.path, headers, json.loads(body) if body else None))
            if (answer := left.pop(0)) is None:
                self.close_connection = True
                return
            content = json.dumps(answer[2]).encode()
            self.send_response(answer[0])
            for name, value in ({"Content-Length": str(len(content))} | answer[1]).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_DELETE = handle_any  # noqa: N815

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found: list[float] = []
    monkeypatch.setattr("ocil.serve.client.time.sleep", found.append)
    return found


OK: Answer = (200, {}, {"fine": True})


def test_a_lost_answer_is_asked_for_again_under_the_same_key(pauses: list[float]) -> None:
    answers: tuple[Answer | None, ...] = (None, (503, {"Retry-After": "7"}, {"detail": "full"}), (429, {}, {}), OK)
    with scripted(*answers) as (address, seen), Client(address, token="secret", model="a b") as one:
        assert one.learn([b"image"], ["label"], wait=True) == {"fine": True}
    for name, *words in (
        ("correct", 1, "a"),
        ("forget", 1),
        ("review",),
        ("save_version", "a"),
        ("restore", "a"),
        ("pin", None),
    ):
        with scripted(None, OK) as (there, changes), Client(there) as one:
            getattr(one, name)(*words)
        assert changes[0][2]["idempotency-key"] == changes[1][2]["idempotency-key"]
    assert len({request[2]["idempotency-key"] for request in seen}) == 1
    assert len(seen) == 4
    method, path, headers, body = seen[0]
    assert (method, path, headers["authorization"]) == ("POST", "/models/a%20b/learn?wait=true", "Bearer secret")
    assert body == {"samples": [{"image": "aW1hZ2U=", "label": "label"}]}
    assert pauses[1] == 7
    assert 0 < pauses[0] < pauses[2] < 1


def test_it_gives_up(pauses: list[float]) -> None:
    full: Answer = (503, {}, {"detail": "the disk is full.", "request_id": "r-7"})
    reported = pytest.raises(ServiceError, match=r"the disk is full. \(request r-7\)")
    with scripted(full, full, full) as (address, seen), Client(address, retries=2) as one, reported as found:
        one.status()
    assert (found.value.status, found.value.request_id, len(seen), len(pauses)) == (503, "r-7", 3, 2)
    with (
        Client("http://127.0.0.1:9", retries=1) as one,
        pytest.raises(ServiceError, match=r"no answer from 127\.0\.0\.1:9: ") as found,
    ):
        one.status()
    assert found.value.status == 0


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 422, 500])
def test_what_does_not_pass_is_not_tried_again(pauses: list[float], status: int) -> None:
    reported = pytest.raises(ServiceError, match=f"answered {status}")
    with scripted((status, {}, ["no object"])) as (address, seen), Client(address) as one, reported:
        one.correct(3, "wren")
    assert (len(seen), pauses) == (1, [])


def test_the_requests(pauses: list[float], tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"png")
    with scripted(*[(200, {}, {"predictions": []})] * 12) as (address, seen), Client(address) as one:
        one.predict([tmp_path / "a.png", str(tmp_path / "a.png")], top=2)
        one.predict(np.array([[1.0, 2.0]]))
        one.predict(tmp_path / "a.png")
        one.sample(4)
        one.samples(label="a&b", limit=3, since=None)
        one.correct(4, "wren")
        one.forget(4)
        one.versions()
        one.save_version("monday")
        one.restore("mon/day")
        one.pin("monday")
        one.pin(None)
    assert [(method, path, body) for method, path, _, body in seen] == [
        ("POST", "/predict?top=2", {"images": ["cG5n"] * 2}),
        ("POST", "/predict?top=5", {"vectors": [[1.0, 2.0]]}),
        ("POST", "/predict?top=5", {"images": ["cG5n"]}),
        ("GET", "/samples/4", None),
        ("GET", "/samples?label=a%26b&limit=3", None),
        ("PUT", "/samples/4", {"label": "wren"}),
        ("DELETE", "/samples/4", None),
        ("GET", "/versions", None),
        ("POST", "/versions", {"name": "monday"}),
        ("POST", "/versions/mon%2Fday/restore", {"relearn": False}),
        ("PUT", "/versions/pinned", {"name": "monday"}),
        ("PUT", "/versions/pinned", {"name": None}),
    ]


def test_what_cannot_be_sent_is_refused_in_one_line(tmp_path: Path) -> None:
    image = tmp_path / "robin.png"
    image.write_bytes(png(picture(0)))
    with scripted() as (address, seen), Client(address) as client:
        with pytest.raises(OcilError, match=r"^there are 2 images and 1 labels: each image needs one\.$"):
            client.learn([image, image], ["robin"])
        with pytest.raises(OcilError, match=r"^there are 1 vectors and 2 labels: each vector needs one\.$"):
            client.learn(np.zeros((1, 3)), [0, 1])
        with pytest.raises(
            OcilError, match=r"^cannot read .*none\.png: No such file or directory\. Give the file of an "
        ):
            client.predict([image, tmp_path / "none.png"])
        assert not seen


def test_labels_may_be_numbers_of_numpy_and_one_label_stands_alone(tmp_path: Path) -> None:
    image = tmp_path / "robin.png"
    image.write_bytes(png(picture(0)))
    with scripted((202, {}, {}), (202, {}, {})) as (address, seen), Client(address) as client:
        client.learn([image, image], np.array([3, 4]))
        client.learn(image, "robin")
    assert [[sample["label"] for sample in request[3]["samples"]] for request in seen] == [[3, 4], ["robin"]]


def test_inputs_may_come_from_a_generator() -> None:
    rows = np.array([[1.0, 2.0], [3.0, 4.0]])
    with scripted(*[(200, {}, {"predictions": []})] * 3) as (address, seen), Client(address) as client:
        client.predict(row for row in rows)
        client.predict(iter([b"a", b"b"]))
        client.learn((row for row in rows), (label for label in "ab"))
    assert seen[0][3] == {"vectors": rows.tolist()}
    assert seen[1][3] == {"images": ["YQ==", "Yg=="]}
    assert [sample["vector"] for sample in seen[2][3]["samples"]] == rows.tolist()


def test_it_needs_the_standard_library_alone() -> None:
    code = (
        "import sys\n"
        "for name in ('torch', 'numpy', 'fastapi', 'pydantic', 'prometheus_client', 'PIL'): sys.modules[name] = None\n"
        "from ocil.serve import Client\n"
        "Client('localhost:8000/under')\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_stop_under_load_loses_nothing(tmp_path: Path) -> None:
    """Every request is answered, refused or not taken; what was acknowledged is in the log once."""
    pytest.importorskip("fastapi")
    pytest.importorskip("uvicorn")
    from tests.test_serve_connection import listening

    acknowledged: list[tuple[int, int]] = []
    statuses: set[int] = set()
    image = png(picture(0))
    busy = threading.Event()

    def load(port: int, learns: bool) -> None:
        with Client(f"http://127.0.0.1:{port}", retries=0) as one:
            try:
                for _ in range(500):
                    if learns:
                        found = one.learn([image], ["dark"], wait=True)
                        acknowledged.append((found["first"], found["last"]))
                        if len(acknowledged) > 6:
                            busy.set()
                    else:
                        one.predict([image])
            except ServiceError as error:
                statuses.add(error.status)

    with listening(tmp_path) as (service, server, port):
        threads = [threading.Thread(target=load, args=(port, number % 2 == 0)) for number in range(6)]
        for thread in threads:
            thread.start()
        assert busy.wait(120)
        server.should_exit = True
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads)
        assert service.draining
    assert statuses <= {0, 503}
    learned = [number for batch in batches_of(tmp_path) for number, _, _ in batch]
    assert len(learned) == len(set(learned))
    assert {first for first, _ in acknowledged} <= set(learned)
    assert len(set(acknowledged)) == len(acknowledged)
