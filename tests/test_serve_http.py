"""``ocil serve`` over HTTP: requests, answers, limits, and who may ask."""

import base64
import io
import json
import re
import struct
import threading
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ocil.online.images import ImageFormat
from ocil.online.model import FILE, Model
from ocil.runs.environment import digest
from ocil.serve import pictures
from ocil.serve.limits import Limits, RefusedError
from ocil.serve.service import Service
from tests.serving import as_json, picture, png, relearned, running

pytest.importorskip("fastapi")
pytest.importorskip("python_multipart")
pytest.importorskip("httpx2")
from starlette.testclient import TestClient

from ocil.serve.app import create_app
from ocil.serve.guard import LOOPBACK, PATHS, PUBLIC
from ocil.serve.label_studio import LabelStudio
from ocil.serve.label_studio_images import TaskImages
from ocil.serve.routes import DECODED_TOGETHER
from ocil.serve.tokens import Access, digest_of

pytestmark = pytest.mark.usefixtures("quick_convolution")
HERE = "http://127.0.0.1:8000"
SMALL = Limits(body_bytes=40_000, pixels=10_000, batch=5, label=20, wait_seconds=20)


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with running(tmp_path_factory.mktemp("model"), limits=SMALL) as service:
        yield service


@pytest.fixture(scope="module")
def client(service: Service) -> Iterator[Any]:
    with TestClient(create_app(service), base_url=HERE) as client:
        yield client


def refused(answer: Any, status: int, pattern: str) -> None:
    assert answer.status_code == status, answer.text
    assert answer.json().keys() == {"detail", "request_id"}
    assert answer.json()["request_id"] == answer.headers["x-request-id"]
    assert re.search(pattern, answer.json()["detail"]), answer.text
    assert "\n" not in answer.json()["detail"]


def form(*samples: tuple[int, str]) -> dict[str, Any]:
    images = [("image", (f"{n}.png", png(picture(value, n)))) for n, (value, _) in enumerate(samples)]
    return {"files": images, "data": {"label": [label for _, label in samples]}}


def test_the_way_of_an_image(tmp_path: Path) -> None:
    with running(tmp_path) as service, TestClient(create_app(service), base_url=HERE) as client:
        unknown = client.post("/predict", files={"image": png(picture(0))})
        assert unknown.json() == {
            "predictions": [{"label": None, "probability": None, "classes": []}],
            "model_samples": 0,
        }
        first = client.post("/learn?wait=true", **form((0, "dark"), (200, "light")))
        assert first.json() == {
            "first": 1,
            "last": 2,
            "count": 2,
            "repeated": False,
            "applied": True,
            "learned": 2,
            "model_samples": 2,
        }
        second = client.post("/learn?wait=true", json=as_json((png(picture(100)), 7)))
        assert (second.json()["first"], second.json()["applied"]) == (3, True)
        found = client.post("/predict?top=2", json={"images": [base64.b64encode(png(picture(9))).decode()] * 2}).json()
        assert found["model_samples"] == 3
        assert len(found["predictions"]) == 2
        best = found["predictions"][0]
        assert len(best["classes"]) == 2
        assert best["classes"][0] == {"label": best["label"], "probability": best["probability"]}
        assert best["classes"][0]["probability"] >= best["classes"][1]["probability"]
        status = client.get("/status").json()
        assert (status["acknowledged"], status["learned"], status["model_samples"]) == (3, 3, 3)
        assert [(one["label"], one["learned"]) for one in status["classes"]] == [("dark", 1), ("light", 1), (7, 1)]
        assert (status["memory_size"], status["memory_stored"], status["method"]) == (20, 3, "er")
        assert (status["image"], status["problem"], status["queue"]) == ([12, 12, 1], None, 0)
    assert digest(Model.load(tmp_path, "cpu").learner) == digest(relearned(tmp_path).learner)


def test_a_jpeg_of_very_many_scans_is_refused(client: Any) -> None:
    """Each takes some bytes and passes over all pixels: a file of 100 kB would be decoded for a minute."""
    file = io.BytesIO()
    Image.new("L", (64, 64)).save(file, "JPEG", progressive=True)
    whole = file.getvalue()
    scan = whole[whole.rindex(b"\xff\xda") : -2]
    bomb = whole[:-2] + 40 * scan + whole[-2:]
    for path in ("/predict", "/learn"):
        sent = {"data": {"label": ["a"]}} if path == "/learn" else {}
        refused(client.post(path, files={"image": bomb}, **sent), 422, "^image 1 has more than 32 scans, which is")
    # Where a decoder waits for a restart it passes over a marker that means nothing, but not over a length behind it.
    hidden = whole[:-2] + b"\xff\x02\xff\xff" + 40 * scan + whole[-2:]
    refused(client.post("/predict", files={"image": hidden}), 422, "^image 1 has more than 32 scans, which is")
    with_film = whole + 40 * scan  # as telephones append a short film
    assert client.post("/predict", files={"image": with_film}).status_code == 200
    with_preview = whole[:2] + b"\xff\xe5" + (2 + 40 * len(scan)).to_bytes(2, "big") + 40 * scan + whole[2:]
    assert client.post("/predict", files={"image": with_preview}).status_code == 200


def png_chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def encoded_as(kind: str, pixels: Any, **options: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **options)
    return file.getvalue()


def many_parts(kind: str) -> bytes:
    """A file of a few kilobytes per thousand parts. Of 15 MB, some would take minutes, or all memory."""
    whole = encoded_as(kind, picture(7))
    if kind == "JPEG":
        return whole[:2] + 600 * b"\xff\xfe\x00\x03a" + whole[2:]
    if kind == "GIF":
        at = whole.index(b",", 13)
        return whole[:at] + b"!\xfe" + 20_000 * b"\x01a" + b"\0" + whole[at:]
    return whole[:33] + 20_000 * png_chunk(b"abCd", b"") + whole[33:]


