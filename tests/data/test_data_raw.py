"""Datasets larger than memory: the folder, its manifest, and what a stranger may have done to them."""

import json
import os
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.data.tiny_sources import tiny_dataset, write_images

from ocil.data import Dataset, available, load, load_once, raw, raw_writer
from ocil.data.catalog import DatasetSource
from ocil.data.check import check
from ocil.data.importers import import_dataset
from ocil.data.mapped import RowReader, is_mapped, mapped
from ocil.data.raw import open_store, read_manifest
from ocil.data.raw_writer import StoreWriter
from ocil.data.samples import Samples
from ocil.errors import OcilError, WriteError


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raw, "PART_BYTES", 100)
    monkeypatch.setattr(raw_writer, "PART_BYTES", 100)


@pytest.fixture
def stored(small_parts: None, tmp_path: Path) -> Path:
    path = tmp_path / "birds"
    Samples.of(tiny_dataset()).write(path)
    return path


def rewritten(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the manifest and give it the right digest again, as somebody may who means harm."""
    content = json.loads((folder / "manifest.json").read_text())
    content.pop("digest")
    change(content)
    (folder / "manifest.json").write_text(json.dumps(content | {"digest": raw._digest(content)}))


def test_what_was_written_is_read(stored: Path) -> None:
    expected, found = tiny_dataset(), load(stored)
    for key in ("train_x", "train_y", "test_x", "test_y"):
        np.testing.assert_array_equal(getattr(found, key), getattr(expected, key))
        assert getattr(found, key).dtype == getattr(expected, key).dtype
    assert found.classes == expected.classes
    assert found.name == "birds"
    assert is_mapped(found.train_x)
    assert sorted(path.name for path in stored.iterdir()) == [
        "manifest.json", "test_x.raw", "test_y.raw", "train_x.raw", "train_y.raw",
    ]  # fmt: skip
    assert len(read_manifest(stored).arrays["train_x"].parts) == 8  # of 720 bytes


def test_torch_takes_a_mapped_array_without_a_copy(stored: Path) -> None:
    images = load(stored).train_x
    tensor = torch.from_numpy(images)
    assert tensor.data_ptr() == images.__array_interface__["data"][0]
    tensor[0] = 0  # changes this process's copy alone
    assert (load(stored).train_x == tiny_dataset().train_x).all()


def test_vectors_keep_their_type(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for dtype in (np.float16, np.float32):
        x = rng.standard_normal((8, 5)).astype(dtype)
        y = np.arange(8) % 2
        data = Dataset.from_arrays(x, y, x, y, store=tmp_path / dtype.__name__)
        assert data.train_x.dtype == dtype
        np.testing.assert_array_equal(data.train_x, x)
    with pytest.raises(OcilError, match="not finite"):
        Dataset.from_arrays(np.full((4, 2), np.nan, np.float32), [0, 1, 0, 1], store=tmp_path / "nan", note=print)
    assert not (tmp_path / "nan").exists()


def test_a_dataset_of_vectors_is_checked_and_listed(tmp_path: Path) -> None:
    x, y = np.random.default_rng(0).standard_normal((8, 5)).astype(np.float16), np.arange(8) % 2
    Dataset.from_arrays(x, y, x, y, store=tmp_path / "folder")
    Dataset.from_arrays(x, y, x, y).save(tmp_path / "file.npz")
    for name in ("folder", "file"):
        report = check(name, tmp_path)
        assert report.ok
        assert report.image_shape == (5,)
    assert [entry.image_shape for entry in available(tmp_path)[-2:]] == [(5,), (5,)]


def test_a_dataset_that_a_function_makes_keeps_its_fingerprint(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = open_store(stored, "own")
    monkeypatch.setattr("ocil.data.lookup.SOURCES.find", lambda name: DatasetSource("mine", lambda: made))
    monkeypatch.setattr("ocil.data.dataset.pieces", lambda array: pytest.fail("it was computed"))
    assert load("mine").fingerprint == made.fingerprint


def test_the_fingerprint_comes_from_the_manifest(stored: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = load(stored).fingerprint
    with (stored / "train_x.raw").open("r+b") as file:
        file.write(b"x")
    assert load(stored, verify=False).fingerprint == before  # nothing was read
    other = tiny_dataset(classes=4)
    Samples.of(other).write(stored)
    assert load(stored).fingerprint != before
    Samples.of(tiny_dataset()).write(stored)
    assert load(stored).fingerprint == before  # wherever the arrays lie
    monkeypatch.setattr(Dataset, "fingerprint", property(lambda self: pytest.fail("it was computed")))
    open_store(stored, "birds")


def test_check_names_the_damaged_part(stored: Path) -> None:
    assert check(str(stored)).ok
    with (stored / "train_x.raw").open("r+b") as file:
        file.seek(250)
        file.write(bytes([file.read(1)[0] ^ 1]))
    assert check(str(stored)).problems == ("part 2 of train_x.raw is damaged",)


def flip(path: Path, place: int) -> None:
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)[0]
        file.seek(place)
        file.write(bytes([byte ^ 1]))


def test_a_damaged_dataset_cannot_be_opened(stored: Path) -> None:
    flip(stored / "test_x.raw", 120)
    with pytest.raises(
        OcilError, match=r"test_x\.raw is damaged: its part 1 is not what was written\. Import"
    ) as error:
        load(stored)
    assert "\n" not in str(error.value)
    flip(stored / "test_x.raw", 120)
    load(stored)


def test_a_dataset_is_read_once_and_again_when_it_has_changed(
    stored: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("OCIL_CACHE", str(tmp_path / "cache"))
    read: list[str] = []
    digest = raw._part_digest

    def counted(path: Path, number: int) -> str:
        read.append(f"{path.stem} {number}")
        return digest(path, number)

    monkeypatch.setattr(raw, "_part_digest", counted)
    long_ago = time.time() - 1000
    for path in stored.glob("*.raw"):
        os.utime(path, (long_ago, long_ago))
    load(stored)
    assert sorted(read) == sorted(
        f"{key} {number}" for key, array in read_manifest(stored).arrays.items() for number in range(len(array.parts))
    )
    read.clear()
    load(stored)
    assert not read
    flip(stored / "train_y.raw", 3)
    with pytest.raises(OcilError, match=r"train_y\.raw is damaged"):
        load(stored)
    assert read
    assert all(name.startswith("train_y") for name in read)
    flip(stored / "train_y.raw", 3)
    os.utime(stored / "train_y.raw", (long_ago, long_ago))
    load(stored)

    def claim(content: dict[str, Any]) -> None:
        content["arrays"]["train_x"]["parts"][5] = "0" * 64

    rewritten(stored, claim)  # the record is of another manifest
    with pytest.raises(OcilError, match=r"train_x\.raw is damaged: its part 5"):
        load(stored)


class Killed(BaseException):
    """Stands for the end of the process."""


class Disk:
    """Counts changes of folders. After ``left`` of them, no more change can be made: the process has ended."""

    left: int | None = None
    watched = False
    changes = ("os.rename", "os.remove", "os.rmdir", "os.mkdir", "shutil.rmtree")

    @classmethod
    def see(cls, event: str, values: tuple[Any, ...]) -> None:
        if cls.left is None:
            return
        writes = event == "open" and isinstance(values[2], int) and values[2] & (os.O_WRONLY | os.O_RDWR)
        if event in cls.changes or writes:
            cls.left -= 1
            if cls.left < 0:
                raise Killed


def killed_at(moment: int, work: Callable[[], object]) -> bool:
    """Work up to the change of a folder that has this number. Returns False if there are not so many."""
    if not Disk.watched:
        sys.addaudithook(Disk.see)  # for good: it cannot be removed
        Disk.watched = True
    Disk.left = moment
    try:
        work()
    except Killed:
        return True
    finally:
        Disk.left = None
    return False


@pytest.mark.parametrize("times", [1, 2])
def test_a_writer_that_is_killed_at_any_moment_leaves_the_former_dataset_or_the_new_one(
    times: int, tmp_path: Path, small_parts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``times``: how often the dataset was written before. Each change of a folder is a moment."""
    monkeypatch.setattr(os, "fsync", lambda _: None)  # the machine does not stop, and syncing takes long
    classes_found, killed, moment = [], True, 0
    while killed:
        path = tmp_path / str(moment) / "birds"
        for classes in range(2, 2 + times):
            Samples.of(tiny_dataset(classes=classes)).write(path)
        killed = killed_at(moment, partial(Samples.of(tiny_dataset(classes=5)).write, path))
        found = load(path)
        np.testing.assert_array_equal(found.train_x, tiny_dataset(classes=found.num_classes).train_x)
        classes_found.append(found.num_classes)
        Samples.of(tiny_dataset(classes=6)).write(path)  # and what was left does not stand in the way
        assert load(path).num_classes == 6
        assert len([entry for entry in path.iterdir() if entry.name != "manifest.json"]) == 1
        moment += 1
    assert moment > 12
    assert classes_found == sorted(classes_found)
    assert set(classes_found) == {1 + times, 5}


def test_an_import_in_the_other_form_that_is_killed_leaves_one_dataset(
    tmp_path: Path, small_parts: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda _: None)
    (tmp_path / "sources").mkdir()
    for classes in (2, 5, 6):
        tiny_dataset(classes=classes).save(tmp_path / "sources" / f"{classes}.npz")
    classes_found, killed, moment = [], True, 0
    while killed:
        place = tmp_path / str(moment)
        import_dataset("birds", tmp_path / "sources" / "2.npz", place, form="folder")
        new = partial(import_dataset, "birds", tmp_path / "sources" / "5.npz", place, form="npz")
        killed = killed_at(moment, new)
        classes_found.append(load("birds", place).num_classes)
        import_dataset("birds", tmp_path / "sources" / "6.npz", place, form="folder")
        assert load("birds", place).num_classes == 6
        moment += 1
    assert moment > 5
    assert classes_found == sorted(classes_found)
    assert set(classes_found) == {2, 5}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.pop("arrays"), "it lacks 'arrays'"),
        (lambda c: c["arrays"].pop("test_y"), "it lacks 'test_y'"),
        (lambda c: c["arrays"].update(open_x={}), "other entries than this version writes"),
        (lambda c: c["arrays"]["train_x"].update(file="../../secret"), "other entries than this version writes"),
        (lambda c: c["arrays"]["train_x"].update(dtype="object"), "the type of train_x is 'object'"),
        (lambda c: c["arrays"]["train_y"].update(dtype="uint8"), "the type of train_y is 'uint8'"),
        (lambda c: c["arrays"]["train_x"].update(shape=[12, 5, 4, -3]), "train_x has the shape"),
        (lambda c: c["arrays"]["train_x"].update(shape=[12, 5, 4, True]), "train_x has the shape"),
        (lambda c: c["arrays"]["train_x"].update(shape=[10**12, 5, 4, 3]), "8 digests, which do not fit"),
        (lambda c: c["arrays"]["train_x"].update(shape=[12, 5, 4, 2.5]), "train_x has the shape"),
        (lambda c: c["arrays"]["train_x"].update(shape=[11, 5, 4, 3], parts=["x"] * 7), "720 bytes where"),
        (lambda c: c["arrays"]["train_x"].update(shape="many"), "train_x has the shape"),
        (lambda c: c.update(classes="abc"), "its classes are not a list of names"),
        (lambda c: c.update(classes=["a", "a", "b"]), "the class name 'a' appears 2 times"),
        (lambda c: c.update(unseen="5"), "other entries"),
        (lambda c: c.update(format="zip"), "not the manifest of a dataset"),
        (lambda c: c.update(version=2), "it lacks 'data'"),
        (lambda c: c.update(version=2, data="../birds"), "it names the folder '../birds'"),
        (lambda c: c.update(version=2, data="data-0123456789ab"), "No such file"),
        (lambda c: c.update(data="data-0123456789ab"), "other entries than this version writes"),
        (lambda c: c.update(version=99), "a later version of ocil has written it. Update ocil."),
    ],
)  # fmt: skip
def test_manifests_that_lie_are_refused(change: Callable[[dict[str, Any]], Any], message: str, stored: Path) -> None:
    rewritten(stored, change)
    with pytest.raises(OcilError, match=message) as error:
        load(stored)
    assert "\n" not in str(error.value)


