"""Label Studio's requests, recorded by ``tools/label_studio_check.py``, played back; and where images may come from."""

import base64
import http.server
import io
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ocil.errors import OcilError
from ocil.online.images import ImageFormat
from ocil.online.model import Recipe
from ocil.online.vectors import VectorFormat
from ocil.serve.limits import Limits, RefusedError
from ocil.serve.service import Service
from ocil.serve.tokens import Access
from tests.serving import FORM, RECIPE, SECONDS, picture, png, running

pytest.importorskip("fastapi")
pytest.importorskip("python_multipart")
pytest.importorskip("httpx2")
from starlette.testclient import TestClient

from ocil.serve import label_studio_images
from ocil.serve.app import create_app
from ocil.serve.label_studio import TRIES, LabelStudio, chosen, read_project
from ocil.serve.label_studio_images import TaskImages

pytestmark = pytest.mark.usefixtures("quick_convolution")
HERE = "http://127.0.0.1:8000"
RECORDED = Path(__file__).parent / "recorded" / "label_studio.json"
TOKEN = "a-token-for-label-studio"
CONFIG = (
    '<View><Image name="image" value="$image"/><Choices name="kind" toName="image" choice="single">'
    '<Choice value="dark"/><Choice value="light"/></Choices></View>'
)


class Web(http.server.ThreadingHTTPServer):
    """A server of images, as Label Studio is one: what it was asked, and what it answers."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.asked: list[tuple[str, str | None]] = []
        self.key = ""
        self.answers: dict[str, tuple[int, dict[str, str], bytes]] = {}

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Answer(http.server.BaseHTTPRequestHandler):
    server: Web

    def do_GET(self) -> None:
        web = self.server
        web.asked.append((self.path, self.headers["authorization"]))
        number = re.search(r"image-(\d+)\.png$", self.path)
        if self.path in web.answers:
            status, headers, content = web.answers[self.path]
        elif number and self.headers["authorization"] == (web.key or None):
            status, headers, content = 200, {}, drawn(int(number[1]))
        else:
            status, headers, content = 401 if number else 404, {}, b""
        self.send_response(status)
        for name, value in ({"content-length": str(len(content))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.asked.append((self.path, json.dumps(asked)))
        content = json.dumps({"access": "short-lived"}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


def drawn(number: int) -> bytes:
    return png(picture(200 * (number % 2), number))


@pytest.fixture
def web() -> Iterator[Web]:
    with Web() as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with running(tmp_path) as service:
        yield service


def until(condition: Any) -> None:
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_the_recorded_requests_of_label_studio(tmp_path: Path, web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    """Connect, label, predict, correct and delete, as the real one did."""
    monkeypatch.setenv("LABEL_STUDIO_API_KEY", "a.personal.token")
    web.key = "Bearer short-lived"
    recorded = json.loads(RECORDED.read_text())
    actions: dict[str, int] = {}
    with running(tmp_path, RECIPE) as service:
        studio = LabelStudio(service, TaskImages(web.address, (), service.limits))
        with TestClient(create_app(service, Access(TOKEN)), base_url=HERE) as client:
            for one in recorded:
                before = service.statistics
                answer = client.request(one["method"], one["path"], json=one["body"], headers=one["headers"])
                assert answer.status_code == one["status"], answer.text
                assert answer.json().keys() == one["answer"].keys()
                action = one["body"]["action"] if one["path"].endswith("webhook") else one["path"].split("/")[-1]
                actions[action] = actions.get(action, 0) + 1
                if one["status"] == 200:
                    until(lambda: not studio.waiting and not service.backlog)
                    check_step(action, one["body"], answer.json(), service, before)
            assert client.get("/label-studio/health").status_code == 401
    assert {"setup", "health", "predict", "ANNOTATION_CREATED", "ANNOTATION_UPDATED", "ANNOTATIONS_DELETED"} <= set(
        actions
    )
    assert ("/api/token/refresh", '{"refresh": "a.personal.token"}') in web.asked


def check_step(action: str, body: Any, answer: Any, service: Service, before: Any) -> None:
    if action == "ANNOTATION_CREATED" and not body["annotation"]["was_cancelled"]:
        label = body["annotation"]["result"][0]["value"]["choices"][0]
        assert service.statistics.position == before.position + 1
        assert service.sample(before.position + 1).label == label
    elif action == "ANNOTATION_UPDATED":
        assert body["annotation"]["result"][0]["value"]["choices"] == ["light"]
        assert (service.sample(1).first_label, service.sample(1).label) == ("dark", "light")
    elif action == "ANNOTATIONS_DELETED":
        assert service.sample(2).forgotten
    elif action == "predict":
        results = answer["results"]
        assert len(results) == len(body["tasks"])
        addresses = [task["data"]["image"] for task in body["tasks"]]
        numbers = [int(re.findall(r"image-(\d+)", one)[0]) for one in addresses]
        inputs = np.concatenate([FORM.read([Image.open(io.BytesIO(drawn(n)))]) for n in numbers])
        expected = service.predictor.ask(inputs).result()
        for result, row in zip(results, expected.probabilities, strict=True):
            assert result["result"][0]["value"]["choices"] == [expected.labels[row.argmax()]]
            assert result["score"] == pytest.approx(abs(row[0] - row[1]), abs=1e-6)
            assert result["model_version"] == f"ocil-{service.statistics.samples}"
    else:
        assert service.statistics.position == before.position


def annotation(number: int, label: str | None, action: str = "ANNOTATION_CREATED", image: str = "") -> dict[str, Any]:
    value = {"choices": [label]}
    result = [{"type": "choices", "from_name": "kind", "to_name": "image", "value": value}] if label else []
    return {
        "action": action,
        "annotation": {"id": number, "result": result, "was_cancelled": label is None},
        "task": {"id": 1, "data": {"image": image or f"/data/image-{number}.png"}},
        "project": {"id": 1, "label_config": CONFIG},
    }


def test_a_webhook_is_on_the_disk_before_it_is_answered(
    tmp_path: Path, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The image cannot be read, the service is stopped, and a later start learns it, once."""
    monkeypatch.setattr("ocil.serve.label_studio.RETRY_SECONDS", 0.05)
    web.key = "not known yet"
    with running(tmp_path) as service:
        studio = LabelStudio(service, TaskImages(web.address, (), service.limits))
        client = TestClient(create_app(service), base_url=HERE)
        assert client.post("/label-studio/webhook", json=annotation(4, "dark")).json() == {"changed": 1}
        assert client.post("/label-studio/webhook", json=annotation(5, "light")).json() == {"changed": 1}
        until(lambda: len(studio.failed) == 2)
        assert client.get("/label-studio/health").json()["failed"] == 2
        assert "401: set LABEL_STUDIO_API_KEY" in studio.failed["4"]
        assert service.writer.acknowledged == 0
    web.key = ""
    with running(tmp_path) as service:
        studio = LabelStudio(service, TaskImages(web.address, (), service.limits))
        until(lambda: not studio.waiting)
        assert [service.sample(number).label for number in (1, 2)] == ["dark", "light"]
        # As if a crash had come between the log and the database, and a deletion after that.
        store = studio.labelling.open()
        store.want_annotation("9", "/data/image-9.png", "dark")
        (one,) = store.unsettled()
        studio._give_to_model(one)
        assert studio.want("9", None, None)
        until(lambda: not studio.waiting)
        assert service.sample(3).forgotten
        client = TestClient(create_app(service), base_url=HERE)
        client.post("/label-studio/webhook", json=annotation(4, None, "ANNOTATION_UPDATED"))  # skipped after all
        until(lambda: not studio.waiting)
        assert service.sample(1).forgotten
        client.post("/label-studio/webhook", json=annotation(4, "dark", "ANNOTATION_UPDATED"))
        until(lambda: not studio.waiting)
        assert (service.writer.acknowledged, service.sample(4).label) == (4, "dark")


