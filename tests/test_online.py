"""A model of one's own images, without scikit-learn: formats, labels, growth, the file on disk."""

import copy
import json
import os
import pickle
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image

from ocil.data import Dataset
from ocil.data.images import probe, read_image
from ocil.errors import InUseError, OcilError, WriteError
from ocil.methods import METHODS
from ocil.online.images import ImageFormat, is_pictures
from ocil.online.inputs import InputError
from ocil.online.model import FILE, Model, Recipe, locked
from ocil.runs.environment import digest
from ocil.streams import StreamConfig
from tests.conftest import left_over
from tests.networks_to_try import TINY

ONLINE = [name for name, info in METHODS.items() if not info.offline]
SMALL: dict[str, Any] = {"memory": 20, "width": 1, "review_every": 2}
GRAY = ImageFormat((10, 10, 1))
SQUARE = (2, 2)
OF_A_STREAM = {name: value for name, value in asdict(StreamConfig()).items() if name != "batch_size"}


def model(method: str = "er", form: ImageFormat = GRAY, **changes: Any) -> Model:
    return Model(Recipe(method, **{**SMALL, **changes}), form)


def batch(seed: int, count: int = 5, classes: int = 3) -> tuple[np.ndarray, list[str]]:
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 256, (count, 10, 10, 1), dtype=np.uint8)
    return x, [f"class {label}" for label in rng.integers(0, classes, count)]


# Images


def test_arrays_of_every_shape() -> None:
    x = np.random.default_rng(0).integers(0, 256, (4, 12, 9, 3), dtype=np.uint8)
    coloured = ImageFormat.of(x)
    assert coloured.shape == coloured.network_shape == (12, 9, 3)
    assert (coloured.read(x) == x).all()
    gray = ImageFormat.of(x[..., 0])
    assert gray.shape == (12, 9, 1)
    assert (gray.read(x[..., 0]) == x[..., :1]).all()
    flat = ImageFormat.of(x.reshape(4, -1), (12, 9, 3))
    assert (flat.read(x.reshape(4, -1)) == x).all()
    assert ImageFormat.of(np.zeros((2, 30)), (1, -1)).shape == (1, 30, 1)
    assert ImageFormat.of(np.zeros((2, 108)), (-1, 9, 3)).shape == (4, 9, 3)
    assert ImageFormat.of(np.zeros((2, 108)), (12, 9)).shape == (12, 9, 1)


def test_tiny_images_are_enlarged_by_whole_pixels() -> None:
    form = ImageFormat((1, 3, 1))
    assert form.network_shape == (3, 9, 1)
    row = form.read(np.array([[10, 20, 30]], np.uint8))
    assert (row[0, :, :, 0] == np.repeat([10, 20, 30], 3)).all()
    assert ImageFormat((8, 8, 3)).network_shape == (16, 16, 3)
    assert ImageFormat((9, 1, 3)).network_shape == (9, 1, 3)


