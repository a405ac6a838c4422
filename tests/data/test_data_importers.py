import gzip
import pickle
import shutil
import struct
import tarfile
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.data import tiny_sources as tiny

from ocil.data import CATALOG, DEFAULT, Dataset, load
from ocil.data.importers import READERS, import_dataset
from ocil.errors import OcilError


def refused(message: str) -> pytest.RaisesExc[OcilError]:
    return pytest.RaisesExc(OcilError, match=message, check=lambda error: "\n" not in str(error))


def nothing_stored(folder: Path) -> bool:
    return not folder.exists() or not list(folder.iterdir())


@pytest.mark.parametrize("form", ["archive", "folder", "parent"])
@pytest.mark.parametrize(("name", "expect"), [("cifar10", tiny.TINY_CIFAR10), ("cifar100", tiny.TINY_CIFAR100)])
def test_cifar(name: str, expect: Any, form: str, tmp_path: Path) -> None:
    if form == "archive":
        source = tiny.write_cifar_archive(name, tmp_path / expect.filename)
    else:
        source = tiny.write_cifar_folder(name, tmp_path / "source", protocol=4)
        source = source.parent if form == "parent" else source
    path = import_dataset(name, source, tmp_path / "data", expect=expect)
    assert path == tmp_path / "data" / f"{name}.npz"
    dataset = load(name, tmp_path / "data")
    assert dataset.classes[3] == "thing3"
    rows = tiny.cifar_files(name)["data_batch_1" if name == "cifar10" else "train"]["data"]
    # Row 2, pixel (y 5, x 7): the three planes follow each other in a row.
    np.testing.assert_array_equal(dataset.train_x[2, 5, 7], rows[2, [5 * 32 + 7, 1024 + 5 * 32 + 7, 2048 + 5 * 32 + 7]])
    np.testing.assert_array_equal(dataset.test_y[:10], np.arange(10))


def test_cifar_with_byte_keys(tmp_path: Path) -> None:
    files: dict[str, Any] = {
        file: {
            key.encode(): [v.encode() for v in value] if file.endswith("meta") else value
            for key, value in content.items()
        }
        for file, content in tiny.cifar_files("cifar100").items()
    }
    source = tiny.write_cifar_archive("cifar100", tmp_path / "c.tar.gz", **files)
    import_dataset("cifar100", source, tmp_path / "data", expect=tiny.TINY_CIFAR100)
    assert load("cifar100", tmp_path / "data").classes[99] == "thing99"


def test_a_catalog_name_takes_only_that_dataset(tmp_path: Path) -> None:
    source = tiny.write_cifar_archive("cifar10", tmp_path / "c.tar.gz")
    with refused("is not CIFAR-10: training images 100, expected 50000"):
        import_dataset("cifar10", source, tmp_path / "data")
    with refused("not the published ones"):
        import_dataset("cifar10", source, tmp_path / "data", expect=replace(tiny.TINY_CIFAR10, train_md5="0" * 32))
    tiny.tiny_dataset().save(tmp_path / "own.npz")
    with refused("is not CIFAR-100: classes 3, expected 100.*a name of its own"):
        import_dataset("cifar-100", tmp_path / "own.npz", tmp_path / "data")
    with refused("comes with ocil"):
        import_dataset("fashion_mini", tmp_path / "own.npz", tmp_path / "data")
    assert nothing_stored(tmp_path / "data")


def test_cifar_archives_that_are_not(tmp_path: Path) -> None:
    whole = tiny.write_cifar_archive("cifar10", tmp_path / "whole.tar.gz")
    short, text = tmp_path / "short.tar.gz", tmp_path / "text.tar.gz"
    short.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    text.write_text("hello")
    empty = tmp_path / "empty"
    empty.mkdir()
    for source in (short, text):
        with refused("cut short"):
            import_dataset("cifar10", source, tmp_path / "data")
    for source in (empty, whole):
        with refused("has no file 'train', so it is not cifar100"):
            import_dataset("cifar100", source, tmp_path / "data")
    assert nothing_stored(tmp_path / "data")