def test_an_annotation_that_changes_while_it_is_tried_is_not_given_up(
    service: Service, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last try fails after a person has given another label, which was never tried."""
    monkeypatch.setattr("ocil.serve.label_studio.RETRY_SECONDS", 0.02)
    studio = LabelStudio(service, TaskImages(web.address, (), service.limits))
    tried: list[Any] = []
    give = studio._give_to_model

    def failing(one: Any) -> Any:
        tried.append(one.wanted)
        if len(tried) == TRIES:
            studio.want("4", None, "light")
        if one.wanted == "dark":
            raise RefusedError(422, "it cannot be read.")
        return give(one)

    monkeypatch.setattr(studio, "_give_to_model", failing)
    studio.want("4", "/data/image-4.png", "dark")
    until(lambda: not studio.waiting)
    assert (studio.failed, tried) == ({}, ["dark"] * TRIES + ["light"])
    assert service.sample(1).label == "light"


def test_an_annotation_that_comes_while_another_is_learned_does_not_wait(
    service: Service, web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ocil.serve.label_studio.RETRY_SECONDS", SECONDS)
    studio = LabelStudio(service, TaskImages(web.address, (), service.limits))
    give = studio._give_to_model

    def interrupted(one: Any) -> Any:
        if one.name == "4":
            studio.want("5", "/data/image-5.png", "light")
        return give(one)

    monkeypatch.setattr(studio, "_give_to_model", interrupted)
    studio.want("4", "/data/image-4.png", "dark")
    until(lambda: service.writer.acknowledged == 2)


def test_requests_that_are_none(service: Service, web: Web) -> None:
    LabelStudio(service, TaskImages(web.address, (), service.limits))
    client = TestClient(create_app(service), base_url=HERE)
    for path in ("setup", "predict", "webhook"):
        assert client.post(f"/label-studio/{path}", content=b"x").status_code == 415
        assert client.post(f"/label-studio/{path}", json={}).status_code == 422
    assert client.post("/label-studio/setup", json={"schema": "<View/>"}).status_code == 422
    assert client.post("/label-studio/predict", json={"label_config": CONFIG, "tasks": []}).json()["results"] == []
    tasks = [{"data": {"image": "http://elsewhere.example/x.png"}}, {"data": {}}, {"data": {"image": 3}}]
    found = client.post("/label-studio/predict", json={"label_config": CONFIG, "tasks": tasks}).json()["results"]
    assert [(one["result"], one["score"]) for one in found] == [([], 0.0)] * 3
    for other in ("TASKS_CREATED", "PROJECT_UPDATED", "START_TRAINING", "ANNOTATIONS_DELETED"):
        assert client.post("/label-studio/webhook", json={"action": other}).json() == {"changed": 0}
    for path in ("predict", "webhook"):  # which would keep all others waiting
        many = b'{"tasks": [%s[]]}' % (b"[]," * 2**20)
        answer = client.post(f"/label-studio/{path}", content=many, headers={"content-type": "application/json"})
        assert (answer.status_code, answer.json()["detail"][:30]) == (422, "the JSON has more than 524288 ")
    assert service.writer.acknowledged == 0
    assert web.asked == []


def test_it_is_off_unless_asked_for(service: Service) -> None:
    client = TestClient(create_app(service), base_url=HERE)
    assert client.get("/label-studio/health").status_code == 404


def test_the_token_as_a_password(service: Service, web: Web) -> None:
    LabelStudio(service, TaskImages(web.address, (), service.limits))
    client = TestClient(create_app(service, Access(TOKEN)), base_url=HERE)

    def status(given: str, path: str = "/label-studio/health") -> int:
        return int(client.get(path, headers={"authorization": given}).status_code)

    basic = [base64.b64encode(text.encode()).decode() for text in (f"any:{TOKEN}", f"{TOKEN}:any", TOKEN, ":")]
    assert [status(f"Basic {one}") for one in basic] == [200, 401, 401, 401]
    assert status(f"Bearer {TOKEN}") == 200
    assert status("Basic %%%") == 401
    assert status(f"Basic {basic[0]}", "/status") == 401  # only there


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ("<View>", "not XML"),
        ('<!DOCTYPE a [<!ENTITY b "c">]><View/>', "entities"),
        (CONFIG.replace("single", "multiple"), "single choice"),
        (CONFIG.replace('toName="image"', 'toName="text"'), "single choice"),
        (CONFIG.replace("</View>", CONFIG[6:]), "single choice"),
    ],
)
def test_projects_that_do_not_fit(config: str, reason: str) -> None:
    with pytest.raises(RefusedError, match=reason):
        read_project(config)


def test_a_project_and_its_results() -> None:
    project = read_project(CONFIG.replace('value="light"', 'value="Light" alias="light"'))
    assert (project.from_name, project.to_name, project.field) == ("kind", "image", "image")
    assert project.choices == {"dark": "dark", "light": "light"}
    right = {"type": "choices", "from_name": "kind", "value": {"choices": ["dark"]}}
    assert chosen(project, [{"type": "labels"}, right]) == "dark"
    for other in (None, [], ["x"], [right | {"from_name": "x"}], [right | {"value": {"choices": ["a", "b"]}}]):
        assert chosen(project, other) is None


def read(source: TaskImages, address: str) -> bytes:
    return source._content(address)


def test_images_come_from_allowed_hosts_only(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    source = TaskImages(f"{web.address}/", ("images.example.org",), Limits())
    source.offer_key("legacy")
    web.key = "Token legacy"
    assert read(source, "/data/image-1.png") == drawn(1)
    assert read(source, f"{web.address}/data/image-1.png") == drawn(1)
    inline = "data:image/png;base64," + base64.b64encode(drawn(2)).decode()
    assert read(source, inline) == drawn(2)
    for bad in (
        "http://elsewhere.example/a.png",
        "//elsewhere.example/a.png",
        "http://169.254.169.254/latest/meta-data",
        f"http://127.0.0.1:{web.server_port + 1}/data/image-1.png",
        f"https://127.0.0.1:{web.server_port}/data/image-1.png",
        f"http://x@127.0.0.1:{web.server_port}/data/image-1.png",
        f"http://localhost:{web.server_port}/data/image-1.png",  # another name than the operator's
        "file:///etc/passwd",
        "s3://bucket/a.png",
        "http://images.example.org:99999999/a.png",
    ):
        with pytest.raises(RefusedError):
            read(source, bad)
    assert {path for path, _ in web.asked} == {"/data/image-1.png"}


def test_a_name_that_leads_to_an_internal_address_is_refused(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was a public one at the start, and is pinned: what was checked is what is asked."""
    names = {"images.example.org": "93.184.216.34"}
    connected: list[Any] = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, port, **_: [(2, 1, 6, "", (names.get(host, host), port))])
    source = TaskImages(web.address, ("images.example.org",), Limits())

    def connect(where: Any, **_: Any) -> Any:
        connected.append(where)
        raise ConnectionRefusedError

    monkeypatch.setattr(socket, "create_connection", connect)
    with pytest.raises(RefusedError, match="ConnectionRefused"):
        read(source, "http://images.example.org/a.png")
    assert connected == [("93.184.216.34", 80)]
    for internal in ("127.0.0.1", "10.0.0.1", "169.254.169.254", "::1", "::ffff:127.0.0.1", "fe80::1%eth0", "0.0.0.0"):
        names["images.example.org"] = internal
        with pytest.raises(RefusedError, match="internal"):
            read(source, "http://images.example.org/a.png")
    assert len(connected) == 1
    names["images.example.org"] = "10.0.0.1"  # at the start too: the operator meant a server of the own network
    with pytest.raises(RefusedError, match="ConnectionRefused"):
        read(TaskImages(web.address, ("images.example.org",), Limits()), "http://images.example.org/a.png")
    names["images.example.org"] = "169.254.169.254"  # never
    with pytest.raises(RefusedError, match="internal"):
        read(TaskImages(web.address, ("images.example.org",), Limits()), "http://images.example.org/a.png")