def test_which_numbers_are_black_and_white() -> None:
    unit = np.array([[0.0, 0.5, 1.0, 0.2]])
    assert ImageFormat.of(unit, SQUARE).read(unit)[0, ::5, ::5, 0].tolist() == [[0, 128], [255, 51]]
    wide = np.array([[-2.0, 0.0, 2.0, 6.0]])
    form = ImageFormat.of(wide, SQUARE)
    assert (form.low, form.high) == (-2, 6)
    assert form.read(wide)[0, ::5, ::5, 0].tolist() == [[0, 64], [128, 255]]
    assert form.read(np.array([[-99.0, 99.0, 6.0, 6.0]]))[0, ::5, ::5, 0].tolist() == [[0, 255], [255, 255]]
    assert ImageFormat.of(wide, SQUARE, pixel_range=(0, 10)).read(wide)[0, ::5, ::5, 0].tolist() == [[0, 0], [51, 153]]
    integers = np.array([[0, 16, 8, 4]])
    assert ImageFormat.of(integers, SQUARE).read(integers)[0, 0, ::5, 0].tolist() == [0, 255]
    bright = np.array([[3.0, 100.0, 50.0, 209.0]])  # like uint8
    assert ImageFormat.of(bright, SQUARE).read(bright)[0, ::5, ::5, 0].tolist() == [[3, 100], [50, 209]]
    deep = np.array([[3, 100, 50, 256]])
    assert (ImageFormat.of(deep, SQUARE).low, ImageFormat.of(deep, SQUARE).high) == (3, 256)
    constant = np.full((2, 4), 7.0)
    assert not ImageFormat.of(constant, SQUARE).read(constant).any()
    bytes_ = np.array([[0, 1, 1, 0]], np.uint8)
    assert ImageFormat.of(bytes_, SQUARE).read(bytes_)[0, 0, ::5, 0].tolist() == [0, 1]  # never stretched
    assert form.read(bytes_)[0, 0, ::5, 0].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("wrong", "image_shape", "words"),
    [
        (np.zeros((2, 3, 12, 12)), None, "images must be"),
        (np.zeros(5), None, "images must be"),
        (np.zeros((2, 9)), (0, 9), "image_shape"),
        (np.zeros((2, 9)), (3, 3, 2), "image_shape"),
        (np.zeros((2, 9)), (9,), "image_shape"),
        (np.zeros((2, 9)), (-1, -1), "image_shape"),
        (np.zeros((2, 9)), (-2, 3), "image_shape"),
        (np.zeros((2, 9)), "large", "image_shape"),
        (np.zeros((2, 9)), (-1, 2), "rows of 9 numbers cannot be folded"),
        (np.zeros((2, 0)), (-1, 2), "rows of 0 numbers cannot be folded"),
        (["a.png"], (-1, 2), "need a height and a width"),
        (np.zeros((2, 384)), None, "rows of 384 numbers need image_shape"),
        (np.zeros((2, 144)), None, "rows of 144 numbers need image_shape"),
        (np.zeros((2, 0, 5)), None, "the shape of an image must be"),
        (np.zeros((2, 4, 4), complex), None, "arrays of numbers"),
        (np.array([[[0, "a"]]], object), None, "arrays of numbers"),
        (np.array([[[0, np.nan]]]), None, "NaN or infinite"),
    ],
)
def test_images_that_are_none(wrong: np.ndarray, image_shape: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        ImageFormat.of(wrong, image_shape)


@pytest.mark.parametrize("shape", [(0, 0, 3), (8, 8), (8, 8, 2), (8, -8, 1), (8.0, 8, 1), ("8", 8, 1)])
def test_shapes_that_no_image_has(shape: Any) -> None:
    with pytest.raises(InputError, match="the shape of an image must be"):
        ImageFormat(shape)


@pytest.mark.parametrize("bounds", [(np.nan, 1.0), (0.0, np.inf), (2.0, 1.0)])
def test_no_black_or_white(bounds: tuple[float, float]) -> None:
    with pytest.raises(InputError, match="must be two numbers, the smaller one first"):
        ImageFormat((8, 8, 1), *bounds)


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf])
def test_pixels_that_are_no_numbers_are_refused(wrong: float) -> None:
    image = np.zeros((1, 10, 10, 1), np.float32)
    image[0, 3, 4] = wrong
    with pytest.raises(InputError, match="NaN or infinite"):
        GRAY.read(image)


@pytest.mark.parametrize("method", ["afs", "scr", "dvc", "aaer"])
def test_lines_of_pixels_cannot_be_cropped(method: str) -> None:
    with pytest.raises(InputError, match=f"{method} crops its images, which must be larger than 1x20 pixels"):
        model(method, ImageFormat((1, 20, 1)))


def test_arrays_must_fit() -> None:
    for wrong in (np.zeros((1, 9, 10, 1)), np.zeros((1, 10, 10, 3)), np.zeros((1, 99)), np.zeros((10, 10))):
        with pytest.raises(ValueError, match="the model has 10x10x1"):
            GRAY.read(wrong)
    with pytest.raises(InputError, match="pixel_range"):
        ImageFormat.of(np.zeros((1, 4)), SQUARE, pixel_range=(1, 1))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr", "I;16", "F"])