def test_whatever_bytes_a_cifar_archive_has_it_is_imported_or_refused(tmp_path: Path) -> None:
    whole = gzip.decompress(tiny.write_cifar_archive("cifar10", tmp_path / "whole.tar.gz").read_bytes())
    headers = [at for at in range(0, len(whole), 512) if whole[at : at + 6] == b"cifar-"]
    rng, source = np.random.default_rng(0), tmp_path / "x.tar.gz"
    errors: list[str] = []
    for _ in range(60):
        content = bytearray(whole)
        for at in rng.choice(headers, 2):
            content[at + rng.integers(512)] = rng.integers(256)
        source.write_bytes(gzip.compress(bytes(content), 1))
        try:
            import_dataset("cifar10", source, tmp_path / "data", expect=tiny.TINY_CIFAR10)
        except OcilError as error:
            errors.append(str(error))
    assert len(errors) > 20
    assert not any("\n" in message for message in errors)


@pytest.mark.parametrize("name", ["cifar-10-batches-py/data_batch_1", "a-stranger"])
def test_a_tar_bomb_is_refused_before_it_is_read(name: str, tmp_path: Path) -> None:
    member = tarfile.TarInfo(name)
    member.size = 2**40
    (tmp_path / "x.tar.gz").write_bytes(gzip.compress(member.tobuf()))
    with refused("far larger than it should be"):
        import_dataset("cifar10", tmp_path / "x.tar.gz", tmp_path / "data")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"train": [1, 2]}, "does not hold what CIFAR files hold"),
        ({"train": {"data": tiny.cifar_rows(2, 0)}}, "lacks 'data' or 'fine_labels'"),
        ({"train": {"data": tiny.cifar_rows(2, 0)[:, 1:], "fine_labels": [0, 1]}}, r"uint8 rows of 3072 .*\[2, 3071\]"),
        ({"train": {"data": tiny.cifar_rows(2, 0), "fine_labels": ["a", "b"]}}, "whole numbers as labels"),
        (
            {"train": {"data": tiny.cifar_rows(2, 0), "fine_labels": [0, 100]}},
            r"label 100 in train_y is outside 0\.\.99",
        ),
        ({"train": {"data": tiny.cifar_rows(2, 0), "fine_labels": [0]}}, "2 images but 1 labels"),
        ({"meta": {}}, "no list 'fine_label_names'"),
    ],
)
def test_cifar_files_with_wrong_content(changed: dict[str, Any], message: str, tmp_path: Path) -> None:
    source = tiny.write_cifar_archive("cifar100", tmp_path / "c.tar.gz", **changed)
    with refused(message):
        import_dataset("cifar100", source, tmp_path / "data")


