"""The forms in which folders of images are published. The form of a folder is found by looking into it.

CUB-200         images.txt, image_class_labels.txt, images/; train_test_split.txt and classes.txt if they are there
label file      a CSV with the columns path and label, and split and domain if there are; SOURCE itself or in it
Tiny-ImageNet   train/CLASS/images/*, val/images/* and val/val_annotations.txt
class folders   train/CLASS/* and test/CLASS/* or val/CLASS/*, or CLASS/* alone
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from ocil.data.class_names import in_order
from ocil.data.images import is_image_name, is_other_picture
from ocil.data.label_file import ImageFolder, OneLabel, columns_of, lines, read_label_file
from ocil.errors import OcilError

Files = list[tuple[Path, int]]
"""Images with their labels."""


@dataclass(frozen=True)
class Listing:
    """The images of a folder."""

    form: str
    """How a message names what was found."""
    classes: tuple[str, ...]
    train: Files
    test: Files | None
    """None if the form has no test images."""
    domain_of: dict[Path, str] = field(default_factory=dict)
    """The domain of each image, if they have domains."""
    left_out: str = ""
    """Which pictures are not among the images, see ``other_pictures``."""


def find_layout(source: Path) -> Listing:
    """The images of a folder, or of a label file, in whichever form they are."""
    for look in (_cub, _label_file, _tiny_imagenet):
        if (found := look(source)) is not None:
            return found
    return _class_folders(source)


def _cub(source: Path) -> Listing | None:
    files = {name: source / f"{name}.txt" for name in ("images", "image_class_labels", "train_test_split", "classes")}
    if not all(files[name].is_file() for name in ("images", "image_class_labels")):
        return None
    paths, labels = _pairs(files["images"]), _pairs(files["image_class_labels"])
    names = _pairs(files["classes"]) if files["classes"].is_file() else {}
    numbers = sorted(set(labels.values()), key=lambda text: (len(text), text))
    label_of = {number: label for label, number in enumerate(numbers)}
    split = _pairs(files["train_test_split"]) if files["train_test_split"].is_file() else None
    train: Files = []
    test: Files = []
    folder, once = ImageFolder(source / "images"), OneLabel(files["image_class_labels"])
    for number, where in paths.items():
        path = folder.inside(where, f"{files['images']}, image {number}")
        for content, name in ((labels, "image_class_labels"), (split, "train_test_split")):
            if content is not None and number not in content:
                raise OcilError(f"{files[name]} has no line for image {number[:20]}. Get the dataset again.")
        once.add(path, labels[number])
        held = split is not None and split[number] != "1"
        (test if held else train).append((path, label_of[labels[number]]))
    classes = tuple(names.get(number, number) for number in numbers)
    return Listing("the label files of CUB-200", classes, train, None if split is None else test)


def _pairs(path: Path) -> dict[str, str]:
    """Lines of two words: the first is a number, the second may have blanks."""
    found: dict[str, str] = {}
    for number, line in lines(path):
        key, _, value = line.strip().partition(" ")
        if not key.isdecimal() or not value.strip():
            raise OcilError(f"line {number} of {path} is not 'NUMBER TEXT': {line.strip()[:60]!r}.")
        if found.setdefault(key, value.strip()) != value.strip():
            both = f"{found[key][:40]!r} and {value.strip()[:40]!r}"
            raise OcilError(f"line {number} of {path}: {key[:20]} stands there twice, with {both}.")
    return found


def _label_file_in(source: Path) -> Path | None:
    """The only label file of a folder; None if there is none."""
    files = [path for path in sorted(source.glob("*.csv")) if columns_of(path) is not None]
    if len(files) > 1:
        names = ", ".join(path.name for path in files[:5])
        raise OcilError(f"{source} has several label files ({names}). Give the one to import in its place.")
    return files[0] if files else None


def _label_file(source: Path) -> Listing | None:
    file = source if source.is_file() else _label_file_in(source)
    if file is None:
        return None
    labelled = read_label_file(file)
    classes = tuple(in_order({image.label for image in labelled}))
    label_of = {name: label for label, name in enumerate(classes)}
    splits = {image.split for image in labelled}
    held = "test" if "test" in splits else "val"
    chosen: dict[str, Files] = {split: [] for split in ("train", "test", "val")}
    named: set[Path] = set()
    for image in labelled:
        if image.path in named:  # one of the two could be learned and the other tested
            raise OcilError(f"{file} names {image.path} twice. Leave one of the lines.")
        named.add(image.path)
        chosen[image.split].append((image.path, label_of[image.label]))
    form = f"the label file {file.name}"
    if held == "test" and "val" in splits:
        form += ", whose validation images are left out"
    domain_of = {image.path: image.domain for image in labelled if image.domain}
    return Listing(form, classes, chosen["train"], chosen[held] or None, domain_of)


def _tiny_imagenet(source: Path) -> Listing | None:
    annotations = source / "val" / "val_annotations.txt"
    if not annotations.is_file() or not (source / "train").is_dir():
        return None
    classes = class_folders(source / "train")
    label_of = {name: label for label, name in enumerate(classes)}
    folder = source / "val" / "images"
    folder = folder if folder.is_dir() else source / "val"
    inside, once = ImageFolder(folder).inside, OneLabel(annotations)
    test: Files = []
    for number, line in lines(annotations):
        where, _, rest = line.partition("\t")
        name = rest.partition("\t")[0].strip()
        if name not in label_of:
            raise OcilError(f"line {number} of {annotations}: there is no class {name[:40]!r} in {source / 'train'}.")
        path = inside(where.strip(), f"{annotations}, line {number}")
        once.add(path, name)
        test.append((path, label_of[name]))
    train = list_images(source / "train", classes)
    left_out = other_pictures([source / "train"], classes)
    return Listing("the folders of Tiny-ImageNet", tuple(classes), train, test, left_out=left_out)


def _class_folders(source: Path) -> Listing:
    (train_folder, classes), held = training_folder(source), _test_folder(source)
    if not classes:
        name = source.absolute().name  # of "." too
        raise OcilError(f"{train_folder} has no class folders. Lay the images out as {name}/CLASS/IMAGE.png.")
    form = "class folders" if train_folder == source else f"class folders in {train_folder.name}"
    folders, test = [train_folder], None
    if held is not None:
        if more := sorted(set(held.classes) - set(classes)):
            raise OcilError(f"{held.folder} has a class '{more[0]}' that {train_folder} lacks. Rename or remove it.")
        folders.append(held.folder)
        test = list_images(held.folder, classes)
        form += f" and {held.folder.name}"
    left_out = other_pictures(folders, classes)
    return Listing(form, tuple(classes), list_images(train_folder, classes), test, left_out=left_out)


class ClassFolders(NamedTuple):
    """A folder of class folders."""

    folder: Path
    classes: list[str]
    """Their names, which may be very many: they are listed once."""


def training_folder(source: Path) -> ClassFolders:
    """SOURCE/train if it holds class folders, else SOURCE itself, whose folders are then the classes."""
    train = source / "train"
    if train.is_dir():
        classes = class_folders(train)
        if classes or not list_images(source, ["train"]):
            return ClassFolders(train, classes)
    elif _test_folder(source) is not None:
        raise OcilError(f"{source} has a test set but no folder 'train'. Lay the images out as train/CLASS/IMAGE.png.")
    return ClassFolders(source, class_folders(source))


def _test_folder(source: Path) -> ClassFolders | None:
    """SOURCE/test, else SOURCE/val, else None."""
    for split in (source / "test", source / "val"):
        if split.is_dir() and (classes := class_folders(split)):
            return ClassFolders(split, classes)
    return None


def class_folders(folder: Path) -> list[str]:
    return in_order(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def list_images(folder: Path, classes: list[str]) -> Files:
    """Images with their labels, class by class, sorted by name; those in CLASS/images if CLASS itself has none."""
    files: Files = []
    for label, name in enumerate(classes):
        for place in (folder / name, folder / name / "images"):
            if place.is_dir() and (found := _images_in(place)):
                files += [(path, label) for path in found]
                break
    return files


def other_pictures(folders: list[Path], classes: list[str]) -> str:
    """How many pictures of each ending ``list_images`` passes over in these folders because it does not read their
    formats, and what to do, in one line; empty if there are none."""
    places = (place for folder in folders for name in classes for place in (folder / name, folder / name / "images"))
    return counted_pictures(path for place in places if place.is_dir() for path in place.iterdir())


def counted_pictures(files: Iterable[Path]) -> str:
    """The pictures among some files whose formats are not read, as ``other_pictures`` says it."""
    counts = Counter(path.suffix.lower() for path in files if is_other_picture(path))
    if not counts:
        return ""
    endings = ", ".join(f"{count} {suffix}" for suffix, count in counts.most_common())
    return f"pictures in other formats, {counts.total()} ({endings}): convert them to JPEG or PNG"


def _images_in(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if is_image_name(path) and path.is_file())
