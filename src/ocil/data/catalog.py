"""The datasets known by name, with all facts about them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from ocil.errors import OcilError
from ocil.plugins import Registry

if TYPE_CHECKING:
    from ocil.data.dataset import Dataset

DEFAULT = "fashion-mini"
CIFAR_HOSTS = ("https://www.cs.toronto.edu/~kriz", "https://dataset.bj.bcebos.com/cifar")  # its author, PaddlePaddle


@dataclass(frozen=True)
class DatasetInfo:
    """The facts about a dataset: its images, the usual protocol, and how to get it.

    Examples:
        >>> shapes = (32, 32, 3), 5000, 1000  # of an image; training and test images
        >>> birds = ocil.DatasetInfo("birds", "Birds", 20, *shapes, 10, 500, "CC0", "ocil data import birds FOLDER")
        >>> ocil.register(birds)
        >>> ocil.resolve("er", "birds").stream.tasks
        10
    """

    name: str
    title: str
    classes: int
    image_shape: tuple[int, int, int]
    """Height, width and channels."""
    train: int
    """Number of training images."""
    test: int
    """Number of test images."""
    tasks: int
    """Number of tasks in the literature."""
    memory: int
    """Images that a run keeps for replay by default."""
    licence: str
    how: str
    """How to get it: a command or a sentence."""
    width: int | None = None
    """Default width of a run's network; None leaves it to the method."""
    reader: Literal["cifar", "mini_imagenet"] | None = None
    """Which of ``ocil.data.importers.READERS`` reads the published form; None if it cannot be imported."""
    urls: tuple[str, ...] = ()
    """Addresses of the archive, tried in this order."""
    md5: str | None = None
    """MD5 sum of the archive, whichever address it comes from."""
    filename: str | None = None
    size: int | None = None
    """Bytes of the archive: a download stops there."""
    train_md5: str | None = None
    """MD5 sum of the prepared training images, if known."""


def _cifar(classes: int, tasks: int, memory: int, md5: str, train_md5: str, size: int) -> DatasetInfo:
    name, filename = f"cifar{classes}", f"cifar-{classes}-python.tar.gz"
    return DatasetInfo(
        name=name,
        title=f"CIFAR-{classes}",
        classes=classes,
        image_shape=(32, 32, 3),
        train=50_000,
        test=10_000,
        tasks=tasks,
        memory=memory,
        reader="cifar",
        urls=tuple(f"{host}/{filename}" for host in CIFAR_HOSTS),
        md5=md5,
        filename=filename,
        licence="none stated; cite Krizhevsky, 2009",
        how=f"ocil data download {name}",
        train_md5=train_md5,
        size=size,
    )


@dataclass(frozen=True)
class DatasetSource:
    """A dataset that a function of yours returns. Each process that needs it calls the function once.

    Examples:
        >>> import numpy as np
        >>> def stripes():
        ...     images, labels = np.zeros((20, 8, 8, 1), np.uint8), np.arange(20) % 2
        ...     return ocil.Dataset("stripes", images, labels, images, labels, ("across", "down"))
        >>> ocil.register(ocil.DatasetSource("stripes", stripes))
        >>> ocil.load_dataset("stripes").classes
        ('across', 'down')
    """

    name: str
    make: "Callable[[], Dataset]"


def same_name(name: str) -> str:
    """One spelling for names that differ only in case, ``-`` and ``_``: CIFAR-100 is cifar100."""
    return name.strip().lower().replace("_", "").replace("-", "")


def _read_info(name: str, found: Any) -> list[DatasetInfo]:
    """The catalog entry of an entry point; none if it is a function, which ``SOURCES`` reads."""
    if not isinstance(found, DatasetInfo) and not callable(found):
        raise TypeError(f"{found!r} is neither a DatasetInfo nor a function that returns a Dataset")
    return [found] if isinstance(found, DatasetInfo) else []


def _read_source(name: str, found: Any) -> list[DatasetSource]:
    """The function of an entry point; none if it is anything else, which ``CATALOG`` reads."""
    return [DatasetSource(name, found)] if callable(found) else []


SOURCES: Registry[DatasetSource] = Registry("dataset", "ocil.datasets", (), _read_source, same_name)

CATALOG: Registry[DatasetInfo] = Registry(
    "dataset",
    "ocil.datasets",
    (
        DatasetInfo(
            name=DEFAULT,
            title="Fashion-MNIST, small",
            classes=10,
            image_shape=(14, 14, 1),
            train=3_000,
            test=1_000,
            tasks=5,
            memory=200,
            width=8,
            licence="MIT, Zalando SE",
            how="comes with ocil",
            train_md5="d27be5b085406e8668ce8c1fd72a09bd",
        ),
        _cifar(10, 5, 1000, "c58f30108f718f92721af3b95e74349a", "17e2cb5a4119d89a4a13e02b91701bff", 170_498_071),
        _cifar(100, 10, 5000, "eb9058c3a382ffc7106e4002c42a8d85", "111db26282d380128f3126515677de38", 169_001_437),
        DatasetInfo(
            name="mini_imagenet",
            title="Mini-ImageNet",
            classes=100,
            image_shape=(84, 84, 3),
            train=50_000,
            test=10_000,
            tasks=10,
            memory=5000,
            reader="mini_imagenet",
            licence="ImageNet terms: non-commercial research",
            how="ocil data import mini_imagenet PATH",
        ),
    ),
    _read_info,
    same_name,
)


def register(dataset: DatasetInfo | DatasetSource, replace: bool = False) -> None:
    """Register a dataset of your own: facts about one that is imported, or a function that returns one."""
    kind, other = (CATALOG, SOURCES) if isinstance(dataset, DatasetInfo) else (SOURCES, CATALOG)
    if other.find(dataset.name) is not None:
        raise OcilError(f"there is a dataset '{dataset.name}' already, from {other.origin(dataset.name)}.")
    kind.register(dataset, replace)  # type: ignore[arg-type]  # each registry has one of the two


def find(name: str) -> DatasetInfo | None:
    """The catalog entry of a name, in any spelling."""
    return CATALOG.find(name)