def decode(content: bytes) -> Any:
    return pictures.decode(content, ImageFormat((12, 12, 1)), Limits(), "it")


@pytest.mark.parametrize("kind", ["JPEG", "GIF", "PNG"])
def test_a_file_of_very_many_parts_is_refused(kind: str) -> None:
    with pytest.raises(RefusedError, match=r"^it has far more parts than an image needs"):
        decode(many_parts(kind))


def test_exif_data_that_would_fill_the_memory_are_refused() -> None:
    """Its entries are copies, each of which may be as long as all of it."""
    jpeg, plain = encoded_as("JPEG", picture(7)), png(picture(7))
    with pytest.raises(RefusedError, match=r"^it has far more parts than an image needs"):
        decode(jpeg[:2] + 3 * b"\xff\xe1\x00\x0cExif\0\0abcd" + jpeg[2:])
    as_text = b"Raw profile type exif\0" + b"\nexif\n 9\n".ljust(2**18 + 1, b"4")
    for chunk in (png_chunk(b"eXIf", b"II*\0\x08\0\0\0".ljust(2**17 + 1)), png_chunk(b"tEXt", as_text)):
        for at in (33, -12):  # in front of the pixels, and behind them
            with pytest.raises(RefusedError, match=r"^it has more than 128 KiB of EXIF data"):
                decode(plain[:at] + chunk + plain[at:])
    turned = Image.Exif()
    turned[274] = 6
    photo = encoded_as("JPEG", picture(7), exif=turned, icc_profile=bytes(2**18))
    assert decode(photo).shape == (12, 12, 1)


def test_a_tiff_with_a_jpeg_of_very_many_scans_is_refused() -> None:
    whole = encoded_as("TIFF", np.zeros((64, 64, 3), np.uint8), compression="jpeg")
    assert decode(whole).shape == (12, 12, 1)
    with pytest.raises(RefusedError, match=r"^it has more than 32 scans"):
        decode(whole + 40 * b"\xff\xda")


def test_a_png_with_two_headers_is_not_taken_for_a_small_one() -> None:
    """It would be decoded while all other clients wait."""
    small = png(picture(7))
    both = small[:33] + encoded_as("PNG", np.zeros((1500, 1500), np.uint8))[8:]
    assert len(both) < pictures.QUICK_BYTES
    assert pictures.is_quick(small)
    assert not pictures.is_quick(both)


def tiff(*entries: tuple[int, int, int, int], content: bytes = b"") -> bytes:
    tags = b"".join(struct.pack("<HHII", *entry) for entry in sorted(entries))
    return b"II*\0" + struct.pack("<IH", 8, len(entries)) + tags + bytes(4) + content


def size(side: int) -> list[tuple[int, int, int, int]]:
    return [(256, 4, 1, side), (257, 4, 1, side), (258, 3, 1, 8), (259, 3, 1, 8), (262, 3, 1, 1), (277, 3, 1, 1)]


RUNS = b"BM" + struct.pack("<IHHIIiiHHIIiiII", 0, 0, 0, 1078, 40, 8 * 10**6, 2, 1, 8, 1, 0, 0, 0, 256, 0)
TILES, VALUES = "has tiles of more than 16 million pixels", "has a tag with more than 65,536 values"
SLOW = {  # files of a few bytes that take minutes or gigabytes
    "one tile": (
        tiff(*size(16), (322, 4, 1, 40_000), (323, 4, 1, 40_000), (324, 4, 1, 0), (325, 4, 1, 0)),
        "has tiles of",
    ),
    "many tiles": (
        tiff(*size(16), (322, 4, 1, 16), (323, 4, 1, 10**6), (324, 4, 4096, 0)),
        TILES,
    ),
    "short tiles": (
        tiff(*size(16), (322, 3, 1, 60_000), (323, 3, 1, 60_000), (324, 4, 1, 0)),
        "has tiles of more than",
    ),
    "strips": (tiff(*size(16), (273, 1, 10**6, 0)), VALUES),
    "values": (tiff(*size(16), (40000, 5, 10**6, 0)), VALUES),
    "values of exif": (
        tiff((34665, 4, 1, 26), content=struct.pack("<HHHII", 1, 40000, 6, 10**6, 0)),
        VALUES,
    ),
    "a list of itself": (tiff((34665, 4, 1, 8), (34853, 4, 1, 8), (40965, 4, 1, 8)), "is not a readable image"),
    "tags": (tiff(*((40000, 1, 1, 0) for _ in range(5000))), "has more than 4,096 tags"),
    "BigTIFF": (b"II+\0" + bytes(40), "is a BigTIFF"),
    "comments": (b"P2\n4 4\n255\n" + 100 * b"#\n" + 16 * b"0 ", "has more than 64 comments"),
    "text": (b"P3\n2000 2000\n255\n" + b"1 1 1", "has more than 0.5 million pixels"),
    "runs": (RUNS + bytes(1024), "has more than 4 million pixels"),
    "profiles": (png(picture(7))[:33] + 300 * png_chunk(b"iCCP", b"a\0\0"), "has more than 256 texts and profiles"),
}


@pytest.mark.parametrize(("content", "wrong"), SLOW.values(), ids=SLOW)
def test_files_that_make_a_decoder_work_for_minutes_are_refused(content: bytes, wrong: str) -> None:
    with pytest.raises(RefusedError, match=f"^it {wrong}"):
        decode(content)


def test_what_cameras_and_programs_write_is_read() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (300, 400, 3), dtype=np.uint8)
    for kind, options in (
        ("TIFF", {"compression": "tiff_lzw"}),
        ("TIFF", {"compression": "jpeg"}),
        ("TIFF", {"tiffinfo": {278: 1}}),  # a strip per row
        ("BMP", {}),
        ("PPM", {}),
        ("GIF", {}),
        ("WEBP", {}),
        ("MPO", {"save_all": True, "append_images": [Image.fromarray(noise)]}),
    ):
        assert decode(encoded_as(kind, noise, **options)).shape == (12, 12, 1)
    deep = b"P6\n400 300\n1023\n" + (noise.astype(">u2") * 4).tobytes()  # Pillow reads each pixel of it by itself
    assert decode(deep).shape == (12, 12, 1)


