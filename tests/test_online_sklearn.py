"""``OnlineClassifier`` is a scikit-learn estimator like any other."""

import copy
import os
import pickle
import re
import threading
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import ocil
from ocil.data import Dataset
from ocil.errors import InUseError, OcilError
from ocil.runs.environment import digest

pytest.importorskip("sklearn", reason="scikit-learn is not installed: pip install 'ocil[sklearn]'")

from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from ocil.online.classifier import OnlineClassifier
from ocil.online.images import ImageFormat
from ocil.online.inputs import InputError
from ocil.online.model import FILE, Model, Recipe, locked
from ocil.online.vectors import VectorFormat
from tests.networks_to_try import TINY

EXPECTED_FAILURES: dict[str, str] = {}
"""Checks of scikit-learn that cannot apply to images, each with its reason."""


def classifier(method: str = "er", **changes: Any) -> OnlineClassifier:
    usual: dict[str, Any] = {"memory": 100, "width": 2, "random_state": 0, "device": "cpu"}
    return OnlineClassifier(method, **usual | changes)


# A review at the end of ``fit`` is what makes 300 samples of two numbers each enough.
@pytest.mark.slow
@parametrize_with_checks(
    [
        OnlineClassifier("er", memory=100, random_state=0, device="cpu", settings={"review": True}),
        OnlineClassifier(
            "er",
            memory=100,
            random_state=0,
            device="cpu",
            image_shape=(1, -1),
            settings={"review": True, "network": TINY},
        ),
    ],
    expected_failed_checks=lambda estimator: EXPECTED_FAILURES,
)
def test_the_estimator_checks_of_scikit_learn(estimator: Any, check: Any) -> None:
    check(estimator)


def test_the_documentation_lists_every_expected_failure() -> None:
    page = (Path(__file__).parents[1] / "docs/online.md").read_text()
    assert "estimator checks" in page
    for name, reason in EXPECTED_FAILURES.items():
        assert f"`{name}`" in page
        assert reason in page
    assert ("none is expected to fail" in page) == (not EXPECTED_FAILURES)


def test_a_public_name() -> None:
    assert ocil.OnlineClassifier is OnlineClassifier
    assert "OnlineClassifier" not in ocil.__all__


@pytest.mark.slow
def test_without_scikit_learn(fork_python: Any) -> None:
    script = """
import sys
sys.modules["sklearn"] = None
import ocil
from ocil import *
try:
    ocil.OnlineClassifier
except ocil.OcilError as error:
    print(error)
"""
    out, err = fork_python("-c", script).communicate(timeout=600)
    assert out == "OnlineClassifier needs scikit-learn, and sklearn is not installed: pip install 'ocil[sklearn]'\n", (
        err
    )


def test_a_broken_scikit_learn(start_python: Any, tmp_path: Path) -> None:
    (tmp_path / "sklearn").mkdir()
    script = f"""
import sys
sys.path.insert(0, {str(tmp_path)!r})
import ocil
try:
    ocil.OnlineClassifier
except ocil.OcilError as error:
    print(error)
"""
    for content, reason in (
        ("raise ValueError('numpy.dtype size changed')", "ValueError: numpy.dtype size changed"),
        ("import no_such_package", "ModuleNotFoundError: No module named 'no_such_package'"),
        ("", "ModuleNotFoundError: No module named 'sklearn.base'"),
    ):
        (tmp_path / "sklearn" / "__init__.py").write_text(content)
        out, err = start_python("-B", "-c", script).communicate(timeout=600)
        assert f"OnlineClassifier needs scikit-learn, which cannot be imported ({reason})" in out, err


@pytest.mark.slow
def test_in_a_pipeline_and_cross_validated(tiny: Dataset) -> None:
    x, y = tiny.train_x.reshape(len(tiny.train_x), -1).astype(float), np.array(tiny.classes)[tiny.train_y]
    estimator = make_pipeline(MinMaxScaler(), classifier(image_shape=(8, 8), settings={"review": True}))
    scores = cross_val_score(estimator, x, y, cv=2)
    assert scores.shape == (2,)
    estimator.fit(x, y)
    assert estimator.predict_proba(x).shape == (len(x), 4)
    assert set(estimator.predict(x)) <= set("abcd")
    images = cross_val_score(classifier(), list(tiny.train_x), tiny.train_y, cv=2)  # a list of arrays
    assert images.shape == (2,)


def test_a_search_over_single_settings() -> None:
    one = classifier(width=20, settings={"momentum": 0.5})  # 20: the default, of which vectors have no use
    again = clone(one).set_params(settings__lr=0.01, memory=30)
    assert again.settings == {"momentum": 0.5, "lr": 0.01}
    assert (again.memory, one.settings) == (30, {"momentum": 0.5})
    assert classifier(settings=None).set_params(settings__lr=1.0).settings == {"lr": 1.0}
    with pytest.raises(ValueError, match="Invalid parameter 'speed'"):
        one.set_params(speed=1)
    rows = np.eye(3, dtype=np.float32)[np.arange(18) % 3]
    search = GridSearchCV(one, {"settings__lr": [1e-6, 0.5]}, cv=2).fit(rows, np.arange(18) % 3)
    assert search.best_estimator_.settings == {"momentum": 0.5, "lr": search.best_params_["settings__lr"]}


