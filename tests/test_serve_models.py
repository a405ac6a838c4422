"""Several models in one process."""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ocil.errors import OcilError
from ocil.online.model import Model
from ocil.precision import Precision
from ocil.serve.service import Service
from ocil.serve.tokens import Access, add_token
from tests.conftest import Call, one_error
from tests.serving import FORM, RECIPE, as_json, picture, png, running

pytest.importorskip("fastapi")
pytest.importorskip("python_multipart")
pytest.importorskip("httpx2")
from starlette.testclient import TestClient

from ocil.serve.models import Models, model_folders, refuse_mixed

pytestmark = pytest.mark.usefixtures("quick_convolution")
HERE = "http://127.0.0.1:8000"
KNOWN: dict[str, Any] = {"max_queue": int, "keep_log": bool, "save_seconds": (int, float)}


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Service]]:
    root = tmp_path_factory.mktemp("models")
    with running(root / "birds") as birds, running(root / "fish") as fish:
        yield {"birds": birds, "fish": fish}


def test_each_model_learns_its_own(services: dict[str, Service]) -> None:
    client = TestClient(Models(services, audited=True), base_url=HERE)
    before = services["fish"].writer.acknowledged
    body = as_json((png(picture(0)), "robin"))
    answer = client.post("/models/birds/learn?wait=true", json=body)
    assert answer.json()["applied"] is True
    assert services["fish"].writer.acknowledged == before
    image = {"images": [body["samples"][0]["image"]]}
    assert client.post("/models/birds/predict", json=image).json()["predictions"][0]["label"] == "robin"
    assert client.post("/models/fish/predict", json=image).json()["predictions"][0]["label"] is None
    listed = client.get("/models").json()["models"]
    assert [(one["name"], one["path"], one["classes"]) for one in listed] == [
        ("birds", "/models/birds", 1),
        ("fish", "/models/fish", 0),
    ]
    assert (services["birds"].folder / "audit.jsonl").exists()
    assert not (services["fish"].folder / "audit.jsonl").exists()
    assert client.get("/models/birds").url.path == "/models/birds/"
    assert client.get("/models/birds/").text.startswith("<!doctype html>")
    assert client.get("/models/birds/page.js").status_code == 200
    assert client.get("/models/birds/openapi.json").json()["servers"] == [{"url": "/models/birds"}]
    for path in ("/models/cats/status", "/status", "/label", "/docs", "/models/birds/models/fish/status"):
        assert client.get(path).status_code == 404, path
    for answer in (client.get("/models/cats/status"), client.post("/models/cats/learn"), client.get("/models/cats")):
        assert answer.status_code == 404
        assert "no model of this name" in answer.json()["detail"]


def test_the_page_lists_the_models_with_their_states(services: dict[str, Service], tmp_path: Path) -> None:
    add_token(tmp_path / "tokens.toml", "some", "read")
    client = TestClient(Models(services, Access(file=tmp_path / "tokens.toml")), base_url=HERE)
    page = client.get("/")  # it names no model, so it needs no token
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert not any(name in page.text for name in services)
    for file in re.findall(r'(?:src|href)="([a-z.]+)"', page.text):
        assert client.get(f"/{file}").status_code == 200, file
    client = TestClient(Models(services), base_url=HERE)
    services["fish"].draining = True
    listed = {one["name"]: one for one in client.get("/models").json()["models"]}
    services["fish"].draining = False
    assert (listed["birds"]["reason"], listed["fish"]["reason"]) == (None, "stopping")
    assert (listed["birds"]["queue"], listed["birds"]["vectors"]) == (0, False)


def test_metrics_and_health_of_all(services: dict[str, Service]) -> None:
    client = TestClient(Models(services), base_url=HERE)
    text = client.get("/metrics").text
    for name in services:
        assert f'ocil_classes{{model="{name}"}}' in text
    assert text.count("# TYPE ocil_classes gauge") == 1
    assert text.count("# TYPE ocil_step_seconds histogram") == 1
    assert 'ocil_step_seconds_bucket{le="+Inf",model="birds"}' in text
    assert client.get("/health/ready").status_code == 200
    services["fish"].draining = True
    assert client.get("/health/ready").status_code == 503
    assert client.get("/models/birds/health/ready").status_code == 200
    services["fish"].draining = False


