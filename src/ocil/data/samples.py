"""Samples that are not read yet, with their labels: ``ocil.data.doors`` makes them.

They become a dataset in memory or, a few at a time, a folder of raw arrays on a disk.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ocil.data.dataset import Dataset
from ocil.data.inputs import ArraySource, Indices, Source, number_labels
from ocil.data.raw import open_store
from ocil.data.raw_writer import Split, StoreWriter
from ocil.data.split import hold_out, in_words
from ocil.errors import OcilError

STEP_BYTES, STEP_SAMPLES = 8 * 2**20, 1024  # what is read at a time: the smaller of the two

HELD_OUT = "of each class is held out to test with"
Note = Callable[[str], None]
OnProgress = Callable[[int, int], None]
"""Called with how many samples are ready, and how many there are."""


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
        for what, part in (("train", train), ("test", test)):
            if part is not None and not len(part[0]):
                raise OcilError(f"{what}_x has no samples: give some of each class.")
        labels = number_labels(train[1], None if test is None else test[1], classes, names)
        learned = _labelled("train", train[0], labels.train)
        tested = None if test is None or labels.test is None else _labelled("test", test[0], labels.test)
        if tested is not None and test_share is not None:
            raise OcilError(f"{name} has test samples of its own: leave out test_share.")
        known: tuple[str, ...] = ()
        if domains is not None:
            learned, tested, known = _with_domains(learned, tested, *domains)
        if tested is not None:
            return cls(name, labels.classes, learned, tested, domains=known)
        held = hold_out(labels.train, labels.classes, test_share, seed)
        (note or warn)(f"{name} has no test samples: {in_words(test_share)} {HELD_OUT}")
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

    def to_dataset(self, store: Path | str | None = None) -> Dataset:
        """The dataset in memory or, if ``store`` is given, written to that folder and opened there."""
        if store is not None:
            self.write(Path(store))
            return open_store(Path(store), self.name, verify=False)  # its digests have just been computed
        train, test = self.train.array(), self.test.array()
        domains = self.train.domains, self.test.domains, self.domains
        return Dataset(self.name, train, self.train.labels, test, self.test.labels, self.classes, self.unseen, *domains)

    def write(self, path: Path, progress: OnProgress = lambda _done, _total: None) -> None:
        """Write a folder of raw arrays, which is there whole or not at all. ``progress``: samples done, and of all."""
        done, total = 0, len(self.train) + len(self.test)
        parts: tuple[tuple[Split, LabelledSamples], ...] = (("train", self.train), ("test", self.test))
        with StoreWriter(path, self.classes, self.unseen, self.domains) as writer:
            for split, part in parts:
                for x, y, domains in part.pieces():
                    writer.add(split, x, y, domains)
                    done += len(y)
                    progress(done, total)


def _labelled(what: str, source: Source, labels: Indices) -> LabelledSamples:
    """All samples of a source with their labels."""
    if len(source) != len(labels):
        raise OcilError(f"{what}_x has {len(source)} samples but {what}_y has {len(labels)} labels.")
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


def warn(text: str) -> None:
    warnings.warn(text, stacklevel=5)