def test_threads_predict_while_another_one_learns(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(30, 6)).astype(np.float32)
    one = classifier(width=20).partial_fit(rows, ["a", "b", "c"] * 10)
    failed: list[Exception] = []
    done = threading.Event()

    def predict() -> None:
        while not done.is_set():
            try:
                found = one.predict_proba(rows)
                assert np.allclose(found.sum(1), 1)
                assert set(one.predict(rows)) <= set(one.classes_)
                one.save(tmp_path)
            except Exception as error:
                failed.append(error)

    reading = threading.Thread(target=predict)
    reading.start()
    for number in range(10):
        one.partial_fit(rows, [f"{number} {each % 3}" for each in range(30)])
    done.set()
    reading.join()
    assert not failed
    assert len(one.classes_) == 33


def test_threads_that_begin_together_learn_one_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each made a model of its own, and what all but one had learned was lost."""
    rows = np.random.default_rng(0).normal(size=(30, 6)).astype(np.float32)
    one, new_model = classifier(width=20), OnlineClassifier._new_model
    monkeypatch.setattr(OnlineClassifier, "_new_model", lambda *given: (time.sleep(0.2), new_model(*given))[1])
    learning = [threading.Thread(target=one.partial_fit, args=(rows, [name] * 30)) for name in "abc"]
    for thread in learning:
        thread.start()
    for thread in learning:
        thread.join()
    assert one.classes_.tolist() == ["a", "b", "c"]
    assert one.model_.samples == 90
    again = pickle.loads(pickle.dumps(one))
    assert np.array_equal(again.predict_proba(rows), one.predict_proba(rows))


def test_a_failed_beginning_leaves_the_next_one_free() -> None:
    one = classifier(width=20)
    with pytest.raises(ValueError, match="NaN"):
        one.partial_fit([[np.nan]], ["a"])
    assert copy.deepcopy(one).partial_fit([[1.0]], ["b"]).classes_.tolist() == ["b"]
    learning = threading.Thread(target=one.partial_fit, args=([[1.0]], ["c"]))
    learning.start()
    learning.join(60)
    assert one.classes_.tolist() == ["c"]


def test_a_copy_knows_what_was_learned_while_it_was_made() -> None:
    """The estimator's attributes are copied before its model, and another thread may learn new classes in between."""
    rows = np.random.default_rng(0).normal(size=(30, 6)).astype(np.float32)
    one = classifier(width=20).partial_fit(rows, ["b", "c"] * 15, classes=["d"])
    state = dict(one.__getstate__())
    one.partial_fit(rows, ["a", "e"] * 15)
    state["model_"] = copy.deepcopy(one.model_)
    again = classifier(width=20)
    again.__setstate__(state)
    assert again.classes_.tolist() == list("abcde")
    assert np.array_equal(again.predict_proba(rows), one.predict_proba(rows))


