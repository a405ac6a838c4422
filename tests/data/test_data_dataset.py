import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tiny_sources import tiny_dataset

from ocil.data import Dataset
from ocil.data.dataset import load_npz, peek_npz
from ocil.errors import OcilError

NAMES = st.text(st.characters(categories=("L", "N", "P", "S"), max_codepoint=0xFFFF), min_size=1, max_size=8)


@st.composite
def datasets(draw: st.DrawFn) -> Dataset:
    classes = draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
    shape = (draw(st.integers(1, 4)), draw(st.integers(1, 4)), draw(st.sampled_from((1, 3))))
    extra = draw(st.lists(st.integers(0, len(classes) - 1), max_size=3))
    train_y = np.array([*range(len(classes)), *extra], dtype=np.int64)
    test_y = np.array(draw(st.lists(st.integers(0, len(classes) - 1), min_size=1, max_size=3)), dtype=np.int64)
    train_x = draw(arrays.arrays(np.uint8, (len(train_y), *shape)))
    test_x = draw(arrays.arrays(np.uint8, (len(test_y), *shape)))
    return Dataset("drawn", train_x, train_y, test_x, test_y, tuple(classes))


@settings(max_examples=25, deadline=None, derandomize=True, database=None)
@given(dataset=datasets())
def test_npz_round_trip(dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("npz") / "drawn.npz"
    dataset.save(path)
    again = load_npz(path, "drawn")
    assert again.classes == dataset.classes
    for key in ("train_x", "train_y", "test_x", "test_y"):
        before, after = getattr(dataset, key), getattr(again, key)
        assert after.dtype == before.dtype
        np.testing.assert_array_equal(after, before)
    assert peek_npz(path) == (dataset.num_classes, dataset.image_shape, len(dataset.train_y), len(dataset.test_y))


def test_properties() -> None:
    dataset = tiny_dataset()
    assert dataset.image_shape == (5, 4, 3)
    assert dataset.num_classes == 3


def test_saving_gives_the_same_bytes_and_leaves_nothing_else(tmp_path: Path) -> None:
    tiny_dataset().save(tmp_path / "a.npz")
    tiny_dataset().save(tmp_path / "b.npz")
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npz", "b.npz"]


GOOD = tiny_dataset()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"train_x": GOOD.train_x.astype(np.float32)}, r"train_x must be uint8 .* float32 \[12, 5, 4, 3\]"),
        ({"test_x": GOOD.test_x[..., 0]}, r"test_x must be uint8 .* \[3, 5, 4\]"),
        ({"train_x": GOOD.train_x[..., :2]}, "C 1 or 3"),
        ({"test_x": GOOD.test_x[:, :0]}, "test_x must be"),
        ({"train_y": GOOD.train_y.astype(np.int32)}, "train_y must be int64 .* int32"),
        ({"test_y": GOOD.test_y[:, None]}, r"test_y must be int64 \[N\]"),
        ({"train_y": GOOD.train_y[:-1]}, "12 images but 11 labels"),
        ({"test_y": GOOD.test_y + 1}, r"label 3 in test_y is outside 0\.\.2"),
        ({"train_y": GOOD.train_y - 1}, r"label -1 in train_y is outside 0\.\.2"),
        ({"train_y": np.zeros(12, np.int64)}, r"class 1 \('class 1'\) has no training image"),
        ({"test_x": GOOD.test_x[:, :3]}, "training images are 5x4x3 but test images are 3x4x3"),
        ({"test_x": GOOD.test_x[:0], "test_y": GOOD.test_y[:0]}, "the test split is empty"),
        ({"train_x": GOOD.train_x[:0], "train_y": GOOD.train_y[:0]}, "the train split is empty"),
        ({"classes": ()}, "no class names"),
        ({"classes": ("a", "b", "a")}, "'a' appears 2 times"),
        ({"classes": ("a", "b", "\x1b[31m")}, "unprintable"),
    ],
)
def test_bad_content_is_one_clear_line(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(OcilError, match=message) as caught:
        replace(GOOD, **changed)
    assert "\n" not in str(caught.value)


def test_unreadable_files(tmp_path: Path) -> None:
    whole = tmp_path / "whole.npz"
    GOOD.save(whole)
    short, text, bare, damaged = (tmp_path / f"{name}.npz" for name in ("short", "text", "bare", "damaged"))
    short.write_bytes(whole.read_bytes()[:-200])
    text.write_text("not an archive")
    with bare.open("wb") as file:
        np.save(file, GOOD.train_x)
    content = bytearray(whole.read_bytes())
    content[300:330] = bytes(30)
    damaged.write_bytes(content)
    fifo, folder, loop = (tmp_path / f"{name}.npz" for name in ("fifo", "folder", "loop"))
    os.mkfifo(fifo)
    folder.mkdir()
    loop.symlink_to(loop)
    for path in (short, text, bare, damaged, tmp_path / "absent.npz", fifo, folder, loop):
        with pytest.raises(OcilError, match=f"cannot read .*{path.name}") as caught:
            load_npz(path, "x")
        assert "\n" not in str(caught.value)


def test_missing_array(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", train_x=GOOD.train_x)
    with pytest.raises(OcilError, match="an array is missing"):
        load_npz(tmp_path / "x.npz", "x")
    with pytest.raises(OcilError, match="an array is missing"):
        peek_npz(tmp_path / "x.npz")


def test_pickled_arrays_are_refused(tmp_path: Path) -> None:
    parts: dict[str, Any] = {
        "train_x": GOOD.train_x,
        "train_y": GOOD.train_y,
        "test_x": GOOD.test_x,
        "test_y": GOOD.test_y,
    }
    np.savez(tmp_path / "x.npz", classes=np.array([{}], dtype=object), **parts)
    with pytest.raises(OcilError, match="pickled objects"):
        load_npz(tmp_path / "x.npz", "x")
    np.savez(tmp_path / "y.npz", classes=np.arange(3), **parts)
    with pytest.raises(OcilError, match="classes must be a list of names"):
        load_npz(tmp_path / "y.npz", "y")
