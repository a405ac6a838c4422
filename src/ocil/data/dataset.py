"""A labelled dataset of images or vectors: plain arrays, checked when it is created."""

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import numpy as np
from numpy.typing import NDArray

from ocil.data.archive import check_sums, names_in, read_arrays, read_shapes
from ocil.data.class_names import without_training
from ocil.data.digests import remembered
from ocil.data.mapped import RowReader, is_mapped
from ocil.errors import OcilError
from ocil.files import atomic_write

if TYPE_CHECKING:
    from ocil.data.doors import DomainOptions, HuggingFaceOptions, TorchOptions

ARRAYS = ("train_x", "train_y", "test_x", "test_y", "classes")
DOMAINS = ("train_domain", "test_domain", "domains")
"""Arrays of a dataset with domains, all or none of them."""
AGAIN = "Import it with ocil data import, or download it again."
CONVERTERS = "ocil data import and Dataset.from_arrays take arrays of other kinds"
MAX_UNSEEN = 1_000_000
MAP_FROM = 16 * 2**20  # bytes: smaller arrays are read at once
PIECE_BYTES = 8 * 2**20
VECTOR_TYPES = (np.float16, np.float32)

Inputs = NDArray[Any]
"""uint8 images [N,H,W,C], or float16 or float32 vectors [N,D]."""


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Images as uint8 [N,H,W,C] with one or three channels, or vectors as float16 or float32 [N,D]; labels as int64 [N]
    that count from 0.

    A second label may name the domain of each sample: the weather, the camera, the dataset that it is from. Learners
    never see it; a stream may bring one domain after the other, and results are counted per domain.

    Raises:
        OcilError: Arrays do not fit together, a label has no name, or an input is not finite.

    Examples:
        >>> import numpy as np
        >>> images, labels = np.zeros((4, 8, 8, 3), np.uint8), np.array([0, 1, 0, 1])
        >>> data = ocil.Dataset("toy", images, labels, images[:2], labels[:2], ("cat", "dog"))
        >>> data
        <Dataset toy: 2 classes, 4 training and 2 test images of 8x8x3>
        >>> data.image_shape, data.num_classes
        ((8, 8, 3), 2)
    """

    name: str
    train_x: Inputs
    train_y: NDArray[np.int64]
    test_x: Inputs
    test_y: NDArray[np.int64]
    classes: tuple[str, ...]
    unseen: int = 0
    """The number of further classes without images that a network must still have outputs for: if a search uses the
    first tasks of a stream, the loss still runs over the classes of all tasks."""
    train_domain: NDArray[np.int64] | None = None
    """The domain of each training sample, int64 [N] that counts from 0; None if the dataset has no domains."""
    test_domain: NDArray[np.int64] | None = None
    """The domain of each test sample."""
    domains: tuple[str, ...] = ()
    """The names of the domains."""

    def __post_init__(self) -> None:
        self.validate()

    def __repr__(self) -> str:
        inputs = f"{'images' if self.is_images else 'vectors'} of {'x'.join(map(str, self.input_shape))}"
        counts = f"{len(self.train_y)} training and {len(self.test_y)} test {inputs}"
        domains = f", {self.num_domains} domains" if self.domains else ""
        return f"<Dataset {self.name}: {self.num_classes} classes{domains}, {counts}>"

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Height, width and channels of an image, or the length of a vector."""
        return self.train_x.shape[1:]

    @property
    def is_images(self) -> bool:
        """Whether the inputs are images; else they are vectors."""
        return self.train_x.ndim == 4

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Height, width, channels. Raises an ``OcilError`` if the inputs are vectors."""
        if not self.is_images:
            self._refuse("it holds vectors where images are needed; use a dataset of images")
        _, height, width, channels = self.train_x.shape
        return height, width, channels

    @property
    def num_classes(self) -> int:
        """The number of classes, without those that ``unseen`` counts."""
        return len(self.classes)

    @property
    def num_domains(self) -> int:
        """0 if the dataset has no domains."""
        return len(self.domains)

    @cached_property
    def fingerprint(self) -> str:
        """Short digest of all images, labels, domains and names."""
        sha = hashlib.sha256("\n".join(self.classes).encode())
        if self.unseen:
            sha.update(f"and {self.unseen} more".encode())
        for array in (self.train_x, self.train_y, self.test_x, self.test_y):
            for part in pieces(array):
                sha.update(part.data)
        if self.train_domain is not None and self.test_domain is not None:
            sha.update("\n".join(self.domains).encode())
            for domain in (self.train_domain, self.test_domain):
                sha.update(np.ascontiguousarray(domain).data)
        return sha.hexdigest()[:12]

    @classmethod
    def from_arrays(
        cls,
        train_x: Any,
        train_y: Any,
        test_x: Any | None = None,
        test_y: Any | None = None,
        *,
        store: Path | str | None = None,
        **options: "Unpack[DomainOptions]",
    ) -> "Dataset":
        """A dataset from arrays, tensors or nested lists, and labels of any kind.

        Images are ``[N, H, W, C]``, ``[N, C, H, W]`` or ``[N, H, W]``, with one or three channels: uint8, other whole
        numbers in 0..255, or floats in [0, 1]. Rows ``[N, D]`` are vectors: float16 and float32 are kept, other types
        become float32.

        Options: ``classes``, the names of all classes in order (default: the distinct labels, sorted); ``name``;
        ``layout``, HWC or CHW, where the shape does not show it; ``test_share`` and ``seed``: without test arrays, so
        much of each class is held out, by default a sixth; ``note``, which is called with a line about that (default: a
        warning); ``train_domain`` and ``test_domain``, the domain of each sample, labels of any kind. ``store``: a
        folder to write the dataset to; it is then mapped, and may be larger than memory.

        Raises:
            OcilError: It cannot be told what the arrays are.

        Examples:
            >>> import numpy as np
            >>> x = np.zeros((8, 3, 16, 16), np.float32)
            >>> data = ocil.Dataset.from_arrays(x, ["cat", "dog"] * 4, x, ["cat", "dog"] * 4)
            >>> data.image_shape, data.classes
            ((16, 16, 3), ('cat', 'dog'))
        """
        from ocil.data.doors import from_arrays

        return from_arrays(train_x, train_y, test_x, test_y, **options).to_dataset(store)

    @classmethod
    def from_torch(
        cls, train: Any, test: Any | None = None, *, store: Path | str | None = None, **options: "Unpack[TorchOptions]"
    ) -> "Dataset":
        """A dataset from map-style torch datasets of pairs (image, label): Pillow images, tensors or arrays.

        Images are read as by ``from_arrays``; what the first sample is decides how all are read. Names of the classes
        come from ``.classes``, labels from ``.targets`` or ``.labels`` where they are there; else every sample is read
        twice. Classes without a training sample are left out.

        Options: those of ``from_arrays``, and ``size``, which makes every image a square of that side.
        """
        from ocil.data.doors import from_torch

        return from_torch(train, test, **options).to_dataset(store)

    @classmethod
    def from_huggingface(
        cls,
        ds: Any,
        image: str | None = None,
        label: str | None = None,
        *,
        store: Path | str | None = None,
        **options: "Unpack[HuggingFaceOptions]",
    ) -> "Dataset":
        """A dataset from a ``DatasetDict`` or a ``Dataset`` of the library datasets.

        ``image`` and ``label`` are columns; by default those of the types Image and ClassLabel. A column of lists of
        numbers holds vectors. Names of the classes come from the ClassLabel.

        Options: those of ``from_torch`` but ``classes``; ``train`` and ``test`` name the splits. By default they are
        ``train``, and ``test`` or else ``validation``.
        """
        from ocil.data.doors import from_huggingface

        return from_huggingface(ds, image, label, **options).to_dataset(store)

    def validate(self) -> None:
        """Raise an ``OcilError`` for the first requirement that is not met."""
        self._check_names()
        for name in ("train_x", "train_y", "test_x", "test_y"):
            if not hasattr(array := getattr(self, name), "dtype"):
                self._refuse(f"{name} must be a numpy array, not a {type(array).__name__}")
        if not 0 <= self.unseen <= MAX_UNSEEN:
            self._refuse(f"unseen = {self.unseen} must be from 0 to {MAX_UNSEEN:,}")
        for split, x, y in (("train", self.train_x, self.train_y), ("test", self.test_x, self.test_y)):
            self._check_inputs(split, x)
            self._check_labels(split, x, y)
        if self.train_x.shape[1:] != self.test_x.shape[1:] or self.train_x.dtype != self.test_x.dtype:
            train, test = (f"{shape_text(x.shape[1:])} {x.dtype}" for x in (self.train_x, self.test_x))
            self._refuse(f"training inputs are {train} but test inputs are {test}; both must have one form")
        counts = np.bincount(self.train_y, minlength=self.num_classes)
        if not counts.all():
            self._refuse(without_training(np.flatnonzero(counts == 0).tolist(), self.classes))
        self._check_domains()

    def save(self, path: Path | str, compressed: bool = False) -> None:
        """Write one .npz file, atomically."""
        arrays: dict[str, Any] = {key: getattr(self, key) for key in ARRAYS}
        arrays["classes"] = np.array(self.classes, dtype=np.str_)
        if self.unseen:
            arrays["unseen"] = np.int64(self.unseen)
        if self.domains:
            arrays |= {key: getattr(self, key) for key in DOMAINS}
            arrays["domains"] = np.array(self.domains, dtype=np.str_)
        with atomic_write(Path(path)) as file:
            (np.savez_compressed if compressed else np.savez)(file, **arrays)

    def _check_names(self) -> None:
        if not self.classes:
            self._refuse("there are no class names; give one name per class")
        for kind, names in (("class", self.classes), ("domain", self.domains)):
            for name, times in Counter(names).items():
                if times > 1:
                    self._refuse(f"the {kind} name {name!r} appears {times} times; names must differ")
                if not name or not name.isprintable():
                    self._refuse(f"the {kind} name {name!r} is empty or has unprintable characters; rename it")

    def _check_inputs(self, split: str, x: NDArray[Any]) -> None:
        if x.dtype in VECTOR_TYPES and x.ndim == 2 and x.shape[1]:
            # What is mapped was checked when it was written or first opened; reading it each time would take long.
            if not is_mapped(x) and not all_finite(x):
                self._refuse(f"{split}_x has numbers that are not finite; remove or replace those vectors")
        elif x.dtype != np.uint8 or x.ndim != 4 or x.shape[3] not in (1, 3) or 0 in x.shape[1:]:
            self._refuse(
                f"{split}_x must be images, uint8 [N,H,W,C] with C 1 or 3, or vectors, float16 or float32 [N,D], "
                f"but it is {x.dtype} {list(x.shape)}; {CONVERTERS}"
            )

    def _check_labels(self, split: str, x: NDArray[Any], y: NDArray[Any]) -> None:
        if y.dtype != np.int64 or y.ndim != 1:
            self._refuse(f"{split}_y must be int64 [N], but it is {y.dtype} {list(y.shape)}; {CONVERTERS}")
        if len(x) != len(y):
            self._refuse(f"{split} has {len(x)} images but {len(y)} labels; there must be one label per image")
        if len(y) == 0:
            self._refuse(f"the {split} split is empty; it needs at least one image")
        for label in (int(y.min()), int(y.max())):
            if not 0 <= label < self.num_classes:
                self._refuse(f"label {label} in {split}_y is outside 0..{self.num_classes - 1}")

    def _check_domains(self) -> None:
        given = [self.train_domain is not None, self.test_domain is not None, bool(self.domains)]
        if any(given) and not all(given):
            self._refuse("it has some of train_domain, test_domain and domains; give all three or none")
        for split, domain, y in (("train", self.train_domain, self.train_y), ("test", self.test_domain, self.test_y)):
            if domain is None:
                continue
            if domain.dtype != np.int64 or domain.shape != y.shape:
                self._refuse(f"{split}_domain must be int64 [{len(y)}], but it is {domain.dtype} {list(domain.shape)}")
            if not 0 <= int(domain.min()) <= int(domain.max()) < self.num_domains:
                self._refuse(f"{split}_domain has a number outside 0..{self.num_domains - 1}")
            counts = np.bincount(domain, minlength=self.num_domains)
            if not counts.all():
                name = self.domains[int(counts.argmin())]
                self._refuse(f"the domain {name!r} has no {split} sample; add some or drop the domain")

    def _refuse(self, what: str) -> None:
        raise OcilError(f"dataset '{self.name}': {what}.")


def require_dataset(given: Any) -> None:
    """Raise an ``OcilError`` if this is not a dataset but, for example, the name of one."""
    if not isinstance(given, Dataset):
        how = (
            f"ocil.load_dataset({given!r}) gives one"
            if isinstance(given, str)
            else "ocil.Dataset.from_arrays makes one"
        )
        raise OcilError(f"an ocil.Dataset is needed, not a {type(given).__name__}: {how}.")


def known_fingerprint(dataset: Dataset, fingerprint: str) -> Dataset:
    """The dataset itself, which need not compute its fingerprint any more."""
    dataset.__dict__["fingerprint"] = fingerprint  # where ``cached_property`` keeps it
    return dataset


def renamed(dataset: Dataset, name: str) -> Dataset:
    """The same dataset under another name. A fingerprint that is known is kept: it does not depend on the name."""
    copy = replace(dataset, name=name)
    known = dataset.__dict__.get("fingerprint")
    return copy if known is None else known_fingerprint(copy, known)


def pieces(array: NDArray[Any]) -> Iterator[NDArray[Any]]:
    """Contiguous copies of an array's rows, a few megabytes at a time."""
    rows, step = RowReader(array), max(1, PIECE_BYTES // max(1, array[:1].nbytes))
    for first in range(0, len(array), step):
        yield np.ascontiguousarray(rows.part(first, min(first + step, len(array))))


def all_finite(array: NDArray[Any]) -> bool:
    return array.dtype.kind != "f" or all(np.isfinite(piece).all() for piece in pieces(array))


def load_npz(path: Path, name: str) -> Dataset:
    """Read what ``Dataset.save`` wrote. Pickled content is refused, never run.

    Large arrays that are not compressed are mapped. Such a file is read as a whole, to compare its check sums and to
    compute its fingerprint, when it is opened for the first time on a machine or has changed since.
    """
    dataset = _open_npz(path, name)
    if not any(map(is_mapped, (dataset.train_x, dataset.train_y, dataset.test_x, dataset.test_y))):
        return dataset

    def verified() -> str:
        check_sums(path, AGAIN)
        if not all_finite(dataset.train_x) or not all_finite(dataset.test_x):
            raise OcilError(f"{path} has vectors with numbers that are not finite. Remove or replace them.")
        return dataset.fingerprint

    return known_fingerprint(dataset, remembered(path, verified))


def _open_npz(path: Path, name: str) -> Dataset:
    arrays: dict[str, Any] = dict(read_arrays(path, ARRAYS, ("unseen", *DOMAINS), AGAIN, MAP_FROM))
    classes, unseen = names_in(arrays.pop("classes"), path, AGAIN), arrays.pop("unseen", np.array(0))
    if "domains" in arrays:
        arrays["domains"] = names_in(arrays["domains"], path, AGAIN)
    if unseen.dtype.kind not in "iu" or unseen.ndim != 0:
        raise OcilError(f"{path}: unseen must be a number of classes, but it is {unseen.dtype} {list(unseen.shape)}.")
    return Dataset(name=name, classes=classes, unseen=int(unseen), **arrays)


def peek_npz(path: Path) -> tuple[int, tuple[int, ...], int, int]:
    """Number of classes, shape of an input, numbers of training and test inputs, from the headers alone."""
    shapes = read_shapes(path, ("classes", "train_x", "test_x"), AGAIN)
    if [len(shape) for shape in shapes.values()] not in ([1, 4, 4], [1, 2, 2]):
        raise OcilError(f"cannot read {path}: its arrays are not those of a dataset. {AGAIN}")
    (classes,), (train, *image), (test, *_) = shapes.values()
    return classes, tuple(image), train, test


def shape_text(shape: tuple[int, ...]) -> str:
    """``32x32x3``, or ``384 numbers`` of a vector."""
    return "x".join(map(str, shape)) + (" numbers" if len(shape) == 1 else "")