def test_pictures_of_any_mode(mode: str, tmp_path: Path) -> None:
    pixels = np.full((10, 14), 200, np.uint8)
    picture = Image.fromarray(pixels)
    picture = (
        Image.fromarray(pixels.astype(np.uint16) * 257)
        if mode == "I;16"
        else Image.fromarray(pixels.astype(np.float32) / 255)
        if mode == "F"
        else picture.convert(mode, dither=Image.Dither.NONE)
    )
    expected = 255 if mode == "1" else 200
    path = tmp_path / ("image.tif" if mode in ("CMYK", "YCbCr", "F") else "image.png")
    picture.save(path)
    for form in (ImageFormat((10, 14, 1)), ImageFormat((10, 14, 3)), ImageFormat((20, 28, 3))):
        for given in (picture, path, str(path)):
            assert is_pictures([given])
            image = form.read([given])
            assert image.shape == (1, *form.shape)
            assert abs(image.astype(int) - expected).max() <= 2
    assert ImageFormat.of([path]).shape == (10, 14, 1 if mode in ("1", "L", "LA", "I;16", "F") else 3)
    assert ImageFormat.of([path], (7, 9)).shape[:2] == (7, 9)


@pytest.mark.parametrize("pixels", [-1.0, 255.0, np.nan])
def test_pictures_of_floats_that_are_not_from_0_to_1(pixels: float, tmp_path: Path) -> None:
    """What their black and their white are is not known. Pillow would clip them."""
    picture, path = Image.fromarray(np.full((4, 5), pixels, np.float32)), tmp_path / "image.tif"
    picture.save(path)
    words = "an image of floats has pixels from .* which must lie in 0..1"
    for given, name in ((picture, ""), (path, "image.tif: ")):
        with pytest.raises(InputError, match=name + words):
            ImageFormat((4, 5, 1)).read([given])
    with pytest.raises(OcilError, match=words):
        Dataset.from_torch([(picture, number % 2) for number in range(8)])


def test_a_photo_is_turned_upright(tmp_path: Path) -> None:
    pixels = np.zeros((12, 20), np.uint8)
    pixels[:, :10] = 255
    exif = Image.Exif()
    exif[0x0112] = 3  # upside down
    Image.fromarray(pixels).save(tmp_path / "photo.png", exif=exif)
    image = ImageFormat((12, 20, 1)).read([tmp_path / "photo.png"])[0, :, :, 0]
    assert not image[:, :10].any()
    assert (image[:, 10:] == 255).all()


def test_a_photo_taken_sideways_has_the_sides_of_the_upright_one(tmp_path: Path) -> None:
    pixels = np.zeros((20, 40, 3), np.uint8)
    pixels[:, :20] = 255
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.fromarray(pixels).save(tmp_path / "photo.png", exif=exif)
    form = ImageFormat.of([tmp_path / "photo.png"])
    assert form.shape == (40, 20, 3)
    image = form.read([tmp_path / "photo.png"])[0]
    assert (image[:20] == 255).all()
    assert not image[20:].any()
    assert probe(tmp_path / "photo.png") == ((20, 40), False)
    assert np.array_equal(read_image(tmp_path / "photo.png", gray=False), image)  # a dataset has the same image


def test_a_broken_orientation_is_none(tmp_path: Path) -> None:
    Image.new("L", (5, 4), 7).save(tmp_path / "photo.png", exif=b"Exif\0\0not a TIFF header")
    assert probe(tmp_path / "photo.png") == ((5, 4), True)
    assert read_image(tmp_path / "photo.png", gray=True).shape == (4, 5, 1)
    assert ImageFormat.of([tmp_path / "photo.png"]).read([tmp_path / "photo.png"]).min() == 7


def test_files_that_are_no_images(tmp_path: Path) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"\x89PNG\r\n\x1a\n")
    with pytest.raises(InputError, match=r"broken\.png is not a readable image"):
        GRAY.read([broken])
    with pytest.raises(InputError, match=r"there is no file .*absent\.png"):
        GRAY.read([tmp_path / "absent.png"])


