import os
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from tests.data.tiny_sources import tiny_dataset

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
        ({"train_x": GOOD.train_x.astype(np.float32)}, r"train_x must be images, uint8 .* float32 \[12, 5, 4, 3\]"),
        ({"test_x": GOOD.test_x[..., 0]}, r"test_x must be images, uint8 .* \[3, 5, 4\]"),
        ({"train_x": GOOD.train_x[..., :2]}, "C 1 or 3"),
        ({"test_x": GOOD.test_x[:, :0]}, "test_x must be"),
        ({"train_y": GOOD.train_y.astype(np.int32)}, "train_y must be int64 .* int32"),
        ({"test_y": GOOD.test_y[:, None]}, r"test_y must be int64 \[N\]"),
        ({"train_y": GOOD.train_y[:-1]}, "12 images but 11 labels"),
        ({"test_y": GOOD.test_y + 1}, r"label 3 in test_y is outside 0\.\.2"),
        ({"train_y": GOOD.train_y - 1}, r"label -1 in train_y is outside 0\.\.2"),
        ({"train_y": np.zeros(12, np.int64)}, r"2 classes have no training image; .*: 'class 1', 'class 2'"),
        ({"test_x": GOOD.test_x[:, :3]}, "training inputs are 5x4x3 uint8 but test inputs are 3x4x3 uint8"),
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


def repacked(path: Path, members: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> Path:
    """An archive of these members, with sizes and checksums that are right."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def mutated(content: bytes, rng: np.random.Generator) -> bytes:
    """A few bytes replaced, cut out or doubled."""
    changed = bytearray(content)
    for _ in range(rng.integers(1, 6)):
        at = int(rng.integers(0, max(1, len(changed))))
        size = int(rng.integers(1, 5))
        match rng.integers(0, 4):
            case 0:
                del changed[at : at + size]
            case 1:
                changed[at:at] = changed[at : at + size]
            case _:
                changed[at : at + size] = rng.integers(0, 256, size, dtype=np.uint8).tobytes()
    return bytes(changed)


@pytest.mark.parametrize("inside", [False, True])
def test_whatever_bytes_an_archive_has_it_is_a_dataset_or_an_error_of_ours(inside: bool, tmp_path: Path) -> None:
    """``inside``: the arrays are damaged and packed anew, so that no checksum of the archive gives them away."""
    GOOD.save(tmp_path / "whole.npz", compressed=True)
    content = (tmp_path / "whole.npz").read_bytes()
    with zipfile.ZipFile(tmp_path / "whole.npz") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    rng, path = np.random.default_rng(0), tmp_path / "x.npz"
    refused: list[str] = []
    for _ in range(400):
        if inside:
            name = list(members)[rng.integers(len(members))]
            head = int(rng.choice([128, len(members[name])]))  # as a rule the header: most bytes are not
            damaged = mutated(members[name][:head], rng) + members[name][head:]
            repacked(path, members | {name: damaged})
        else:
            path.write_bytes(mutated(content, rng))
        for read in (lambda: load_npz(path, "x"), lambda: peek_npz(path)):
            try:
                read()
            except OcilError as error:
                refused.append(str(error))
    assert len(refused) > 100
    assert not any("\n" in message for message in refused)


def header(shape: str, descr: str = "'|u1'") -> bytes:
    text = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}\n".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (header("(1, 2"), "damaged or not an .npz file"),
        (header("(" * 3000), "damaged or not an .npz file"),
        (header("(99999999999999, 8, 8, 1)"), "does not fit its shape"),
        (header("(-1, 8, 8, 1)"), "has the shape"),
        (header("(4, 2, 2, 1)") + bytes(15), "does not fit its shape"),
        (header("(1,)", "'|O'") + b"cos\nsystem\n", "pickled objects, which are not loaded"),
        (b"", "damaged or not an .npz file"),
        (b"\x93NUMPY\x09\x00", "damaged or not an .npz file"),
    ],
)
def test_headers_that_lie(content: bytes, message: str, tmp_path: Path) -> None:
    GOOD.save(tmp_path / "whole.npz")
    with zipfile.ZipFile(tmp_path / "whole.npz") as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    path = repacked(tmp_path / "x.npz", members | {"train_x.npy": content})
    with pytest.raises(OcilError, match=message):
        load_npz(path, "x")


def test_an_archive_that_unpacks_to_more_than_the_machine_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    GOOD.save(tmp_path / "x.npz", compressed=True)
    monkeypatch.setattr("ocil.data.archive.machine_memory", lambda: GOOD.train_x.nbytes)
    with pytest.raises(OcilError, match="of memory, and there are"):
        load_npz(tmp_path / "x.npz", "x")


@pytest.mark.parametrize("unseen", [np.int64(-1), np.int64(2**60), np.array([1, 2]), np.array("many"), np.float64(1)])
def test_a_number_of_unseen_classes_that_is_none(unseen: Any, tmp_path: Path) -> None:
    GOOD.save(tmp_path / "x.npz")
    with np.load(tmp_path / "x.npz") as archive:
        arrays = dict(archive)
    np.savez(tmp_path / "x.npz", **arrays, unseen=unseen)
    with pytest.raises(OcilError, match="unseen"):
        load_npz(tmp_path / "x.npz", "x")


def test_class_names_that_are_not_text(tmp_path: Path) -> None:
    GOOD.save(tmp_path / "x.npz")
    with np.load(tmp_path / "x.npz") as archive:
        arrays = dict(archive)
    arrays["classes"] = np.full(len(GOOD.classes), 2**31, np.uint32).view("U1")
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(OcilError, match="not text"):
        load_npz(tmp_path / "x.npz", "x")