def test_redirects_sizes_and_times(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    source = TaskImages(web.address, (), Limits(body_bytes=1000))
    web.answers = {
        "/there": (302, {"location": "/data/image-3.png"}, b""),
        "/away": (302, {"location": "http://169.254.169.254/"}, b""),
        "/round": (302, {"location": "/round"}, b""),
        "/large": (200, {}, b"x" * 1001),
        "/zipped": (200, {"content-encoding": "gzip"}, b"x"),
    }
    assert read(source, "/there") == drawn(3)
    reasons = {
        "/away": "does not name",
        "/round": "too often",
        "/large": "more than 1000 bytes",
        "/zipped": "compressed",
    }
    for path, reason in (reasons | {"/nothing": "with 404"}).items():
        with pytest.raises(RefusedError, match=reason):
            read(source, path)
    assert len([path for path, _ in web.asked if path == "/round"]) == 4
    usual = label_studio_images.SECONDS
    monkeypatch.setattr(label_studio_images, "SECONDS", 0.2)
    with socket.socket() as silent:  # it takes connections and never answers
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        slow = TaskImages(f"http://127.0.0.1:{silent.getsockname()[1]}", (), Limits())
        started = time.monotonic()
        with pytest.raises(RefusedError, match="Timeout"):
            read(slow, "/a.png")
        assert time.monotonic() - started < usual


def test_a_header_that_comes_byte_by_byte_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_studio_images, "SECONDS", 0.5)
    with socket.socket() as slow:
        slow.bind(("127.0.0.1", 0))
        slow.listen()

        def drip() -> None:
            client, _ = slow.accept()
            with client, suppress(OSError):
                for _ in range(200):  # ten seconds
                    client.sendall(b"H")
                    time.sleep(0.05)

        threading.Thread(target=drip, daemon=True).start()
        source = TaskImages(f"http://127.0.0.1:{slow.getsockname()[1]}", (), Limits())
        started = time.monotonic()
        with pytest.raises(RefusedError, match="Timeout"):
            read(source, "/a.png")
        assert time.monotonic() - started < 9


