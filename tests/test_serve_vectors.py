"""``ocil serve`` with a model of vectors: requests, the log, replay, limits, and who is refused."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ocil.errors import OcilError
from ocil.online.model import Model, Recipe
from ocil.online.vectors import VectorFormat
from ocil.runs.environment import digest
from ocil.serve.limits import Limits
from ocil.serve.log import Log
from ocil.serve.records import SampleRecord, parsed
from ocil.serve.service import Service
from tests.serving import FORM as IMAGES
from tests.serving import as_json, batches_of, picture, png, relearned, running

pytest.importorskip("fastapi")
pytest.importorskip("python_multipart")
pytest.importorskip("httpx2")
from starlette.testclient import TestClient

from ocil.serve.app import create_app

HERE = "http://127.0.0.1:8000"
RECIPE, FORM = Recipe("er", memory=20, batch_size=4), VectorFormat(5)
SMALL = Limits(batch=8, label=20, wait_seconds=20)
SECONDS = 60


def vector(kind: int, number: int = 0) -> list[float]:
    noise = np.random.default_rng(1000 * kind + number).normal(size=5)
    return [float(value) for value in (3 * kind + noise).astype(np.float32)]


def learning(*samples: tuple[int, int]) -> dict[str, Any]:
    return {"samples": [{"vector": vector(kind, number), "label": f"class {kind}"} for kind, number in samples]}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running(tmp_path_factory.mktemp("model"), RECIPE, FORM, limits=SMALL) as service:
        yield service


@pytest.fixture(scope="module")
def client(service: Service) -> Iterator[Any]:
    with TestClient(create_app(service), base_url=HERE) as client:
        yield client


def refused(answer: Any, status: int, pattern: str) -> None:
    assert answer.status_code == status, answer.text
    assert re.search(pattern, answer.json()["detail"]), answer.text
    assert "\n" not in answer.json()["detail"]


def test_the_way_of_a_vector(tmp_path: Path) -> None:
    with running(tmp_path, RECIPE, FORM) as service, TestClient(create_app(service), base_url=HERE) as client:
        for number in range(6):
            answer = client.post("/learn?wait=true", json=learning(*[(kind, number) for kind in range(3)]))
            assert answer.json()["applied"]
        found = client.post("/predict?top=2", json={"vectors": [vector(0, 99), vector(2, 99)]}).json()
        assert [one["label"] for one in found["predictions"]] == ["class 0", "class 2"]
        assert len(found["predictions"][0]["classes"]) == 2
        status = client.get("/status").json()
        assert (status["image"], status["vector"], status["memory_stored"]) == (None, 5, 18)
        memory = client.get("/memory").json()
        assert [(one["stored"], one["images"]) for one in memory["classes"]] == [(6, [])] * 3
        assert client.get("/docs").status_code == 200
    assert digest(Model.load(tmp_path, "cpu").learner) == digest(relearned(tmp_path, RECIPE, FORM).learner)


def test_what_was_acknowledged_survives_a_kill(tmp_path: Path) -> None:
    """The files as they are at some moment are what a killed process leaves behind."""
    with running(tmp_path / "alive", RECIPE, FORM) as service:
        x = np.array([vector(number % 3, number) for number in range(30)], np.float32)
        receipts = []
        for first in range(0, 30, 3):
            labels = [f"class {number % 3}" for number in range(first, first + 3)]
            receipts.append(service.writer.submit(x[first : first + 3], labels, f"key {first}", f"{first}"))
        assert [receipt.result(SECONDS).first for receipt in receipts] == list(range(1, 31, 3))
        shutil.copytree(tmp_path / "alive", tmp_path / "killed", ignore=shutil.ignore_patterns("*.tmp"))
    with running(tmp_path / "killed", RECIPE, FORM) as service:
        again = service.writer.submit(x[:3], ["class 0", "class 1", "class 2"], "key 0", "0").result(SECONDS)
        assert (again.first, again.repeated) == (1, True)
    killed = tmp_path / "killed"
    learned = [one for batch in batches_of(killed) for one in batch]
    assert [number for number, _, _ in learned] == list(range(1, 31))
    assert np.array_equal(np.stack([inputs for _, _, inputs in learned]), x)
    assert digest(Model.load(killed, "cpu").learner) == digest(relearned(killed, RECIPE, FORM).learner)


def test_a_key_is_learned_once(client: Any, service: Service) -> None:
    before = service.log.last
    headers = {"Idempotency-Key": "once"}
    first = client.post("/learn", json=learning((0, 1)), headers=headers).json()
    again = client.post("/learn", json=learning((0, 1)), headers=headers).json()
    assert (again["first"], again["repeated"], service.log.last) == (first["first"], True, before + 1)
    refused(client.post("/learn", json=learning((0, 2)), headers=headers), 409, "Idempotency-Key came before")


@pytest.mark.parametrize(
    ("path", "body", "status", "pattern"),
    [
        ("/learn", {"samples": [{"vector": [1, 2], "label": "a"}]}, 422, "vector 1 has 2 numbers, the model takes 5"),
        ("/predict", {"vectors": [[0] * 5, [0] * 6]}, 422, "vector 2 has 6 numbers"),
        ("/predict", {"vectors": []}, 422, "vectors: "),
        ("/predict", {"vectors": [[]]}, 422, r"vectors\.0: "),
        ("/predict", {"vectors": [["1"] * 5]}, 422, r"vectors\.0\.0: "),
        ("/predict", {"vectors": [[True] * 5]}, 422, r"vectors\.0\.0: "),
        ("/predict", {"vectors": [[None] * 5]}, 422, r"vectors\.0\.0: "),
        ("/predict", {"vectors": [[1e39] * 5]}, 422, "vector 1 has a number that is too large for float32"),
        ("/predict", {"vectors": [[0] * 5] * 9}, 422, "the most in one request is 8"),
        ("/predict", {"vectors": [[0] * 5] * 400}, 422, "far more parts"),
        ("/learn", {"samples": [{"vector": [0] * 5, "label": ""}]}, 422, "label"),
        ("/predict", {"images": ["AA=="]}, 400, "this model takes vectors of 5 numbers, not images"),
        ("/learn", as_json((b"x", "a")), 400, "this model takes vectors of 5 numbers, not images"),
    ],
)
def test_what_is_refused(client: Any, path: str, body: Any, status: int, pattern: str) -> None:
    refused(client.post(path, json=body), status, pattern)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_none(client: Any, number: str) -> None:
    content = f'{{"vectors": [[0, 0, 0, 0, {number}]]}}'
    answer = client.post("/predict", content=content, headers={"Content-Type": "application/json"})
    refused(answer, 422, "finite|JSON|number")


def test_each_kind_of_model_refuses_the_other_kind(client: Any, tmp_path: Path) -> None:
    image = ("x.png", png(picture(0)))
    refused(client.post("/predict", files={"image": image}), 400, "takes vectors of 5 numbers, not images")
    refused(client.post("/learn", files={"image": image}, data={"label": "a"}), 400, "takes vectors of 5 numbers")
    with running(tmp_path) as service, TestClient(create_app(service), base_url=HERE) as images:
        refused(images.post("/predict", json={"vectors": [[0] * 5]}), 400, "takes images, not vectors")
        refused(images.post("/learn", json=learning((0, 1))), 400, "takes images, not vectors")


def test_the_description_names_vectors_alone(client: Any) -> None:
    api = client.get("/openapi.json").json()
    assert list(api["paths"]["/learn"]["post"]["requestBody"]["content"]) == ["application/json"]
    schemas = api["components"]["schemas"]
    assert schemas["LabelledVector"]["properties"]["vector"]["minItems"] == 5
    assert schemas["PredictVectorsRequest"]["properties"]["vectors"]["items"]["maxItems"] == 5
    assert "LabelledImage" not in schemas
    json.dumps(api)


def test_half_precision_stays_in_the_log(tmp_path: Path) -> None:
    form = VectorFormat(5, "float16")
    with running(tmp_path, RECIPE, form) as service:
        x = form.read([vector(0), vector(1)])
        service.writer.submit(x, ["a", "b"]).result(SECONDS)
    (record,) = [one for one in Log(tmp_path / "log", 0).replay() if isinstance(one, SampleRecord)]
    assert record.inputs.dtype == np.float16
    assert np.array_equal(record.inputs, x)
    assert Model.load(tmp_path, "cpu").learner.memory.images.dtype.itemsize == 2


def test_a_log_of_other_inputs_is_refused(tmp_path: Path) -> None:
    Log(tmp_path, 0, FORM).append([SampleRecord(1, ("a",), FORM.read([vector(0)]))])
    for form in (VectorFormat(6), VectorFormat(5, "float16"), IMAGES):
        with pytest.raises(OcilError, match=r"holds inputs of 5 \(float32\), but the model takes"):
            Log(tmp_path, 0, form)


def test_records_of_an_unknown_type() -> None:
    body = SampleRecord(1, ("a",), FORM.read([vector(0)])).body()
    with pytest.raises(ValueError, match="KeyError"):
        parsed(body.replace(b"float32", b"float64"))
