"""``ocil serve`` killed with SIGKILL in the middle of a load: nothing acknowledged is lost or learned twice."""

import http.client
import json
import os
import random
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count, takewhile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ocil.online.formats import InputFormat
from ocil.online.model import FILE, Model, Recipe
from ocil.online.vectors import VectorFormat
from ocil.runs.environment import digest
from ocil.serve.catalogue import FILE as CATALOGUE
from ocil.serve.labelling_store import FILE as QUEUE
from ocil.serve.labelling_store import Store
from ocil.serve.versions import Versions
from tests.conftest import left_over
from tests.forking import START, Driver
from tests.serving import FORM, as_json, batches_of, changes_of, picture, png, relearned

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")
pytest.importorskip("python_multipart")

# Starts no thread before it forks. An order is {"words", "die_at_sync"}.
pytestmark = pytest.mark.slow
DRIVER = (
    START
    + """
import fastapi
import ocil.kernels.convolution, ocil.methods.er, ocil.online.folder, ocil.serve.run
from ocil.cli import main
from ocil.serve.answers import Refusal
from ocil.serve.pages import add_pages
from tests.parsing import find_options_once

app = fastapi.FastAPI()  # its first path and its pages load what those of every server are made with
app.add_api_route("/first", lambda: None, response_model=Refusal)
add_pages(app)
find_options_once()
try:
    main(["serve", "--port", "none"])  # finds all of its options
except SystemExit:
    pass
torch._C._set_mkldnn_enabled(False)
ocil.kernels.convolution.SLOW_BACKWARD = False
ready()
while line := sys.stdin.readline():
    order = json.loads(line)
    back, there = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.dup2(there, 1)
        die_at_sync(order["die_at_sync"])
        main(order["words"])
    os.close(there)
    print(pid, flush=True)
    with os.fdopen(back) as said:
        print(said.readline().strip(), flush=True)
    wait_for(pid)
"""
)

RECIPE = Recipe("er", memory=20, width=1, batch_size=4)
WORDS = [
    "--method",
    "er",
    "--memory",
    "20",
    "--width",
    "1",
    "--batch-size",
    "4",
    "--size",
    "12",
    "--gray",
    "--keep-log",
]
LIMITS = ["--max-queue", "100", "--max-batch", "10"]
VECTOR_RECIPE, VECTOR_FORM = Recipe("er", memory=20, batch_size=4), VectorFormat(6)
VECTOR_WORDS = ["--method", "er", "--memory", "20", "--batch-size", "4", "--vectors", "6", "--keep-log"]
KILLS, CLIENTS = int(os.environ.get("OCIL_KILLS", "8")), 4  # each kill takes about two seconds
PATIENCE = 120.0  # seconds in which the service must be up again
ACTIONS = {
    ("PUT", "samples", 2): "correct",
    ("DELETE", "samples", 2): "forget",
    ("POST", "review", 1): "review",
    ("POST", "versions", 1): "save",
    ("POST", "versions", 3): "restore",
    ("PUT", "versions", 2): "pin",
    ("DELETE", "versions", 2): "drop",
}


class Servers(Driver):
    """Real servers, one after the other, in processes of their own."""

    words: Sequence[str] = WORDS

    def start(self, folder: Path, *words: str, die_at_sync: int = 0) -> tuple[int, int]:
        """Process id and port, once it listens; port 0 if it died before."""
        model = ["serve", "--model", str(folder), *self.words, *LIMITS]
        order = [*model, "--port", "0", "--json", "--threads", "1", *words]
        self.tell(json.dumps({"words": order, "die_at_sync": die_at_sync}))
        pid, ready = int(self.read()), self.read()
        assert pid > 1
        return pid, int(json.loads(ready)["address"].rpartition(":")[2]) if ready else 0


@pytest.fixture(scope="module")
def servers(start_python: Callable[..., "subprocess.Popen[str]"]) -> Iterator[Servers]:
    process = start_python("-c", DRIVER, cwd=Path(__file__).parents[1])  # where it finds the folder of tests
    try:
        yield Servers(process)
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # it leads a session of its own: the server goes too
        process.communicate()


