"""A model file may come from a stranger: whatever is in it, loading ends in a model or in one line that names it."""

import copy
import json
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor

from ocil import tensorfile
from ocil.errors import OcilError
from ocil.methods import METHODS, MethodInfo
from ocil.methods.er import ER
from ocil.online.feed import Feed, has_model
from ocil.online.header import HeaderError, parsed
from ocil.online.images import ImageFormat, InputError
from ocil.online.model import FILE, Model, Recipe
from ocil.runner import digest
from tests.conftest import Call, one_error

Tensors = dict[str, Tensor]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with momentum that has learned three classes."""
    one = Model(Recipe("scr", memory=10, width=1, settings={"momentum": 0.5}), ImageFormat((9, 9, 1)))
    rng = np.random.default_rng(0)
    for _ in range(2):
        one.learn(rng.integers(0, 256, (6, 9, 9, 1), dtype=np.uint8), ["a", ("b", 2), None] * 2)
    folder = tmp_path_factory.mktemp("model")
    one.save(folder)
    return folder


@pytest.fixture
def folder(saved: Path, tmp_path: Path) -> Path:
    (tmp_path / FILE).write_bytes((saved / FILE).read_bytes())
    return tmp_path


def header_of(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(tensorfile.read(folder / FILE)[1]["ocil"])
    return content


def rewrite(folder: Path, change: Callable[[dict[str, Any], Tensors], object], checksum: bool = True) -> None:
    """The file with another header or other tensors, and a checksum that is right: whoever makes it can do that."""
    tensors, texts = tensorfile.read(folder / FILE)
    header = json.loads(texts["ocil"])
    change(header, tensors)
    if checksum:
        tensorfile.write(folder / FILE, tensors, {"ocil": json.dumps(header)})
    else:
        safetensors.torch.save_file(tensors, folder / FILE, {"ocil": json.dumps(header)})


def refusal(folder: Path) -> str:
    with pytest.raises(OcilError) as error:
        Model.load(folder, "cpu")
    message = str(error.value)
    assert str(folder / FILE) in message
    assert "\n" not in message
    return message


def put(*place: str) -> Callable[[Any], Callable[[dict[str, Any], Tensors], object]]:
    """Write a value at a place of the header."""

    def at(value: Any) -> Callable[[dict[str, Any], Tensors], object]:
        def change(header: dict[str, Any], tensors: Tensors) -> None:
            for name in place[:-1]:
                header = header[name]
            header[place[-1]] = value

        return change

    return at


# The file


def test_every_flipped_byte_is_seen(folder: Path) -> None:
    content = (folder / FILE).read_bytes()
    for place in (3, 9, 200, len(content) // 2, len(content) - 1):
        damaged = bytearray(content)
        damaged[place] ^= 4
        (folder / FILE).write_bytes(damaged)
        assert "damaged" in refusal(folder)


def test_a_file_from_before_there_was_a_checksum_is_read(folder: Path) -> None:
    before = digest(Model.load(folder, "cpu").learner)
    rewrite(folder, lambda header, tensors: None, checksum=False)
    assert digest(Model.load(folder, "cpu").learner) == before


def test_links_and_fifos_are_refused_but_not_a_linked_folder(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder, target_is_directory=True)
    assert Model.load(tmp_path / "link", "cpu").samples == 12
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / FILE).symlink_to(folder / FILE)
    assert "it is a symbolic link" in refusal(tmp_path / "linked")
    (tmp_path / "fifo").mkdir()
    os.mkfifo(tmp_path / "fifo" / FILE)
    assert "it is not a regular file" in refusal(tmp_path / "fifo")
    assert all(has_model(tmp_path / name) for name in ("link", "linked", "fifo"))  # nothing is begun over them
    (tmp_path / "gone").mkdir()
    (tmp_path / "gone" / FILE).symlink_to(tmp_path / "nowhere")
    assert "it is a symbolic link" in refusal(tmp_path / "gone")


# The header


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (put("images", "shape")([0, 0, 3]), "the shape of an image must be"),
        (put("images", "shape")([9, 9]), "the shape of an image must be"),
        (put("images", "shape")([9, 9, 3]), "its tensor"),
        (put("images", "shape")([2**40, 2**40, 1]), ""),
        (put("images", "high")("white"), "'high' is not a whole number or a number"),
        (put("images", "more")(1), "unknown part 'more'"),
        (put("config", "memory")(3_000_000), "disagree on the memory"),
        (put("config", "width")(3000), "width = 3000 must be at most 1024"),
        (put("config", "width")(2**62), "width = 4611686018427387904 must be at most 1024"),
        (put("config", "projection")(10**9), "its tensor network.head"),
        (put("config", "lr")("fast"), "lr = 'fast' is not a number"),
        (put("config", "lr")(-1), "lr = -1.0 must be more than 0"),
        (put("config", "growing")(False), "made with growing = false"),
        (put("config", "no_such")(1), "unknown part 'no_such'"),
        (put("recipe", "method")("earth"), "unknown method 'earth'"),
        (put("recipe", "method")(["scr"]), "'method' is not text"),
        (put("recipe", "method")("er"), "unknown part"),
        (put("recipe", "batch_size")(0), "'batch_size' is 0"),
        (put("recipe", "review_every")(-1), "'review_every' is -1"),
        (put("recipe", "seed")(1.5), "'seed' is not a whole number"),
        (put("recipe", "settings")({"lr": []}), "'lr' is not"),
        (put("labels")(["a", "b"]), "it has 2 labels, but has met 3 classes"),
        (put("labels")(["a", "b", "a"]), "two of its labels are equal"),
        (put("labels")([1, True, "a"]), "two of its labels are equal"),
        (put("labels")(["a", "b", {}]), "a label of type dict"),
        (put("labels")(["a", "b", float("nan")]), "NaN is no number"),
        (put("labels")("abc"), "'labels' is not a list"),
        (put("batches")(2.5), "'batches' is not a whole number"),
        (put("samples")(-1), "'samples' is -1"),
        (put("samples")(True), "'samples' is not a whole number"),
        (put("device")(3), "'device' is not text"),
        (put("note")([]), "'note' is not an object"),
        (put("note")({"feed": 3}), "'feed' is not an object"),
        (put("format")("1"), "'format' is not a whole number"),
        (put("format")(2), "has format 2, this version of ocil reads up to 1: update ocil"),
    ],
)  # fmt: skip
def test_headers_that_describe_no_model(
    folder: Path, change: Callable[..., object], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Model, "_from_parts", lambda *parts: pytest.fail("a model was allocated"))
    rewrite(folder, change)
    assert words in refusal(folder)


def test_both_sizes_of_the_memory_are_compared_with_its_images(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Model, "_from_parts", lambda *parts: pytest.fail("a model was allocated"))

    def change(header: dict[str, Any], tensors: Tensors) -> None:
        header["recipe"]["memory"] = header["config"]["memory"] = 3_000_000

    rewrite(folder, change)
    assert "its tensor memory.images is uint8 [11, 9, 9, 1], its settings ask for uint8 [3000001," in refusal(folder)


WRONG: list[Any] = [None, True, -1, 1.5, 10**400, "x", "1", [], [[]], {}, {"a": 1}, float("nan"), float("-inf")]


def test_no_entry_of_a_wrong_type_ends_in_a_traceback(saved: Path) -> None:
    header = header_of(saved)
    places: list[tuple[str, ...]] = [(name,) for name in header]
    places += [(name, part) for name in ("recipe", "config", "images") for part in header[name]]
    for place in places:
        for value in WRONG:
            other = copy.deepcopy(header)
            put(*place)(value)(other, {})
            with suppress(HeaderError, OcilError):
                parsed(json.dumps(other))
        other = copy.deepcopy(header)
        inner = other if len(place) == 1 else other[place[0]]
        del inner[place[-1]]
        if place[0] != "config":  # what a config does not have has its default
            with pytest.raises(HeaderError):
                parsed(json.dumps(other))
    for text in ("", "[]", "null", "{}", "[" * 100_000, json.dumps(header)[:-1]):
        with pytest.raises(HeaderError):
            parsed(text)


def test_a_model_made_elsewhere_of_a_method_that_cannot_be_sketched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Mine(ER):
        """Reads a number of its own weights when it is made."""

        def __init__(self, *arguments: Any, **named: Any) -> None:
            super().__init__(*arguments, **named)
            self.first = float(self.network.conv1.weight.detach()[0, 0, 0, 0])

    monkeypatch.setitem(METHODS, "mine", MethodInfo("mine", Mine, "mine", "-"))
    one = Model(Recipe("mine", memory=10, width=1), ImageFormat((9, 9, 1)))
    one.save(tmp_path)
    assert digest(Model.load(tmp_path, "cpu").learner) == digest(one.learner)


# The tensors


def edit(name: str, make: Callable[[Tensor], Tensor]) -> Callable[[dict[str, Any], Tensors], object]:
    return lambda header, tensors: tensors.update({name: make(tensors[name])})


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (edit("network.conv1.weight", lambda w: w * float("nan")), "the weights are not finite"),
        (edit("network.bn1.running_var", lambda w: w / 0), "the weights are not finite"),
        (edit("network.conv1.weight", lambda w: w.double()), "is float64 [1, 1, 3, 3], its settings ask for float32"),
        (edit("met", lambda met: met.long()), "which classes were met"),
        (edit("met", lambda met: met.logical_not()), "but has met"),
        (edit("memory.labels", lambda labels: labels + 3), "classes that have no label"),
        (edit("memory.labels", lambda labels: labels - 9), "classes that have no label"),
        (edit("optimizer.0.momentum_buffer", lambda velocity: velocity[..., :1]), "momentum_buffer is float32"),
        (edit("rng.memory", lambda state: state[:-8]), "is not a whole model"),
        (lambda header, tensors: tensors.pop("steps"), "its tensor steps is missing"),
        (lambda header, tensors: tensors.update(more=torch.zeros(2)), "its tensor more is unknown"),
        (lambda header, tensors: tensors.update({"optimizer.x": torch.zeros(2)}), "its tensor optimizer.x is unknown"),
    ],
)
def test_tensors_that_make_no_model(folder: Path, change: Callable[..., object], words: str) -> None:
    rewrite(folder, change)
    assert words in refusal(folder)


def test_weights_that_are_not_finite_are_not_saved(folder: Path) -> None:
    one, before = Model.load(folder, "cpu"), (folder / FILE).read_bytes()
    with torch.no_grad():
        one.learner.network.conv1.weight[0] = torch.nan
    with pytest.raises(OcilError, match="weights are not finite"):
        one.save(folder)
    assert (folder / FILE).read_bytes() == before


def test_the_command_line_names_the_file(folder: Path, ocil_command: Call) -> None:
    rewrite(folder, edit("network.conv1.weight", lambda w: w * float("nan")))
    message = one_error(ocil_command("predict", folder, "--model", folder))
    assert str(folder / FILE) in message
    assert "not finite" in message


# Notes


@pytest.mark.parametrize(
    "note", [{"position": "x"}, {"position": -1}, {"scored": 1.5}, {"reviewed": 3}, {"position": 2, "digest": None}]
)
def test_a_damaged_note_of_a_list(folder: Path, note: dict[str, Any]) -> None:
    rewrite(folder, put("note")({"feed": note}))
    with pytest.raises(OcilError, match="the model's note of its list is damaged"):
        Feed(Model.load(folder, "cpu"), [])


@pytest.mark.parametrize(
    "note",
    [{"image_shape": 3}, {"pixel_range": [1]}, {"pixel_range": ["a", "b"]}, {"announced": 3}, {"announced": [{}]}],
)
def test_a_damaged_note_of_an_estimator(folder: Path, note: dict[str, Any]) -> None:
    pytest.importorskip("sklearn", reason="scikit-learn is not installed: pip install 'ocil[sklearn]'")
    from ocil.online.classifier import OnlineClassifier

    rewrite(folder, put("note")({"classifier": note}))
    with pytest.raises(OcilError, match="the model's note of its estimator is damaged"):
        OnlineClassifier.load(folder, "cpu")


@pytest.mark.parametrize(
    "note",
    [
        {"position": "x"}, {"counts": 3}, {"counts": {"learned": [1], "correct": [], "recent": []}},
        {"counts": {"learned": ["a"], "correct": [1], "recent": []}}, {"keys": []}, {"keys": {"a": [1]}},
        {"keys": {"a": ["1", 2, "x"]}},
    ],
)  # fmt: skip
def test_a_damaged_note_of_a_service(folder: Path, note: dict[str, Any]) -> None:
    pytest.importorskip("fastapi", reason="needs the packages of the service: pip install 'ocil[serve]'")
    from ocil.serve.service import NOTE, Service

    rewrite(folder, put("note")({NOTE: note}))
    with pytest.raises(OcilError, match=r"what the service noted in .* is damaged"):
        Service(Model.load(folder, "cpu"), folder)


@pytest.mark.parametrize("label", [float("nan"), float("inf")])
def test_numbers_that_are_none_are_no_labels(label: float) -> None:
    one = Model(Recipe("er", memory=10, width=1), ImageFormat((9, 9, 1)))
    with pytest.raises(InputError, match="is no label"):
        one.learn(np.zeros((2, 9, 9, 1), np.uint8), ["a", label])
    assert one.labels == []
