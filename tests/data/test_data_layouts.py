"""Image folders as they are published."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.data.tiny_sources import write_images

from ocil.data import Dataset, load
from ocil.data.importers import import_dataset
from ocil.data.layouts import find_layout
from ocil.errors import OcilError


def imported(source: Path, tmp_path: Path) -> tuple[Dataset, list[str]]:
    notes: list[str] = []
    return load(import_dataset("own", source, tmp_path / "data", note=notes.append)), notes


def tiny_imagenet(folder: Path) -> Path:
    for seed, name in enumerate(("n01", "n02")):
        write_images(folder / "train" / name / "images", 3, seed=seed)
        (folder / "train" / name / f"{name}_boxes.txt").write_text("n01_0.JPEG\t0\t0\t62\t62\n")
    write_images(folder / "val" / "images", 3, seed=9)
    (folder / "val" / "val_annotations.txt").write_text(
        "00.png\tn02\t0\t0\t9\t9\n01.png\tn01\t0\t0\t9\t9\n02.png\tn01\t0\t0\t9\t9\n"
    )
    write_images(folder / "test" / "images", 2)  # published without labels
    (folder / "wnids.txt").write_text("n01\nn02\n")
    return folder


def cub(folder: Path) -> Path:
    names = ["001.Albatross", "002.Auk", "010.Wren"]
    lines, number = {"images": [], "labels": [], "split": []}, 0  # type: dict[str, list[str]], int
    for label, name in enumerate(names, 1):
        write_images(folder / "images" / name, 3, seed=label)
        for position in range(3):
            number += 1
            lines["images"].append(f"{number} {name}/{position:02}.png")
            lines["labels"].append(f"{number} {label if label < 3 else 10}")
            lines["split"].append(f"{number} {int(position < 2)}")
    for file, key in (("images", "images"), ("image_class_labels", "labels"), ("train_test_split", "split")):
        (folder / f"{file}.txt").write_text("\n".join(lines[key]) + "\n")
    (folder / "classes.txt").write_text("1 001.Albatross\n2 002.Auk\n10 010.Wren\n")
    return folder


def test_names_that_are_numbers_are_ordered_as_numbers(tmp_path: Path) -> None:
    """The classes of the first task would be others than in the published protocol: 0, 1, 10, 11, ..."""
    numbers = [str(number) for number in (*range(12), 100)]
    for name in numbers:
        folder = tmp_path / "folders" / name
        folder.mkdir(parents=True)
        for image in range(2):
            Image.new("L", (4, 4), int(name)).save(folder / f"{image}.png")
    rows = [f"folders/{name}/{image}.png,{name}" for name in sorted(numbers) for image in range(2)]
    (tmp_path / "labels.csv").write_text("\n".join(["path,label", *rows]))
    vectors = [f"{name}.5,{name}" for name in sorted(numbers) for _ in range(2)]
    (tmp_path / "vectors.csv").write_text("\n".join(["number,label", *vectors]))
    for source in ("folders", "labels.csv", "vectors.csv"):
        import_dataset("own", tmp_path / source, tmp_path / "data")
        found = load("own", tmp_path / "data")
        assert found.classes == tuple(numbers), source
        assert [int(found.train_x[i].flat[0]) for i in range(13)] == [int(numbers[y]) for y in found.train_y], source
    x, words = np.zeros((26, 3)), np.array(2 * sorted(numbers), dtype=object)
    assert Dataset.from_arrays(x, words, x, words).classes == tuple(numbers)
    assert Dataset.from_arrays(x, [*words[:-1], "a"], x, words).classes[:3] == ("0", "1", "10")


@pytest.mark.parametrize("kind", [np.bytes_, object, list])
def test_labels_of_bytes_are_text(kind: Any) -> None:
    """HDF5 files hold text so."""
    x = np.zeros((24, 4, 4, 1), np.uint8)
    words = [str(number % 12).encode() for number in range(24)]
    y = words if kind is list else np.array(words, dtype=kind)
    data = Dataset.from_arrays(x, y, x, y)
    assert data.classes == tuple(map(str, range(12)))
    assert data.train_y.tolist() == [number % 12 for number in range(24)]
    with pytest.raises(OcilError, match="train_y has labels of bytes that are not text in UTF-8"):
        Dataset.from_arrays(x[:2], [b"a", b"\xff"], x, y)


def test_tiny_imagenet(tmp_path: Path) -> None:
    data, notes = imported(tiny_imagenet(tmp_path / "tiny"), tmp_path)
    assert notes == [f"{tmp_path / 'tiny'} was read as the folders of Tiny-ImageNet"]
    assert data.classes == ("n01", "n02")
    assert data.train_y.tolist() == [0, 0, 0, 1, 1, 1]
    assert data.test_y.tolist() == [1, 0, 0]


def test_tiny_imagenet_with_an_unknown_class(tmp_path: Path) -> None:
    folder = tiny_imagenet(tmp_path / "tiny")
    (folder / "val" / "val_annotations.txt").write_text("00.png\tn07\t0\n")
    with pytest.raises(OcilError, match=r"line 1 of .*val_annotations.txt: there is no class 'n07'"):
        imported(folder, tmp_path)


def test_class_folders_with_a_folder_of_images_each(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_images(tmp_path / "photos" / name / "images", 3, seed=ord(name))
    data, _ = imported(tmp_path / "photos", tmp_path)
    assert data.classes == ("a", "b")


def test_cub(tmp_path: Path) -> None:
    data, notes = imported(cub(tmp_path / "cub"), tmp_path)
    assert notes == [f"{tmp_path / 'cub'} was read as the label files of CUB-200"]
    assert data.classes == ("001.Albatross", "002.Auk", "010.Wren")
    assert np.bincount(data.train_y).tolist() == [2, 2, 2]
    assert data.test_y.tolist() == [0, 1, 2]


def test_cub_without_a_split_and_names(tmp_path: Path) -> None:
    folder = cub(tmp_path / "cub")
    (folder / "train_test_split.txt").unlink()
    (folder / "classes.txt").unlink()
    data, notes = imported(folder, tmp_path)
    assert data.classes == ("1", "2", "10")
    assert "held out" in notes[1]


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("images.txt", "1 ../../secret.png\n", "image 1 leads out of the folder of the images"),
        ("images.txt", "1 /etc/passwd\n", "leads out of the folder"),
        ("images.txt", "one two\n", "line 1 of .*images.txt is not 'NUMBER TEXT'"),
        ("image_class_labels.txt", "1 1\n", "has no line for image 2"),
        ("train_test_split.txt", "1 1\n", "has no line for image 2"),
        ("classes.txt", "1\n", "is not 'NUMBER TEXT'"),
        ("image_class_labels.txt", "1 1\n1 2\n", "line 2 of .*: 1 stands there twice, with '1' and '2'"),
        ("images.txt", "1 001.Albatross/00.png\n4 001.Albatross/00.png\n", r"00\.png two labels, '1' and '2'"),
    ],
)
def test_cub_files_that_lie(file: str, content: str, message: str, tmp_path: Path) -> None:
    folder = cub(tmp_path / "cub")
    (folder / file).write_text(content)
    with pytest.raises(OcilError, match=message):
        imported(folder, tmp_path)


def labelled(folder: Path, text: str, name: str = "labels.csv") -> Path:
    for sub in ("x", "y"):
        if not (folder / sub).exists():
            write_images(folder / sub, 3, seed=ord(sub))
    (folder / name).write_text(text)
    return folder


def test_a_label_file_in_a_folder_or_alone(tmp_path: Path) -> None:
    text = "Path, Label, Split\n" + "".join(
        f"{sub}/{number:02}.png,{label},{split}\n"
        for sub, label in (("x", "wren"), ("y", '"auk, great"'))
        for number, split in ((0, "train"), (1, "train"), (2, "test"))
    )
    folder = labelled(tmp_path / "birds", text.replace(", ", ",", 2))
    for source in (folder, folder / "labels.csv"):
        data, notes = imported(source, tmp_path)
        assert data.classes == ("auk, great", "wren")
        assert data.train_y.tolist() == [1, 1, 0, 0]
        assert data.test_y.tolist() == [1, 0]
        assert notes == [f"{source} was read as the label file labels.csv"]


def test_only_an_end_of_line_ends_a_line_of_a_label_file(tmp_path: Path) -> None:
    """Text from web pages and word processors has other separators: a file may be named with them."""
    names = [f"a\u2028b{number}\x85.png" for number in range(3)]
    folder = labelled(tmp_path / "birds", "path,label\r\n" + "".join(f"x/{name},wren\r\n" for name in names))
    for number, name in enumerate(names):
        (folder / "x" / f"{number:02}.png").rename(folder / "x" / name)
    with (folder / "labels.csv").open("a") as file:
        file.write("".join(f"y/{number:02}.png,auk\n" for number in range(3)))
    data, _ = imported(folder, tmp_path)
    assert len(data.train_y) + len(data.test_y) == 6


def test_a_label_file_without_a_split_and_with_validation_images(tmp_path: Path) -> None:
    lines = [f"{sub}/{number:02}.png,{sub}" for sub in "xy" for number in range(3)]
    data, notes = imported(labelled(tmp_path / "birds", "\n".join(["filename,label", *lines])), tmp_path)
    assert np.bincount(data.test_y).tolist() == [1, 1]
    assert "held out" in notes[1]
    splits = ("train", "val", "test")
    with_split = [f"{line},{splits[number % 3]}" for number, line in enumerate(lines)]
    data, notes = imported(labelled(tmp_path / "birds", "\n".join(["path,label,split", *with_split])), tmp_path)
    assert (len(data.train_y), len(data.test_y)) == (2, 2)
    assert "whose validation images are left out" in notes[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("path,label\n../secret.png,a\n", "line 2 leads out of the folder of the images: '../secret.png'"),
        ("path,label\n/etc/passwd,a\n", "leads out of the folder"),
        ("path,label\n..\\secret.png,a\n", "leads out of the folder"),
        ("path,label\nC:\\secret.png,a\n", "leads out of the folder"),
        ("path,label\n,a\n", "line 2 names no image"),
        ("path,label\nx/00.png\n", "line 2 has no label"),
        ("path,label\nx/00.png,a\ny/00.png,b\nx//00.png,b\n", r"gives .*x/00\.png two labels, 'a' and 'b'"),
        ("path,label\nx/00.png,a\ny/00.png,b\nx//00.png,a\n", r"names .*x/00\.png twice"),
        ("path,label,split\nx/00.png,a,train\nx/00.png,a,test\n", r"names .*x/00\.png twice"),
        ("path,label,Label\nx/00.png,a,b\n", "several columns with the name label"),
        ("path,label\n", "names no images"),
        ("path,label,split\nx/00.png,a,later\n", "the split is 'later', which is neither train nor test nor val"),
    ],
)
def test_label_files_that_lie(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(OcilError, match=message) as error:
        imported(labelled(tmp_path / "birds", text), tmp_path)
    assert "\n" not in str(error.value)


def test_absolute_paths_that_lead_into_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs write absolute paths. One that leads elsewhere is refused, with what to do."""
    (tmp_path / "linked").symlink_to(tmp_path / "birds")
    monkeypatch.chdir(tmp_path)
    for folder in (tmp_path / "birds", tmp_path / "linked"):
        lines = [f"{folder}/{sub}/{number:02}.png,{sub}" for sub in "xy" for number in range(3)]
        labelled(tmp_path / "birds", "\n".join(["path,label", *lines]))
        for source in (folder / "labels.csv", (folder / "labels.csv").relative_to(tmp_path)):
            data, _ = imported(source, tmp_path)
            assert np.bincount(data.train_y).tolist() == [2, 2]
    lines = [f"{tmp_path}/birds/../secret/{number:02}.png,a" for number in range(3)]
    labelled(tmp_path / "birds", "\n".join(["path,label", *lines]))
    with pytest.raises(OcilError, match=r"leads out of .* move the list of images to a folder above them\."):
        imported(tmp_path / "birds", tmp_path)


