"""A model file may come from a stranger: whatever is in it, loading ends in a model or in one line that names it."""

import copy
import json
import os
import pickle
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor

from ocil import tensorfile
from ocil.errors import OcilError
from ocil.learning.sgd import SGD
from ocil.methods import METHODS, MethodInfo
from ocil.methods.er import ER, ERConfig
from ocil.online.feed import Feed
from ocil.online.header import HeaderError, parsed
from ocil.online.images import ImageFormat
from ocil.online.inputs import InputError
from ocil.online.model import FILE, Model, Recipe, has_model
from ocil.online.sources import LabelledImages
from ocil.runs.environment import digest
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
        (put("config", "width")(1000), "its tensor network"),
        (put("config", "width")(3000), "width = 3000 must be at most 1024"),
        (put("config", "projection")(2**62), "its settings make no model"),
        (put("config", "projection")(10**9), "its tensor network.head"),
        (put("config", "lr")("fast"), "lr = 'fast' is not a number"),
        (put("config", "lr")(-1), "lr = -1.0 must be more than 0"),
        (put("config", "growing")(False), "made with growing = false"),
        (put("config", "no_such")(1), "safetensors has the setting 'no_such', which scr does not have here: a later"),
        (put("recipe", "method")("earth"), "unknown method 'earth'"),
        (put("recipe", "method")(["scr"]), "'method' is not text"),
        (put("recipe", "method")("er"), "which er does not have here"),
        (put("recipe", "batch_size")(0), "'batch_size' is 0"),
        (put("recipe", "review_every")(-1), "'review_every' is -1"),
        (put("recipe", "seed")(1.5), "'seed' is not a whole number"),
        (put("recipe", "settings")({"lr": []}), "lr = [] is not a number"),
        (put("recipe", "settings")({"lrr": 1}), "has the setting 'lrr', which scr does not have here"),
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
        (put("format")(3), "has format 3, this version of ocil reads up to 2: update ocil"),
    ],
)
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
            self.first = float(next(self.network.parameters()).detach()[0, 0, 0, 0])

    monkeypatch.setitem(METHODS, "mine", MethodInfo("mine", Mine, "mine", "-"))
    one = Model(Recipe("mine", memory=10, width=1), ImageFormat((9, 9, 1)))
    one.save(tmp_path)
    assert digest(Model.load(tmp_path, "cpu").learner) == digest(one.learner)


# Methods from outside this package


@dataclass(frozen=True)
class OwnConfig(ERConfig):
    temp: float | None = None
    sizes: tuple[int, ...] = ()
    steps: list[tuple[int, float]] = field(default_factory=list)
    anything: Any = None
    either: int | str = 0


class Own(ER):
    Config = OwnConfig


class OwnState(Own):
    """Keeps two tensors more than PyTorch knows of, one of them with a name that the learner's own have."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.extra = torch.zeros(3)

    def state(self) -> dict[str, Tensor]:
        return super().state() | {"extra": self.extra, "teacher.met": torch.ones(2, dtype=torch.bool)}

    def load_state(self, state: dict[str, Tensor], generators: bool = True) -> None:
        rest = dict(state)
        self.extra = rest.pop("extra").clone()
        rest.pop("teacher.met")
        super().load_state(rest, generators)


class OwnSGD(SGD):
    """Counts its steps."""

    count = 0

    def step(self) -> None:
        super().step()
        self.count += 1

    def state(self) -> dict[str, Tensor]:
        return super().state() | {"count": torch.tensor(self.count)}

    def load_state(self, state: dict[str, Tensor]) -> None:
        rest = dict(state)
        self.count = int(rest.pop("count"))
        super().load_state(rest)


class OwnOptimizer(Own):
    def make_optimizer(self) -> SGD:
        return OwnSGD(super().make_optimizer().parameters, self.config.lr, self.config.momentum)


class OwnNumbers(Own):
    """Needs numbers when it is made."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.table = self.network.get_parameter("conv1.weight").detach().numpy()


def own(kind: type[Own], monkeypatch: pytest.MonkeyPatch, **settings: Any) -> Model:
    """A model of a method from outside, which has learned a batch."""
    monkeypatch.setitem(METHODS, "own", MethodInfo("own", kind, "own", "-"))
    one = Model(Recipe("own", memory=10, width=1, settings=settings), ImageFormat((9, 9, 1)))
    one.learn(np.random.default_rng(0).integers(0, 256, (6, 9, 9, 1), dtype=np.uint8), ["a", "b", "c"] * 2)
    return one