def test_a_png_with_packed_texts_is_not_taken_for_a_small_one() -> None:
    plain = png(picture(7))
    for kind, content in ((b"zTXt", b"a\0\0"), (b"eXIf", b"II*\0"), (b"tEXt", b"Raw profile type exif\0")):
        assert not pictures.is_quick(plain[:33] + png_chunk(kind, content) + plain[33:])


def test_large_images_of_one_request_are_decoded_in_turns(tmp_path: Path) -> None:
    """So that the images of other requests come between them: the result is the same."""
    noise = [np.random.default_rng(n).integers(0, 256, (120, 120, 3), dtype=np.uint8) for n in range(3)]
    files = [("image", encoded_as("PNG", pixels)) for pixels in noise]
    assert sum(len(content) for _, content in files) > DECODED_TOGETHER
    with running(tmp_path) as service, TestClient(create_app(service), base_url=HERE) as client:
        client.post("/learn?wait=true", **form((0, "a"), (200, "b")))
        together = client.post("/predict", files=files).json()["predictions"]
        assert together == [client.post("/predict", files=[one]).json()["predictions"][0] for one in files]
        broken = [files[0], ("image", b"not an image"), files[2]]
        refused(client.post("/predict", files=broken), 422, "^image 2 is not a readable image")


def test_all_classes_probabilities_are_those_of_the_model(client: Any, service: Service) -> None:
    client.post("/learn?wait=true", **form((0, "a"), (100, "b"), (200, "c")))
    found = client.post("/predict", files={"image": png(picture(42))}).json()["predictions"][0]
    expected = service.model.probabilities(service.model.input_format.read([Image.fromarray(picture(42))]))[0]
    assert {one["label"]: one["probability"] for one in found["classes"]} == pytest.approx(
        dict(zip(service.model.labels, expected, strict=True))
    )
    assert sum(one["probability"] for one in found["classes"]) == pytest.approx(1)


def test_a_key_repeats_the_first_answer(client: Any, service: Service) -> None:
    key = {"Idempotency-Key": "a-key"}
    first = client.post("/learn", headers=key, **form((0, "a"), (100, "b"))).json()
    again = client.post("/learn", headers=key, **form((0, "a"), (100, "b"))).json()
    assert (again["first"], again["last"], again["repeated"]) == (first["first"], first["last"], True)
    assert service.writer.acknowledged == first["last"]
    refused(client.post("/learn", headers=key, **form((0, "a"))), 409, "Idempotency-Key came before")
    for bad in ("", "x" * 201, "two words", "\t"):
        refused(client.post("/learn", headers={"Idempotency-Key": bad}, **form((0, "a"))), 422, "1 to 200 visible")


def test_bodies_that_cannot_be_read(client: Any) -> None:
    refused(client.post("/learn", content=b"hello"), 415, "send multipart")
    refused(client.post("/learn", content=b"{", headers={"content-type": "application/json"}), 422, "Invalid JSON")
    for kind in ("multipart/form-data", "multipart/form-data; boundary=", "multipart/form-data; boundary=é; charset=q"):
        unreadable = {"content-type": kind.encode("latin-1")}
        refused(client.post("/learn", content=b"--x\r\n\r\n", headers=unreadable), 400, "form cannot be read")
    broken = b"--x\r\nContent-Disposition: form-data\r\n\r\nvalue\r\n--x--\r\n"
    headers = {"content-type": "multipart/form-data; boundary=x"}
    refused(client.post("/learn", content=broken, headers=headers), 400, "form cannot be read")
    deep = b'{"samples":' + b"[" * 20_000 + b"]" * 20_000 + b"}"
    refused(client.post("/learn", content=deep[:39_000], headers={"content-type": "application/json"}), 422, ".")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "samples: Field required"),
        ([], "valid dictionary|object"),
        ({"samples": []}, "at least 1"),
        ({"samples": [{"image": "!!", "label": "a"}]}, "image 1 is not base64"),
        ({"samples": [{"image": "aGk=", "label": "a"}]}, "image 1 is not a readable image"),
        ({"samples": [{"image": "", "label": "a"}]}, "at least 1 character"),
        ({"samples": [{"image": "aGk=", "label": True}]}, "label"),
        ({"samples": [{"image": "aGk=", "label": 1.5}]}, "label"),
        ({"samples": [{"image": "aGk=", "label": None}]}, "label"),
        ({"samples": [{"image": "aGk=", "label": 2**60}]}, "label"),
        ({"samples": [{"image": "aGk=", "label": "a", "path": "/etc/passwd"}]}, "Extra inputs"),
        ({"samples": [{"image": "/etc/passwd", "label": "a"}]}, "image 1 is not"),
    ],
)
def test_json_that_is_wrong(client: Any, body: Any, message: str) -> None:
    refused(client.post("/learn", json=body), 422, message)


INVISIBLE = [
    "\u200b",
    "\u200d\u200c",
    "\ufe0f",
    "\ufe00\ufe01",
    "\U000e0100",
    "\u3164",
    "\u115f\u1160",
    "\uffa0",
    "\u2800",
    "\u034f",
    "\u17b4",
    "\u180b",
    "\u00ad",
    "\u2060\ufeff",
    "\U000e0041",
    "\U0001d159",
    "\ufdd0",
    "\U0001fffe",
    "\u2800 \u3164\u200b \ufe0f",
]