def test_inputs_like_the_first_ones_are_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checks of scikit-learn take longer than a small step."""
    rows, labels = np.random.default_rng(0).normal(size=(20, 6)).astype(np.float32), ["a", "b"] * 10
    one, other = (classifier(width=20).partial_fit(rows, labels) for _ in range(2))
    other.partial_fit(rows.tolist(), np.array(labels))
    expected = other.predict_proba(rows.tolist())

    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("checked again")

    for check in ("validate_data", "check_array", "column_or_1d"):
        monkeypatch.setattr(f"ocil.online.classifier.{check}", fail)
    assert np.array_equal(one.partial_fit(rows, labels).predict_proba(rows), expected)
    for odd in (rows[:, :5], rows[:0], np.full_like(rows, np.nan)):
        with pytest.raises(AssertionError, match="checked again"):
            one.predict(odd)


def test_learning_by_parts_is_learning_in_batches(tiny: Dataset) -> None:
    order = np.random.default_rng(0).permutation(len(tiny.train_x))
    x, y = tiny.train_x[order], tiny.train_y[order]
    whole = classifier().partial_fit(x[:40], y[:40])
    parts = classifier()
    for first in range(0, 40, 10):
        parts.partial_fit(x[first : first + 10], y[first : first + 10])
    assert digest(whole.model_.learner) == digest(parts.model_.learner)
    assert (whole.model_.batches, whole.model_.samples) == (4, 40)
    left_over = classifier().partial_fit(x[:23], y[:23])
    assert (left_over.model_.batches, left_over.model_.samples) == (3, 23)
    left_over.partial_fit(x[23:24], y[23:24])  # one image alone
    assert left_over.model_.samples == 24


def test_fit_begins_anew_and_ends_with_a_review(tiny: Dataset) -> None:
    x, y = tiny.train_x[:20], np.arange(20) % 3
    one, other = classifier("afs"), classifier("afs")
    one.fit(x, y)
    other.partial_fit(x[:5], y[:5]).fit(x, y)
    assert digest(one.model_.learner) == digest(other.model_.learner)
    parts = classifier("afs").partial_fit(x, y)
    assert digest(parts.model_.learner) != digest(one.model_.learner)
    assert digest(parts.review().model_.learner) == digest(one.model_.learner)
    never = classifier("afs", review_every=0).fit(x, y)
    assert digest(never.review().model_.learner) == digest(one.model_.learner)


def test_classes_appear(tiny: Dataset) -> None:
    x = tiny.train_x
    one = classifier().partial_fit(x[:4], ["zebra", "ape", "ape", "zebra"])
    assert one.classes_.tolist() == ["ape", "zebra"]
    one.partial_fit(x[4:6], ["bear", "ape"])
    assert one.classes_.tolist() == ["ape", "bear", "zebra"]
    assert one.model_.labels == ["zebra", "ape", "bear"]
    probabilities = one.predict_proba(x)
    assert np.allclose(probabilities.sum(1), 1)
    assert (one.predict(x) == one.classes_[probabilities.argmax(1)]).all()
    many = [f"c{number}" for number in range(40)]
    one.partial_fit(x[:40], many)
    assert len(one.classes_) == 43
    assert one.predict_proba(x[:3]).shape == (3, 43)


def test_announced_classes_are_there_but_impossible(tiny: Dataset, tmp_path: Path) -> None:
    one = classifier().partial_fit(tiny.train_x[:4], [5, 3, 3, 5], classes=[9, 3, 5])
    assert one.classes_.tolist() == [3, 5, 9]
    assert (one.predict_proba(tiny.train_x)[:, 2] == 0).all()
    one.save(tmp_path)
    assert OnlineClassifier.load(tmp_path).classes_.tolist() == [3, 5, 9]


@pytest.mark.parametrize("classes", ["hat", b"hat", 3, np.array("hat")])
def test_one_label_is_no_list_of_classes(tiny: Dataset, classes: Any) -> None:
    """The letters of a word became classes."""
    one = classifier()
    with pytest.raises(InputError, match=r"^classes = .* must be a list of labels, such as \['cat', 'dog'\]\.$"):
        one.partial_fit(tiny.train_x[:4], list("abab"), classes=classes)
    assert not hasattr(one, "model_")
    assert one.partial_fit(tiny.train_x[:4], list("abab"), classes={"hat"}).classes_.tolist() == ["a", "b", "hat"]


@pytest.mark.parametrize("given", ["y", "classes"])
@pytest.mark.parametrize("labels", [np.array([b"cat", b"dog"]), [frozenset("a"), frozenset("b")]])
def test_labels_that_cannot_be_saved_are_refused_before_anything_is_learned(
    tiny: Dataset, labels: Any, given: str
) -> None:
    x, known = tiny.train_x[:2], ["a", "b"]
    one, other = (classifier(batch_size=1).partial_fit(x, known) for _ in range(2))
    with pytest.raises(ValueError, match=r"^a label of type \w+ cannot be saved: use text, numbers.*$"):
        one.partial_fit(x, labels) if given == "y" else one.partial_fit(x, known, classes=labels)
    assert digest(one.model_.learner) == digest(other.model_.learner)
    if given == "y":
        new = classifier()
        with pytest.raises(ValueError, match=r"^a label of type"):
            new.fit(x, labels)
        assert not hasattr(new, "model_")


@pytest.mark.parametrize(
    "given",
    [
        {"memory": 20.5},
        {"memory": "20"},
        {"memory": True},
        {"memory": float("nan")},
        {"batch_size": 2.5},
        {"width": None},
        {"review_every": 1.5},
        {"threads": 1.5},
        {"threads": "2"},
    ],
)
def test_parameters_that_are_no_whole_numbers(tiny: Dataset, given: dict[str, Any]) -> None:
    ((name, value),) = given.items()
    with pytest.raises(OcilError, match=re.escape(f"{name} = {value!r} must be a whole number")):
        classifier(**given).fit(tiny.train_x[:6], tiny.train_y[:6])


@pytest.mark.parametrize(
    ("size", "message"),
    [
        (0, "batch_size = 0 must be at least 1."),
        (-1, "batch_size = -1 must be at least 1."),
        (2.5, "batch_size = 2.5 must be a whole number."),
        ("5", "batch_size = '5' must be a whole number."),
        (None, "batch_size = None must be a whole number."),
    ],
)
def test_a_batch_size_that_is_set_later_is_checked_too(tiny: Dataset, size: Any, message: str) -> None:
    x, y = tiny.train_x[:6], tiny.train_y[:6]
    one = classifier().partial_fit(x, y).set_params(batch_size=size)
    with pytest.raises(InputError, match=f"^{re.escape(message)}$"):
        one.partial_fit(x, y)
    assert one.model_.samples == 6
    one.set_params(batch_size=np.int64(4)).partial_fit(x, y)
    assert (one.model_.samples, one.model_.batches) == (12, 3)


def test_a_warning_names_parameters_that_come_too_late(tiny: Dataset, tmp_path: Path) -> None:
    x, y = tiny.train_x[:6], tiny.train_y[:6]
    one = classifier(image_shape=np.array([8, 8])).partial_fit(x, y)
    one.set_params(batch_size=3, threads=1, random_state=1, memory=100).partial_fit(x, y)  # none that was too late
    one.save(tmp_path)
    for each in (one, pickle.loads(pickle.dumps(one)), OnlineClassifier.load(tmp_path, "cpu")):
        each.partial_fit(x, y)
        with pytest.warns(UserWarning, match=r"^method and memory of a model cannot change: it goes on as it began."):
            each.set_params(method="slda", memory=50).partial_fit(x, y)
        assert each.model_.recipe.method == "er"
    one.set_params(method="fine-tune").fit(x, y).partial_fit(x, y)
    assert one.model_.recipe.method == "fine-tune"


def test_no_warning_of_parameters_with_an_equal_value(tiny: Dataset) -> None:
    x, y = tiny.train_x[:6], tiny.train_y[:6]
    settings = {"lr": 0.1, "memory_batch": 5}
    one = classifier(memory=20, image_shape=(8, 8), settings=settings).partial_fit(x, y)
    one.set_params(method=np.str_("er"), memory=np.int64(20), width=2.0, image_shape=np.array([8, 8]))
    again = {"memory_batch": np.int8(5), "lr": np.float64(0.1)}
    one.set_params(settings=again).partial_fit(x, y)
    again["lr"] = np.float64(0.2)
    with pytest.warns(UserWarning, match=r"^settings of a model cannot change"):
        one.partial_fit(x, y)


def test_parameters_that_are_whole_numbers_of_another_type(tiny: Dataset) -> None:
    model = classifier(memory=np.float64(20), width=torch.tensor(2), threads=1.0, batch_size=np.int8(3))
    model.fit(tiny.train_x[:6], tiny.train_y[:6])
    assert (model.model_.recipe.memory, model.model_.recipe.width, model.model_.recipe.batch_size) == (20, 2, 3)
    assert type(model.model_.threads) is int


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"method": None}, "method = None must be the name of a method, such as 'er'."),
        ({"method": 3}, "method = 3 must be the name of a method, such as 'er'."),
        ({"settings": [1]}, "settings = [1] must be a dictionary, such as {'lr': 0.05}."),
        ({"settings": "lr=0.1"}, "settings = 'lr=0.1' must be a dictionary, such as {'lr': 0.05}."),
        ({"settings": {1: 2}}, "settings = {1: 2} must be a dictionary, such as {'lr': 0.05}."),
        ({"device": None}, "device = None must be auto, cpu"),
    ],
)
def test_parameters_of_another_kind(tiny: Dataset, given: dict[str, Any], message: str) -> None:
    with pytest.raises(OcilError, match=re.escape(message)):
        classifier(**given).fit(tiny.train_x[:6], tiny.train_y[:6])


def test_whole_numbers_of_numpy_and_of_a_grid(tiny: Dataset, tmp_path: Path) -> None:
    one = classifier(memory=np.float64(20), batch_size=np.int64(5), review_every=2.0, threads=np.int64(1))
    one.fit(tiny.train_x[:6], tiny.train_y[:6]).save(tmp_path)
    again = OnlineClassifier.load(tmp_path)
    assert (again.memory, again.batch_size, again.review_every) == (20, 5, 2)


@pytest.mark.parametrize("bounds", [5, (1,), (0, 1, 2), ("a", "b"), (0, None), (0, 10**400), (1, 0)])
def test_a_pixel_range_that_is_none(tiny: Dataset, bounds: Any) -> None:
    with pytest.raises(OcilError, match="must be two numbers, the smaller one first"):
        classifier(pixel_range=bounds).fit(tiny.train_x[:6] / 255, tiny.train_y[:6])


def test_pixels_whose_range_is_no_number(tiny: Dataset) -> None:
    """They became black images, all of them."""
    x = tiny.train_x[:6].astype(float)
    x[0, 0, 0], x[1, 0, 0] = 1.7e308, -1.7e308
    for bounds in (None, (-1.7e308, 1.7e308)):
        with pytest.raises(OcilError, match="lie too far apart: divide them by 4"):
            classifier(pixel_range=bounds).fit(x, tiny.train_y[:6])


@pytest.mark.parametrize(
    ("labels", "kind"),
    [
        (np.array([2**64 - 1, 3, 2**63 + 1, 2**63], np.uint64), "u"),
        ([2**64 - 1, 3, 2**63 + 1, 2**63], "u"),
        ([2**63 + 1, -1, 2**63, 3], "O"),
    ],
)
def test_labels_of_64_bits_stay_apart(tiny: Dataset, tmp_path: Path, labels: Any, kind: str) -> None:
    """numpy makes equal floats of some of them, and whether it does so depends on all numbers of the list."""
    x, whole = tiny.train_x[:4], list(map(int, labels))
    one = classifier().partial_fit(x[:2], labels[:2]).partial_fit(x[2:], labels[2:], classes=[5, 2**64 - 2])
    assert one.classes_.dtype.kind == kind
    assert one.classes_.tolist() == sorted([*whole, 5, 2**64 - 2])
    assert one.predict_proba(x).shape == (4, 6)
    assert one.score(x, labels) == np.mean([a == b for a, b in zip(one.predict(x).tolist(), whole, strict=True)])
    one.save(tmp_path)
    assert OnlineClassifier.load(tmp_path).classes_.tolist() == one.classes_.tolist()


def test_labels_of_all_kinds(tiny: Dataset, tmp_path: Path) -> None:
    x = tiny.train_x[:6]
    for labels, expected in (
        ([("b", 1), ("a", 2), ("a", 1)] * 2, [("a", 1), ("a", 2), ("b", 1)]),
        (np.array([True, False, True] * 2), [False, True]),
        (np.array(["x", "y", "x"] * 2, dtype=object), ["x", "y"]),
        (torch.tensor([7, 300, 7] * 2), [7, 300]),
        ([1.0, 2.0, 3.0] * 2, [1.0, 2.0, 3.0]),
        (["b", 1, None] * 2, ["b", 1, None]),
    ):
        one = classifier().fit(x, labels)
        assert one.classes_.tolist() == expected
        assert 0 <= one.score(x, labels) <= 1
        assert set(one.predict(x).tolist()) <= set(expected)
        one.save(tmp_path)
        assert OnlineClassifier.load(tmp_path).classes_.tolist() == expected
    mixed = classifier().partial_fit(x[:2], ["b", "a"]).partial_fit(x[2:4], [2, 1])
    assert mixed.classes_.tolist() == ["b", "a", 2, 1]  # cannot be sorted: as they came
    assert mixed.predict_proba(x).shape == (6, 4)


def test_files_and_pillow_images(tiny: Dataset, tmp_path: Path) -> None:
    pictures = [Image.fromarray(np.repeat(np.repeat(image[:, :, 0], 2, 0), 2, 1)) for image in tiny.train_x[:12]]
    files = [tmp_path / f"{number:02}.png" for number in range(12)]
    for picture, path in zip(pictures, files, strict=True):
        picture.save(path)
    labels = tiny.train_y[::6][:12]
    by_file = classifier().fit(files, labels)
    by_name = classifier().fit(np.array(list(map(str, files))), labels)
    by_picture = classifier().fit(pictures, labels)
    by_array = classifier().fit(np.stack([np.asarray(picture) for picture in pictures]), labels)
    found = {digest(one.model_.learner) for one in (by_file, by_name, by_picture, by_array)}
    assert len(found) == 1
    assert by_file.model_.input_format.shape == (16, 16, 1)
    larger = by_array.predict_proba([pictures[0].resize((32, 32), Image.Resampling.NEAREST)])  # resized to fit
    assert np.allclose(larger, by_file.predict_proba(files[:1]), atol=0.2)
    assert classifier(image_shape=(12, 10)).fit(files, labels).model_.input_format.shape == (12, 10, 1)


def test_a_column_of_files_and_a_single_file(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    for number in range(12):
        Image.new("L", (16, 16), 20 * number).save(tmp_path / f"{number:02}.png")
    files, labels = sorted(map(str, tmp_path.glob("*.png"))), ["dark", "light"] * 6
    table = pandas.DataFrame({"path": files, "label": labels})
    one, other = classifier().fit(table["path"], table["label"]), classifier().fit(files, labels)
    assert digest(one.model_.learner) == digest(other.model_.learner)
    assert one.predict(table["path"][3:]).tolist() == other.predict(files[3:]).tolist()
    for file in (files[0], Path(files[0])):
        with pytest.raises(ValueError, match=r"X is one file, '.*00\.png': give a list of files, \['.*00\.png'\]"):
            one.predict(file)
    with pytest.raises(ValueError, match=r"X is one image: give a list of images, \[image\]"):
        one.predict(Image.new("L", (16, 16)))


def test_what_is_refused(tiny: Dataset) -> None:
    x, y = tiny.train_x[:10], tiny.train_y[:10]
    one = classifier()
    for call in (
        one.predict,
        one.predict_proba,
        lambda x: one.score(x, y),
        lambda x: one.review(),
        lambda x: one.save("model"),
    ):
        with pytest.raises(NotFittedError):
            call(x)
    one.fit(x, y)
    with pytest.raises(ValueError, match="the model has 8x8x1"):
        one.predict(np.zeros((2, 9, 9)))
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        one.partial_fit(x, y[:5])
    with pytest.raises(ValueError, match="NaN"):
        one.predict(np.full((1, 8, 8), np.nan))
    with pytest.raises(ocil.OcilError, match="unknown method 'earth'"):
        classifier("earth").fit(x, y)
    with pytest.raises(ocil.OcilError, match="unknown setting 'x'"):
        classifier(settings={"x": 1}).fit(x, y)
    with pytest.raises(ValueError, match="batch_size"):
        classifier(batch_size=0).fit(x, y)
    with pytest.raises(ocil.OcilError, match="device 'moon' is not there"):
        classifier(device="moon").fit(x, y)
    with pytest.raises(ocil.OcilError, match="not finite"):
        classifier(settings={"lr": 1e30}).fit(np.concatenate([x] * 3), np.arange(30) % 3)


def test_missing_labels_and_arrays_of_several_shapes() -> None:
    pandas = pytest.importorskip("pandas")
    one = classifier(width=20)
    with pytest.raises(ValueError, match=r"y contains a missing value \(NA\)"):
        one.partial_fit(np.eye(3), pandas.Series(["a", pandas.NA, "b"], dtype=object))
    with pytest.raises(ValueError, match="the arrays of X differ in shape: resize them"):
        one.partial_fit([np.zeros((8, 8), np.uint8), np.zeros((8, 9), np.uint8)], ["a", "b"])


def test_one_image_without_an_axis_for_it_is_told_apart() -> None:
    one = np.random.default_rng(0).integers(0, 256, (12, 12, 3), dtype=np.uint8)
    with pytest.raises(ValueError, match=r"X of 12x12x3 is 12 gray images, with one label. .* give X\[None\]"):
        classifier().partial_fit(one, ["a"])
    learner = classifier().partial_fit(one[None], ["a"])
    with pytest.raises(ValueError, match=r"images of 12x3 were given, .* If this is one image, give x\[None\]"):
        learner.predict(one)


def embeddings(size: int, scale: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    """Ten classes in random order, far apart."""
    rng = np.random.default_rng(0)
    y = rng.permutation(np.repeat(np.arange(10), 30))
    return scale * (2 * rng.normal(size=(10, size))[y] + rng.normal(size=(len(y), size))), y


@pytest.mark.parametrize("size", [20, 64, 384])  # also where they would make a square
@pytest.mark.parametrize("method", ["er", "afs"])
def test_embeddings_are_vectors(method: str, size: int) -> None:
    x, y = embeddings(size)
    one = OnlineClassifier(method, memory=100, random_state=0, device="cpu").fit(x[:200], y[:200])
    assert one.model_.config.network == "linear"
    assert one.model_.input_format == VectorFormat(size)
    assert one.model_.learner.memory.images.dtype == torch.float32
    assert one.score(x[200:], y[200:]) > 0.95
    assert one.n_features_in_ == size


def test_tensors_of_a_network_are_taken_as_they_come_out_of_it() -> None:
    x, y = embeddings(8)
    exact = torch.tensor(x).bfloat16()
    vectors = exact.clone().requires_grad_()
    one, other = (OnlineClassifier("er", memory=50, random_state=0, device="cpu") for _ in range(2))
    one.fit(vectors, torch.tensor(y))
    other.fit(exact.float().numpy(), y)
    assert np.array_equal(one.predict_proba(vectors), other.predict_proba(exact.float().numpy()))
    assert one.score(vectors, torch.tensor(y)) == other.score(exact.float().numpy(), y)


def test_images_with_channels_first_are_refused_with_the_way_out() -> None:
    with pytest.raises(ValueError, match=re.escape("give x.transpose(0, 2, 3, 1)")):
        classifier().fit(np.zeros((6, 3, 8, 8), np.uint8), [0, 1] * 3)


@pytest.mark.parametrize(
    ("given", "kept"),
    [(np.float16, "float16"), (np.float32, "float32"), (np.float64, "float32"), (np.int64, "float32")],
)
def test_vectors_are_kept_as_given(given: Any, kept: Any, tmp_path: Path) -> None:
    x, y = embeddings(8, scale=10)
    one = OnlineClassifier("er", memory=50, random_state=0).partial_fit(x[:20].astype(given), y[:20])
    assert one.model_.input_format == VectorFormat(8, kept)
    held = one.model_.learner.memory.images[:20].numpy()
    assert np.array_equal(held, x[:20].astype(given).astype(kept))
    one.save(tmp_path)
    other = OnlineClassifier.load(tmp_path, device="cpu")
    assert other.get_params() == one.set_params(device="cpu").get_params()
    for each in (one, other):
        each.partial_fit(x[20:40], y[20:40])  # of another type: brought to the model's
    assert digest(one.model_.learner) == digest(other.model_.learner)


@pytest.mark.parametrize("method", ["scr", "dvc", "ocm"])
def test_what_needs_views_refuses_vectors(method: str) -> None:
    one = OnlineClassifier(method)
    with pytest.raises(ValueError, match=f"{method} cannot learn from vectors: it"):
        one.fit(*embeddings(20))
    assert not hasattr(one, "model_")


def test_what_a_model_of_vectors_refuses(tiny: Dataset) -> None:
    x, y = embeddings(20)
    one = OnlineClassifier("er", random_state=0).partial_fit(x[:10], y[:10])
    with pytest.raises(ValueError, match="8x8"):
        one.predict(tiny.train_x)
    with pytest.raises(ValueError, match="20 features"):
        one.predict(x[:, :19])
    with pytest.raises(ValueError, match="too large for float32"):
        one.predict(np.full((1, 20), 1e300))
    for changes, reason in (
        ({"network": "resnet18"}, "network = resnet18 takes images"),
        ({"width": 3}, "width is a setting of reduced-resnet18"),
        ({"network": "mlp", "settings": {"network": "mlp"}}, "network is given twice"),
        ({"settings": {"features": "linear"}}, "features = linear is for runs"),
    ):
        with pytest.raises(OcilError, match=reason):
            OnlineClassifier("er", **changes).fit(x[:10], y[:10])


def test_networks_and_optimisers_are_parameters(tmp_path: Path) -> None:
    x, y = embeddings(20)
    one = OnlineClassifier("er", network="mlp(hidden=16)", optimizer="adam", settings={"lr": 0.01}, random_state=0)
    one.fit(x[:100], y[:100]).save(tmp_path)
    other = OnlineClassifier.load(tmp_path)
    assert other.get_params() == one.get_params()
    assert np.array_equal(other.predict_proba(x), one.predict_proba(x))
    frozen = OnlineClassifier("er", network="mlp(hidden=16)", freeze="backbone").fit(x[:20], y[:20])
    assert frozen.model_.learner.network.frozen_parts == ("body",)


def test_a_failed_first_call_leaves_it_unfitted(tiny: Dataset) -> None:
    one = classifier(settings={"x": 1})
    with pytest.raises(ocil.OcilError):
        one.partial_fit(tiny.train_x[:5], tiny.train_y[:5])
    with pytest.raises(NotFittedError):
        one.predict(tiny.train_x)


def test_a_file_that_cannot_be_read_ends_a_call(tiny: Dataset, tmp_path: Path) -> None:
    files = [tmp_path / f"{number:02}.png" for number in range(15)]
    for image, path in zip(tiny.train_x, files, strict=False):
        Image.fromarray(image[:, :, 0]).save(path)
    files[12].write_text("no image")
    one = classifier()
    with pytest.raises(ValueError, match=r"12\.png is not a readable image"):
        one.partial_fit(files[10:], ["x"] * 5)
    with pytest.raises(NotFittedError):
        one.predict(files[:1])
    with pytest.raises(ValueError, match=r"12\.png is not a readable image"):
        one.partial_fit(files, ["x", "y", "z"] * 5)
    assert one.model_.samples == 10  # the batches before it
    assert one.classes_.tolist() == ["x", "y", "z"]
    one.partial_fit(files[13:], ["v", "w"])
    assert one.predict_proba(files[:2]).shape == (2, 5)


@pytest.mark.slow
def test_a_folder_that_is_being_served_is_not_saved_to(tmp_path: Path) -> None:
    """The service would replace the file by its own, and what was learned here would be lost."""
    learner = classifier(width=20).partial_fit(np.eye(4, dtype=np.float32), ["a", "b", "a", "b"])
    learner.save(tmp_path)
    before = (tmp_path / FILE).read_bytes()
    learner.partial_fit(np.eye(4, dtype=np.float32), ["c"] * 4)
    with locked(tmp_path), pytest.raises(InUseError, match="stop it first, or save to another folder"):
        learner.save(tmp_path)
    assert (tmp_path / FILE).read_bytes() == before
    learner.save(tmp_path)
    assert OnlineClassifier.load(tmp_path, "cpu").model_.samples == 8


def test_save_load_and_go_on(tiny: Dataset, tmp_path: Path) -> None:
    x, y = tiny.train_x, np.array(tiny.classes)[tiny.train_y]
    one = classifier("afs", review_every=3, settings={"beta": 0.2}).partial_fit(x[::2], y[::2])
    one.save(tmp_path / "deep" / "model")
    other = OnlineClassifier.load(tmp_path / "deep" / "model", device="cpu")
    assert other.get_params() == one.get_params()
    assert other.classes_.tolist() == one.classes_.tolist()
    assert (other.predict_proba(x) == one.predict_proba(x)).all()
    for each in (one, other):
        each.partial_fit(x[1::2], y[1::2])
    assert digest(other.model_.learner) == digest(one.model_.learner)
    assert (other.predict_proba(x) == one.predict_proba(x)).all()
    fresh = clone(other)
    assert not hasattr(fresh, "model_")


def test_a_model_that_has_learned_nothing_predicts_nothing(tmp_path: Path) -> None:
    """A service saves its model before the first sample comes."""
    Model(Recipe("er", memory=20, batch_size=4), VectorFormat(4)).save(tmp_path)
    learner, x = OnlineClassifier.load(tmp_path, "cpu"), np.eye(4, dtype=np.float32)
    assert learner.predict_proba(x).shape == (4, 0)
    with pytest.raises(NotFittedError, match="has learned nothing yet"):
        learner.predict(x)
    assert learner.partial_fit(x, list("abab")).predict(x).shape == (4,)


def test_what_killed_saves_have_left_is_removed(tmp_path: Path) -> None:
    old, new = (tmp_path / f".{FILE}.{number:012x}.tmp" for number in (1, 2))
    for left in (old, new):
        left.write_bytes(b"half")
    os.utime(old, (0, 0))
    classifier(width=20).partial_fit(np.eye(4), list("abcd")).save(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {FILE, new.name}  # another process may write that one


@pytest.mark.parametrize("folder", [None, 3, "a\0b"])
def test_folders_that_are_none(folder: Any) -> None:
    with pytest.raises(OcilError, match=r"folder = .* must be the path of a folder"):
        classifier(width=20).partial_fit(np.eye(4), list("abcd")).save(folder)
    with pytest.raises(OcilError, match=r"folder = .* must be the path of a folder"):
        OnlineClassifier.load(folder)


def test_a_path_to_export_to_that_is_none() -> None:
    nowhere: Any = None
    with pytest.raises(InputError, match="path = None must be that of a file"):
        classifier(width=20).partial_fit(np.eye(4), list("abcd")).export(nowhere)


def test_random_states(tiny: Dataset) -> None:
    x, y = tiny.train_x[:10], np.arange(10) % 2
    seeds = {classifier(random_state=state).fit(x, y).model_.recipe.seed for state in (None, None, 5, np.int64(6))}
    assert len(seeds) == 4
    same = [classifier(random_state=np.random.RandomState(3)).fit(x, y).model_.recipe.seed for _ in range(2)]
    assert same[0] == same[1]


OUTSIDE, BLACK = "outside the model's pixel range, 0 to 1, and are clipped", "next to black in the model's pixel range"
STRETCHED = "these uint8 numbers are taken as they are, and others are stretched from the model's pixel range, 0 to 16"


@pytest.mark.parametrize(
    ("first", "later", "says"),
    [
        (1.0, 255.0, OUTSIDE),
        (np.uint8(255), 1.0, BLACK),
        (255.0, 1.0, BLACK),
        (1.0, 1.04, ""),
        (255.0, 255.0, ""),
        (1.0, np.uint8(255), ""),
        (209.0, np.uint8(255), ""),
        (16.0, np.uint8(16), STRETCHED),
        (255.0, 0.0, ""),
    ],
)
def test_numbers_of_another_range_than_the_first_are_named(
    first: Any, later: Any, says: str, recwarn: pytest.WarningsRecorder
) -> None:
    """From 0 to ``first`` when the model begins, from 0 to ``later`` then."""
    before, after = ((np.linspace(0, 1, 100) * most).astype(np.asarray(most).dtype) for most in (first, later))
    learner = classifier().partial_fit(before.reshape(1, 10, 10, 1), ["a"])
    assert not recwarn
    warnings.simplefilter("always")
    learner.predict(after.reshape(1, 10, 10, 1))
    learner.partial_fit(after.reshape(1, 10, 10, 1), ["a"])
    assert [says in str(one.message) for one in recwarn] == ([True, True] if says else [])


def test_uint8_images_in_a_model_whose_first_ones_were_not_quite_white(recwarn: pytest.WarningsRecorder) -> None:
    """ocil 0.1 took the smallest and the largest number of the first images for black and white."""
    for low, high, count in ((3, 252, 0), (0, 254, 0), (60, 200, 1)):
        recwarn.clear()
        ImageFormat((2, 2, 1), low, high).warn_of_another_range(np.zeros((1, 2, 2), np.uint8))
        assert len(recwarn) == count


def test_a_pixel_range_that_was_given_clips_without_a_warning() -> None:
    learner = classifier(pixel_range=(0.2, 0.4)).partial_fit(np.full((1, 10, 10), 0.3), ["a"])
    learner.predict(np.linspace(0, 1, 100).reshape(1, 10, 10))


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_seeds_that_are_none(seed: int, tiny: Dataset) -> None:
    with pytest.raises(OcilError, match=f"seed = {seed} must be from 0"):
        classifier(random_state=seed).fit(tiny.train_x[:10], np.arange(10) % 2)


def test_threads_can_be_chosen_at_any_time(tiny: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[int] = []
    before = Model.computing
    monkeypatch.setattr(Model, "computing", lambda model: (used.append(model.threads_used), before(model))[1])
    x, y = tiny.train_x[:10], np.arange(10) % 2
    classifier(threads=2).fit(x, y).save(tmp_path)
    assert set(used) == {2}
    one = OnlineClassifier.load(tmp_path, "cpu", threads=3)
    assert one.get_params()["threads"] == 3
    for count in (3, 2):
        one.set_params(threads=count)
        for compute in (lambda: one.predict(x), lambda: one.partial_fit(x, y), one.review):
            used.clear()
            compute()
            assert set(used) == {count}
    one.set_params(threads=0)
    with pytest.raises(OcilError, match="threads = 0 must be a whole number from 1"):
        one.predict(x)
    with pytest.raises(OcilError, match="threads = 0 must be a whole number from 1"):
        OnlineClassifier.load(tmp_path, "cpu", threads=0)