class Client(threading.Thread):
    """Sends samples, each of its own kind, one after the other; repeats under its key what was not acknowledged."""

    def __init__(self, number: int) -> None:
        super().__init__(daemon=True)
        self.number, self.sent = number, 0
        self.port = 0
        self.stopping = False
        self.acknowledged: dict[int, tuple[str, bytes]] = {}
        """By the number that the server gave: label and pixels."""
        self.turns = 3 * number
        self.version: str | None = None
        """The name of a version that it has saved."""
        self.changes: dict[int, tuple[str, str]] = {}
        """By the number that the server gave: what was asked for."""
        self.repeated = 0
        self.problems: list[str] = []

    def run(self) -> None:
        while not self.stopping:
            samples = [self.sample(self.sent + n) for n in range(1 + self.sent % 3)]
            body = self.body(samples)
            answer = None
            while answer is None and not self.stopping:
                answer = self.post(body, f"{self.number}-{self.sent}")
            if answer is None:
                return
            numbers = range(answer["first"], answer["last"] + 1)
            for number, (label, inputs) in zip(numbers, samples, strict=True):
                if number in self.acknowledged:
                    self.problems.append(f"{number} was given twice")
                self.acknowledged[number] = (label, inputs.tobytes())
            self.repeated += answer["repeated"]
            self.sent += len(samples)
            self.change(answer["first"])

    def change(self, number: int) -> None:
        """Correct, forget, review, save, restore and so on; what was not acknowledged is repeated under its key."""
        turn = (3, 0, 1, 4, 2, 5, 0, 4, 1, 6)[self.turns % 10]
        self.turns += 1
        version = self.version or f"{self.number}-{self.sent}"
        method, path, content = (
            ("PUT", f"/samples/{number}", {"label": f"class {self.sent % 6}"}),
            ("DELETE", f"/samples/{max(1, number - 7)}", None),
            ("POST", "/review", None),
            ("POST", "/versions", {"name": version}),
            ("POST", f"/versions/{version}/restore", {"relearn": self.sent % 3 == 0}),
            ("PUT", "/versions/pinned", {"name": version}),
            ("DELETE", f"/versions/{version}", None),
        )[turn]
        body = b"" if content is None else json.dumps(content).encode()
        answer = None
        while answer is None and not self.stopping:
            answer = self.ask(method, path, body, f"{self.number}-change-{self.sent}")
        if answer is not None and answer["change"]:
            self.changes[answer["change"]] = (method, path)
            self.repeated += answer["repeated"]
            self.version = version if turn == 3 else None if turn == 6 else self.version

    def sample(self, place: int) -> tuple[str, np.ndarray]:
        kind = (place + self.number) % 5
        return f"class {kind}", picture(40 * kind, 10_000 * self.number + place)

    def body(self, samples: list[tuple[str, np.ndarray]]) -> bytes:
        return json.dumps(as_json(*[(png(pixels), label) for label, pixels in samples])).encode()

    def post(self, body: bytes, key: str) -> dict[str, Any] | None:
        return self.ask("POST", "/learn", body, key)

    def ask(self, method: str, path: str, body: bytes, key: str) -> dict[str, Any] | None:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request(method, path, body, {"Content-Type": "application/json", "Idempotency-Key": key})
            answer = connection.getresponse()
            content = json.loads(answer.read())
        except (OSError, http.client.HTTPException, ValueError):
            time.sleep(0.01)  # the server was killed
            return None
        finally:
            connection.close()
        if answer.status == 200:
            return dict(content)
        if answer.status in (404, 409) and path != "/learn":  # forgotten by another client, or no such version
            return {"change": 0, "repeated": False}
        if answer.status not in (429, 503):
            self.problems.append(f"{answer.status}: {content}")
        time.sleep(0.01)
        return None


class VectorClient(Client):
    """The same with vectors."""

    def sample(self, place: int) -> tuple[str, np.ndarray]:
        kind, noise = (place + self.number) % 5, np.random.default_rng(10_000 * self.number + place)
        return f"class {kind}", (kind + noise.normal(size=6)).astype(np.float32)

    def body(self, samples: list[tuple[str, np.ndarray]]) -> bytes:
        return json.dumps({"samples": [{"vector": v.tolist(), "label": label} for label, v in samples]}).encode()