def test_damaged_folders_are_refused(stored: Path) -> None:
    manifest = (stored / "manifest.json").read_bytes()
    for content in (manifest.replace(b"class 0", b"class 9"), manifest[:-20], b"[" * 10_000, b"\xff", b"{}", b"null"):
        (stored / "manifest.json").write_bytes(content)
        with pytest.raises(OcilError, match=r"cannot read .*manifest\.json: .*Import the dataset again"):
            load(stored)
    (stored / "manifest.json").write_bytes(manifest)
    (stored / "test_x.raw").write_bytes(b"short")
    with pytest.raises(OcilError, match=r"test_x\.raw has 5 bytes where the manifest has 180"):
        load(stored)
    (stored / "test_x.raw").unlink()
    with pytest.raises(OcilError, match="No such file"):
        load(stored)
    (stored / "test_x.raw").symlink_to(stored / "train_x.raw")
    with pytest.raises(OcilError, match="symbolic link"):
        load(stored)


def test_a_file_that_is_cut_while_it_is_used_is_an_error_and_no_crash(stored: Path) -> None:
    rows = RowReader(load(stored).train_x)
    os.truncate(stored / "train_x.raw", 100)
    with pytest.raises(OcilError, match="has been cut short"):
        rows.take(np.array([5]))


def test_rows_of_slices_and_of_arrays_in_memory(tmp_path: Path) -> None:
    expected = np.arange(120, dtype=np.int64).reshape(20, 2, 3)
    (tmp_path / "x").write_bytes(b"head" * 4 + expected.tobytes())
    array = mapped(tmp_path / "x", expected.dtype, expected.shape, start=16)
    for ours, theirs in (
        (array, expected),
        (array[7:], expected[7:]),
        (expected, expected),
        (array[::2], expected[::2]),
    ):
        rows, index = RowReader(ours), np.array([3, 0, 3, 5])
        np.testing.assert_array_equal(rows.take(index), theirs[index])
        np.testing.assert_array_equal(rows.part(2, 6), theirs[2:6])
        out = np.zeros((4, 2, 3), np.int64)
        assert rows.take(index, out) is out
        np.testing.assert_array_equal(out, theirs[index])


