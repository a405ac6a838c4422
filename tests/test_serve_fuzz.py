"""Whatever is sent to ``ocil serve``, the answer is as described and never a server error."""

import base64
import io
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ocil.data.bounded_images import FORMATS
from ocil.serve.limits import Limits
from ocil.serve.service import Service
from tests.serving import picture, png, running

pytest.importorskip("fastapi")
pytest.importorskip("python_multipart")
pytest.importorskip("httpx2")
schemathesis = pytest.importorskip("schemathesis")
from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from starlette.testclient import TestClient  # noqa: E402

from ocil.serve.app import create_app  # noqa: E402

pytestmark = [pytest.mark.usefixtures("quick_convolution"), pytest.mark.slow]
HERE = "http://127.0.0.1:8000"
IMAGES = st.integers(0, 200).map(lambda value: png(picture(value)))

schemathesis.openapi.format("base64-image", IMAGES.map(lambda content: base64.b64encode(content).decode()))
schemathesis.openapi.media_type("image/png", IMAGES)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    limits = Limits(batch=4, classes=10**6, queue=10**6, label=30)
    with running(tmp_path_factory.mktemp("model"), limits=limits) as service:
        yield service


@pytest.fixture(scope="module")
def description(service: Service) -> Any:
    return schemathesis.openapi.from_asgi("/openapi.json", create_app(service, hosts=None))


@pytest.fixture(scope="module")
def client(service: Service) -> Iterator[Any]:
    with TestClient(create_app(service), base_url=HERE) as client:
        yield client


OPERATIONS = (("POST", "/learn"), ("POST", "/predict"), ("GET", "/status"), ("GET", "/memory"), ("GET", "/metrics"))
CHANGES = (
    ("GET", "/samples"),
    ("GET", "/samples/{number}"),
    ("PUT", "/samples/{number}"),
    ("DELETE", "/samples/{number}"),
    ("POST", "/review"),
    ("GET", "/versions"),
    ("POST", "/versions"),
    ("GET", "/versions/compare"),
    ("PUT", "/versions/pinned"),
    ("DELETE", "/versions/{name}"),
    ("POST", "/versions/{name}/restore"),
    ("PUT", "/held-out"),
    ("GET", "/backup"),
    ("GET", "/health"),
    ("GET", "/health/live"),
    ("GET", "/health/ready"),
    ("POST", "/label/images"),
    ("GET", "/label/images"),
    ("GET", "/label/queue"),
    ("GET", "/label/labels.csv"),
    ("GET", "/label/images/{number}"),
    ("DELETE", "/label/images/{number}"),
    ("PUT", "/label/images/{number}/label"),
    ("DELETE", "/label/images/{number}/label"),
    ("POST", "/label/images/{number}/skip"),
    ("DELETE", "/label/images/{number}/skip"),
)
"""Few requests of each: many of them name a sample or a version that is not there."""


def test_every_operation_is_fuzzed(description: Any) -> None:
    found = {(one.ok().method.upper(), one.ok().path) for one in description.get_all_operations()}
    assert found == {*OPERATIONS, *CHANGES}


INPUTS = [("POST", "/learn"), ("POST", "/predict"), ("GET", "/memory")]
CASES = [(*operation, "positive") for operation in OPERATIONS] + [(*operation, "negative") for operation in INPUTS]


