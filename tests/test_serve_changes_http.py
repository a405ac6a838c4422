"""Samples, versions, the held-out set and backups over HTTP."""

import asyncio
import io
import tarfile
from collections.abc import Iterator
from typing import Any

import pytest

from ocil.errors import WriteError
from ocil.online.model import FILE
from ocil.serve.limits import Limits
from ocil.serve.service import Service
from tests.serving import as_json, picture, png, running

pytest.importorskip("fastapi")
pytest.importorskip("python_multipart")
pytest.importorskip("httpx2")
from starlette.testclient import TestClient

from ocil.serve.app import create_app

pytestmark = pytest.mark.usefixtures("quick_convolution")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running(tmp_path_factory.mktemp("model"), limits=Limits(batch=8, queue=8, predictions=8)) as service:
        yield service


@pytest.fixture(scope="module")
def client(service: Service) -> Iterator[Any]:
    with TestClient(create_app(service), base_url="http://127.0.0.1:8000") as client:
        samples = as_json(*[(png(picture(40 * (n % 2), n)), "ab"[n % 2]) for n in range(1, 7)])
        assert client.post("/learn?wait=true", json=samples).json()["last"] == 6
        yield client


def test_a_sample_and_a_search(client: Any) -> None:
    one = client.get("/samples/1").json()
    assert {name: one[name] for name in ("number", "state", "label", "first_label", "stored", "image")} == {
        "number": 1,
        "state": "learned",
        "label": "b",
        "first_label": None,
        "stored": True,
        "image": None,
    }
    assert client.get("/samples/1?input=true").json()["image"].startswith("data:image/png;base64,")
    found = client.get("/samples", params={"label": "b", "since": one["time"], "limit": 2}).json()["samples"]
    assert [sample["number"] for sample in found] == [1, 3]
    assert client.get("/samples", params={"until": one["time"]}).json() == {"samples": []}
    assert client.get("/samples?since=yesterday").status_code == 422


def test_correct_forget_and_review(client: Any) -> None:
    answer = client.put("/samples/2", json={"label": "c"}, headers={"Idempotency-Key": "k"}).json()
    sample = answer.pop("sample")
    assert answer == {"change": 1, "repeated": False, "made": True, "learned": True, "stored": True}
    assert (sample["label"], sample["first_label"]) == ("c", "a")
    assert client.put("/samples/2", json={"label": "c"}, headers={"Idempotency-Key": "k"}).json()["repeated"]
    assert client.put("/samples/2", json={"label": "d"}, headers={"Idempotency-Key": "k"}).status_code == 409
    answer = client.delete("/samples/3").json()
    assert (answer["stored"], answer["sample"]["state"], answer["sample"]["label"]) == (True, "forgotten", None)
    assert client.get("/samples/3").json()["stored"] is False
    assert client.put("/samples/3", json={"label": "a"}).status_code == 409
    assert client.delete("/samples/3").json()["stored"] is False
    assert client.delete("/samples/99").status_code == client.put("/samples/99", json={"label": "a"}).status_code == 404
    assert client.post("/review").json()["made"]


@pytest.mark.parametrize(
    ("content", "status"),
    [(b"{", 422), (b'{"label": ""}', 422), (b'{"label": "a", "x": 1}', 422), (b'{"label": "\\u202e"}', 422)],
)
def test_corrections_that_are_refused(client: Any, content: bytes, status: int) -> None:
    headers = {"content-type": "application/json"}
    assert client.put("/samples/1", content=content, headers=headers).status_code == status
    assert client.put("/samples/1", content=content).status_code == 415


def test_versions(client: Any) -> None:
    assert client.post("/versions", json={"name": "v1"}).json()["made"]
    assert client.post("/versions", json={"name": "v1"}).status_code == 409
    assert client.post("/versions", json={"name": "../v1"}).status_code == 422
    assert client.put("/versions/pinned", json={"name": "v1"}).json()["made"]
    listed = client.get("/versions").json()
    assert listed["pinned"] == "v1"
    assert [one["name"] for one in listed["versions"]] == ["v1"]
    refused = client.delete("/versions/v1")
    assert (refused.status_code, refused.json()["detail"]) == (409, "predictions are pinned to it.")
    assert client.put("/versions/pinned", json={"name": None}).json()["made"]
    for unknown in ("x", ""):
        assert client.put("/versions/pinned", json={"name": unknown}).status_code == 404
    held_out = as_json(*[(png(picture(40 * (n % 2), 50 + n)), "ab"[n % 2]) for n in range(10)])
    assert client.put("/held-out", json=held_out).json() == {"count": 10}  # more than one request may teach
    one, now = client.get("/versions/compare").json()["versions"]
    assert (one["name"], one["held_out"], now["name"]) == ("v1", 10, None)
    assert one["accuracy"] == one["correct"] / 10
    assert client.post("/versions/v1/restore", json={"relearn": True}).json()["made"]
    assert client.post("/versions/x/restore", json={}).status_code == 404
    key = {"Idempotency-Key": "drop"}
    first = client.delete("/versions/v1", headers=key).json()
    assert (first["made"], first["repeated"]) == (True, False)
    assert client.delete("/versions/v1", headers=key).json() == first | {"repeated": True}  # though it is gone
    assert client.delete("/versions/v1").status_code == 404
    assert client.delete("/versions/x", headers=key).status_code == 409
    assert client.get("/versions").json() == {"versions": [], "pinned": None}


def test_files_that_cannot_be_used(client: Any, service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer has the message, which says what to do."""
    (service.folder / "held-out.safetensors").write_bytes(b"damaged")
    answer = client.get("/versions/compare")
    assert answer.status_code == 503
    assert "Send the held-out set again" in answer.json()["detail"]

    def full(*_: Any) -> None:
        raise WriteError("Free some space.")

    monkeypatch.setattr("ocil.tensorfile.write", full)
    answer = client.put("/held-out", json=as_json((png(picture(0)), "a")))
    assert (answer.status_code, answer.json()["detail"]) == (503, "Free some space.")


def test_a_backup(client: Any) -> None:
    answer = client.get("/backup")
    assert answer.headers["content-type"] == "application/x-tar"
    with tarfile.open(fileobj=io.BytesIO(answer.content)) as archive:
        assert {FILE, "samples.sqlite"} <= set(archive.getnames())


def test_no_request_waits_while_another_one_reads_the_list(
    client: Any, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list may wait for the disk: not in the event loop, and not while samples cannot be submitted."""
    number = client.post("/learn?wait=true", json=as_json((png(picture(7)), "a"))).json()["first"]
    found = service.catalogue.sample
    places: list[tuple[bool, bool]] = []

    def noted(wanted: int) -> Any:
        places.append((asyncio._get_running_loop() is not None, vars(service.writer._changed)["_is_owned"]()))
        return found(wanted)

    monkeypatch.setattr(service.catalogue, "sample", noted)
    assert client.get(f"/samples/{number}").status_code == 200
    assert client.put(f"/samples/{number}", json={"label": "b"}).status_code == 200
    assert client.delete(f"/samples/{number}").status_code == 200
    assert len(places) == 5
    assert set(places) == {(False, False)}