def test_images_are_kept_for_the_next_prediction(web: Web) -> None:
    source, form = TaskImages(web.address, (), Limits()), ImageFormat((12, 12, 1))
    first, again = (source.image("/data/image-1.png", form) for _ in range(2))
    assert np.array_equal(first, again)
    assert len(web.asked) == 1
    with pytest.raises(RefusedError, match="not a readable image"):
        source.image("data:image/png;base64,AAAA", form)


def test_addresses_that_are_longer_than_their_images_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(label_studio_images, "CACHED_BYTES", 2**18)
    images, long = TaskImages("http://127.0.0.1:1", (), Limits()), "data:image/png;base64,"
    for number in range(200):
        content = base64.b64encode(drawn(number) + bytes(6000)).decode()  # a file may go on behind the image
        assert images.image(long + content, FORM).shape == (12, 12, 1)
    assert 0 < sum(map(len, images._cache)) < 2**18


@pytest.mark.parametrize("address", ["localhost:8080", "ftp://a", "http://", "http://a:b@c", "http://a?b"])
def test_addresses_that_are_none(address: str) -> None:
    with pytest.raises(OcilError, match="no address of Label Studio"):
        TaskImages(address, (), Limits())
    for host in ("", "a/b", "http://a/b", "ftp://a", "a:0", "a:x"):
        with pytest.raises(OcilError, match="is no host"):
            TaskImages("http://localhost:8080", (host,), Limits())


def test_a_model_of_vectors_is_refused(tmp_path: Path, web: Web) -> None:
    recipe = Recipe("er", memory=20, batch_size=4)
    with running(tmp_path, recipe, VectorFormat(3)) as service, pytest.raises(RefusedError, match="vectors"):
        LabelStudio(service, TaskImages(web.address, (), service.limits))