@pytest.mark.parametrize("label", ["NaN", "Infinity", "-Infinity", "1e400", "1.5", "true", "false", "null", "[1]"])
def test_a_json_label_that_is_neither_text_nor_whole_is_not_acknowledged(
    client: Any, service: Service, label: str
) -> None:
    before = service.writer.acknowledged, service.log.last
    content = json.dumps(as_json((png(picture(0)), "LABEL"))).replace('"LABEL"', label)
    headers = {"content-type": "application/json"}
    answer = client.post("/learn", content=content, headers=headers)
    refused(answer, 422, "samples.0.label: a label is text of at least one character, or a whole number within")
    assert (service.writer.acknowledged, service.log.last) == before


@pytest.mark.parametrize(
    "label",
    ["", "   ", "x" * 21, "a\0b", "a\nb", "a\u2028b", "a\u2029b", "\x9f", "\u202eabc", "a\u200f", *INVISIBLE],
    ids=ascii,
)
def test_labels_that_are_refused(client: Any, service: Service, label: str) -> None:
    before = service.writer.acknowledged
    refused(client.post("/learn", json=as_json((png(picture(0)), label))), 422, "label")
    refused(client.post("/learn", **form((0, label))), 422, "label")
    assert service.writer.acknowledged == before


@pytest.mark.parametrize(
    "label", ["\u2764\ufe0f", "a\u200d", "\u0646\u200c\u0645", "\u28ff", "\U0001f600", "\ud55c"], ids=ascii
)
def test_invisible_parts_of_a_visible_label_are_kept(client: Any, service: Service, label: str) -> None:
    assert client.post("/learn?wait=true", **form((0, label))).status_code == 200
    assert label in service.statistics.labels


@pytest.mark.parametrize("label", [b"\xff", b"caf\xe9", b"\xed\xa0\x80", b"\xc0\xaf", b"a\x80"])
@pytest.mark.parametrize("charset", ["", "; charset=latin-1", "; charset=utf-16", "; charset=none"])
def test_labels_that_are_not_utf8_are_refused(client: Any, service: Service, label: bytes, charset: str) -> None:
    before = service.writer.acknowledged
    part = '--x\r\nContent-Disposition: form-data; name="{}"\r\n\r\n'
    image = part.format('image"; filename="i').encode() + png(picture(0)) + b"\r\n"
    body = image + part.format("label").encode() + label + b"\r\n--x--\r\n"
    headers = {"content-type": f"multipart/form-data; boundary=x{charset}"}
    refused(client.post("/learn", content=body, headers=headers), 422, "label is not UTF-8")
    content = json.dumps(as_json((png(picture(0)), "LABEL"))).encode().replace(b"LABEL", label)
    headers = {"content-type": f"application/json{charset}"}
    refused(client.post("/learn", content=content, headers=headers), 422, "Invalid JSON")
    assert service.writer.acknowledged == before


def test_a_number_in_a_form_and_in_json_are_one_class(tmp_path: Path) -> None:
    with running(tmp_path) as service, TestClient(create_app(service), base_url=HERE) as client:
        assert client.post("/learn?wait=true", **form((0, "1"))).status_code == 200
        assert (
            client.post("/learn?wait=true", json=as_json((png(picture(1)), 1), (png(picture(9)), 2))).status_code == 200
        )
        assert client.post("/learn?wait=true", **form((0, " 2 "), (5, "1"))).status_code == 200
        assert [(one["label"], one["learned"]) for one in client.get("/status").json()["classes"]] == [("1", 3), (2, 2)]


def test_a_lone_surrogate_is_refused(client: Any) -> None:
    body = json.dumps(as_json((png(picture(0)), "\ud800")))
    refused(client.post("/learn", content=body, headers={"content-type": "application/json"}), 422, ".")


def test_forms_that_are_wrong(client: Any) -> None:
    image = png(picture(0))
    refused(client.post("/learn", files={"image": image}), 422, "1 images and 0 labels")
    refused(client.post("/learn", files=[("image", image)], data={"label": ["a", "b"]}), 422, "1 images and 2 labels")
    refused(client.post("/learn", files={"image": image, "label": ("l.txt", b"a")}), 422, "label must be text")
    refused(client.post("/learn", data={"image": "text", "label": "a"}, files={"x": b"1"}), 422, "image must be a file")
    refused(client.post("/predict", files={"image": image}, data={"label": "a"}), 422, "not known")
    refused(client.post("/predict", files={"picture": image}), 422, "not known")
    refused(client.post("/learn", files={"image": b""}, data={"label": "a"}), 422, "image 1 is empty")


def test_a_form_that_stops_before_its_end_is_refused(client: Any, service: Service) -> None:
    """Its last image and label would be missing, and nobody would know."""
    part = '--x\r\nContent-Disposition: form-data; name="{}"\r\n\r\n'
    image = part.format('image"; filename="i').encode() + png(picture(0)) + b"\r\n"
    whole = image + part.format("label").encode() + b"a\r\n"
    headers = {"content-type": "multipart/form-data; boundary=x"}
    before = service.writer.acknowledged
    for end in (b"", b"--x", b"--x\r\n", image[:-30], b"--x-"):
        refused(client.post("/learn", content=whole + end, headers=headers), 400, "form cannot be read")
    assert service.writer.acknowledged == before
    for end in (b"--x--", b"--x--\r\n", b"--x--\r\nand more"):
        assert client.post("/learn", content=whole + end, headers=headers).status_code == 200


@pytest.mark.parametrize("one", [b"1,", b"[],", b"{},", b'"",'])
@pytest.mark.parametrize("path", ["/learn", "/predict"])
def test_a_list_of_nothing_is_refused_before_it_is_read(client: Any, path: str, one: bytes) -> None:
    """16 MiB of it took gigabytes: an object for each part, and one for each mistake."""
    name = b"samples" if path == "/learn" else b"images"
    body = b'{"' + name + b'":[' + one * 9000 + b"1]}"
    answer = client.post(path, content=body, headers={"content-type": "application/json"})
    refused(answer, 422, "far more parts than a request of 5 samples")


