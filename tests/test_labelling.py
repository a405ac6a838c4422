"""The queue of unlabelled images of ``ocil serve``: its order, what survives a crash, its limits."""

import io
import sqlite3
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ocil.errors import OcilError
from ocil.online.model import Recipe
from ocil.online.vectors import VectorFormat
from ocil.serve.limits import Limits, RefusedError
from ocil.serve.service import Service
from ocil.serve.tokens import Access
from tests.serving import FORM, SECONDS, batches_of, picture, png, running

pytest.importorskip("fastapi")
pytest.importorskip("python_multipart")
pytest.importorskip("httpx2")
from starlette.testclient import TestClient

from ocil.serve.app import create_app
from ocil.serve.labelling import Labelling, margin
from ocil.serve.labelling_images import prepare
from ocil.serve.labelling_store import FILE, Content, LabelChange, Store

pytestmark = pytest.mark.usefixtures("quick_convolution")
HERE = "http://127.0.0.1:8000"


def content(brightness: int, number: int = 0) -> Content:
    return prepare(f"{brightness}-{number}.png", png(picture(brightness, number)), FORM, Limits())


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with running(tmp_path) as service:
        yield service


@pytest.fixture
def client(service: Service) -> Iterator[Any]:
    with TestClient(create_app(service), base_url=HERE) as client:
        yield client


def until(condition: Any) -> None:
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def send(client: Any, *images: tuple[str, bytes]) -> Any:
    return client.post("/label/images", files=[("image", image) for image in images])


def test_the_margin_is_that_between_the_two_likeliest() -> None:
    assert margin(np.array([0.1, 0.5, 0.1, 0.3])) == pytest.approx(0.2)
    assert margin(np.array([0.5, 0.5])) == 0
    assert margin(np.array([1.0])) == margin(np.array([])) == 1


def test_a_label_is_learned_and_the_next_image_comes(client: Any, service: Service) -> None:
    assert client.get("/label/queue").json()["images"] == []
    files = [(f"folder/{n}.png", png(picture(100 * (n % 2), n))) for n in range(4)]
    assert send(client, *files).json() == {"added": 4, "known": 0, "refused": []}
    assert send(client, files[0], ("other.png", png(picture(7)))).json() == {"added": 1, "known": 1, "refused": []}
    state = client.get("/label/queue").json()
    assert [one["name"] for one in state["images"]] == ["folder/0.png", "folder/1.png"]
    assert state["images"][0]["classes"] == []
    assert (state["waiting"], state["labelled"], state["accuracy"]) == (5, 0, None)
    state = client.put("/label/images/1/label", json={"label": "dark"}).json()
    assert (state["waiting"], state["labelled"]) == (4, 1)
    assert state["images"][0]["number"] != 1
    until(lambda: service.statistics.samples == 1)
    state = client.get("/label/queue").json()
    assert state["images"][0]["classes"] == [{"label": "dark", "probability": 1.0}]
    assert state["classes"] == [{"label": "dark", "labelled": 1}]
    assert state["accuracy"] is None  # no class was shown with the first image
    number = state["images"][0]["number"]
    client.put(f"/label/images/{number}/label", json={"label": "light"})
    assert client.get("/label/queue").json()["accuracy"] == 0
    image = client.get("/label/images/1")
    assert image.headers["content-type"] == "image/png"
    assert client.get("/label/images/1?thumbnail=true").status_code == 200
    saved = client.get("/label/labels.csv").text.splitlines()
    assert saved == ["file,label,sample", "folder/0.png,dark,1", f"folder/{number - 1}.png,light,2"]
    until(lambda: service.statistics.position == 2)
    learned = batches_of(service.folder)
    assert [label for batch in learned for _, label, _ in batch] == ["dark", "light"]
    assert np.array_equal(learned[0][0][2], FORM.read([Image.fromarray(picture(0, 0))])[0])