def status(port: int) -> dict[str, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    try:
        connection.request("GET", "/status")
        return dict(json.loads(connection.getresponse().read()))
    finally:
        connection.close()


def check(folder: Path, clients: Sequence[Client], recipe: Recipe = RECIPE, form: InputFormat = FORM) -> None:
    """Compare what was acknowledged with the log, and the model with one that was never killed."""
    assert [problem for client in clients for problem in client.problems] == []
    batches = batches_of(folder)
    learned = [one for batch in batches for one in batch]
    assert [number for number, _, _ in learned] == list(range(1, len(learned) + 1))  # each once, in order
    by_number = {number: (label, pixels.tobytes()) for number, label, pixels in learned}
    acknowledged = [item for client in clients for item in client.acknowledged.items()]
    assert len({number for number, _ in acknowledged}) == len(acknowledged)  # no number for two clients
    for number, sample in acknowledged:
        assert by_number[number] == sample
    contents = [pixels.tobytes() for _, _, pixels in learned]
    assert len(set(contents)) == len(contents)  # no sample twice, though requests were repeated
    assert all(len(batch) <= recipe.batch_size for batch in batches)
    logged = changes_of(folder)
    assert list(logged) == list(range(1, len(logged) + 1))
    for client in clients:
        for number, (method, path) in client.changes.items():
            assert logged[number].action == ACTIONS[method, path.split("/")[1], path.count("/")]
            assert logged[number].sample == int(path.partition("samples/")[2] or 0)
    saved: dict[int, str] = {}
    model = relearned(folder, recipe, form, saved)
    served = Model.load(folder, "cpu")
    assert (served.samples, served.labels, served.batches) == (model.samples, model.labels, model.batches)
    assert digest(served.learner) == digest(model.learner)
    assert sum(served.note["serve"]["counts"]["learned"]) <= served.samples <= len(learned)
    assert served.note["serve"]["changes"] == len(logged)
    for version in Versions(folder).all:  # each is as it was when it was saved
        assert logged[version.number].name == version.name
        assert digest(Model.load(Versions(folder).path(version.number), "cpu").learner) == saved[version.number]
    assert not left_over(folder)


@pytest.mark.usefixtures("quick_convolution")
def test_killed_again_and_again_in_the_middle_of_a_load(servers: Servers, tmp_path: Path) -> None:
    clients = [Client(number) for number in range(CLIENTS)]
    load_and_kill(servers, tmp_path / "model", clients, KILLS, enough=100)
    check(tmp_path / "model", clients)


def test_killed_while_it_learns_vectors(servers: Servers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "words", VECTOR_WORDS)
    clients = [VectorClient(number) for number in range(2)]
    load_and_kill(servers, tmp_path / "model", clients, kills=4, enough=20)
    check(tmp_path / "model", clients, VECTOR_RECIPE, VECTOR_FORM)


def load_and_kill(servers: Servers, folder: Path, clients: Sequence[Client], kills: int, enough: int) -> None:
    """Kill the service while clients send, then let it learn all, and stop it.

    So many times, or more, until there was enough to lose, however slow the machine: samples, and an answer, so that a
    request was repeated under its key.
    """
    moment = random.Random(7)

    def is_enough() -> bool:
        acknowledged = sum(len(client.acknowledged) for client in clients)
        return acknowledged > enough and any(client.repeated for client in clients)

    for kill in takewhile(lambda kill: kill < kills or (kill < 10 * kills and not is_enough()), count()):
        # Every third time at the n-th sync, which may be of the log or of a checkpoint; else at any moment.
        die_at_sync = moment.randint(1, 60) if kill % 3 == 2 else 0
        pid, port = servers.start(
            folder, "--save-seconds", moment.choice(("0.02", "0.2", "5")), die_at_sync=die_at_sync
        )
        for client in clients:
            client.port = port
            if not client.is_alive():
                client.start()
        if not die_at_sync:
            time.sleep(moment.uniform(0.0, 0.5))
            os.kill(pid, signal.SIGKILL)
        assert servers.exit_code() == -signal.SIGKILL
    pid, port = servers.start(folder)
    for client in clients:
        client.port = port
    until = time.monotonic() + PATIENCE
    while not is_enough() and time.monotonic() < until:  # however slow the machine
        time.sleep(0.05)
    for client in clients:
        client.stopping = True
        client.join()
    last = None
    while last is None or not last["made"]:  # and so all changes before it: a stop would break off a long one
        last = clients[0].ask("PUT", "/versions/pinned", b'{"name": null}', "the-last-change")
    while status(port)["queue"]:
        time.sleep(0.05)
    os.kill(pid, signal.SIGTERM)
    assert servers.exit_code() == 0
    assert is_enough()


class Labeller(threading.Thread):
    """A person at the labelling page: adds images, labels them, takes labels back, corrects them and puts images off.

    A request that was cut off is sent again; 409 then says that it was done before.
    """

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.port, self.stopping, self.sent, self.turns = 0, False, 0, 0
        self.images: dict[str, bytes] = {}
        """The pixels of all images that were acknowledged, by name."""
        self.labels: dict[str, str] = {}
        """The label of each image that has one."""
        self.given = 0
        """The number of labels that were acknowledged, those that were taken back included."""
        self.last: tuple[int, str] | None = None
        self.done_before = 0
        self.problems: list[str] = []

    def run(self) -> None:
        while not self.stopping:
            self.turns += 1
            queue = self.ask("GET", "/label/queue?count=1")
            if queue is None:
                continue
            if queue["waiting"] < 4:
                self.add()
            elif queue["images"]:
                self.label(queue["images"][0])
            if self.turns % 3 == 0 and self.last is not None:
                self.change(*self.last)

    def add(self) -> None:
        new = {f"{self.sent + n}.png": picture(5 * (self.sent + n) % 200, self.sent + n) for n in range(3)}
        parts = [
            f'--b\r\nContent-Disposition: form-data; name="image"; filename="{name}"\r\n\r\n'.encode() + png(pixels)
            for name, pixels in new.items()
        ]
        body = b"\r\n".join([*parts, b"--b--\r\n"])
        if (found := self.repeat("POST", "/label/images", body, "multipart/form-data; boundary=b")) is not None:
            self.sent += 3
            self.images |= {name: pixels.tobytes() for name, pixels in new.items()}
            if found["added"] + found["known"] != 3:
                self.problems.append(f"images were not added: {found}")

    def label(self, image: dict[str, Any]) -> None:
        label = f"class {self.turns % 5}"
        if image["name"] in self.labels:
            self.problems.append(f"{image['name']} has a label and is in the queue")
        path = f"/label/images/{image['number']}/label"
        if self.repeat("PUT", path, json.dumps({"label": label}).encode(), done=label) is not None:
            self.labels[image["name"]], self.last = label, (image["number"], image["name"])
            self.given += 1

    def change(self, number: int, name: str) -> None:
        """Take a label back, or give another one."""
        if self.turns % 2:
            if self.repeat("DELETE", f"/label/images/{number}/label", b"", done="no label") is not None:
                del self.labels[name]
                self.last = None
        else:
            label = f"class {self.turns % 7}"
            body = json.dumps({"label": label, "again": True}).encode()
            if self.repeat("PUT", f"/label/images/{number}/label", body) is not None:
                self.labels[name] = label

    def repeat(self, method: str, path: str, body: bytes, kind: str = "application/json", done: str = "") -> Any:
        """The answer, however often it takes. ``done``: the word of a refusal because it was done before."""
        cut_off, until = False, time.monotonic() + PATIENCE
        while time.monotonic() < until:
            found = self.ask(method, path, body, kind)
            if isinstance(found, str) and cut_off and done and done in found:
                self.done_before += 1
                return {}
            if isinstance(found, str) and "being labelled already" not in found:
                self.problems.append(f"{method} {path}: {found}")
                return None
            if isinstance(found, dict):
                return found
            cut_off = True
        self.problems.append(f"{method} {path} is never done")
        return None

    def ask(self, method: str, path: str, body: bytes = b"", kind: str = "application/json") -> Any:
        """The answer, a message why it was refused, or None if there is no service."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body or None, {"Content-Type": kind} if body else {})
            answer = connection.getresponse()
            content = json.loads(answer.read())
        except (OSError, http.client.HTTPException, ValueError):
            time.sleep(0.01)
            return None
        finally:
            connection.close()
        if answer.status in (429, 503):
            time.sleep(0.05)
            return None
        return content if answer.status == 200 else str(content["detail"])


@pytest.mark.usefixtures("quick_convolution")
def test_killed_while_a_person_labels(servers: Servers, tmp_path: Path) -> None:
    """Each label that was acknowledged is learned once, and each image without one is still in the queue."""
    folder, person, moment = tmp_path / "model", Labeller(), random.Random(3)

    def enough() -> bool:
        return person.given > 25

    for kill in takewhile(lambda kill: kill < KILLS or (kill < 10 * KILLS and not enough()), count()):
        # Every other time when the log is synced: a label is in it then, and not yet in the queue's database.
        die_at_sync = moment.randint(1, 12) if kill % 2 else 0
        pid, person.port = servers.start(folder, "--save-seconds", "0.2", die_at_sync=die_at_sync)
        if not person.is_alive():
            person.start()
        if not die_at_sync:
            time.sleep(moment.uniform(0.0, 0.5))
            os.kill(pid, signal.SIGKILL)
        assert servers.exit_code() == -signal.SIGKILL
    pid, person.port = servers.start(folder)
    until = time.monotonic() + PATIENCE
    while not enough() and time.monotonic() < until:  # however slow the machine
        time.sleep(0.05)
    person.stopping = True
    person.join()
    while status(person.port)["queue"]:
        time.sleep(0.05)
    os.kill(pid, signal.SIGTERM)
    assert servers.exit_code() == 0
    assert person.problems == []
    assert enough()
    assert person.labels

    store = Store(folder / QUEUE)
    entries = {one.name: one for one in store.entries()}
    store.close()
    assert entries.keys() == person.images.keys()
    assert {name: one.label for name, one in entries.items() if not one.waits} == person.labels
    waiting = [name for name, one in entries.items() if one.waits]
    assert waiting
    assert not any(one.change for one in entries.values())

    samples = {number: (label, pixels) for batch in batches_of(folder) for number, label, pixels in batch}
    labels = {number: label for number, (label, _) in samples.items()}
    for change in changes_of(folder).values():
        labels[change.sample] = change.label if change.action == "correct" else None
    alive = [(samples[number][1].tobytes(), label) for number, label in labels.items() if label is not None]
    assert sorted(alive) == sorted((person.images[name], label) for name, label in person.labels.items())
    model, served = relearned(folder), Model.load(folder, "cpu")
    assert digest(served.learner) == digest(model.learner)


def test_a_clean_stop_saves_what_was_learned(servers: Servers, tmp_path: Path) -> None:
    pid, port = servers.start(tmp_path)
    client = Client(0)
    client.port = port
    samples = [client.sample(n) for n in range(3)]
    answer = client.post(json.dumps(as_json(*[(png(p), label) for label, p in samples])).encode(), "key")
    assert answer is not None
    os.kill(pid, signal.SIGINT)
    assert servers.exit_code() == 0
    assert Model.load(tmp_path, "cpu").samples == 3
    assert {path.name for path in tmp_path.iterdir()} - {".lock"} == {"log", FILE, CATALOGUE, "audit.jsonl"}


def test_a_signal_right_after_the_start_stops_it(servers: Servers, tmp_path: Path) -> None:
    """It prints its address a moment before it answers."""
    for _ in range(3):
        pid, _ = servers.start(tmp_path)
        os.kill(pid, signal.SIGTERM)
        assert servers.exit_code() == 0


def test_killed_while_it_saved_for_the_first_time(servers: Servers, tmp_path: Path) -> None:
    (tmp_path / f".{FILE}.0123456789ab.tmp").write_bytes(b"half a model")
    pid, _ = servers.start(tmp_path)
    os.kill(pid, signal.SIGTERM)
    assert servers.exit_code() == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "log", FILE, CATALOGUE]


def test_a_real_socket_reads_no_more_than_the_limit(servers: Servers, tmp_path: Path) -> None:
    """A body in chunks without a length: refused while it comes in, and the connection ends."""
    pid, port = servers.start(tmp_path, "--max-body", "1")
    with socket.create_connection(("127.0.0.1", port), timeout=300) as connection:
        head = f"POST /predict HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        sent, chunk = 0, b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
        try:
            while sent < 64 * 2**20:
                connection.sendall(chunk)
                sent += 0x10000
        except OSError:  # it was hung up on
            pass
        assert sent < 16 * 2**20
    with socket.create_connection(("127.0.0.1", port), timeout=300) as connection:
        connection.sendall(
            f"POST /predict HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\n".encode()
        )
        connection.sendall(b"Content-Length: 99999999999\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 413 ")
    with socket.create_connection(("127.0.0.1", port), timeout=300) as connection:
        connection.sendall(b"no HTTP at all\r\n\r\n")
        assert connection.recv(100).startswith(b"HTTP/1.1 400 ")
    os.kill(pid, signal.SIGTERM)
    assert servers.exit_code() == 0
