"""``ocil learn``, ``ocil predict`` and ``ocil export`` on images on disk."""

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ocil.data.label_file import LabelledFile
from ocil.errors import OcilError
from ocil.online.feed import Feed
from ocil.online.images import ImageFormat
from ocil.online.model import FILE, Model, Recipe
from ocil.online.sources import LabelledImages, read_list
from ocil.runs.environment import digest
from tests.conftest import Call, left_over, one_error
from tests.forking import Forked

SMALL = ("--method", "er", "--memory", 20, "--width", 1, "--size", 12, "--gray", "--batch-size", 4)
RECIPE = Recipe("er", memory=20, width=1, batch_size=4)
FORM = ImageFormat((12, 12, 1))
CLASSES, EACH = ("dark", "gray", "light"), 6


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Three classes of six images each: dark, gray and light ones."""
    rng = np.random.default_rng(0)
    for number, name in enumerate(CLASSES):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for image in range(EACH):
            pixels = rng.integers(0, 60, (14, 14)) + 90 * number
            Image.fromarray(pixels.astype(np.uint8)).save(tmp_path / "photos" / name / f"{image}.png")
    return tmp_path / "photos"


@pytest.fixture
def table(photos: Path) -> Path:
    """The same images in turn, in a CSV file beside them."""
    rows = [f"photos/{name}/{image}.png,{name}" for image in range(EACH) for name in CLASSES]
    path = photos.parent / "list.csv"
    path.write_text("\n".join(["path,label", *rows]) + "\n")
    return path


def learned(folder: Path) -> tuple[Any, ...]:
    """All of a model that must not depend on how it came about."""
    model = Model.load(folder, "cpu")
    return digest(model.learner), model.labels, model.batches, model.samples, model.note


def test_one_image_of_one_class(ocil_command: Call, photos: Path, tmp_path: Path) -> None:
    path = photos.parent / "one.csv"
    path.write_text("path,label\nphotos/dark/0.png,dark\n")
    said = ocil_command("learn", path, "--model", tmp_path / "model", *SMALL)
    assert "1 sample learned now, 1 in all, 1 class, accuracy before learning 0.0 %" in said.out


def test_learn_and_predict(ocil_command: Call, table: Path, photos: Path, tmp_path: Path) -> None:
    said = ocil_command("learn", table, "--model", tmp_path / "model", *SMALL, "--json")
    assert said.code == 0, said
    content = json.loads(said.out)
    assert (content["method"], content["classes"], content["skipped"]) == ("er", 3, 0)
    assert content["learned"] == content["samples"] == content["position"] == content["of"] == 18
    assert 0 <= content["accuracy"] <= 1
    assert {path.name for path in (tmp_path / "model").iterdir()} == {FILE, ".lock"}

    again = ocil_command("learn", table, "--model", tmp_path / "model", *SMALL)
    assert again.code == 0
    assert f"{tmp_path / 'model'} goes on: er, 18 samples so far." in again.err
    assert "0 samples learned now, 18 in all, 3 classes, accuracy before learning" in again.out

    one = photos / "dark" / "0.png"
    (photos / "light" / "._0.png").write_bytes(b"what macOS puts there")
    lines = ocil_command("predict", one, photos / "light", "--model", tmp_path / "model", "--json").out.splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["path"] for row in rows] == [str(one), *(str(photos / "light" / f"{n}.png") for n in range(EACH))]
    for row in rows:
        assert {found["label"] for found in row["top"]} == set(CLASSES)
        assert sum(found["probability"] for found in row["top"]) == pytest.approx(1, abs=1e-5)
        assert row["top"][0] == {"label": row["label"], "probability": row["probability"]}
    shown = ocil_command("predict", one, "--model", tmp_path / "model", "--top", 1)
    assert str(one) in shown.out.replace("\n", "")
    assert rows[0]["label"] in shown.out


def test_the_accuracy_is_that_of_predictions_before_learning(table: Path) -> None:
    samples = read_list(table)
    feed = Feed(Model(RECIPE, FORM), LabelledImages(samples))
    other = Model(RECIPE, FORM)
    right = 0
    for first in range(0, 18, 4):
        batch = samples[first : first + 4]
        x, labels = FORM.read([sample.path for sample in batch]), [sample.label for sample in batch]
        if other.labels:
            best = other.probabilities(x).argmax(1)
            right += sum(other.labels[b] == label for b, label in zip(best, labels, strict=True))
        other.learn(x, labels)
        feed.step()
    assert feed.correct == right
    assert feed.scored == 18
    assert digest(feed.model.learner) == digest(other.learner)


def test_a_folder_with_a_split_is_learned_from_its_training_images(photos: Path) -> None:
    plain = [(sample.name, sample.label) for sample in read_list(photos)]
    (photos.parent / "split" / "test" / "dark").mkdir(parents=True)
    photos.rename(photos.parent / "split" / "train")
    split = read_list(photos.parent / "split")
    assert [(sample.name, sample.label) for sample in split] == plain
    assert all(sample.path.is_file() and sample.path.parts[-3] == "train" for sample in split)


def test_a_folder_in_sorted_or_random_order(photos: Path) -> None:
    (photos / "dark" / "notes.txt").touch()
    (photos / ".hidden").mkdir()
    names = [sample.name for sample in read_list(photos)]
    assert names == [f"{name}/{image}.png" for name in CLASSES for image in range(EACH)]
    mixed = [sample.name for sample in read_list(photos, shuffle=3)]
    assert mixed != names
    assert sorted(mixed) == sorted(names)
    assert mixed == [sample.name for sample in read_list(photos, shuffle=3)]
    assert mixed != [sample.name for sample in read_list(photos, shuffle=4)]


def test_a_list_that_comes_class_after_class_is_told(
    ocil_command: Call, photos: Path, table: Path, tmp_path: Path
) -> None:
    def told(source: Path, name: str, *words: object) -> bool:
        said = ocil_command("learn", source, "--model", tmp_path / name, *SMALL, *words)
        assert said.code == 0, said
        return f"{source} comes class after class, which is the hardest order to learn: --shuffle 0" in said.err

    assert told(photos, "sorted")
    assert not told(photos, "sorted")  # all is learned already
    assert not told(photos, "mixed", "--shuffle", 0)
    assert not told(table, "in-turn")
    assert told(photos, "in-turn", "--append")
    rows = tmp_path / "rows.npz"
    np.savez(rows, x=np.eye(6), y=[0, 0, 0, 1, 1, 1])
    said = ocil_command("learn", rows, "--model", tmp_path / "rows", "--method", "er", "--memory", 10)
    assert "comes class after class" in said.err


@pytest.mark.slow
@pytest.mark.parametrize("stop_after", [1, 3, 4])
def test_stopped_and_resumed(table: Path, tmp_path: Path, stop_after: int) -> None:
    samples = read_list(table)
    assert Feed(Model(RECIPE, FORM), LabelledImages(samples)).run(tmp_path / "whole")
    feed = Feed(Model(RECIPE, FORM), LabelledImages(samples))
    assert not feed.run(tmp_path / "parts", should_stop=lambda: feed.model.batches >= stop_after)
    assert feed.position == 4 * stop_after
    assert Feed(Model.load(tmp_path / "parts", "cpu"), LabelledImages(samples)).run(tmp_path / "parts")
    assert learned(tmp_path / "parts") == learned(tmp_path / "whole")


@pytest.mark.slow
@pytest.mark.parametrize("method", ["afs", "gdumb"])
def test_a_list_ends_with_one_review(table: Path, tmp_path: Path, method: str) -> None:
    samples = read_list(table)
    settings = {"rehearsal_epochs": 1} if method == "gdumb" else {"memory_batch": 4}
    recipe = Recipe(method, memory=20, width=1, batch_size=4, settings=settings)
    feed = Feed(Model(recipe, FORM), LabelledImages(samples))
    feed.run(tmp_path / "whole")
    by_hand = Feed(Model(recipe, FORM), LabelledImages(samples))
    while by_hand.position < len(samples):
        by_hand.step()
    by_hand.save(tmp_path / "parts")  # killed before the review
    by_hand.model.review_or_end_task()
    assert digest(by_hand.model.learner) == digest(feed.model.learner)
    for _ in range(2):  # the second time there is nothing to do
        Feed(Model.load(tmp_path / "parts", "cpu"), LabelledImages(samples)).run(tmp_path / "parts")
        assert learned(tmp_path / "parts") == learned(tmp_path / "whole")
    Feed(Model.load(tmp_path / "parts", "cpu"), LabelledImages([*samples, samples[0]])).run(tmp_path / "parts")
    assert Model.load(tmp_path / "parts", "cpu").learner.task_number == (2 if method == "gdumb" else 0)


SCRIPT = """
import os, signal, sys
from ocil.cli import main
sync, count = os.fsync, 0