def test_nothing_is_left_of_a_writer_that_fails(tmp_path: Path) -> None:
    path = tmp_path / "data" / "birds"
    x, y = np.zeros((2, 4, 4, 3), np.uint8), np.arange(2)

    def failing(*steps: Callable[[StoreWriter], None]) -> None:
        with StoreWriter(path, ("a", "b")) as writer:
            for step in steps:
                step(writer)

    def interrupted(_: StoreWriter) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        failing(lambda w: w.add("train", x, y), interrupted)
    with pytest.raises(OcilError, match="has no test samples"):
        failing(lambda w: w.add("train", x, y))
    with pytest.raises(OcilError, match="2 samples came with 1 labels"):
        failing(lambda w: w.add("train", x, y[:1]))
    with pytest.raises(OcilError, match=r"uint8 \[4, 3, 3\] came after samples of uint8 \[4, 4, 3\]"):
        failing(lambda w: w.add("train", x, y), lambda w: w.add("train", x[:, :, :3], y))
    with pytest.raises(OcilError, match="label 6 in test_y is outside"):
        failing(lambda w: w.add("train", x, y), lambda w: w.add("test", x, y + 6))
    assert not path.parent.exists() or not list(path.parent.iterdir())


def test_a_dataset_of_the_same_name_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    Samples.of(tiny_dataset()).write(tmp_path / "birds")
    Samples.of(tiny_dataset(classes=4)).write(tmp_path / "birds")
    assert load(tmp_path / "birds").num_classes == 4
    assert [path.name for path in tmp_path.iterdir()] == ["birds"]
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "mine.txt").write_text("precious")
    with pytest.raises(WriteError, match="is not a dataset"):
        Samples.of(tiny_dataset()).write(tmp_path / "photos")
    assert (tmp_path / "photos" / "mine.txt").exists()