def test_a_file_name_is_never_used(client: Any, service: Service, tmp_path: Path) -> None:
    target = tmp_path / "evil.png"
    for name in (str(target), "../../../evil.png", "..%2f..%2fevil"):
        answer = client.post("/learn", files={"image": (name, png(picture(0)))}, data={"label": "../../a"})
        assert answer.status_code == 200
    assert not target.exists()
    found = {path.relative_to(service.folder).parts[0] for path in service.folder.rglob("*")}
    assert found - {f"samples.sqlite{end}" for end in ("", "-wal", "-shm")} <= {"log", "log.newest", FILE, ".lock"}


def test_too_many_images(client: Any) -> None:
    refused(client.post("/learn", **form(*[(0, "a")] * 6)), 422, "there are 6 images, the most in one request is 5")
    refused(client.post("/predict", files=[("image", png(picture(0)))] * 6), 422, "most in one request is 5")
    refused(client.post("/predict", files=[("image", png(picture(0)))] * 60), 400, "Too many files")


def test_too_many_classes(tmp_path: Path) -> None:
    few = running(tmp_path, limits=replace(SMALL, classes=6))
    with few as service, TestClient(create_app(service), base_url=HERE) as client:
        assert client.post("/learn", **form(*[(n, f"new {n}") for n in range(5)])).status_code == 200
        refused(client.post("/learn", **form(*[(n, f"newer {n}") for n in range(5)])), 422, "more than 6 classes")
        assert client.post("/learn", **form((0, "new 0"), (9, "last"))).status_code == 200


def huge_png(width: int, height: int) -> bytes:
    """A few bytes that claim to be a huge image, whole in every other way."""
    rows = zlib.compress(b"\0" * 1000)
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", head) + png_chunk(b"IDAT", rows) + png_chunk(b"IEND", b"")


@pytest.mark.parametrize("side", [101, 5000, 40_000, 2**31 - 1])
def test_a_huge_image_is_refused_by_its_header(client: Any, side: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def decode(*_: Any) -> None:
        raise AssertionError("it was decoded")

    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", decode)
    answer = client.post("/predict", files={"image": huge_png(side, side)})
    assert answer.status_code in (413, 422)  # Pillow itself refuses the largest
    assert "pixels" in answer.json()["detail"] or side == 2**31 - 1


@pytest.mark.parametrize("orientation", [1, 6])
def test_a_large_jpeg_is_decoded_at_a_smaller_scale(orientation: int) -> None:
    """Faster, and nearly the same pixels: it is resized afterwards anyway."""
    pixels = Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 60, 3)).astype(np.uint8))
    large, small = pixels.resize((1800, 1200), Image.Resampling.BICUBIC), ImageFormat((24, 36, 3))
    file, exif = io.BytesIO(), Image.Exif()
    exif[0x0112] = orientation
    large.save(file, "JPEG", quality=95, exif=exif)
    with Image.open(io.BytesIO(file.getvalue())) as whole:
        expected = small.read([whole])[0].astype(int)
    scales = []
    real = Image.Image.resize
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            Image.Image, "resize", lambda self, *what, **how: (scales.append(self.size), real(self, *what, **how))[1]
        )
        found = pictures.decode(file.getvalue(), small, Limits(), "image 1").astype(int)
    assert max(scales[0]) == 225  # an eighth
    assert np.abs(found - expected).mean() < 1
    assert np.abs(found - expected).max() < 8
    tiny = Image.fromarray(picture(90)).resize((100, 100))
    file = io.BytesIO()
    tiny.save(file, "JPEG")
    with Image.open(file) as whole:
        expected = ImageFormat((30, 30, 1)).read([whole])[0]
    assert np.array_equal(pictures.decode(file.getvalue(), ImageFormat((30, 30, 1)), Limits(), "image 1"), expected)


def test_a_body_that_is_too_long(client: Any) -> None:
    refused(client.post("/predict", files={"image": b"x" * 50_000}), 413, "more than 40000 bytes")
    body = json.dumps({"images": ["A" * 50_000]})
    refused(client.post("/predict", content=body, headers={"content-type": "application/json"}), 413, "40000")


@pytest.mark.parametrize("kind", ["application/json", "multipart/form-data; boundary=x"])
def test_a_body_without_a_length_is_read_only_so_far(client: Any, kind: str) -> None:
    read = 0

    def endless() -> Iterator[bytes]:
        nonlocal read
        yield (
            b'--x\r\nContent-Disposition: form-data; name="image"; filename="a"\r\n\r\n'
            if "x" in kind[-1]
            else b'{"a":"'
        )
        while read < 10_000_000:
            read += 1000
            yield b"x" * 1000

    answer = client.post("/predict", content=endless(), headers={"content-type": kind})
    refused(answer, 413, "more than 40000 bytes")
    assert answer.request.headers.get("content-length") is None


def test_large_bodies_at_once_are_refused(tmp_path: Path) -> None:
    limits = Limits(bodies_bytes=1000)
    with running(tmp_path, limits=limits) as service, TestClient(create_app(service), base_url=HERE) as client:
        for _ in range(2):  # what was taken is given back
            answer = client.post("/predict", files={"image": b"x" * 2000})
            refused(answer, 429, "too many large requests")
            assert answer.headers["retry-after"] == "1"
        assert client.post("/predict", files={"image": png(picture(0))}).status_code == 200