def test_what_cannot_be_read_is_named_and_the_rest_is_kept(client: Any) -> None:
    found = send(client, ("a.png", png(picture(1))), ("b.png", b"no image")).json()
    assert found["added"] == 1
    assert found["refused"] == [{"name": "b.png", "detail": found["refused"][0]["detail"]}]
    assert "b.png is not a readable image" in found["refused"][0]["detail"]
    assert client.post("/label/images", json={}).status_code == 415
    assert client.post("/label/images", files={"other": b"x"}).status_code == 422
    for path in ("/label/images/9", "/label/images/9?thumbnail=true"):
        assert client.get(path).status_code == 404
    assert client.put("/label/images/9/label", json={"label": "a"}).status_code == 404
    for bad in ({}, {"label": ""}, {"label": None}, {"label": " \t"}, {"label": "x" * 101}, {"label": "a", "b": 1}):
        assert client.put("/label/images/1/label", json=bad).status_code == 422
    assert client.put("/label/images/1/label", content=b"{" + b" " * 2**17).status_code in (413, 415)
    assert client.put("/label/images/0/label", json={"label": "a"}).status_code == 422
    assert client.get("/label/queue").json()["waiting"] == 1


def test_the_least_certain_come_first_and_the_order_follows_the_model(service: Service) -> None:
    labelling = Labelling.of(service)
    rows = {"value": [[0.9, 0.1], [0.6, 0.4], [0.5, 0.5], [0.2, 0.8]]}
    labelling.add([content(10 * n) for n in range(4)])
    service.writer.submit(np.stack([picture(0)[:, :, None], picture(99)[:, :, None]]), ["a", "b"]).result()
    until(lambda: service.statistics.samples == 2)
    pixels = [labelling.open().content(n + 1, "pixels") for n in range(4)]
    real = service.predictor.ask

    def ask(inputs: Any) -> Any:
        found = real(inputs).result()
        table = np.array([rows["value"][pixels.index(one.tobytes())] for one in inputs])
        answer: Future[Any] = Future()
        answer.set_result(type(found)(found.labels, found.samples, table))
        return answer

    service.predictor.ask = ask
    for one in labelling._entries.values():
        one.scored = -1

    def order() -> list[int]:
        return [one.entry.number for one in labelling.next("me", 8)]

    until(lambda: order() == [3, 2, 4, 1])
    labelling.skip(3, 1)
    assert order() == [2, 4, 1, 3]
    labelling.skip(3, -1)
    assert order() == [3, 2, 4, 1]
    rows["value"] = rows["value"][::-1]
    service.writer.submit(picture(0)[None, :, :, None], ["a"]).result()
    until(lambda: order() == [2, 3, 1, 4])