def sync_or_die(descriptor):
    global count
    count += 1
    if count == int(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGKILL)
    sync(descriptor)

os.fsync = sync_or_die
main(sys.argv[2:])
"""


@pytest.mark.slow
def test_no_empty_lines_where_there_is_no_terminal(ocil_command: Call, photos: Path, tmp_path: Path) -> None:
    """Bars would leave one behind, also beside the one line of an error."""
    (photos / CLASSES[0] / "bad.png").write_bytes(b"none")
    learned = ocil_command("learn", photos, *SMALL, "--shuffle", 0, "--model", tmp_path / "model")
    (tmp_path / "none").mkdir()
    refused = ocil_command("data", "import", "none", tmp_path / "none", "--data-dir", tmp_path / "data")
    for said, start in ((learned, "left out: "), (refused, "ocil: error: ")):
        (line,) = said.err.splitlines()
        assert line.startswith(start)


@pytest.mark.usefixtures("usual_convolution")
def test_killed_in_the_middle_of_a_write(
    ocil_command: Call, fork_python: Callable[..., Forked], table: Path, tmp_path: Path
) -> None:
    words = ("learn", table, *SMALL, "--device", "cpu", "--save-seconds", 0)
    assert ocil_command(*words, "--model", tmp_path / "whole").code == 0
    killed = tmp_path / "killed"
    process = fork_python("-c", SCRIPT, 3, *words, "--model", killed)
    process.communicate(timeout=600)
    assert process.returncode == -signal.SIGKILL
    assert Model.load(killed, "cpu").samples == 8  # the third save was never finished
    assert len(left_over(killed)) == 1
    said = ocil_command(*words, "--model", killed, "--json")
    assert json.loads(said.out)["learned"] == 10
    assert learned(killed) == learned(tmp_path / "whole")
    assert not left_over(killed)


def test_ctrl_c_saves(ocil_command: Call, table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    step = Feed.step

    def step_and_interrupt(self: Feed, *after_batch: Any) -> None:
        step(self, *after_batch)
        if self.model.batches == 2:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Feed, "step", step_and_interrupt)
    said = ocil_command("learn", table, "--model", tmp_path / "model", *SMALL)
    assert said.code == 130
    assert "the same command goes on from what was last saved" in said.err
    assert Model.load(tmp_path / "model").samples == 8


def test_a_list_that_grew_is_learned_on(ocil_command: Call, table: Path, photos: Path, tmp_path: Path) -> None:
    ocil_command("learn", table, "--model", tmp_path / "model", *SMALL)
    shutil.copytree(photos / "dark", photos / "night")
    with table.open("a") as file:
        file.write("photos/night/0.png,night\nphotos/night/1.png,night\n")
    said = ocil_command("learn", table, "--model", tmp_path / "model", "--json")  # what it was made with is known
    content = json.loads(said.out)
    assert (content["learned"], content["samples"], content["classes"]) == (2, 20, 4)


def test_another_list_is_refused_or_appended(ocil_command: Call, table: Path, photos: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    ocil_command("learn", table, "--model", model, *SMALL)
    before = learned(model)
    assert "this list is not the one" in one_error(ocil_command("learn", photos, "--model", model))
    lines = table.read_text().splitlines()
    table.write_text("\n".join([*lines[:3], lines[4], lines[3], *lines[5:]]) + "\n")
    assert "names, labels or their order differ" in one_error(ocil_command("learn", table, "--model", model))
    table.write_text("\n".join(lines[:10]) + "\n")
    assert "has learned 18 samples of" in one_error(ocil_command("learn", table, "--model", model))
    assert learned(model) == before
    for samples in (36, 36):  # the second time there is nothing left of it
        content = json.loads(ocil_command("learn", photos, "--model", model, "--append", "--json").out)
        assert content["samples"] == samples
    assert learned(model)[-1]["feed"]["scored"] == 36


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("--method", "afs"), "method = er, not afs"),
        (("--memory", 30), "memory = 20, not 30"),
        (("--size", 16), "size = 12, not 16"),
        (("--set", "lr=0.5"), "lr = 0.1, not 0.5"),
        (("--review-every", 9), "review_every = None, not 9"),
    ],
)
def test_a_model_keeps_its_settings(
    ocil_command: Call, table: Path, tmp_path: Path, words: tuple[Any, ...], named: str
) -> None:
    Feed(Model(RECIPE, FORM), LabelledImages(read_list(table))).save(tmp_path / "model")
    message = one_error(ocil_command("learn", table, "--model", tmp_path / "model", *words))
    assert named in message
    assert "--model" in message


def test_broken_images_are_left_out(ocil_command: Call, table: Path, photos: Path, tmp_path: Path) -> None:
    (photos / "gray" / "2.png").write_text("no image")
    (photos / "gray" / "3.png").unlink()
    said = ocil_command("learn", table, "--model", tmp_path / "model", *SMALL, "--json")
    assert said.code == 1
    content = json.loads(said.out)
    assert (content["skipped"], content["samples"], content["position"]) == (2, 16, 18)
    assert "2.png is not a readable image" in said.err
    assert "there is no file" in said.err

    paths = [photos / name for name in ("dark/0.png", "gray/2.png", "gray/3.png", "light/0.png")]
    said = ocil_command("predict", *paths, "--model", tmp_path / "model", "--json")
    rows = [json.loads(line) for line in said.out.splitlines()]
    assert said.code == 1
    assert [("error" in row) for row in rows] == [False, True, True, False]
    said = ocil_command("predict", *paths, "--model", tmp_path / "model")
    assert said.code == 1
    assert len([line for line in said.err.splitlines() if line.startswith("ocil: ")]) == 2
    assert "light" in said.out


def test_nothing_can_be_read(ocil_command: Call, tmp_path: Path) -> None:
    table = tmp_path / "list.csv"
    table.write_text("path,label\na.png,a\nb.png,b\n")
    for _ in range(2):  # the second finds nothing of the first
        words = ("learn", table, "--model", tmp_path / "model", *SMALL)
        message = one_error(ocil_command(*words))
        assert "not one of 2 images could be read" in message
        assert not (tmp_path / "model" / FILE).exists()


def test_nothing_that_was_read_is_not_saved_in_between(tmp_path: Path) -> None:
    samples = [LabelledFile(f"{number}.png", tmp_path / f"{number}.png", "a") for number in range(25)]
    for _ in range(2):
        feed = Feed(Model(Recipe("er", width=2), ImageFormat((8, 8, 1))), LabelledImages(samples))
        with pytest.raises(OcilError, match="not one of 25 images could be read, the first because"):
            feed.run(tmp_path / "model", save_seconds=0.0)
        assert not (tmp_path / "model" / FILE).exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("file,label\na,b\n", "its first line must name the columns path and label"),
        ("path,class\na,b\n", "its first line must name the columns path and label"),
        ("", "is empty: its first line must name"),
        ("path,label\n", "it has no lines below the first"),
        ("path,label\na.png,\n", "line 2 has no label"),
        ("path,label\na.png\n", "line 2 has no label"),
        ("path,label\n,a\n", "line 2 names no image"),
        ("path,label,split\na.png,a,test\n", "has no images for training"),
        ("path,label\na.png,a\nb.png,b\n./a.png,b\n", r"a\.png two labels, 'a' and 'b'"),
        ("path,label\n../a.png,a\n", "line 2 leads out of the folder of the images"),
        ("path,label\n/a.png,a\n", "line 2 leads out of the folder of the images"),
        (b"\xff\xfe\x00", "is not text"),
    ],
)
def test_lists_that_are_none(tmp_path: Path, content: str | bytes, words: str) -> None:
    table = tmp_path / "list.csv"
    table.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(OcilError, match=words):
        read_list(table)


def test_bad_input(ocil_command: Call, photos: Path, tmp_path: Path) -> None:
    model = tmp_path / "model"
    for words, named in (
        ((tmp_path / "absent",), "there is no file or folder"),
        ((photos, "--method", "earth"), "unknown method 'earth'"),
        ((photos, "--method", "iid-offline"), "cannot learn from a stream"),
        ((photos, "--set", "lrr=1"), "unknown setting 'lrr'"),
        ((photos, "--set", "lr"), "write FIELD=VALUE"),
        ((photos, "--set", "growing=false"), "growing = false does not suit a model"),
        ((photos, "--set", "tasks=5"), "tasks is a setting of a benchmark's stream"),
        ((photos, "--memory", "2.5"), "not a whole number"),
        ((photos, "--memory", 5), "memory = 5 is smaller"),
        ((photos, "--size", 0), "--size 0"),
        ((photos, "--device", "moon"), "device 'moon'"),
    ):
        assert named in one_error(ocil_command("learn", *words, "--model", model))
        assert not model.exists()
    (tmp_path / "empty").mkdir()
    assert "holds no images" in one_error(ocil_command("learn", tmp_path / "empty", "--model", model))
    assert "there is no model" in one_error(ocil_command("predict", photos, "--model", model))
    assert "name the images" in one_error(ocil_command("predict", "--model", model))
    assert "there is no model" in one_error(ocil_command("export", "--model", model, "--out", tmp_path / "a.onnx"))


def test_the_folder_that_one_is_in_is_named(
    ocil_command: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "birds").mkdir()
    monkeypatch.chdir(tmp_path / "birds")
    assert "Lay them out as birds/CLASS/IMAGE.png." in one_error(ocil_command("learn", ".", "--model", tmp_path / "m"))
    said = ocil_command("data", "import", "birds", ".", "--data-dir", tmp_path / "data")
    assert "Lay the images out as birds/CLASS/IMAGE.png." in one_error(said)


def test_a_model_moves_between_the_command_and_the_estimator(
    ocil_command: Call, table: Path, photos: Path, tmp_path: Path
) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed: pip install 'ocil[sklearn]'")
    from ocil.online.classifier import OnlineClassifier

    model = tmp_path / "model"
    ocil_command("learn", table, "--model", model, *SMALL)
    files = sorted(photos.glob("*/*.png"))
    estimator = OnlineClassifier.load(model, device="cpu")
    assert estimator.classes_.tolist() == sorted(CLASSES)
    estimator.partial_fit(files[:4], ["new"] * 4)
    estimator.save(model)
    row = json.loads(ocil_command("predict", files[0], "--model", model, "--json", "--top", 9).out)
    assert {found["label"] for found in row["top"]} == {*CLASSES, "new"}
    assert row["label"] == estimator.predict(files[:1])[0]
    content = json.loads(ocil_command("learn", table, "--model", model, "--json").out)
    assert (content["learned"], content["samples"]) == (0, 22)  # it knows how far in the list it was


def test_export(ocil_command: Call, table: Path, tmp_path: Path) -> None:
    ocil_command("learn", table, "--model", tmp_path / "model", *SMALL)
    said = ocil_command("export", "--model", tmp_path / "model", "--out", tmp_path / "a.pt2")  # quicker than .onnx
    assert said.code == 0
    assert "uint8 images [N, 12, 12, 1] to the probabilities of 3 classes" in said.out
    assert (tmp_path / "a.pt2").stat().st_size > 1000
    said = ocil_command("export", "--model", tmp_path / "model", "--out", tmp_path / "b.pt2", "--json")
    assert json.loads(said.out)["labels"] == list(CLASSES)
    message = one_error(ocil_command("export", "--model", tmp_path / "model", "--out", tmp_path / "a.txt"))
    assert "must end in .onnx or .pt2" in message


def test_pictures_in_other_formats_are_counted(ocil_command: Call, photos: Path, tmp_path: Path) -> None:
    for name in ("7.heic", "8.HEIC", "9.svg", "notes.txt", "._8.heic"):
        (photos / "dark" / name).write_bytes(b"x")
    said = ocil_command("learn", photos, "--model", tmp_path / "model", *SMALL, "--json")
    assert (said.code, json.loads(said.out)["learned"]) == (0, 18)
    line = "left out: pictures in other formats, 3 (2 .heic, 1 .svg): convert them to JPEG or PNG"
    assert said.err.splitlines().count(line) == 1
    assert "notes" not in said.err
    said = ocil_command("predict", photos, "--model", tmp_path / "model")
    assert (said.code, said.err.splitlines()) == (0, [f"{photos}: {line}"])
    for path in photos.rglob("*.png"):
        path.unlink()
    error = one_error(ocil_command("learn", photos, "--model", tmp_path / "other", *SMALL))
    assert error.endswith(
        "holds no images. It has pictures in other formats, 3 (2 .heic, 1 .svg): convert them to JPEG or PNG."
    )