@pytest.mark.parametrize("which", [0, 1])
def test_malicious_pickles_inside_datasets_run_nothing(which: int, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    attack: Any = tiny.attacks(marker)[which]
    cifar = tiny.write_cifar_archive("cifar100", tmp_path / "c.tar.gz", train={"data": attack})
    unpacked = tiny.write_cifar_folder("cifar10", tmp_path / "unpacked", **{"batches.meta": attack})
    mini = tiny.write_mini_pickles(tmp_path / "mini", val={"image_data": attack, "class_dict": {}})
    for name, source, expect in (
        ("cifar100", cifar, None),
        ("cifar10", unpacked, None),
        ("mini_imagenet", mini, tiny.TINY_MINI),
    ):
        with refused("it asks for '.*(system|eval)'"):
            import_dataset(name, source, tmp_path / "data", expect=expect)
    assert not marker.exists()
    assert nothing_stored(tmp_path / "data")


@pytest.mark.parametrize(
    ("write", "classes"),
    [(tiny.write_mini_pickles, "n03 n01 n02 n11 n10 n20"), (tiny.write_mini_csv, "n01 n02 n03 n10 n11 n20")],
    ids=["pickles, as stored", "csv, sorted"],
)
def test_mini_imagenet(write: Any, classes: str, tmp_path: Path) -> None:
    source = write(tmp_path / "source")
    import_dataset("mini-imagenet", source, tmp_path / "data", expect=tiny.TINY_MINI)
    dataset = load("mini_imagenet", tmp_path / "data")
    assert dataset.classes == tuple(classes.split())
    # The split, written out again: one permutation a class from one generator, its first sixth for the test.
    rng = np.random.RandomState(0)
    for label, name in enumerate(dataset.classes):
        order = rng.permutation(6) + 10 * int(name[1:])
        assert dataset.test_x[dataset.test_y == label][:, 0, 0, 0].tolist() == order[:1].tolist()
        assert dataset.train_x[dataset.train_y == label][:, 40, 40, 2].tolist() == order[1:].tolist()


def prepared_mini(path: Path, classes: str) -> Path:
    """A copy that is split by file name: five images of each class are learned, the last one tests."""
    names = classes.split()
    images = [tiny.mini_images(int(name[1:])) for name in names]
    train, test = (np.concatenate([each[part] for each in images]) for part in (slice(5), slice(5, None)))
    labels = np.arange(len(names))
    Dataset("copy", train, labels.repeat(5), test, labels, tuple(names)).save(path)
    return path


def test_a_prepared_copy_is_split_as_the_published_pickles_are(tmp_path: Path) -> None:
    import_dataset("mini_imagenet", tiny.write_mini_pickles(tmp_path / "pickles"), tmp_path, expect=tiny.TINY_MINI)
    from_pickles = load("mini_imagenet", tmp_path)
    source = prepared_mini(tmp_path / "copy.npz", " ".join(from_pickles.classes))
    import_dataset("mini_imagenet", source, tmp_path / "as-it-is", expect=tiny.TINY_MINI)
    assert load("mini_imagenet", tmp_path / "as-it-is").test_x[:, 0, 0, 0].tolist() == [35, 15, 25, 115, 105, 205]
    import_dataset("mini_imagenet", source, tmp_path / "random", random_split=0, expect=tiny.TINY_MINI)
    assert load("mini_imagenet", tmp_path / "random").fingerprint == from_pickles.fingerprint


def test_a_random_split_keeps_images_and_counts(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    train_y, test_y = (
        rng.permutation(np.repeat(np.arange(4), [7, 5, 9, 6])),
        rng.permutation(np.repeat(np.arange(4), 3)),
    )
    pixels = np.arange(39, dtype=np.uint8)  # each image has a number
    x = np.broadcast_to(pixels[:, None, None, None], (39, 8, 8, 1))
    Dataset("own", x[:27], train_y, x[27:], test_y, tuple("abcd")).save(tmp_path / "own.npz")
    found = []
    for seed in (0, 0, 1):
        import_dataset("own-random", tmp_path / "own.npz", tmp_path / "data", random_split=seed)
        found.append(load("own-random", tmp_path / "data"))
    one, again, other = found
    assert one.fingerprint == again.fingerprint != other.fingerprint
    label_of = dict(zip(pixels.tolist(), [*train_y, *test_y], strict=True))
    for split in (one, other):
        assert np.bincount(split.train_y).tolist() == [7, 5, 9, 6]
        assert np.bincount(split.test_y).tolist() == [3] * 4
        numbers = [*split.train_x[:, 0, 0, 0].tolist(), *split.test_x[:, 0, 0, 0].tolist()]
        assert sorted(numbers) == pixels.tolist()
        assert [label_of[number] for number in numbers] == [*split.train_y, *split.test_y]
    with refused("random-split is for a prepared .npz"):
        import_dataset("own-random", tmp_path / "data", tmp_path / "data", random_split=0)
    with refused("must be from 0"):
        import_dataset("own-random", tmp_path / "own.npz", tmp_path / "data", random_split=2**32)


def test_mini_imagenet_counts_are_checked(tmp_path: Path) -> None:
    source = tiny.write_mini_pickles(tmp_path / "source")
    with refused("class n03 has 6 images, expected 600"):
        import_dataset("mini_imagenet", source, tmp_path / "data")
    with refused("has 6 classes, expected 7"):
        import_dataset("mini_imagenet", source, expect=replace(tiny.TINY_MINI, classes=7, train=35, test=7))
    with refused("more than the expected 5 classes"):
        import_dataset("mini_imagenet", source, expect=replace(tiny.TINY_MINI, classes=5, train=25, test=5))
    (source / "mini-imagenet-cache-val.pkl").write_bytes((source / "mini-imagenet-cache-train.pkl").read_bytes())
    with refused("n03 is in two of the files"):
        import_dataset("mini_imagenet", source, expect=tiny.TINY_MINI)
    (source / "mini-imagenet-cache-val.pkl").unlink()
    with refused("All three pickles are needed"):
        import_dataset("mini_imagenet", source, expect=tiny.TINY_MINI)
    with refused("neither mini-imagenet-cache-train.pkl nor train.csv"):
        import_dataset("mini_imagenet", tmp_path)
    with refused("is not a folder"):
        import_dataset("mini_imagenet", source / "mini-imagenet-cache-train.pkl")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "must hold 'image_data' and 'class_dict'"),
        ({"image_data": np.zeros((6, 32, 32, 3), np.uint8), "class_dict": {"n1": [0]}}, "must be uint8 84x84x3"),
        ({"image_data": np.zeros((1, 84, 84, 3), np.uint8), "class_dict": {"n1": [1]}}, "image numbers from 0 to 0"),
        ({"image_data": np.zeros((1, 84, 84, 3), np.uint8), "class_dict": {"n1": [[0], [1, 2]]}}, "image numbers"),
    ],
)
def test_mini_imagenet_pickles_with_wrong_content(content: Any, message: str, tmp_path: Path) -> None:
    (tmp_path / "mini-imagenet-cache-train.pkl").write_bytes(pickle.dumps(content))
    with refused(message):
        import_dataset("mini_imagenet", tmp_path, expect=tiny.TINY_MINI)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\nx.png,n01\n", "must begin with the line 'filename,label'"),
        ("filename,label\n../secret.png,n01\n", "line 2: needs the name of a file in images/"),
        ("filename,label\nx.png\n", "line 2: needs"),
        ("filename,label\n" + "x.png,n01\n" * 6, "there is no file .*x.png"),
    ],
)
def test_mini_imagenet_csv_with_wrong_content(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text(text)
    with refused(message):
        import_dataset("mini_imagenet", tmp_path, expect=tiny.TINY_MINI)


def test_image_folder_with_test(tmp_path: Path) -> None:
    source = tmp_path / "birds"
    tiny.write_images(source / "train" / "wren", 3)
    tiny.write_images(source / "train" / "auk", 2, seed=1)
    tiny.write_images(source / "val" / "auk", 1, seed=2)
    (source / "train" / "auk" / "notes.txt").write_text("not an image")
    (source / "train" / "auk" / "._00.png").write_text("left by a file manager")
    notes: list[str] = []
    import_dataset("my-birds", source, tmp_path / "data", note=notes.append)
    dataset = load("my-birds", tmp_path / "data")
    assert dataset.classes == ("auk", "wren")
    assert dataset.image_shape == (6, 8, 3)
    assert dataset.train_y.tolist() == [0, 0, 1, 1, 1]
    assert dataset.test_y.tolist() == [0]
    expected = np.asarray(Image.open(source / "train" / "wren" / "02.png"))
    np.testing.assert_array_equal(dataset.train_x[4], expected)
    assert notes == [f"{source} was read as class folders in train and val"]


def test_image_folder_without_test_holds_a_sixth_out(tmp_path: Path) -> None:
    source = tmp_path / "birds"
    for seed, name in enumerate(("a", "b")):
        tiny.write_images(source / "train" / name, 12, mode="L", seed=seed)
    notes: list[str] = []
    first = import_dataset("birds", source, tmp_path / "data", note=notes.append).read_bytes()
    dataset = load("birds", tmp_path / "data")
    assert dataset.image_shape == (6, 8, 1)
    assert np.bincount(dataset.train_y).tolist() == [10, 10]
    assert np.bincount(dataset.test_y).tolist() == [2, 2]
    assert len(notes) == 2
    assert "a sixth of each class is held out" in notes[1]
    assert import_dataset("birds", source, tmp_path / "again").read_bytes() == first


def test_image_folder_of_several_sizes(tmp_path: Path) -> None:
    source = tmp_path / "birds"
    tiny.write_images(source / "train" / "a", 2, size=(8, 6))
    tiny.write_images(source / "train" / "b", 2, size=(9, 9), mode="L")
    with refused("is 9x9 but .* is 8x6. Resize all with --size N"):
        import_dataset("birds", source, tmp_path / "data")
    assert nothing_stored(tmp_path / "data")
    import_dataset("birds", source, tmp_path / "data", size=5)
    assert load("birds", tmp_path / "data").image_shape == (5, 5, 3)
    for size in (0, 100_000):
        with refused(f"size {size} is not between"):
            import_dataset("birds", source, tmp_path / "data", size=size)


def test_image_folders_that_are_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "birds"
    source.mkdir()
    with refused("no class folders"):
        import_dataset("birds", source, tmp_path / "data")
    tiny.write_images(source / "test" / "one", 1)
    with refused("no folder 'train'"):
        import_dataset("birds", source, tmp_path / "data")
    shutil.rmtree(source / "test")
    (source / "train").mkdir()
    with refused("no class folders"):
        import_dataset("birds", source, tmp_path / "data")
    (source / "train" / "empty").mkdir()
    with refused("has no images that can be read "):
        import_dataset("birds", source, tmp_path / "data")
    tiny.write_images(source / "train" / "one", 1)
    with refused(r"class 0 \('empty'\) has no training image"):
        import_dataset("birds", source, tmp_path / "data")
    (source / "train" / "empty").rmdir()
    with refused("'one' has one sample; it needs two"):
        import_dataset("birds", source, tmp_path / "data")
    tiny.write_images(source / "test" / "one", 1)
    monkeypatch.setattr("ocil.data.importers.free_bytes", lambda folder: 100)
    with refused(r"these images need 288 B, and .* has 100 B left"):
        import_dataset("birds", source, tmp_path / "data")
    tiny.write_images(source / "test" / "other", 1)
    with refused("has a class 'other' that .* lacks"):
        import_dataset("birds", source, tmp_path / "data")


def png(width: int, height: int) -> bytes:
    """The header of an image of this size, followed by next to nothing."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 10)) + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"not an image", "02.png is not a readable"),
        (png(8, 6), "02.png is not a readable"),
        (png(7_000, 7_000), "02.png has more than 40 million pixels"),
        (png(12_000, 12_000), "02.png has more than 40 million pixels"),
        (png(60_000, 60_000), "02.png has more than 40 million pixels"),
    ],
)
def test_broken_images_and_bombs_are_named(content: bytes, message: str, tmp_path: Path) -> None:
    folder = tiny.write_images(tmp_path / "birds" / "train" / "a", 4)
    (folder / "02.png").write_bytes(content)
    for size in (None, 4):
        with refused(message):
            import_dataset("birds", tmp_path / "birds", tmp_path / "data", size=size, strict=True)
    assert nothing_stored(tmp_path / "data")


@pytest.mark.parametrize("content", [b"not an image", png(8, 6), png(60_000, 60_000)])
def test_broken_images_are_left_out_and_counted(content: bytes, tmp_path: Path) -> None:
    """Whether the header gives it away or only the pixels do."""
    folder = tiny.write_images(tmp_path / "birds" / "train" / "a", 8)
    tiny.write_images(tmp_path / "birds" / "train" / "b", 8)
    for number in range(7):
        (folder / f"x{number}.png").write_bytes(content)
    notes: list[str] = []
    import_dataset("birds", tmp_path / "birds", tmp_path / "data", note=notes.append)
    data = load("birds", tmp_path / "data")
    assert len(data.train_y) + len(data.test_y) == 16
    assert np.bincount(data.train_y).min() > 0
    (note,) = (note for note in notes if "left out" in note)
    assert "left out, 7: " in note
    assert note.count(".png") == 5
    assert note.endswith("and 2 more")


def test_an_empty_class_is_not_blamed_on_a_broken_image_of_another(tmp_path: Path) -> None:
    tiny.write_images(tmp_path / "birds" / "train" / "a", 3)
    (tmp_path / "birds" / "train" / "a" / "broken.png").write_bytes(b"not an image")
    (tmp_path / "birds" / "train" / "b").mkdir()
    with refused(r"class 1 \('b'\) has no training image; add some or drop the class"):
        import_dataset("birds", tmp_path / "birds", tmp_path / "data")


def test_all_classes_without_enough_images_are_named_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each try decodes all images, which can take an hour: none is decoded before, and one try is enough."""
    monkeypatch.setattr("ocil.data.folder.read_image", None)
    for number in range(8):
        tiny.write_images(tmp_path / "birds" / f"species {number}", 2 if number == 3 else 1)
    names = "'species 0', 'species 1', 'species 2', 'species 4', 'species 5' and 2 more"
    with refused(rf"7 classes have one sample each \({names}\); they need two, .* take them out"):
        import_dataset("birds", tmp_path / "birds", tmp_path / "data")
    for number in range(2):
        (tmp_path / "birds" / f"empty {number}").mkdir()
    with refused("2 classes have no training image; add some or drop these classes: 'empty 0', 'empty 1'"):
        import_dataset("birds", tmp_path / "birds", tmp_path / "data")


def test_a_class_of_broken_images_is_refused(tmp_path: Path) -> None:
    tiny.write_images(tmp_path / "birds" / "train" / "a", 3)
    (tmp_path / "birds" / "train" / "b").mkdir()
    (tmp_path / "birds" / "train" / "b" / "0.png").write_bytes(b"not an image")
    with refused("class 'b' has no image that can be read: .*0.png is not a readable image"):
        import_dataset("birds", tmp_path / "birds", tmp_path / "data")
    assert nothing_stored(tmp_path / "data")


def test_class_folders_alone_are_split(tmp_path: Path) -> None:
    for name, count in (("auk", 10), ("wren", 20)):
        tiny.write_images(tmp_path / "birds" / name, count, seed=count)
    notes: list[str] = []
    first = import_dataset("birds", tmp_path / "birds", tmp_path / "data", test_share=0.2, note=notes.append)
    data = load("birds", tmp_path / "data")
    assert data.classes == ("auk", "wren")
    assert np.bincount(data.train_y).tolist() == [8, 16]
    assert np.bincount(data.test_y).tolist() == [2, 4]
    source = tmp_path / "birds"
    assert notes == [
        f"{source} was read as class folders",
        f"{source} has no test images: 0.2 of each class is held out to test with",
    ]
    again = import_dataset("birds", tmp_path / "birds", tmp_path / "again", test_share=0.2)
    assert again.read_bytes() == first.read_bytes()
    assert {image.tobytes() for image in data.train_x}.isdisjoint(image.tobytes() for image in data.test_x)
    for share in (0.0, 1.0, -1.0, float("nan")):
        with refused("the test share .* must be more than 0 and less than 1"):
            import_dataset("birds", tmp_path / "birds", tmp_path / "data", test_share=share)


def test_a_class_may_be_called_train_or_test(tmp_path: Path) -> None:
    for name in ("train", "test", "bus"):
        tiny.write_images(tmp_path / "traffic" / name, 2)
    import_dataset("traffic", tmp_path / "traffic", tmp_path / "data")
    assert load("traffic", tmp_path / "data").classes == ("bus", "test", "train")


def test_a_test_set_of_its_own_has_no_share(tmp_path: Path) -> None:
    for part in ("train", "test"):
        tiny.write_images(tmp_path / "birds" / part / "auk", 2)
    with refused("leave out --test-share"):
        import_dataset("birds", tmp_path / "birds", tmp_path / "data", test_share=0.2)


def test_gray_images_of_sixteen_bits_and_other_formats(tmp_path: Path) -> None:
    folder = tmp_path / "birds" / "train" / "a"
    folder.mkdir(parents=True)
    Image.fromarray(np.full((6, 8), 200 * 257, np.uint16)).save(folder / "0.png")
    Image.fromarray(np.full((6, 8), 100 * 257, np.uint16)).save(folder / "1.tif")
    for number, ending in enumerate(("bmp", "webp", "gif", "pgm"), 2):
        Image.new("L", (8, 6), 10 * number).save(
            folder / f"{number}.{ending}", None, **({"lossless": True} if ending == "webp" else {})
        )
    import_dataset("birds", tmp_path / "birds", tmp_path / "data")
    data = load("birds", tmp_path / "data")
    found = sorted(int(image.min()) for image in (*data.train_x, *data.test_x))
    assert found == sorted(int(image.max()) for image in (*data.train_x, *data.test_x)) == [20, 30, 40, 50, 100, 200]


def test_prepared_npz(tmp_path: Path) -> None:
    original = tiny.tiny_dataset()
    original.save(tmp_path / "source.npz")
    import_dataset("own", tmp_path / "source.npz", tmp_path / "data")
    again = load("own", tmp_path / "data")
    np.testing.assert_array_equal(again.train_x, original.train_x)
    assert again.name == "own"
    with refused("Leave them out"):
        import_dataset("own", tmp_path / "source.npz", tmp_path / "data", size=8)


X, Y = np.arange(24 * 6 * 5, dtype=np.uint8).reshape(24, 6, 5), np.arange(24) % 3


@pytest.mark.parametrize(
    ("arrays", "classes", "shape"),
    [
        ({"x": X, "y": Y.astype(np.int32)}, ("0", "1", "2"), (6, 5, 1)),
        ({"train_x": X / 255, "train_y": np.array(["fox", "owl", "hen"])[Y]}, ("fox", "hen", "owl"), (6, 5, 1)),
        ({"x": np.stack([X] * 3, 1), "y": Y, "classes": np.array(["c", "b", "a"])}, ("c", "b", "a"), (6, 5, 3)),
        ({"x": X.reshape(24, -1) / 7, "y": Y.astype(float)}, ("0", "1", "2"), (30,)),
        ({"train_x": X, "train_y": Y, "test_x": X[:4], "test_y": Y[:4]}, ("0", "1", "2"), (6, 5, 1)),
    ],
    ids=["int32", "text", "channels-first", "vectors", "without-names"],
)
def test_npz_of_ones_own_arrays(
    arrays: dict[str, Any], classes: tuple[str, ...], shape: tuple[int, ...], tmp_path: Path
) -> None:
    np.savez(tmp_path / "own.npz", **arrays)
    notes: list[str] = []
    import_dataset("own", tmp_path / "own.npz", tmp_path / "data", note=notes.append)
    found = load("own", tmp_path / "data")
    assert (found.classes, found.input_shape) == (classes, shape)
    split = "test_x" in arrays
    assert (len(found.train_y), len(found.test_y)) == ((24, 4) if split else (21, 3))
    assert [note for note in notes if "held out" in note] == ([] if split else notes)


def test_a_share_of_an_npz_is_held_out(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", x=X, y=Y)
    import_dataset("own", tmp_path / "own.npz", tmp_path / "data", test_share=0.5)
    assert len(load("own", tmp_path / "data").test_y) == 12


def test_an_npz_with_domains(tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", x=X, y=Y, train_domain=np.arange(24) // 12, domains=np.array(["night", "day"]))
    import_dataset("own", tmp_path / "own.npz", tmp_path / "data")
    assert set(load("own", tmp_path / "data").domains) == {"day", "night"}
    np.savez(tmp_path / "own.npz", x=X, y=Y, train_domain=np.arange(24), domains=np.array(["night", "day"]))
    with refused("train_domain must number the names in domains, from 0 to 1"):
        import_dataset("own", tmp_path / "own.npz", tmp_path / "data")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": X, "labels": Y}, "must have one array train_x or x; its arrays are: images, labels"),
        ({"x": X, "train_x": X, "y": Y}, "must have one array train_x or x"),
        ({"x": X}, "must have one array train_y or y"),
        ({"x": X, "y": Y.astype(object)}, "y holds Python objects, which are not loaded"),
        ({"x": X, "y": Y[:-1]}, "train_x has 24 samples but train_y has 23 labels"),
        ({"x": X, "y": Y, "test_x": X}, "give both test_x and test_y"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_npz_files_that_hold_no_dataset(arrays: dict[str, Any], message: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "own.npz", **arrays)
    with refused(message):
        import_dataset("own", tmp_path / "own.npz", tmp_path / "data")
    assert nothing_stored(tmp_path / "data")


@pytest.mark.parametrize("name", ["", "Birds", "-x", "../x", "a b", "a/b", "x\n", "é"])
def test_bad_names(name: str, tmp_path: Path) -> None:
    with pytest.raises(OcilError, match="cannot be a dataset name"):
        import_dataset(name, tmp_path, tmp_path / "data")


def test_sources_that_are_not(tmp_path: Path) -> None:
    with refused("absent does not exist"):
        import_dataset("own", tmp_path / "absent", tmp_path / "data")
    (tmp_path / "file.txt").write_text("x")
    for size in (None, 16):
        with refused("file.txt is in none of the forms that can be imported. Give a folder of images, a label file"):
            import_dataset("own", tmp_path / "file.txt", tmp_path / "data", size)
    (tmp_path / "broken.npz").write_text("x")
    with refused("cannot read"):
        import_dataset("own", tmp_path / "broken.npz", tmp_path / "data")
    assert nothing_stored(tmp_path / "data")


def test_an_entry_without_a_reader_is_not_taken_for_another(tmp_path: Path) -> None:
    archive = tmp_path / "other.tar.gz"
    archive.write_bytes(b"")
    with refused("Other can be imported as a prepared .npz file only"):
        import_dataset("other", archive, expect=replace(tiny.TINY_MINI, name="other", title="Other", reader=None))


def test_every_entry_that_can_be_imported_has_a_reader() -> None:
    assert {info.name for info in CATALOG.values() if info.reader in READERS} == {*CATALOG} - {DEFAULT}