def test_numbers_and_empty_lists_are_no_pictures() -> None:
    assert not is_pictures([])
    assert not is_pictures([[1, 2], [3, 4]])
    assert not is_pictures(np.zeros((2, 4)))
    assert not is_pictures("one.png")
    assert is_pictures(np.array(["a.png", "b.png"]))


# Learning


@pytest.mark.slow
@pytest.mark.parametrize("method", ONLINE)
def test_every_method_grows_saves_and_goes_on_bit_for_bit(method: str, tmp_path: Path) -> None:
    quick = {"gdumb": {"rehearsal_epochs": 1}, "ranpac": {"projection": 30}, "rar": {"repeats": 2}}.get(method, {})
    one = model(method, review_every=3, width=20, settings=quick | {"network": TINY})
    for number in range(4):
        one.learn(*batch(number, classes=3 + 4 * number))
    one.save(tmp_path)
    other = Model.load(tmp_path, "cpu", trust=True)
    assert digest(other.learner) == digest(one.learner)
    for number in range(4, 8):
        x, labels = batch(number, classes=40)
        assert (one.probabilities(x) == other.probabilities(x)).all()
        one.learn(x, labels)
        other.learn(x, labels)
    assert len(one.labels) > 16  # grown since it was saved
    assert one.labels == other.labels
    assert (one.batches, one.samples) == (other.batches, other.samples) == (8, 40)
    assert digest(other.learner) == digest(one.learner)
    x, _ = batch(99)
    probabilities = other.probabilities(x)
    assert probabilities.shape == (5, len(one.labels))
    assert np.allclose(probabilities.sum(1), 1)
    assert probabilities.min() >= 0
    assert not left_over(tmp_path)


def test_scores_change_nothing() -> None:
    one = model("scr")
    one.learn(*batch(0))
    before = digest(one.learner)
    one.probabilities(batch(1)[0])
    assert digest(one.learner) == before


def test_before_anything_is_learned() -> None:
    assert model().probabilities(batch(0)[0]).shape == (5, 0)


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (["new", "newer"], "5 inputs came with 2 labels"),
        (["new", "new", "new", "new", float("nan")], "nan is no label"),
        (["new", "new", "new", "new", np.float32("inf")], "inf is no label"),
        (["new", "new", "new", "new", ("half", float("nan"))], "nan is no label"),
        (["new", "new", "new", "new", ["list"]], "a label of type list cannot be saved"),
        (["new", "new", "new", "new", b"bytes"], "a label of type bytes cannot be saved: use text"),
        (["new", "new", "new", "new", ("half", np.bytes_(b"bytes"))], "a label of type bytes cannot be saved"),
        (["new", "new", "new", "new", frozenset({1})], "a label of type frozenset cannot be saved"),
    ],
)
def test_a_batch_that_is_refused_adds_no_class(labels: list[Any], words: str) -> None:
    one = model()
    one.learn(*batch(0))
    before, known = digest(one.learner), list(one.labels)
    with pytest.raises(OcilError if "came with" in words else InputError, match=f"^{words}"):
        one.learn(batch(1)[0], labels)
    with pytest.raises(OcilError, match=r"^a batch without samples"):
        one.learn(batch(1, count=0)[0], [])
    with pytest.raises(OcilError, match=r"^inputs must be"):
        one.learn(batch(1)[0][:, :-1], ["new"] * 5)
    with pytest.raises(InputError, match="no label"):
        one.relabel([0], float("nan"))
    assert (one.labels, len(one.numbers), one.batches) == (known, len(known), 1)
    assert digest(one.learner) == before


@pytest.mark.slow
def test_something_is_learned() -> None:
    rng = np.random.default_rng(0)
    one = model("afs", memory=50, width=2, review_every=10, settings={"memory_batch": 10})
    x = rng.integers(0, 60, (200, 10, 10, 1)).astype(np.uint8)
    y = rng.integers(0, 4, 200)
    x += (60 * y).astype(np.uint8)[:, None, None, None]
    for first in range(0, 200, 10):
        one.learn(x[first : first + 10], [("kind", int(label)) for label in y[first : first + 10]])
    best = one.probabilities(x).argmax(1)
    assert np.mean([one.labels[b] == ("kind", label) for b, label in zip(best, y, strict=True)]) > 0.7


