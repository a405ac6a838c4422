"""The datasets known by name, and the folder they live in."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

DEFAULT = "fashion-mini"


@dataclass(frozen=True)
class DatasetInfo:
    """What a name stands for. ``size`` is that of the archive in bytes: a download stops there.

    ``train_md5`` is that of the prepared training images, where it is known.
    """

    name: str
    title: str
    classes: int
    image_shape: tuple[int, int, int]
    tasks: int
    train: int
    test: int
    url: str | None
    md5: str | None
    filename: str | None
    licence: str
    how: str
    train_md5: str | None = None
    size: int | None = None


def _cifar(classes: int, tasks: int, md5: str, train_md5: str, size: int) -> DatasetInfo:
    name, filename = f"cifar{classes}", f"cifar-{classes}-python.tar.gz"
    return DatasetInfo(
        name=name,
        title=f"CIFAR-{classes}",
        classes=classes,
        image_shape=(32, 32, 3),
        tasks=tasks,
        train=50_000,
        test=10_000,
        url=f"https://www.cs.toronto.edu/~kriz/{filename}",
        md5=md5,
        filename=filename,
        licence="none stated; cite Krizhevsky, 2009",
        how=f"ocil data download {name}",
        train_md5=train_md5,
        size=size,
    )


CATALOG: dict[str, DatasetInfo] = {
    info.name: info
    for info in (
        DatasetInfo(
            name=DEFAULT,
            title="Fashion-MNIST, small",
            classes=10,
            image_shape=(14, 14, 1),
            tasks=5,
            train=3_000,
            test=1_000,
            url=None,
            md5=None,
            filename=None,
            licence="MIT, Zalando SE",
            how="comes with ocil",
            train_md5="d27be5b085406e8668ce8c1fd72a09bd",
        ),
        _cifar(10, 5, "c58f30108f718f92721af3b95e74349a", "17e2cb5a4119d89a4a13e02b91701bff", 170_498_071),
        _cifar(100, 10, "eb9058c3a382ffc7106e4002c42a8d85", "111db26282d380128f3126515677de38", 169_001_437),
        DatasetInfo(
            name="mini_imagenet",
            title="Mini-ImageNet",
            classes=100,
            image_shape=(84, 84, 3),
            tasks=10,
            train=50_000,
            test=10_000,
            url=None,
            md5=None,
            filename=None,
            licence="ImageNet terms: non-commercial research",
            how="ocil data import mini_imagenet PATH",
        ),
    )
}


def same_name(name: str) -> str:
    """One spelling for names that differ only in case, ``-`` and ``_``: CIFAR-100 is cifar100."""
    return name.strip().lower().replace("_", "").replace("-", "")


def find(name: str) -> DatasetInfo | None:
    """The catalog entry a name means, however it is spelled."""
    return next((info for info in CATALOG.values() if same_name(info.name) == same_name(name)), None)


def data_dir(explicit: Path | None = None) -> Path:
    """The given folder, else the one OCIL_DATA names, else the user's cache folder."""
    if explicit is not None:
        return explicit.expanduser()
    if named := os.environ.get("OCIL_DATA"):
        return Path(named).expanduser()
    return _cache_dir(sys.platform) / "ocil"


def _cache_dir(platform: str) -> Path:
    if platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if platform == "darwin":
        return Path.home() / "Library" / "Caches"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