OWN_SETTINGS: tuple[dict[str, Any], ...] = (
    {"temp": 0.5},
    {"temp": "0.5"},
    {"temp": "none"},
    {"temp": None},
    {"sizes": (1, 2)},
    {"sizes": [1, 2]},
    {"sizes": "1,2"},
    {"steps": [(1, 0.5)]},
    {"anything": {"a": [1, None]}},
    {"memory_batch": np.int64(3)},
)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        *(
            (kind, {"momentum": momentum})
            for kind in (Own, OwnState, OwnOptimizer, OwnNumbers)
            for momentum in (0, 0.5)
        ),
        *((Own, settings) for settings in OWN_SETTINGS),
    ],
)
def test_a_model_of_ones_own_method_is_loaded(
    kind: type[Own], settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = own(kind, monkeypatch, **settings)
    if isinstance(one.learner, OwnState):
        one.learner.extra += 2
    one.save(tmp_path)
    for again in (Model.load(tmp_path, "cpu"), one.copy("cpu"), pickle.loads(pickle.dumps(one))):
        assert digest(again.learner) == digest(one.learner)
        assert again.config == one.config
        assert again.recipe.config() == one.config
        if isinstance(again.learner, OwnState):
            assert again.learner.extra.tolist() == [2, 2, 2]
        if isinstance(again.learner, OwnOptimizer):
            assert again.learner.optimizer.state()["count"] == 1


def test_tuples_stay_tuples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = own(Own, monkeypatch, sizes=(1, 2), steps=[(1, 0.5)])
    one.save(tmp_path)
    assert Model.load(tmp_path, "cpu").recipe == one.recipe


@pytest.mark.parametrize("kind", [Own, OwnState])
def test_a_file_of_ones_own_method_bounds_what_is_allocated(
    kind: type[Own], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own(kind, monkeypatch).save(tmp_path)

    def change(header: dict[str, Any], tensors: Tensors) -> None:
        header["recipe"]["memory"] = header["config"]["memory"] = 3_000_000

    rewrite(tmp_path, change)
    monkeypatch.setattr(Model, "_from_parts", lambda *parts: pytest.fail("a model was allocated"))
    assert "its tensor memory.images is uint8 [11, 9, 9, 1], its settings ask for uint8 [3000001," in refusal(tmp_path)


@pytest.mark.parametrize("kind", [OwnState, OwnNumbers])
def test_weights_of_ones_own_method_must_be_finite(
    kind: type[Own], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own(kind, monkeypatch).save(tmp_path)
    rewrite(tmp_path, edit("network.conv1.weight", lambda w: w * float("nan")))
    assert "the weights are not finite" in refusal(tmp_path)


def unreadable_setting(one: Model) -> None:
    one.config = replace(one.config, anything=object())  # type: ignore[call-arg]


def setting_that_changes(one: Model) -> None:
    one.config = replace(one.config, either="5")  # type: ignore[call-arg]


def endless_setting(one: Model) -> None:
    one.config = replace(one.config, anything=float("inf"))  # type: ignore[call-arg]


def unknown_setting(one: Model) -> None:
    one.recipe = replace(one.recipe, settings={"lrr": 1})


def unreadable_seed(one: Model) -> None:
    one.recipe = replace(one.recipe, seed=1.5)  # type: ignore[arg-type]


def note_that_is_none(one: Model) -> None:
    one.note["feed"] = 3


def unknown_tensor(one: Model) -> None:
    one.learner.register_buffer("late", torch.zeros(2))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (unreadable_setting, "which JSON does not have"),
        (setting_that_changes, "either = '5' would be read as 5"),
        (endless_setting, "Infinity is no number"),
        (unknown_setting, "has the setting 'lrr', which own does not have here: another version of its plugin"),
        (unreadable_seed, "'seed' is not a whole number"),
        (note_that_is_none, "'feed' is not an object"),
        (unknown_tensor, "its tensor late is unknown"),
    ],
)
def test_what_could_not_be_loaded_is_not_written(
    spoil: Callable[[Model], None], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = own(Own, monkeypatch)
    one.save(tmp_path)
    before = (tmp_path / FILE).read_bytes()
    spoil(one)
    with pytest.raises(OcilError, match="could not be loaded again, so it is not saved") as error:
        one.save(tmp_path)
    assert words in str(error.value)
    assert (tmp_path / FILE).read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


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
        (edit("memory.seen", lambda seen: seen * 0 - 7), "its memory has seen -7 samples"),
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
        one.learner.network.get_parameter("conv1.weight")[0] = torch.nan
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
        Feed(Model.load(folder, "cpu"), LabelledImages([]))


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
        {"position": "x"},
        {"counts": 3},
        {"counts": {"learned": [1], "correct": [], "recent": []}},
        {"counts": {"learned": ["a"], "correct": [1], "recent": []}},
        {"keys": []},
        {"keys": {"a": [1]}},
        {"keys": {"a": ["1", 2, "x"]}},
    ],
)
def test_a_damaged_note_of_a_service(folder: Path, note: dict[str, Any]) -> None:
    pytest.importorskip("fastapi", reason="needs the packages of the service: pip install 'ocil[serve]'")
    from ocil.serve.checkpoints import NOTE
    from ocil.serve.service import Service

    rewrite(folder, put("note")({NOTE: note}))
    with pytest.raises(OcilError, match=r"service.* is damaged"):
        Service(Model.load(folder, "cpu"), folder)


@pytest.mark.parametrize("label", [float("nan"), float("inf")])
def test_numbers_that_are_none_are_no_labels(label: float) -> None:
    one = Model(Recipe("er", memory=10, width=1), ImageFormat((9, 9, 1)))
    with pytest.raises(InputError, match="is no label"):
        one.learn(np.zeros((2, 9, 9, 1), np.uint8), ["a", label])
    assert one.labels == []
