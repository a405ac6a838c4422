"""Made-up archives of a few images, in the forms the importers read."""

import io
import os
import pickle
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from ocil.data import CATALOG, Dataset

PER_BATCH = 20
TINY_CIFAR10 = replace(CATALOG["cifar10"], train=5 * PER_BATCH, test=PER_BATCH, train_md5=None)
TINY_CIFAR100 = replace(CATALOG["cifar100"], train=200, test=100, train_md5=None)
TINY_MINI = replace(CATALOG["mini_imagenet"], classes=6, train=30, test=6)
MINI_CLASSES = {"train": ["n03", "n01", "n02"], "val": ["n11", "n10"], "test": ["n20"]}


class Malicious:
    """Unpickled without care, it makes the marker file."""

    def __init__(self, function: Any, argument: str) -> None:
        self.function, self.argument = function, argument

    def __reduce__(self) -> Any:
        return self.function, (self.argument,)


def attacks(marker: Path) -> list[Malicious]:
    return [Malicious(os.system, f"touch {marker}"), Malicious(eval, f"open({str(marker)!r}, 'w')")]


def tiny_dataset(
    name: str = "tiny", classes: int = 3, each: int = 4, shape: tuple[int, int, int] = (5, 4, 3)
) -> Dataset:
    rng = np.random.default_rng(0)
    labels = np.arange(classes, dtype=np.int64)
    train = rng.integers(0, 256, (classes * each, *shape), dtype=np.uint8)
    test = rng.integers(0, 256, (classes, *shape), dtype=np.uint8)
    return Dataset(name, train, labels.repeat(each), test, labels, tuple(f"class {label}" for label in labels))


def cifar_rows(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 3072), dtype=np.uint8)


def cifar_files(name: str) -> dict[str, Any]:
    """File name to content, as in the published archives."""
    if name == "cifar10":
        labels = [label % 10 for label in range(PER_BATCH)]
        batches = {f"data_batch_{number}": number for number in range(1, 6)} | {"test_batch": 9}
        files: dict[str, Any] = {
            file: {"data": cifar_rows(PER_BATCH, seed), "labels": labels} for file, seed in batches.items()
        }
        return files | {"batches.meta": {"label_names": [f"thing{label}" for label in range(10)]}}
    fine = list(range(100))
    return {
        "train": {"data": cifar_rows(200, 1), "fine_labels": fine + fine, "coarse_labels": [0] * 200},
        "test": {"data": cifar_rows(100, 2), "fine_labels": fine, "coarse_labels": [0] * 100},
        "meta": {"fine_label_names": [f"thing{label}" for label in fine], "coarse_label_names": ["all"]},
    }


def write_cifar_folder(name: str, parent: Path, protocol: int = 2, **changed: Any) -> Path:
    folder = parent / ("cifar-10-batches-py" if name == "cifar10" else "cifar-100-python")
    folder.mkdir(parents=True)
    for file, content in (cifar_files(name) | changed).items():
        (folder / file).write_bytes(pickle.dumps(content, protocol=protocol))
    return folder


def write_cifar_archive(name: str, path: Path, protocol: int = 2, **changed: Any) -> Path:
    folder = "cifar-10-batches-py" if name == "cifar10" else "cifar-100-python"
    with tarfile.open(path, "w:gz") as archive:
        for file, content in (cifar_files(name) | changed).items():
            data = pickle.dumps(content, protocol=protocol)
            member = tarfile.TarInfo(f"{folder}/{file}")
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def mini_images(label: int) -> np.ndarray:
    """Six flat images of one class; the value tells class and position."""
    values = np.arange(6, dtype=np.uint8) + 10 * label
    return np.broadcast_to(values[:, None, None, None], (6, 84, 84, 3)).copy()


def write_mini_pickles(folder: Path, **changed: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for split, names in MINI_CLASSES.items():
        images = np.concatenate([mini_images(int(name[1:])) for name in names])
        members = {name: list(range(6 * position, 6 * position + 6)) for position, name in enumerate(names)}
        content = changed.get(split, {"image_data": images, "class_dict": members})
        (folder / f"mini-imagenet-cache-{split}.pkl").write_bytes(pickle.dumps(content))
    return folder


def write_mini_csv(folder: Path) -> Path:
    (folder / "images").mkdir(parents=True)
    for split, names in MINI_CLASSES.items():
        lines = ["filename,label"]
        for name in names:
            for position, image in enumerate(mini_images(int(name[1:]))):
                Image.fromarray(image).resize((100, 90)).save(folder / "images" / f"{name}_{position}.png")
                lines.append(f"{name}_{position}.png,{name}")
        (folder / f"{split}.csv").write_text("\n".join(lines) + "\n")
    return folder


def write_images(folder: Path, count: int, size: tuple[int, int] = (8, 6), mode: str = "RGB", seed: int = 0) -> Path:
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    shape = (size[1], size[0]) if mode == "L" else (size[1], size[0], 3)
    for position in range(count):
        Image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8)).save(folder / f"{position:02}.png")
    return folder