def test_label_files_that_are_not(tmp_path: Path) -> None:
    folder = labelled(tmp_path / "birds", "name,size\nx,1\n")
    with pytest.raises(OcilError, match="must name the columns path and label"):
        imported(folder / "labels.csv", tmp_path)
    imported(folder, tmp_path)  # another table may lie beside class folders
    labelled(folder, "path,label\nx/00.png,a\n")
    labelled(folder, "path,label\nx/00.png,a\n", "more.csv")
    with pytest.raises(OcilError, match=r"several label files \(labels.csv, more.csv\)"):
        imported(folder, tmp_path)
    (folder / "more.csv").unlink()
    (folder / "labels.csv").write_bytes(b"path,label\n\xff\xfe,a\n")
    with pytest.raises(OcilError, match="is not text"):
        imported(folder, tmp_path)


def test_symbolic_links_that_lead_out_of_the_folder_are_refused(tmp_path: Path) -> None:
    write_images(tmp_path / "secret", 1)
    lines = [f"{sub}/{number:02}.png,{sub}" for sub in "xy" for number in range(3)]
    folder = labelled(tmp_path / "birds", "\n".join(["path,label", *lines, "z/00.png,x"]))
    (folder / "z").symlink_to(folder / "x")  # a link inside the folder is all right
    imported(folder, tmp_path)
    (folder / "z").unlink()
    (folder / "z").symlink_to(tmp_path / "secret")
    with pytest.raises(OcilError, match=r"line 8 leads out of .* by a symbolic link: 'z/00\.png'"):
        imported(folder, tmp_path)
    (folder / "z").unlink()
    (folder / "z").mkdir()
    (folder / "z" / "00.png").symlink_to(tmp_path / "secret" / "00.png")
    with pytest.raises(OcilError, match="by a symbolic link"):
        imported(folder, tmp_path)
    (tmp_path / "link").symlink_to(folder)  # the folder itself may be one
    (folder / "z" / "00.png").unlink()
    imported(tmp_path / "link", tmp_path)