@pytest.mark.parametrize(("method", "path", "mode"), CASES)
def test_as_described(description: Any, method: str, path: str, mode: str) -> None:
    """Valid requests are answered as described, invalid ones refused as described."""
    tried: list[int] = []
    strategy = description[path][method].as_strategy(generation_mode=schemathesis.GenerationMode(mode))

    @settings(max_examples=100, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
    @given(case=strategy)
    def ask(case: Any) -> None:
        # Its forms have as many labels as they please, and files without a name, which count as text.
        left_out = [schemathesis.checks.positive_data_acceptance] if case.media_type == "multipart/form-data" else []
        tried.append(case.call_and_validate(excluded_checks=left_out).status_code)

    ask()
    assert (200 if mode == "positive" else 422) in tried
    assert all(status < 500 for status in tried)


@pytest.mark.parametrize(("method", "path"), CHANGES)
def test_changes_as_described(description: Any, method: str, path: str) -> None:
    tried: list[int] = []
    strategy = description[path][method].as_strategy()

    @settings(max_examples=10, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
    @given(case=strategy)
    def ask(case: Any) -> None:
        left_out = [schemathesis.checks.positive_data_acceptance]
        tried.append(case.call_and_validate(excluded_checks=left_out).status_code)

    ask()
    assert all(status < 500 for status in tried)


def as_file(kind: str, size: tuple[int, int] = (20, 20), mode: str = "RGB") -> bytes:
    file = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (*size, 3)).astype(np.uint8)
    Image.fromarray(noise).convert(mode).save(file, kind)
    return file.getvalue()


def test_images_of_every_kind_are_read(client: Any) -> None:
    for kind in FORMATS:
        assert client.post("/predict", files={"image": as_file(kind)}).status_code == 200, kind
    for mode in ("1", "L", "LA", "P", "RGBA", "I;16"):
        assert client.post("/predict", files={"image": as_file("PNG", mode=mode)}).status_code == 200, mode
    assert client.post("/predict", files={"image": as_file("JPEG", mode="CMYK")}).status_code == 200


@pytest.mark.parametrize("kind", FORMATS)
def test_broken_images_are_refused_or_read_but_never_an_error(client: Any, kind: str) -> None:
    """Cut short, with bytes changed, with rubbish inside."""
    moment = random.Random(7)
    whole, answers = as_file(kind), []
    for number in range(60):
        broken = bytearray(whole)
        if number % 3 == 0:
            del broken[moment.randrange(len(broken)) :]
        for _ in range(moment.choice((1, 3, 30)) if number % 3 and broken else 0):
            broken[moment.randrange(len(broken) if number % 2 else min(64, len(broken)))] = moment.randrange(256)
        answers.append(client.post("/predict", files={"image": bytes(broken)}))
    assert {answer.status_code for answer in answers} <= {200, 413, 422}
    assert any(answer.status_code == 422 for answer in answers)


@pytest.mark.parametrize(
    "content",
    [
        b"\x89PNG\r\n\x1a\n",
        b"GIF89a",
        b"\xff\xd8\xff",
        b"BM",
        b"II*\0",
        b"P6\n99999 99999\n255\n",
        b"RIFF1234WEBPVP8 ",
        b"<svg xmlns='http://www.w3.org/2000/svg'/>",
        b"%PDF-1.4",
        b"\0" * 100,
        b"%!PS-Adobe-3.0 EPSF-3.0\n",
    ],
)
def test_what_only_begins_like_an_image_is_refused(client: Any, content: bytes) -> None:
    assert client.post("/predict", files={"image": content}).status_code in (413, 422)


def test_random_bytes_on_every_path(client: Any) -> None:
    moment = random.Random(11)
    kinds = ("application/json", "multipart/form-data; boundary=b", "text/plain", "multipart/form-data", "")
    pieces = (
        b"--b",
        b"--b--",
        b"\r\n",
        b'Content-Disposition: form-data; name="image"; filename="x"',
        b"\0\xff",
        b"{",
        b"[",
    )
    for number in range(300):
        body = b"".join(moment.choice(pieces) for _ in range(moment.randrange(12))) + moment.randbytes(
            moment.randrange(40)
        )
        path = moment.choice(("/learn", "/predict", "/status", "/memory", "/x"))
        answer = client.request(
            moment.choice(("POST", "GET", "PUT")), path, content=body, headers={"content-type": kinds[number % 5]}
        )
        assert 200 <= answer.status_code < 500, (path, body)
        assert answer.status_code >= 400 or path in ("/status", "/memory")