@pytest.mark.parametrize(
    ("method", "review_every", "expected"),
    [("er", None, 0), ("afs", None, 500), ("scr", None, 500), ("gdumb", None, 500), ("er", 7, 7), ("afs", 0, 0)],
)
def test_when_reviews_come(method: str, review_every: int | None, expected: int) -> None:
    assert model(method, review_every=review_every).review_every == expected


def test_reviews_come_every_so_many_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    one = model("er", review_every=3)
    reviewed: list[int] = []
    monkeypatch.setattr(one.learner, "review_batches", lambda: (reviewed.append(one.batches), [])[1])
    for number in range(7):
        one.learn(*batch(number))
    assert reviewed == [2, 5]  # a batch counts once its review is done
    assert one.batches == 7


def test_a_review_is_a_task_end_to_methods_that_need_one() -> None:
    one = model("gdumb", review_every=0, settings={"rehearsal_epochs": 1})
    one.learn(*batch(0))
    before = digest(one.learner)
    one.review_or_end_task()
    assert one.learner.task_number == 1
    assert digest(one.learner) != before
    plain = model("er", review_every=0)
    plain.learn(*batch(0))
    plain.review_or_end_task()
    assert plain.learner.task_number == 0


def test_a_small_memory_is_replayed_in_full() -> None:
    assert Recipe("afs", memory=1000).config().memory_batch == 100
    assert Recipe("afs", memory=30).config().memory_batch == 30
    assert Recipe("afs", memory=30, settings={"memory_batch": 5}).config().memory_batch == 5
    assert Recipe("scr", memory=50).config().review_batch == 50  # or no review would have a whole batch
    assert Recipe("scr").config().review_batch == 100
    assert Recipe("fine-tune").config().memory == 0
    assert Recipe("er").config().growing


@pytest.mark.parametrize("name", ["width", "growing", "memory_batch", "review_batch", "lr"])
def test_none_among_the_settings_is_the_default(name: str) -> None:
    assert Recipe("scr", memory=50, width=3, settings={name: None}).config() == Recipe("scr", 50, width=3).config()


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        (Recipe("iid-offline"), "cannot learn from a stream"),
        (Recipe("earth"), "unknown method"),
        (Recipe("er", settings={"lrr": 1}), "unknown setting 'lrr'"),
        (Recipe("er", settings={"task": 5}), "unknown setting 'task' for er. Known: average"),  # and not 'tasks'
        (Recipe("er", settings={"memory": 5}), "give memory by its own name, not among the settings \\(--memory N\\)"),
        (Recipe("er", settings={"growing": False}), "growing = false does not suit a model"),
        (Recipe("er", settings={"growing": "no"}), "growing = false does not suit a model"),
        *(
            (Recipe("er", settings={name: value}), f"{name} is a setting of a benchmark's stream")
            for name, value in OF_A_STREAM.items()
        ),
        (Recipe("er", memory=5), "batch_size"),
        (Recipe("er", width=0), "width"),
        (Recipe("er", review_every=-1), "review_every"),
        (Recipe("er", seed=-1), "seed = -1 must be from 0"),
        (Recipe("er", seed=2**64), "seed = 18446744073709551616 must be from 0"),
    ],
)
def test_recipes_that_cannot_be(recipe: Recipe, words: str) -> None:
    with pytest.raises(OcilError, match=words):
        Model(recipe, GRAY)


def test_a_loss_that_is_not_finite_is_not_saved(tmp_path: Path) -> None:
    one = model("er", settings={"lr": 1e30})
    one.save(tmp_path)
    before = (tmp_path / FILE).read_bytes()
    for number in range(4):
        one.learn(*batch(number))
    with pytest.raises(OcilError, match="lower learning rate"):
        one.save(tmp_path)
    assert (tmp_path / FILE).read_bytes() == before