def test_a_full_queue_says_when_to_come_back(tmp_path: Path) -> None:
    limits = Limits(queue=4, batch=4)
    with running(tmp_path, limits=limits) as service, TestClient(create_app(service), base_url=HERE) as client:
        gate, learn = threading.Event(), service.model.learn
        service.model.learn = lambda *what: (gate.wait(300), learn(*what))[1]
        assert client.post("/learn", **form((0, "a"), (9, "b"), (0, "a"))).json()["applied"] is False
        answer = client.post("/learn", **form((0, "a"), (9, "b")))
        refused(answer, 429, "3 samples wait to be learned, the most there may be is 4")
        assert int(answer.headers["retry-after"]) >= 1
        assert client.post("/predict", files={"image": png(picture(0))}).status_code == 200
        gate.set()


def test_waiting_has_an_end(tmp_path: Path) -> None:
    limits = Limits(wait_seconds=0.1)
    with running(tmp_path, limits=limits) as service, TestClient(create_app(service), base_url=HERE) as client:
        gate, learn = threading.Event(), service.model.learn
        service.model.learn = lambda *what: (gate.wait(300), learn(*what))[1]
        answer = client.post("/learn?wait=true", **form((0, "a")))
        assert (answer.status_code, answer.json()["applied"], answer.json()["first"]) == (200, False, 1)
        made: list[int] = []
        service.stored_input = lambda number: service.trainer.between_steps(lambda: made.append(number))
        refused(client.get("/memory"), 503, "long step")
        refused(client.get("/samples/1"), 503, "long step")
        gate.set()
        service.trainer.between_steps(lambda: None).result(300)
        assert made == []  # what is not waited for any more is not done


def test_learning_that_failed_is_reported(tmp_path: Path) -> None:
    with running(tmp_path) as service, TestClient(create_app(service), base_url=HERE) as client:
        client.post("/learn?wait=true", **form((0, "a")))
        service.trainer._fail("the loss is not finite any more.")
        refused(client.post("/learn", **form((0, "a"))), 503, "learning has stopped: the loss is not finite")
        assert client.get("/status").json()["problem"] == "the loss is not finite any more."
        assert client.post("/predict", files={"image": png(picture(0))}).status_code == 200
        assert "ocil_learning_failed 1" in client.get("/metrics").text


def test_the_memory_as_thumbnails(client: Any, service: Service) -> None:
    client.post("/learn?wait=true", **form((0, "a"), (100, "b")))
    found = client.get("/memory?per_class=2&count=3").json()
    assert [one["label"] for one in found["classes"]] == list(service.statistics.labels[:3])
    start = "data:image/png;base64,"
    stored = {image.tobytes() for image in service.model.learner.memory.images.numpy()}
    for one in found["classes"]:
        assert len(one["images"]) == min(2, one["stored"])
        for address in one["images"]:
            assert address.startswith(start)
            with Image.open(io.BytesIO(base64.b64decode(address.removeprefix(start)))) as image:
                assert np.asarray(image).tobytes() in stored
    for query in ("per_class=0", "per_class=17", "count=101", "first=-1", "per_class=a"):
        refused(client.get(f"/memory?{query}"), 422, "query")


def test_answers_that_name_many_classes_are_bounded(tmp_path: Path) -> None:
    limits = Limits(body_bytes=5000, bodies_bytes=5000)
    with running(tmp_path, limits=limits) as service, TestClient(create_app(service), base_url=HERE) as client:
        client.post("/learn?wait=true", **form((0, "a"), (50, "b"), (100, "c")))

        def predict(images: int, top: int) -> Any:
            return client.post(f"/predict?top={top}", files=[("image", png(picture(0)))] * images)

        for _ in range(3):  # what an answer took is given back
            (found,) = predict(1, 1000).json()["predictions"]
            assert sorted(one["label"] for one in found["classes"]) == ["a", "b", "c"]  # as many as there are
        refused(predict(2, 1000), 422, "1000 classes for each of 2 inputs are too many")
        assert predict(2, 2).status_code == 200
        newest, gate, inside = service.trainer.snapshots.newest, threading.Event(), threading.Event()
        real = newest.probabilities
        object.__setattr__(newest, "probabilities", lambda x: (inside.set(), gate.wait(300), real(x))[2])
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(predict, 1, 1000)
            assert inside.wait(300)
            refused(predict(1, 1000), 429, "too many large requests at once")
            gate.set()
            assert first.result(20).status_code == 200
        assert predict(1, 1000).status_code == 200


def test_answers_about_the_memory_are_bounded(tmp_path: Path) -> None:
    light = running(tmp_path, limits=Limits(memory_bytes=3 * 144 + 143))
    with light as service, TestClient(create_app(service), base_url=HERE) as client:
        client.post("/learn?wait=true", **form(*[(n, "ab"[n % 2]) for n in range(8)]))
        found = client.get("/memory?per_class=16&count=100").json()["classes"]
        assert [(one["stored"], len(one["images"])) for one in found] == [(4, 1), (4, 1)]
    few = running(tmp_path, limits=Limits(memory_images=5))
    with few as service, TestClient(create_app(service), base_url=HERE) as client:
        found = client.get("/memory?per_class=16&count=100").json()["classes"]
        assert [(one["stored"], len(one["images"])) for one in found] == [(4, 2), (4, 2)]
    small = running(tmp_path, limits=Limits(memories_bytes=2**16 + 4 * 144))
    with small as service, TestClient(create_app(service), base_url=HERE) as client:
        for _ in range(3):  # what was taken is given back
            refused(client.get("/memory?per_class=1&count=2"), 429, "too many large requests")
            assert client.get("/memory?per_class=1&count=1").status_code == 200
            assert client.get("/memory?first=9").json()["classes"] == []