def test_images_that_a_label_file_names_and_that_are_missing_are_left_out(tmp_path: Path) -> None:
    lines = [f"{sub}/{number:02}.png,{sub}" for sub in "xy" for number in range(4)]
    data, notes = imported(labelled(tmp_path / "birds", "\n".join(["path,label", *lines])), tmp_path)
    assert len(data.train_y) + len(data.test_y) == 6
    assert "left out, 2" in notes[-1]


def test_pictures_in_other_formats_are_counted(tmp_path: Path) -> None:
    """Photos of a phone are passed over, with one line that says so; other files are not mentioned."""
    source = tmp_path / "birds"
    for split, name in itertools.product(("train", "test"), ("auk", "bee")):
        write_images(source / split / name, 1)
        for other in ("1.HEIC", "2.heic", "3.nef", "._4.heic", "notes.txt", "meta.json", ".DS_Store"):
            (source / split / name / other).write_bytes(b"x")
    data, notes = imported(source, tmp_path)
    assert len(data.train_y) == len(data.test_y) == 2
    (note,) = (note for note in notes if note.startswith("left out"))
    assert note == "left out: pictures in other formats, 12 (8 .heic, 4 .nef): convert them to JPEG or PNG"

    for path in source.rglob("*.png"):
        path.unlink()
    with pytest.raises(OcilError, match=r"has no images .*\. It has pictures in other formats, 12 .*PNG\.$"):
        imported(source, tmp_path)
    Image.new("L", (4, 4)).save(source / "train" / "auk" / "0.png")
    with pytest.raises(
        OcilError, match=r"class 1 \('bee'\) has no training image.*\. It has pictures in other formats"
    ):
        imported(source, tmp_path)


@pytest.mark.parametrize("folders", [("train", "test"), ("train", "val"), (".",)])
def test_a_folder_of_many_classes_is_listed_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folders: tuple[str, ...]
) -> None:
    for folder in folders:
        for name in ("a", "b"):
            write_images(tmp_path / "source" / folder / name, 2, seed=1)
    listed: list[Path] = []
    iterdir = Path.iterdir

    def watched(self: Path) -> Iterator[Path]:
        listed.append(self)
        return iterdir(self)

    monkeypatch.setattr(Path, "iterdir", watched)
    found = find_layout(tmp_path / "source")
    assert (found.classes, len(found.train), len(found.test or ())) == (("a", "b"), 4, 4 * (len(folders) - 1))
    assert [listed.count(tmp_path / "source" / folder) for folder in folders] == [1] * len(folders)