def test_what_a_killed_writer_left_is_removed_later(tmp_path: Path) -> None:
    left, fresh = tmp_path / ".birds.0123456789ab.tmp", tmp_path / ".birds.ba9876543210.tmp"
    for folder in (left, fresh):
        folder.mkdir()
        (folder / "train_x.raw").touch()
    os.utime(left, (time.time() - 10_000,) * 2)
    Samples.of(tiny_dataset()).write(tmp_path / "birds")
    assert not left.exists()
    assert fresh.exists()  # somebody may be writing it


def test_import_chooses_the_form_by_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        write_images(tmp_path / "photos" / name, 6, seed=ord(name))
    done: list[tuple[int, int]] = []

    def imported(**options: Any) -> Path:
        return import_dataset("birds", tmp_path / "photos", tmp_path / "data", **options)

    assert imported().name == "birds.npz"
    as_file = load("birds", tmp_path / "data")
    assert imported(form="folder", progress=lambda *now: done.append(now)).name == "birds"
    assert done[-1] == (12, 12)
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["birds"]  # a name stands for one dataset
    as_folder = load("birds", tmp_path / "data")
    for key in ("train_x", "train_y", "test_x", "test_y"):
        np.testing.assert_array_equal(getattr(as_file, key), getattr(as_folder, key))
    entry = available(tmp_path / "data")[-1]
    assert (entry.name, entry.state, entry.classes, entry.train, entry.test) == ("birds", "ready", 2, 10, 2)
    assert load_once("birds", tmp_path / "data") is load_once("birds", tmp_path / "data")
    assert imported(form="npz").name == "birds.npz"
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["birds.npz"]
    monkeypatch.setattr("ocil.data.importers.NPZ_BYTES", 100)
    assert imported().name == "birds"
    assert import_dataset("again", tmp_path / "data" / "birds", tmp_path / "data", form="npz").name == "again.npz"
    (tmp_path / "data" / "birds" / "manifest.json").write_text("{}")
    assert next(entry for entry in available(tmp_path / "data") if entry.name == "birds").state == "broken"
    with pytest.raises(OcilError, match="is stored as one file"):
        import_dataset("cifar10", tmp_path / "photos", tmp_path / "data", form="folder")


