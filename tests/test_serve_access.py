"""Tokens, scopes, rates, request identifiers, audit, logs and health of ``ocil serve``."""

import json
import logging
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ocil.errors import OcilError
from ocil.files import write_bytes
from ocil.online.model import Model
from ocil.serve.limits import RefusedError
from ocil.serve.service import Service
from ocil.serve.tokens import Access, add_token, digest_of, read_tokens
from tests.conftest import Call, one_error
from tests.serving import SECONDS, as_json, picture, png, running

pytest.importorskip("fastapi")
pytest.importorskip("python_multipart")
pytest.importorskip("httpx2")
from starlette.testclient import TestClient

from ocil.serve import log_lines
from ocil.serve.app import create_app
from ocil.serve.audit import Audit

pytestmark = pytest.mark.usefixtures("quick_convolution")
HERE = "http://127.0.0.1:8000"
SAMPLE = as_json((png(picture(0)), "dark"))
IMAGE = {"images": [SAMPLE["samples"][0]["image"]]}


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running(tmp_path_factory.mktemp("birds")) as service:
        yield service


def client_of(service: Service, file: Path | None = None, **options: Any) -> Any:
    return TestClient(create_app(service, access=Access(file=file), **options), base_url=HERE)


def refused(answer: Any, status: int, pattern: str) -> None:
    assert answer.status_code == status, answer.text
    assert re.search(pattern, answer.json()["detail"]), answer.text