def test_the_order_is_kept_up_to_date_after_a_prediction_that_failed(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    labelling = Labelling.of(service)
    real, failed = service.predictor.ask, list[str]()

    def ask(inputs: Any) -> Any:
        if failed:
            return real(inputs)
        failed.append("once")
        raise RuntimeError("out of memory")

    monkeypatch.setattr("ocil.serve.labelling.AFTER_DEFECT_SECONDS", 0.01)
    monkeypatch.setattr(service.predictor, "ask", ask)
    labelling.add([content(10), content(200)])
    service.writer.submit(np.stack([picture(10), picture(200)])[:, :, :, None], ["dark", "light"]).result(SECONDS)
    until(lambda: all(one.certainty is not None for one in labelling._entries.values()))
    assert failed


def test_two_people_are_shown_different_images(service: Service) -> None:
    labelling = Labelling.of(service)
    labelling.add([content(10 * n) for n in range(3)])
    assert [one.entry.number for one in labelling.next("a", 1)] == [1]
    assert [one.entry.number for one in labelling.next("b", 1)] == [2]
    assert [one.entry.number for one in labelling.next("a", 1)] == [1]
    assert [one.entry.number for one in labelling.next("c", 2)] == [3]
    assert [one.entry.number for one in labelling.next("d", 1)] == [1]  # nothing else is left
    labelling.label(1, "x")
    with pytest.raises(RefusedError, match="has a label already: x"):
        labelling.label(1, "y")


def test_undo_and_corrections(client: Any, service: Service) -> None:
    send(client, *[(f"{n}.png", png(picture(50 * n))) for n in range(3)])
    client.put("/label/images/1/label", json={"label": "a"})
    state = client.delete("/label/images/1/label").json()
    assert service.sample(1).forgotten
    assert (state["images"][0]["number"], state["waiting"], state["labelled"]) == (1, 3, 0)
    assert client.delete("/label/images/1/label").status_code == 409
    client.put("/label/images/1/label", json={"label": "a"})  # again: it is a new sample
    until(lambda: service.statistics.position == 2)
    assert client.put("/label/images/1/label", json={"label": "b", "again": True}).status_code == 200
    assert (service.sample(2).label, service.sample(2).first_label) == ("b", "a")
    until(lambda: service.statistics.stored == (0, 1))  # of a and b
    assert client.get("/label/images?label=a").json() == {"total": 0, "images": []}
    found = client.get("/label/images?label=b").json()
    assert (found["total"], found["images"][0]["sample"]) == (1, 2)
    assert client.put("/label/images/2/label", json={"label": "b", "again": True}).status_code == 409
    assert client.delete("/label/images/1").status_code == 409
    assert client.delete("/label/images/2").json()["waiting"] == 1
    assert client.post("/label/images/3/skip").json()["skipped"] == 1
    assert client.delete("/label/images/3/skip").json()["skipped"] == 0


def test_the_images_of_a_class_come_with_the_doubtful_first(service: Service) -> None:
    labelling = Labelling.of(service)
    labelling.add([content(20 * n) for n in range(6)])
    for number in range(1, 7):
        labelling.label(number, "ab"[number % 2])
    until(lambda: service.statistics.samples == 6)
    until(lambda: all(one.scored == 6 for one in labelling._entries.values()))
    total, found = labelling.of_class("a", 0, 10)
    assert total == 3
    inputs = np.concatenate([labelling._pixels([one]) for one in found])
    expected = service.predictor.ask(inputs).result()
    column = expected.labels.index("a")
    assert [one.certainty for one in found] == pytest.approx(expected.probabilities[:, column].tolist())
    assert [one.certainty for one in found] == sorted(one.certainty or 0 for one in found)
    assert labelling.of_class("a", 1, 1)[1] == found[1:2]


def test_the_order_is_that_of_the_version_that_predicts(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each image is predicted once, also where predictions are pinned to a version that the model has left behind."""
    two = np.stack([picture(10), picture(200)])[:, :, :, None]
    service.writer.submit(two, ["a", "b"]).result(SECONDS)
    until(lambda: service.statistics.samples == 2)
    for ask in (service.save_version, service.pin_version):
        assert service.wait_for_change(ask("first").result(SECONDS).first).result(SECONDS)
    service.writer.submit(two, ["a", "b"]).result(SECONDS)
    until(lambda: service.statistics.samples == 4)
    labelling, predicted = Labelling.of(service), list[int]()
    real = service.predictor.ask
    monkeypatch.setattr(service.predictor, "ask", lambda inputs: predicted.append(len(inputs)) or real(inputs))
    labelling.add([content(5 * n) for n in range(40)])
    until(lambda: all(one.certainty is not None for one in labelling._entries.values()))
    assert {one.scored for one in labelling._entries.values()} == {2}
    for number in range(30, 41):
        labelling.label(number, "a")
    until(lambda: all(one.certainty is not None for one in labelling._entries.values()))
    assert not labelling.rank_some()
    assert sum(predicted) <= 60  # 40 when they came and 11 when they were labelled


def test_all_of_it_survives_a_restart(tmp_path: Path) -> None:
    with running(tmp_path) as service:
        labelling = Labelling.of(service)
        labelling.add([content(10 * n) for n in range(4)])
        labelling.next("me", 4)
        labelling.label(2, "a")
        labelling.skip(1, 1)
        labelling.label(3, 7)
    with running(tmp_path) as service:
        labelling = Labelling.of(service)
        assert labelling.counts() == (2, 1, {"a": 1, "7": 1})
        assert [one.entry.number for one in labelling.next("me", 4)] == [4, 1]
        assert labelling.add([content(10), content(50)]) == (1, 1)
        assert labelling.totals().labelled == 2


def test_a_new_queue_in_the_place_of_a_lost_one(tmp_path: Path) -> None:
    """Its images have the numbers, but not the Idempotency-Keys, of those before."""
    with running(tmp_path) as service:
        labelling = Labelling.of(service)
        labelling.add([content(10)])
        labelling.label(1, "a")
    for file in tmp_path.glob(f"{FILE}*"):
        file.unlink()
    with running(tmp_path) as service:
        labelling = Labelling.of(service)
        labelling.add([content(90)])
        assert labelling.label(1, "b").sample == 2


def test_what_a_crash_left_undone_is_done_once(tmp_path: Path) -> None:
    with running(tmp_path) as service:
        labelling = Labelling.of(service)
        labelling.add([content(10 * n) for n in range(4)])
        labelling.label(1, "a")
        labelling.label(2, "b")
    store = Store(tmp_path / FILE)
    first, second, third, fourth = store.entries()
    first.sample, first.label, first.change = (
        None,
        None,
        LabelChange("learn", "a"),
    )  # the log had it, the database not yet
    second.change = LabelChange("forget")
    third.turn, third.change = 1, LabelChange("learn", "c")  # not even the log had it
    store.save(first, second, third)
    store.close()
    with running(tmp_path) as service:
        labelling = Labelling.of(service)
        until(lambda: not any(one.change for one in labelling._entries.values()))
        found = labelling._entries
        assert [(found[n].sample, found[n].label) for n in (1, 2, 3, 4)] == [
            (1, "a"),
            (None, None),
            (3, "c"),
            (None, None),
        ]
        assert [service.sample(number).label for number in (1, 2, 3)] == ["a", None, "c"]
        assert service.writer.acknowledged == 3
    assert fourth.waits


def test_a_refusal_leaves_the_image_in_the_queue(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    labelling = Labelling.of(service)
    labelling.add([content(0)])
    monkeypatch.setattr(service.trainer, "failed", "a reason")
    with pytest.raises(RefusedError, match="a reason"):
        labelling.label(1, "a")
    monkeypatch.setattr(service.trainer, "failed", None)
    assert labelling.counts()[0] == 1
    assert labelling.label(1, "b").sample == 1  # the key of the first try stands for nothing


def test_a_full_disk_leaves_the_image_in_the_queue(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    labelling = Labelling.of(service)
    labelling.add([content(0), content(1)])

    def full(*_: Any) -> None:
        raise RefusedError(503, "database or disk is full.", 10)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "save", full)
        with pytest.raises(RefusedError, match="disk is full"):
            labelling.label(1, "a")
        with pytest.raises(RefusedError, match="disk is full"):
            labelling.skip(2, 1)
    assert labelling.counts()[:2] == (2, 0)
    assert {one.entry.number for one in labelling.next("me", 2)} == {1, 2}
    assert labelling.label(1, "b").sample == 1


def test_one_label_when_two_come_at_once(service: Service) -> None:
    labelling = Labelling.of(service)
    labelling.add([content(0)])
    found: list[Any] = []

    def give(label: str) -> None:
        try:
            found.append(labelling.label(1, label).label)
        except RefusedError as error:
            found.append(error.status)

    threads = [threading.Thread(target=give, args=(label,)) for label in "abcd"]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert sorted(map(str, found))[:3] == ["409"] * 3
    assert service.writer.acknowledged == 1


def test_images_that_were_labelled_make_room_and_waiting_ones_do_not(tmp_path: Path) -> None:
    size = content(0).size
    for limits in (Limits(label_images=3), Limits(label_bytes=size * 7 // 2)):
        with running(tmp_path / str(limits.label_images), limits=limits) as service:
            labelling = Labelling.of(service)
            labelling.add([content(10 * n) for n in range(3)])
            with pytest.raises(RefusedError, match="the queue is full"):
                labelling.add([content(99)])
            labelling.label(2, "a")
            labelling.label(1, "a")
            assert labelling.add([content(99)]).added == 1
            assert labelling.of_class("a", 0, 9)[0] == 1
            with pytest.raises(RefusedError, match="no image 2"):
                labelling.unlabel(2)
            assert labelling.open().labels() == [("10-0.png", "a", 1), ("0-0.png", "a", 2)]
            assert labelling.totals().labelled == 2
            assert labelling.add([content(10)]) == (0, 1)  # it was labelled: it does not come again


def test_images_that_come_again_take_no_room(tmp_path: Path) -> None:
    with running(tmp_path, limits=Limits(label_images=3)) as service:
        labelling = Labelling.of(service)
        images = [content(10 * n) for n in range(3)]
        labelling.add(images)
        labelling.label(1, "a")
        labelling.label(2, "a")
        assert labelling.add(images) == (0, 3)
        assert labelling.of_class("a", 0, 9)[0] == 2
        assert labelling.add([images[0], content(99), content(99)]) == (1, 2)
        assert [one.number for one in labelling.of_class("a", 0, 9)[1]] == [2]


def test_a_damaged_or_foreign_database_is_reported(tmp_path: Path) -> None:
    with running(tmp_path) as service:
        Labelling.of(service).add([content(0)])
    base = sqlite3.connect(tmp_path / FILE)
    base.execute("PRAGMA user_version = 99")
    base.close()
    with pytest.raises(OcilError, match="later version"):
        Store(tmp_path / FILE)
    (tmp_path / FILE).write_bytes(b"not a database, whatever its name says" * 100)
    with pytest.raises(OcilError, match="cannot be used"):
        Store(tmp_path / FILE)
    (tmp_path / "link.sqlite").symlink_to(tmp_path / FILE)
    with pytest.raises(OcilError, match="symbolic link"):
        Store(tmp_path / "link.sqlite")


def test_a_model_of_vectors_has_no_images_to_label(tmp_path: Path) -> None:
    with running(tmp_path, Recipe("er", memory=20, batch_size=4), VectorFormat(3)) as service:
        client = TestClient(create_app(service), base_url=HERE)
        assert client.get("/label/queue").status_code == 400
        assert send(client, ("a.png", png(picture(0)))).status_code == 400
    assert not (tmp_path / FILE).exists()


def test_the_token_guards_the_queue(service: Service) -> None:
    client = TestClient(create_app(service, Access("a-token-of-some-length")), base_url=HERE)
    for method, path in (("GET", "/label/queue"), ("GET", "/label/images/1"), ("PUT", "/label/images/1/label")):
        assert client.request(method, path).status_code == 401
    assert client.get("/label").status_code == client.get("/label.js").status_code == 200


def test_previews_are_bounded_and_carry_nothing_but_pixels() -> None:
    exif = Image.Exif()
    exif[0x010F], exif[0x0112] = "secret camera", 6
    file = io.BytesIO()
    Image.new("RGB", (3000, 1500), (200, 10, 10)).save(file, "JPEG", exif=exif)
    found = prepare("..\\a/../\x07b.jpg", file.getvalue(), FORM, Limits())
    with Image.open(io.BytesIO(found.preview)) as preview, Image.open(io.BytesIO(found.thumbnail)) as thumbnail:
        assert preview.size == (512, 1024)  # turned upright
        assert max(thumbnail.size) == 160
        assert not preview.getexif()
    assert b"secret" not in found.preview + found.thumbnail
    assert "\x07" not in found.name