def test_thumbnails_are_drawn_in_a_thread_of_their_own(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images to be predicted must not wait for them."""
    names, draw = set(), pictures.as_png
    client.post("/learn?wait=true", **form((0, "a")))

    def drawn(pixels: np.ndarray) -> str:
        names.add(threading.current_thread().name)
        return draw(pixels)

    monkeypatch.setattr(pictures, "as_png", drawn)
    assert client.get("/memory").json()["classes"][0]["images"]
    assert {name.rpartition("_")[0] for name in names} == {"ocil-memory"}


LINE = re.compile(
    r'^(?P<name>[a-z_]+)(?:\{(?P<labels>(?:[a-z]+="(?:[^"\\\n]|\\.)*",?)+)\})? (?P<value>[-+.0-9e]+|\+Inf)$'
)


def test_metrics_are_prometheus_text(tmp_path: Path) -> None:
    with running(tmp_path) as service, TestClient(create_app(service), base_url=HERE) as client:
        client.post("/learn?wait=true", **form((0, "a")))
        client.get("/nowhere/at/all")
        answer = client.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    kinds: dict[str, str] = {}
    values: dict[str, dict[str, float]] = {}
    for line in answer.text.splitlines():
        if line.startswith("# TYPE "):
            name, kind = line.split()[2:]
            assert name not in kinds
            kinds[name] = kind
        elif not line.startswith("# HELP "):
            match = LINE.match(line)
            assert match, line
            values.setdefault(match["name"], {})[match["labels"] or ""] = float(match["value"])
    assert answer.text.endswith("\n")
    for name in values:
        assert name in kinds or re.sub("_(bucket|sum|count)$", "", name) in kinds
    assert values["ocil_classes"][""] == len(service.statistics.labels)
    assert (
        values["ocil_samples_acknowledged_total"][""]
        == service.writer.acknowledged
        == values["ocil_samples_learned"][""]
    )
    assert values["ocil_requests_total"]['path="other",status="404"'] == 1
    buckets = [v for k, v in values["ocil_request_seconds_bucket"].items() if 'path="/learn"' in k]
    assert buckets == sorted(buckets)
    assert buckets[-1] == values["ocil_request_seconds_count"]['path="/learn"']
    assert values["ocil_step_seconds_count"][""] == service.statistics.batches


def test_the_bounds_of_numbers_are_described(client: Any) -> None:
    described = client.get("/openapi.json").json()
    label = described["components"]["schemas"]["LabelledImage"]["properties"]["label"]
    number = next(kind for kind in label["anyOf"] if kind["type"] == "integer")
    assert (number["minimum"], number["maximum"]) == (1 - 2**53, 2**53 - 1)


def test_the_description_names_every_path_and_the_docs_show_it(client: Any) -> None:
    described = client.get("/openapi.json").json()
    for path in ("/learn", "/predict", "/status", "/memory", "/metrics", "/samples", "/health", "/health/ready"):
        assert path in described["paths"]
    assert described["paths"]["/learn"]["post"]["requestBody"]["content"].keys() == {
        "application/json",
        "multipart/form-data",
    }
    docs = client.get("/docs").text
    for word in ("POST /learn", "POST /predict", "GET /status", "Idempotency-Key", "LabelledImage"):
        assert word in docs
    assert "http://" not in docs
    assert "https://" not in docs
    assert "<script" not in docs


def test_the_description_has_every_path_that_is_answered(tmp_path: Path) -> None:
    """Only the files of the pages are left out."""
    with running(tmp_path) as service:
        LabelStudio(service, TaskImages("http://localhost:8080", (), service.limits))
        app = create_app(service)
        answered = {(method, route.path) for route in app.routes for method in route.methods or () if method != "HEAD"}
        described = app.openapi()
        named = {(method.upper(), path) for path, methods in described["paths"].items() for method in methods}
        assert answered - named == {("GET", path) for path in PUBLIC}
        assert named <= answered
        assert {("PUT", "/label/images/{number}/label"), ("POST", "/label-studio/webhook")} <= named
        identifiers = [one["operationId"] for methods in described["paths"].values() for one in methods.values()]
        assert len(set(identifiers)) == len(identifiers)
        referred = set(re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(described)))
        assert referred <= described["components"]["schemas"].keys()
        for methods in described["paths"].values():
            for one in methods.values():
                assert one["summary"]
                assert one.get("description")
                assert ("requestBody" in one) <= ("413" in one["responses"])


def test_the_page_brings_all_it_needs(client: Any) -> None:
    for path in ("/", "/label"):
        page = client.get(path)
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert page.headers["x-content-type-options"] == "nosniff"
        linked = {f"/{name.removeprefix('./')}" for name in re.findall(r'(?:src|href)="([^":]*)"', page.text)}
        assert {"/page.css", "/shared.js", "/docs"} <= linked <= set(PATHS)
        for text in (page.text, *(client.get(one).text for one in linked - {"/docs"})):
            assert not re.search(r"https?://", text)
            assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", text)


TOKEN = "a-token-of-some-length"


@pytest.fixture(scope="module")
def guarded(service: Service) -> Iterator[Any]:
    with TestClient(create_app(service, Access(TOKEN), None), base_url="http://models.example:8000") as client:
        yield client


@pytest.mark.parametrize(
    "given",
    [None, "", "Bearer", "Bearer ", f"Basic {TOKEN}", TOKEN, "Bearer x", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}"],
)
def test_without_the_token_nothing_is_told(guarded: Any, given: str | None) -> None:
    headers = {} if given is None else {"authorization": given}
    for method, path in (
        ("GET", "/status"),
        ("GET", "/memory"),
        ("GET", "/metrics"),
        ("GET", "/other"),
        ("POST", "/learn"),
    ):
        answer = guarded.request(method, path, headers=headers)
        refused(answer, 401, "send the token")
        assert answer.headers["www-authenticate"] == "Bearer"
    for path in ("/", "/page.js", "/page.css", "/docs", "/openapi.json"):
        assert guarded.get(path, headers=headers).status_code == 200


def test_with_the_token(guarded: Any) -> None:
    for kind in ("Bearer", "bearer"):
        assert guarded.get("/status", headers={"authorization": f"{kind} {TOKEN}"}).status_code == 200
    assert guarded.get("/openapi.json").json()["security"] == [{"token": []}]


def test_tokens_are_compared_in_constant_time(guarded: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import hmac

    compared = []
    real = hmac.compare_digest
    monkeypatch.setattr("hmac.compare_digest", lambda a, b: (compared.append((a, b)), real(a, b))[1])
    guarded.get("/status", headers={"authorization": "Bearer wrong"})
    assert compared == [(digest_of("wrong"), digest_of(TOKEN))]


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "", "localhost:8000.evil.example", "10.0.0.1"]
)
def test_another_name_for_this_machine_is_refused(client: Any, host: str) -> None:
    refused(client.get("/status", headers={"host": host}), 403, "--allow-host")
    refused(client.get("/", headers={"host": host}), 403, "--allow-host")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:1", "127.0.0.1", "127.0.0.1:8000", "[::1]", "[::1]:8000"])
def test_own_names_are_answered(client: Any, host: str) -> None:
    assert client.get("/status", headers={"host": host}).status_code == 200


FOREIGN = [
    {"origin": "http://evil.example"},
    {"origin": "null"},
    {"origin": "http://127.0.0.1:9000"},
    {"origin": ""},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "same-site"},
]


@pytest.mark.parametrize("headers", FOREIGN)
def test_the_pages_of_other_sites_cannot_ask(client: Any, service: Service, headers: dict[str, str]) -> None:
    before = service.writer.acknowledged
    refused(client.post("/learn", headers=headers, **form((0, "a"))), 403, "another site")
    refused(client.post("/predict", headers=headers, files={"image": png(picture(0))}), 403, "another site")
    assert service.writer.acknowledged == before
    for path in ("/memory", "/status", "/metrics"):
        refused(client.get(path, headers=headers), 403, "another site")
        assert client.head(path, headers=headers).status_code == 403


@pytest.mark.parametrize("headers", FOREIGN)
def test_other_sites_can_link_to_the_page(client: Any, headers: dict[str, str]) -> None:
    for path in ("/", "/docs", "/openapi.json", "/page.js", "/page.css"):
        assert client.get(path, headers=headers).status_code == 200


CLICK = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}


def test_other_sites_can_link_to_the_numbers(client: Any, service: Service) -> None:
    for path in ("/status", "/metrics"):
        assert client.get(path, headers=CLICK).status_code == 200
        assert client.get(path, headers=CLICK | {"sec-fetch-site": "same-site"}).status_code == 200
        for other in ({"sec-fetch-dest": "iframe"}, {"sec-fetch-mode": "no-cors"}, {"origin": "http://evil.example"}):
            refused(client.get(path, headers=CLICK | other), 403, "another site")
    refused(client.get("/memory", headers=CLICK), 403, "another site")
    before = service.writer.acknowledged
    refused(client.post("/learn", headers=CLICK, **form((0, "a"))), 403, "another site")
    refused(client.post("/status", headers=CLICK), 403, "another site")
    assert service.writer.acknowledged == before


def test_a_link_to_the_numbers_needs_the_token_too(guarded: Any) -> None:
    for path in ("/status", "/metrics"):
        assert guarded.get(path, headers=CLICK).status_code == 401


def test_the_own_page_can_ask(client: Any) -> None:
    own = {"origin": HERE, "sec-fetch-site": "same-origin"}
    assert client.post("/learn", headers=own, **form((0, "a"))).status_code == 200
    for headers in (own, {"sec-fetch-site": "same-origin"}, {"sec-fetch-site": "none"}):  # the last is a bookmark
        assert client.get("/memory", headers=headers).status_code == 200


def test_other_methods_and_paths(client: Any) -> None:
    refused(client.get("/learn"), 405, "Not Allowed")
    refused(client.post("/status"), 405, "Not Allowed")
    refused(client.get("/page/../../../etc/passwd"), 404, "Not Found")
    refused(client.get("/%2e%2e/%2e%2e/etc/passwd"), 404, "Not Found")


def test_an_unexpected_error_tells_no_more_than_that(tmp_path: Path) -> None:
    with running(tmp_path) as service:
        client = TestClient(create_app(service), base_url=HERE, raise_server_exceptions=False)

        def broken(*_: Any) -> None:
            raise RuntimeError("a secret")

        service.predictor.predict = broken  # type: ignore[assignment]
        answer = client.post("/predict", files={"image": png(picture(0))})
        refused(answer, 500, "unexpected")
        assert "secret" not in answer.text


def test_hosts_are_the_loopback_ones_by_default() -> None:
    assert LOOPBACK == ("localhost", "127.0.0.1", "[::1]")


def test_only_small_png_files_are_decoded_at_once() -> None:
    small = png(picture(0))
    assert pictures.is_quick(small)
    assert not pictures.is_quick(small[:20])
    assert not pictures.is_quick(b"")
    assert not pictures.is_quick(small + b"\0" * 2**13)
    assert not pictures.is_quick(png(np.zeros((64, 65), np.uint8)))
    file = io.BytesIO()
    Image.fromarray(picture(0)).save(file, "JPEG")
    assert not pictures.is_quick(file.getvalue())


def test_a_large_photo_has_the_same_pixels_in_a_request_and_in_a_file(tmp_path: Path) -> None:
    """It is decoded at a smaller scale in both, which changes pixels by a few levels at most."""
    across, down = np.meshgrid(np.arange(900), np.arange(600))
    photo = np.stack([across / 4, down / 3, (across + down) / 7], axis=2).astype(np.uint8)
    path = tmp_path / "photo.jpg"
    Image.fromarray(photo).save(path, quality=95)
    form = ImageFormat((16, 24, 3))
    sent = pictures.decode(path.read_bytes(), form, Limits(), "photo")
    assert (sent == form.read([path])[0]).all()
    with Image.open(path) as image:
        image.load()
        whole = form.read([image])[0]
    assert np.abs(sent.astype(int) - whole).max() <= 3