def test_scopes(service: Service, tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    reader, writer = add_token(file, "reader", "read"), add_token(file, "camera-3", "write")
    stranger = add_token(file, "stranger", "write", ("fish",))
    assert reader not in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600
    client = client_of(service, file)
    refused(client.get("/status"), 401, "send the token")
    refused(client.get("/status", headers=bearer("x" * 43)), 401, "send the token")
    assert client.get("/status", headers=bearer(reader)).status_code == 200
    assert client.post("/predict", json=IMAGE, headers=bearer(reader)).status_code == 200
    before = service.writer.acknowledged
    refused(client.post("/learn", json=SAMPLE, headers=bearer(reader)), 403, "reader may read and predict only")
    refused(client.request("DELETE", "/samples/1", headers=bearer(reader)), 403, "needs the scope write")
    refused(client.get("/backup", headers=bearer(reader)), 403, "needs the scope write")
    assert service.writer.acknowledged == before
    assert client.post("/learn", json=SAMPLE, headers=bearer(writer)).status_code == 200
    refused(client.get("/status", headers=bearer(stranger)), 403, f"not for the model {service.folder.name}")


def test_a_token_can_be_withdrawn_and_a_broken_file_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now = 0.0
    file = tmp_path / "tokens.toml"
    first, second = add_token(file, "first", "read"), add_token(file, "second", "read")
    access = Access(file=file, clock=lambda: now)
    assert access.admit(f"Bearer {first}", False, None).name == "first"
    table = file.read_text().index('["second"]')
    file.write_text(file.read_text()[table:])
    now = 2.0
    with pytest.raises(RefusedError, match="send the token"):
        access.admit(f"Bearer {first}", False, None)
    assert access.admit(f"Bearer {second}", False, None).name == "second"
    file.write_text("nonsense")
    now = 4.0
    assert access.admit(f"Bearer {second}", False, None).name == "second"
    assert "the tokens stay as they were" in caplog.text
    file.write_text("# none for now\n")
    now = 6.0
    with pytest.raises(RefusedError, match="send the token"):
        access.admit(f"Bearer {second}", False, None)
    third = add_token(file, "third", "read")
    assert file.read_text().startswith("# none for now\n")
    now = 8.0
    assert access.admit(f"Bearer {third}", False, None).name == "third"


def test_an_edit_is_noticed_once_its_file_can_be_used(tmp_path: Path) -> None:
    """An editor may leave the file readable by everybody; ``chmod`` then changes neither its content nor its time."""
    now = 0.0
    file = tmp_path / "tokens.toml"
    first, second = add_token(file, "first", "read"), add_token(file, "second", "read")
    access = Access(file=file, clock=lambda: now)
    file.write_text(file.read_text()[file.read_text().index('["second"]') :])
    file.chmod(0o644)
    now = 2.0
    assert access.admit(f"Bearer {first}", False, None).name == "first"
    file.chmod(0o600)
    now = 4.0
    with pytest.raises(RefusedError, match="send the token"):
        access.admit(f"Bearer {first}", False, None)
    assert access.admit(f"Bearer {second}", False, None).name == "second"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "has no token"),
        ("[", "cannot be read"),
        ("a = 1", "not a table"),
        ("[a]", "needs sha256"),
        ("[a]\nsha256 = 'abc'", "64 hexadecimal digits"),
        ("[a]\nsha256 = '{}'\nscope = 'all'", "must be read or write"),
        ("[a]\nsha256 = '{}'\nmodels = 'b'", "models = 'b' is not known"),
        ("[a]\nsha256 = '{}'\nper_minute = 0", "more than 0"),
        ("[a]\nsha256 = '{}'\nper_minute = true", "is not known"),
        ("['a b']\nsha256 = '{}'", "not a table"),
    ],
)
def test_files_of_tokens_that_are_wrong(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "tokens.toml"
    file.write_text(content.format("0" * 64))
    file.chmod(0o600)
    with pytest.raises(OcilError, match=re.escape(message)):
        Access(file=file)
    file.chmod(0o644)
    with pytest.raises(OcilError, match="chmod 600"):
        Access(file=file)


def test_ocil_token(ocil_command: Call, tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    words = ("--file", file, "--scope", "write", "--models", "birds", "fish", "--per-minute", 60)
    token = ocil_command("token", "camera", *words).out.strip()
    (found,) = read_tokens(file)
    assert (found.name, found.scope, found.models, found.per_minute) == ("camera", "write", ("birds", "fish"), 60)
    assert found.digest == digest_of(token)
    assert "has a token camera already" in one_error(ocil_command("token", "camera", "--file", file))
    assert "is no name for a token" in one_error(ocil_command("token", "a b", "--file", file))


def test_tokens_that_are_added_at_once_are_all_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "tokens.toml"
    inside, gate = threading.Event(), threading.Event()

    def slowly(path: Path, content: bytes) -> None:
        if not inside.is_set():
            inside.set()
            gate.wait(SECONDS)
        write_bytes(path, content)

    monkeypatch.setattr("ocil.serve.tokens.write_bytes", slowly)
    first, second = (threading.Thread(target=add_token, args=(file, name, "read")) for name in ("first", "second"))
    first.start()
    assert inside.wait(SECONDS)
    second.start()
    second.join(0.2)  # without a lock it would be done by now
    gate.set()
    for one in (first, second):
        one.join(SECONDS)
    assert [one.name for one in read_tokens(file)] == ["first", "second"]


def test_rates_are_per_token_and_fill_up_again(tmp_path: Path) -> None:
    now = 0.0
    file = tmp_path / "tokens.toml"
    slow, quick = add_token(file, "slow", "read", per_minute=12), add_token(file, "quick", "read")
    access = Access(file=file, per_minute=6000, clock=lambda: now)

    def ask(token: str) -> None:
        access.admit(f"Bearer {token}", False, None)

    for _ in range(2):  # ten seconds' worth in one go
        ask(slow)
    with pytest.raises(RefusedError, match="12 requests per minute are allowed for the token slow") as found:
        ask(slow)
    assert (found.value.status, found.value.retry_after) == (429, 5)
    for _ in range(1000):
        ask(quick)
    now = 4.9
    with pytest.raises(RefusedError) as found:
        ask(slow)
    assert found.value.retry_after == 1
    now = 5.1
    ask(slow)
    now = 100.0  # no more than ten seconds' worth is saved up
    ask(slow)
    ask(slow)
    with pytest.raises(RefusedError):
        ask(slow)


def test_too_many_requests_are_answered_with_429(service: Service) -> None:
    client = TestClient(create_app(service, access=Access(per_minute=6)), base_url=HERE)
    assert client.get("/status").status_code == 200
    answer = client.get("/status")
    refused(answer, 429, "6 requests per minute are allowed for requests without a token")
    assert 1 <= int(answer.headers["retry-after"]) <= 10
    assert client.get("/health/ready").status_code == 200  # probes are not counted
    assert client.get("/").status_code == 200


def test_every_answer_names_its_request(service: Service) -> None:
    client = client_of(service)
    assert client.get("/status", headers={"x-request-id": "mine-1"}).headers["x-request-id"] == "mine-1"
    ids = {client.get(path).headers["x-request-id"] for path in ("/status", "/", "/nowhere", "/health", "/status")}
    assert len(ids) == 5
    for bad in ("a b", "x" * 65, 'a"b', "é".encode("latin-1")):
        assert re.fullmatch(
            "[0-9a-f]{16}", client.get("/status", headers={"x-request-id": bad}).headers["x-request-id"]
        )
    for answer in (client.get("/nowhere"), client.get("/memory?first=x"), client.post("/learn", content=b"")):
        assert answer.json()["request_id"] == answer.headers["x-request-id"]


def test_health_needs_no_token_and_no_name(tmp_path: Path) -> None:
    with running(tmp_path) as service:
        client = TestClient(create_app(service, Access("a-token-of-some-length")), base_url="http://10.1.2.3:8000")
        for path in ("/health", "/health/live", "/health/ready"):
            answer = client.get(path, headers={"origin": "http://elsewhere"})
            assert (answer.status_code, answer.json()) == (200, {"status": "UP", "reason": None})
            assert client.head(path).status_code == 200
        service.draining = True
        assert client.head("/health/ready").status_code == 503
        assert client.get("/health/live").status_code == 200
        answer = client.get("/health/ready")
        assert (answer.status_code, answer.json()) == (503, {"status": "DOWN", "reason": "stopping"})
        service.draining = False
        service.trainer._fail("the loss is not finite any more.")
        assert client.get("/health/ready").json()["reason"] == "learning has stopped"
        assert client.get("/health").json() == {"status": "UP", "reason": "learning has stopped"}
        assert client.get("/health/live").status_code == 200


def test_a_service_is_not_ready_before_its_log_is_replayed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(tmp_path, save_seconds=1e6) as service:
        for number in range(3):
            service.writer.submit(picture(100, number)[None, :, :, None], ["robin"]).result(SECONDS)
            service.trainer.waiters.wait_for(number + 1).result(SECONDS)
        service.wait_for_change(service.review().result(SECONDS).first).result(SECONDS)
        service.trainer._abandoned = True  # as a crash leaves it: nothing is saved
    go_on, learn = threading.Semaphore(0), Model.learn

    def learn_when_told(model: Model, *arguments: Any) -> Any:
        assert go_on.acquire(timeout=SECONDS)
        return learn(model, *arguments)

    monkeypatch.setattr(Model, "learn", learn_when_told)
    with running(tmp_path) as service:
        client = client_of(service)
        for done in range(3):
            if done:
                service.trainer.waiters.wait_for(done).result(SECONDS)
            answer = client.get("/health/ready")
            reason = f"replaying the log: {done} of 3 samples are learned and 0 of 1 changes are made"
            assert (answer.status_code, answer.json()) == (503, {"status": "DOWN", "reason": reason})
            assert client.get("/health").json() == {"status": "UP", "reason": reason}
            assert client.get("/health/live").status_code == 200
            go_on.release()
        service.wait_for_change(1).result(SECONDS)
        assert client.get("/health/ready").json() == {"status": "UP", "reason": None}
        service.writer.submit(picture(100, 9)[None, :, :, None], ["robin"]).result(SECONDS)
        assert client.get("/health/ready").status_code == 200  # what came after the start does not count
        go_on.release()


def test_the_audit_names_who_changed_what(service: Service, tmp_path: Path) -> None:
    file, path = tmp_path / "tokens.toml", tmp_path / "audit.jsonl"
    token = add_token(file, "camera", "write")
    client = client_of(service, file, audit=Audit(path))
    client.get("/status", headers=bearer(token))
    client.post("/predict", json=IMAGE, headers=bearer(token))
    client.post("/learn", json=SAMPLE)
    client.post("/learn", content=b"{", headers=bearer(token))
    assert not path.exists()
    headers = bearer(token) | {"idempotency-key": "audited", "x-request-id": "r-1"}
    first = client.post("/learn", json=SAMPLE, headers=headers).json()["first"]
    path.rename(tmp_path / "audit.jsonl.1")  # as logrotate does
    client.post("/learn", json=SAMPLE, headers=headers)
    lines = [json.loads(one.read_text()) for one in (tmp_path / "audit.jsonl.1", path)]
    assert [line["repeated"] for line in lines] == [False, True]
    for line in lines:
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", line["time"])
        assert (line["token"], line["request_id"], line["model"]) == ("camera", "r-1", service.folder.name)
        assert (line["method"], line["path"], line["first"], line["last"]) == ("POST", "/learn", first, first)
    assert path.stat().st_mode & 0o777 == 0o600


def test_an_audit_that_cannot_be_written_is_reported_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    audit = Audit(tmp_path / "missing" / "audit.jsonl")
    for _ in range(3):
        audit.write({"path": "/learn"})
    assert caplog.text.count("changes are not audited") == 1


def test_logs_as_json_lines(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, log_lines.REQUESTS):
        client_of(service).get("/status", headers={"x-request-id": "r-2"})
    (record,) = [one for one in caplog.records if one.name == log_lines.REQUESTS]
    line = json.loads(log_lines.JsonLines().format(record))
    assert (line["request_id"], line["path"], line["status"], line["level"]) == ("r-2", "/status", 200, "info")
    assert line["ms"] >= 0
    try:
        raise ValueError("two\nlines")
    except ValueError:
        record = logging.getLogger("x").makeRecord(
            "x", logging.ERROR, "f", 1, "it %s", ("failed",), __import__("sys").exc_info()
        )
    text = log_lines.JsonLines().format(record)
    assert "\n" not in text
    assert json.loads(text)["message"] == "it failed"
    assert "ValueError" in json.loads(text)["exception"]


def test_metrics_name_routes_not_numbers(service: Service) -> None:
    client = client_of(service)
    client.get("/status")
    text = client.get("/metrics").text
    assert 'ocil_requests_total{path="/status",status="200"}' in text