def test_tokens_are_for_some_models(services: dict[str, Service], tmp_path: Path) -> None:
    file = tmp_path / "tokens.toml"
    some, every = add_token(file, "some", "read", ("fish",)), add_token(file, "every", "write")
    client = TestClient(Models(services, Access(file=file)), base_url=HERE)

    def status(path: str, token: str) -> int:
        return int(client.get(path, headers={"authorization": f"Bearer {token}"}).status_code)

    assert client.get("/models").status_code == 401
    assert client.get("/models/cats/status").status_code == 401  # which models there are is not told
    assert (status("/models/fish/status", some), status("/models/birds/status", some)) == (200, 403)
    assert (status("/models/fish/status", every), status("/models/birds/status", every)) == (200, 200)
    headers = {"authorization": f"Bearer {some}"}
    assert [one["name"] for one in client.get("/models", headers=headers).json()["models"]] == ["fish"]
    text = client.get("/metrics", headers=headers).text
    assert 'model="fish"' in text
    assert "birds" not in text


def test_folders_of_models(tmp_path: Path) -> None:
    with pytest.raises(OcilError, match="has no folder with a model"):
        model_folders(tmp_path, KNOWN)
    with pytest.raises(OcilError, match="is not a folder"):
        model_folders(tmp_path / "missing", KNOWN)
    for name in ("birds", "fish"):
        (tmp_path / name).mkdir()
        Model(RECIPE, FORM).save(tmp_path / name)
    (tmp_path / "other").mkdir()
    (tmp_path / "serve.toml").write_text("[fish]\nmax_queue = 70\nsave_seconds = 5\n")
    assert [(one.name, one.options) for one in model_folders(tmp_path, KNOWN)] == [
        ("birds", {}),
        ("fish", {"max_queue": 70, "save_seconds": 5}),
    ]
    for content, message in (
        ("[cats]\nmax_queue = 5", "names cats, which is not the folder of a model"),
        ("[fish]\nqueue = 5", "queue = 5 of fish is wrong. Known: max_queue"),
        ("[fish]\nmax_queue = true", "max_queue = True of fish is wrong"),
        ("[fish]\nkeep_log = 1", "keep_log = 1 of fish is wrong"),
        ("max_queue = 5", "one table per model"),
        ("[", "cannot be read"),
    ):
        (tmp_path / "serve.toml").write_text(content)
        with pytest.raises(OcilError, match=message):
            model_folders(tmp_path, KNOWN)
    (tmp_path / "fish").rename(tmp_path / "a fish")
    with pytest.raises(OcilError, match="cannot stand in an address"):
        model_folders(tmp_path, KNOWN)


def test_models_of_different_precision_are_refused(
    services: dict[str, Service], monkeypatch: pytest.MonkeyPatch
) -> None:
    def give(precisions: dict[str, Precision], device: str) -> None:
        for name, precision in precisions.items():
            model = services[name].model
            monkeypatch.setattr(model, "config", replace(model.config, precision=precision))
            monkeypatch.setattr(model.learner, "device", torch.device(device))

    give({"birds": "tf32", "fish": "bf16"}, "cuda")
    refuse_mixed(services)
    give({"birds": "tf32", "fish": "fp32"}, "cpu")
    refuse_mixed(services)
    give({"birds": "tf32", "fish": "fp32"}, "cuda")
    with pytest.raises(OcilError, match=r"different precision .*birds: tf32, fish: fp32"):
        refuse_mixed(services)


def test_the_command_line_opens_all_models(ocil_command: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("birds", "fish"):
        (tmp_path / name).mkdir()
        model = Model(RECIPE, FORM)
        model.learn(np.stack([picture(0)[:, :, None]]), [name])
        model.save(tmp_path / name)
    (tmp_path / "serve.toml").write_text("[fish]\nmax_queue = 70\n")
    seen = {}

    def answer(services: dict[str, Service], *_: Any) -> None:
        seen.update({name: (one.limits.queue, one.model.labels) for name, one in services.items()})
        for one in reversed(services.values()):
            one.log.close()
            one._opened.close()

    monkeypatch.setattr("ocil.serve.run.serve", answer)
    assert ocil_command("serve", "--models", tmp_path, "--port", 0).code == 0
    assert seen == {"birds": (1000, ["birds"]), "fish": (70, ["fish"])}
    assert "give --model FOLDER for one model" in one_error(ocil_command("serve"))
    assert "give --model" in one_error(ocil_command("serve", "--models", tmp_path, "--model", tmp_path / "fish"))
    assert "serves models that exist" in one_error(ocil_command("serve", "--models", tmp_path, "--method", "er"))
