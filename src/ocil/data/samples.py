"""The doors through which datasets of other libraries come in: arrays, torch datasets, Hugging Face datasets.

Each makes ``Samples``, which become a dataset in memory or, a few at a time, a folder of raw arrays on a disk.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from ocil.data.dataset import Dataset
from ocil.data.inputs import ArraySource, Indices, ItemSource, Layout, Source, number_labels
from ocil.data.raw import open_store
from ocil.data.raw_writer import Split, StoreWriter
from ocil.data.split import hold_out, in_words
from ocil.errors import OcilError

STEP_BYTES, STEP_SAMPLES = 8 * 2**20, 1024  # what is read at a time: the smaller of the two
TEST_SPLITS = ("test", "validation", "valid", "val")

Note = Callable[[str], None]
Progress = Callable[[int, int], None]


class CommonOptions(TypedDict, total=False):
    """The options of every door. ``Dataset.from_arrays`` explains them."""

    name: str
    layout: Layout | None
    test_share: float | None
    seed: int
    note: Note | None


class ArrayOptions(CommonOptions, total=False):
    """The options of ``Dataset.from_arrays`` that ``from_torch`` and ``Stream.from_batches`` have too."""

    classes: Sequence[str] | None


class DomainOptions(ArrayOptions, total=False):
    """The options of ``Dataset.from_arrays``."""

    train_domain: Any | None
    test_domain: Any | None


class TorchOptions(ArrayOptions, total=False):
    """The options of ``Dataset.from_torch``."""

    size: int | None


class HuggingFaceOptions(CommonOptions, total=False):
    """The options of ``Dataset.from_huggingface``."""

    size: int | None
    train: str
    test: str | None


@dataclass(frozen=True)
class LabelledSamples:
    """Some samples of a source, in this order, and their labels."""

    source: Source
    index: Indices
    labels: Indices
    domains: Indices | None = None
    """The numbers of their domains, if they have domains."""

    def __len__(self) -> int:
        return len(self.labels)

    def of(self, chosen: NDArray[np.bool_]) -> "LabelledSamples":
        """Some of these samples, by a mask."""
        domains = None if self.domains is None else self.domains[chosen]
        return LabelledSamples(self.source, self.index[chosen], self.labels[chosen], domains)

    def pieces(self) -> Iterator[tuple[NDArray[Any], Indices, Indices | None]]:
        """Samples, labels and domains, a few at a time."""
        first, step = 0, 1  # the first sample shows how many are a few
        while first < len(self):
            x = self.source.take(self.index[first : first + step])
            domains = None if self.domains is None else self.domains[first : first + step]
            yield x, self.labels[first : first + step], domains
            first += step
            step = max(1, min(STEP_SAMPLES, STEP_BYTES // max(1, x[:1].nbytes)))

    def array(self) -> NDArray[Any]:
        """All samples in memory; the array that they came in, if it can be used as it is."""
        if isinstance(self.source, ArraySource) and len(self) == len(self.source):
            array = self.source.as_it_is
            if array is not None and np.array_equal(self.index, np.arange(len(array))):
                return array
        found: NDArray[Any] | None = None
        done = 0
        for x, _, _ in self.pieces():
            found = np.empty((len(self), *x.shape[1:]), x.dtype) if found is None else found
            found[done : done + len(x)] = x
            done += len(x)
        if found is None:
            raise OcilError("there are no samples. Give at least one.")
        return found


@dataclass(frozen=True)
class Samples:
    """All that a dataset is made of, not read yet."""

    name: str
    classes: tuple[str, ...]
    train: LabelledSamples
    test: LabelledSamples
    unseen: int = 0
    domains: tuple[str, ...] = ()

    @classmethod
    def split(
        cls,
        name: str,
        train: tuple[Source, Any],
        test: tuple[Source, Any] | None,
        *,
        classes: Sequence[str] | None = None,
        names: Sequence[str] | None = None,
        domains: "tuple[Any, Any | None] | None" = None,
        test_share: float | None = None,
        seed: int = 0,
        note: Note | None = None,
    ) -> "Samples":
        """Samples and labels of any kind; without ``test``, a share of each class is held out, and ``note``, by default
        a warning, is told.

        ``classes`` and ``names``: see ``number_labels``. ``domains``: those of the training and of the test samples.
        """
        labels = number_labels(train[1], None if test is None else test[1], classes, names)
        for what, source, y in (("train", train[0], labels.train), ("test", test and test[0], labels.test)):
            if source is not None and y is not None and len(source) != len(y):
                raise OcilError(f"{what}_x has {len(source)} samples but {what}_y has {len(y)} labels.")
        if test is not None and labels.test is not None:
            if test_share is not None:
                raise OcilError(f"{name} has test samples of its own: leave out test_share.")
            learned, tested = _whole(train[0], labels.train), _whole(test[0], labels.test)
        else:
            learned, tested = _whole(train[0], labels.train), None
        known: tuple[str, ...] = ()
        if domains is not None:
            learned, tested, known = _with_domains(learned, tested, *domains)
        if tested is not None:
            return cls(name, labels.classes, learned, tested, domains=known)
        held = hold_out(labels.train, labels.classes, test_share, seed)
        (note or warn)(f"{name} has no test samples: {in_words(test_share)} of each class is held out to test with")
        return cls(name, labels.classes, learned.of(~held), learned.of(held), domains=known)

    @classmethod
    def of(cls, dataset: Dataset) -> "Samples":
        """The samples of a dataset."""
        train, test = (
            LabelledSamples(ArraySource(x, what, "HWC"), np.arange(len(y)), y, domain)
            for what, x, y, domain in (
                ("train_x", dataset.train_x, dataset.train_y, dataset.train_domain),
                ("test_x", dataset.test_x, dataset.test_y, dataset.test_domain),
            )
        )
        return cls(dataset.name, dataset.classes, train, test, dataset.unseen, dataset.domains)

    @property
    def nbytes(self) -> int:
        """The size of all samples in the form in which they are stored."""
        one = self.train.source.take(self.train.index[:1])
        return one.nbytes * (len(self.train) + len(self.test))

    def dataset(self) -> Dataset:
        """A dataset in memory."""
        train, test = self.train.array(), self.test.array()
        domains = self.train.domains, self.test.domains, self.domains
        return Dataset(self.name, train, self.train.labels, test, self.test.labels, self.classes, self.unseen, *domains)

    def write(self, path: Path, progress: Progress = lambda _done, _total: None) -> None:
        """Write a folder of raw arrays, which is there whole or not at all. ``progress``: samples done, and of all."""
        done, total = 0, len(self.train) + len(self.test)
        parts: tuple[tuple[Split, LabelledSamples], ...] = (("train", self.train), ("test", self.test))
        with StoreWriter(path, self.classes, self.unseen, self.domains) as writer:
            for split, part in parts:
                for x, y, domains in part.pieces():
                    writer.add(split, x, y, domains)
                    done += len(y)
                    progress(done, total)

    def made(self, store: Path | None) -> Dataset:
        """The dataset in memory or, if ``store`` is given, in that folder."""
        if store is None:
            return self.dataset()
        self.write(store)
        return open_store(store, self.name, verify=False)  # its digests have just been computed


def _whole(source: Source, labels: Indices) -> LabelledSamples:
    return LabelledSamples(source, np.arange(len(labels)), labels)


def _with_domains(
    train: LabelledSamples, test: LabelledSamples | None, given: Any, held: Any | None
) -> tuple[LabelledSamples, LabelledSamples | None, tuple[str, ...]]:
    """The same samples with the numbers of their domains, and the names of these."""
    if (held is None) != (test is None):
        raise OcilError("give test_domain together with test_x, and leave it out without.")
    found = number_labels(given, held, what="domain")
    for what, part, numbers in (("train", train, found.train), ("test", test, found.test)):
        if part is not None and numbers is not None and len(part) != len(numbers):
            raise OcilError(f"{what}_x has {len(part)} samples but {what}_domain has {len(numbers)} domains.")
    tested = None if test is None else replace(test, domains=found.test)
    return replace(train, domains=found.train), tested, found.classes


def from_arrays(
    train_x: Any,
    train_y: Any,
    test_x: Any | None = None,
    test_y: Any | None = None,
    *,
    classes: Sequence[str] | None = None,
    name: str = "arrays",
    layout: Layout | None = None,
    train_domain: Any | None = None,
    test_domain: Any | None = None,
    test_share: float | None = None,
    seed: int = 0,
    note: Note | None = None,
) -> Samples:
    """See ``Dataset.from_arrays``."""
    if (test_x is None) != (test_y is None):
        raise OcilError("give both test_x and test_y, or neither.")
    train = ArraySource(train_x, "train_x", layout), train_y
    test = None if test_x is None else (ArraySource(test_x, "test_x", layout), test_y)
    if test_domain is not None and train_domain is None:
        raise OcilError("give train_domain together with test_domain.")
    domains = None if train_domain is None else (train_domain, test_domain)
    return Samples.split(
        name, train, test, classes=classes, domains=domains, test_share=test_share, seed=seed, note=note
    )


def from_torch(
    train: Any,
    test: Any | None = None,
    *,
    classes: Sequence[str] | None = None,
    name: str = "torch",
    layout: Layout | None = None,
    size: int | None = None,
    test_share: float | None = None,
    seed: int = 0,
    note: Note | None = None,
) -> Samples:
    """See ``Dataset.from_torch``."""

    def opened(dataset: Any, what: str) -> tuple[Source, Any]:
        if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
            kind = type(dataset).__name__
            raise OcilError(f"{what} is {kind}, which is not a map-style dataset with len() and []. Use from_batches.")
        source = ItemSource(lambda number: _pair(dataset, number, what)[0], len(dataset), what, layout, size)
        return source, _torch_labels(dataset, what)

    learned, tested = opened(train, "train"), None if test is None else opened(test, "test")
    return Samples.split(
        name, learned, tested, classes=classes, names=_torch_names(train), test_share=test_share, seed=seed, note=note
    )


def from_huggingface(
    ds: Any,
    image: str | None = None,
    label: str | None = None,
    *,
    train: str = "train",
    test: str | None = None,
    name: str = "huggingface",
    layout: Layout | None = None,
    size: int | None = None,
    test_share: float | None = None,
    seed: int = 0,
    note: Note | None = None,
) -> Samples:
    """See ``Dataset.from_huggingface``."""
    is_dict = hasattr(ds, "keys") and hasattr(ds, "values")
    splits = dict(ds) if is_dict else {train: ds}
    if train not in splits:
        raise OcilError(f"there is no split '{train}'. Name one with train=: {', '.join(map(str, splits))}.")
    if test is not None and test not in splits:
        raise OcilError(f"there is no split '{test}'. Name one with test=: {', '.join(map(str, splits))}.")
    held = test or next((part for part in TEST_SPLITS if part in splits and part != train), None)
    features = getattr(splits[train], "features", None)
    if not features:
        raise OcilError("this is not a dataset of the library datasets: it has no features.")
    image = _column(features, image, "image", ("Image",))
    label = _column(features, label, "label", ("ClassLabel",))

    def opened(part: str) -> tuple[Source, Any]:
        rows = splits[part]
        source = ItemSource(lambda number: rows[number][image], len(rows), part, layout, size)
        return source, list(rows[label])

    learned, tested = opened(train), None if held is None else opened(held)
    return Samples.split(
        name,
        learned,
        tested,
        names=getattr(features[label], "names", None),
        test_share=test_share,
        seed=seed,
        note=note,
    )


def warn(text: str) -> None:
    warnings.warn(text, stacklevel=5)


def _pair(dataset: Any, number: int, what: str) -> tuple[Any, Any]:
    item = dataset[number]
    if not isinstance(item, tuple | list) or len(item) < 2:
        raise OcilError(f"sample {number} of {what} is not a pair of image and label but {type(item).__name__}.")
    return item[0], item[1]


def _torch_labels(dataset: Any, what: str) -> Any:
    """All labels: from where torchvision keeps them, unless they are transformed; else sample by sample."""
    for attribute in ("targets", "labels"):
        found = getattr(dataset, attribute, None)
        untouched = getattr(dataset, "target_transform", None) is None
        if found is not None and untouched and hasattr(found, "__len__") and len(found) == len(dataset):
            return found
    return [_pair(dataset, number, what)[1] for number in range(len(dataset))]


def _torch_names(dataset: Any) -> Sequence[str] | None:
    """The names of the classes, also of a dataset that ``torch.utils.data.Subset`` has wrapped."""
    for _ in range(8):
        found = getattr(dataset, "classes", None)
        if isinstance(found, list | tuple):
            return [str(each) for each in found]
        if (dataset := getattr(dataset, "dataset", None)) is None:
            return None
    return None


def _column(features: Any, given: str | None, what: str, kinds: tuple[str, ...]) -> str:
    """The column of that name; by default the only one whose type is one of ``kinds``, or the one called ``what``."""
    names = ", ".join(map(str, features))
    if given is not None:
        if given not in features:
            raise OcilError(f"there is no column '{given}'. Name one with {what}=: {names}.")
        return given
    found = [str(name) for name in features if type(features[name]).__name__ in kinds]
    if len(found) == 1 or what in features:
        return what if what in features else found[0]
    raise OcilError(f"it is not clear which column is the {what}. Name one with {what}=: {names}.")