# On disk


def test_labels_of_any_kind(tmp_path: Path) -> None:
    labels = ["ä", 3, 2.5, False, None, ("tuple", 1, (2, "inner"))]
    one = model()
    one.learn(batch(0, count=6)[0], labels)
    one.save(tmp_path)
    assert Model.load(tmp_path).labels == labels
    one.learn(batch(1, count=5)[0], [*np.array(["ä", "ö"]), np.int64(3), np.float32(0.5), ("x", np.int64(1))])
    one.save(tmp_path)
    labels += ["ö", 0.5, ("x", 1)]  # numpy's kinds are Python's here, and equal ones are one class
    assert Model.load(tmp_path).labels == labels


def test_copies_are_independent() -> None:
    one = model("afs")
    one.learn(*batch(0))
    before = digest(one.learner)
    for other in (copy.deepcopy(one), pickle.loads(pickle.dumps(one)), one.copy("cpu")):
        assert digest(other.learner) == before
        other.learn(*batch(1))
        assert digest(one.learner) == before


def test_a_write_that_fails_leaves_the_old_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = model()
    one.save(tmp_path)
    before = (tmp_path / FILE).read_bytes()
    one.learn(*batch(0))

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(WriteError, match="No space left"):
        one.save(tmp_path)
    assert (tmp_path / FILE).read_bytes() == before
    assert not left_over(tmp_path)


def rewritten(path: Path, **changes: Any) -> None:
    with safetensors.safe_open(path, "pt") as file:
        header = json.loads(file.metadata()["ocil"]) | changes
    tensors = safetensors.torch.load_file(path)
    safetensors.torch.save_file(tensors, path, {"ocil": json.dumps(header)})


def test_the_file_of_a_model_in_place_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"anything")
    with pytest.raises(OcilError, match=rf"is a file: give the folder of a model, {re.escape(str(tmp_path))}\."):
        Model.load(tmp_path / FILE)


def test_files_that_are_no_models(tmp_path: Path) -> None:
    with pytest.raises(OcilError, match="there is no model in"):
        Model.load(tmp_path)
    path = tmp_path / FILE
    path.write_bytes(b"nonsense" * 10)
    with pytest.raises(OcilError, match="cannot be read"):
        Model.load(tmp_path)
    safetensors.torch.save_file({"weight": torch.zeros(2)}, path)
    with pytest.raises(OcilError, match="was not written by ocil"):
        Model.load(tmp_path)
    model().save(tmp_path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(OcilError, match="cannot be read"):
        Model.load(tmp_path)
    for changes, words in (
        ({"format": 3}, "has format 3, this version of ocil reads up to 2: update ocil"),
        (
            {"config": {"no_such_setting": 1}},
            "has the setting 'no_such_setting'.* a later version of ocil wrote.* Update ocil",
        ),
        ({"recipe": {"method": "earth"}}, "safetensors: unknown method 'earth'.* If it comes from a plugin, load"),
        ({"images": {}}, "is not a whole model"),
    ):
        model().save(tmp_path)
        rewritten(path, **changes)
        with pytest.raises(OcilError, match=words):
            Model.load(tmp_path)


def test_random_numbers_begin_anew_on_another_kind_of_device(tmp_path: Path) -> None:
    one = model()
    one.learn(*batch(0))
    one.save(tmp_path)
    rewritten(tmp_path / FILE, device="cuda")
    other = Model.load(tmp_path, "cpu")
    x, labels = batch(1)
    assert (other.probabilities(x) == one.probabilities(x)).all()
    other.learn(x, labels)


def test_one_process_at_a_time(tmp_path: Path) -> None:
    (tmp_path / ".model.safetensors.0123456789ab.tmp").touch()
    with locked(tmp_path), pytest.raises(InUseError, match="another process is learning"), locked(tmp_path):
        pass
    assert not left_over(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(OcilError, match=r"cannot write to .*: it is a file"), locked(tmp_path / "file"):
        pass