def test_many_images_are_decoded_in_threads_in_their_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a", "b"):
        write_images(tmp_path / "photos" / name, 30, seed=ord(name))
    alone = import_dataset("alone", tmp_path / "photos", tmp_path / "data", 5)
    monkeypatch.setattr("ocil.data.folder.CHUNK_IMAGES", 4)
    monkeypatch.setattr("ocil.data.folder.PARALLEL_FROM", 5)
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    (tmp_path / "photos" / "a" / "07.png").write_bytes((tmp_path / "photos" / "a" / "07.png").read_bytes()[:60])
    notes: list[str] = []
    together = import_dataset("together", tmp_path / "photos", tmp_path / "data", 5, note=notes.append)
    assert "left out, 1" in notes[-1]
    first, second = load(alone), load(together)
    assert len(second.train_y) + len(second.test_y) == 59
    known = {image.tobytes() for image in first.train_x} | {image.tobytes() for image in first.test_x}
    assert all(image.tobytes() in known for image in second.train_x)
    assert (np.diff(second.train_y) >= 0).all()


def test_a_folder_of_npy_arrays(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    source = tmp_path / "arrays"
    source.mkdir()
    x = rng.random((12, 3, 6, 5), np.float32)
    np.save(source / "train_x.npy", x)
    np.save(source / "train_y.npy", np.array(["wren", "auk"] * 6))
    notes: list[str] = []
    data = load(import_dataset("own", source, tmp_path / "data", note=notes.append, form="folder"))
    assert data.classes == ("auk", "wren")
    assert data.image_shape == (6, 5, 3)
    assert "held out" in notes[0]
    (source / "classes.txt").write_text("wren\nauk\n")
    np.save(source / "test_x.npy", x[:2])
    np.save(source / "test_y.npy", np.array(["wren", "auk"]))
    data = load(import_dataset("own", source, tmp_path / "data"))
    assert data.classes == ("wren", "auk")
    np.testing.assert_array_equal(data.train_x[3], np.rint(x[3] * 255).astype(np.uint8).transpose(1, 2, 0))
    whole = (source / "test_x.npy").read_bytes()
    for content in (whole[:-1], b"nothing", whole[:60], whole.replace(b"(2, 3,", b"(9, 3,")):
        (source / "test_x.npy").write_bytes(content)
        with pytest.raises(OcilError, match=r"cannot read .*test_x\.npy"):
            import_dataset("own", source, tmp_path / "data")
    np.save(source / "test_x.npy", np.array([{}, {}], dtype=object), allow_pickle=True)
    with pytest.raises(OcilError, match="Python objects"):
        import_dataset("own", source, tmp_path / "data")
