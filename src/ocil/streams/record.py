"""Streams from anything that yields batches: a generator, a list, a loader of another library.

The batches are recorded before the first is learned, because a run is evaluated on all classes that come, goes on after
a kill, and has the same result when it is repeated. They are kept in memory or, if they are many, in a file.
"""

import os
import tempfile
from collections.abc import Hashable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ocil.data import Dataset
from ocil.data.doors import ArrayOptions
from ocil.data.inputs import (
    ArraySource,
    InputForm,
    Layout,
    as_array,
    form_of,
    is_tensor,
    plain_labels,
    tensors_as_arrays,
)
from ocil.data.mapped import mapped
from ocil.data.places import cache_dir
from ocil.data.samples import LabelledSamples, Note, Samples, warn
from ocil.data.split import hold_out, in_words
from ocil.errors import OcilError, WriteError
from ocil.limits import whole
from ocil.streams.config import DEFAULT_TASKS
from ocil.streams.order import Order, equal_distances, tasks_of

MEMORY_BYTES = 2**30  # of recorded inputs; more are kept in a file


@dataclass(frozen=True)
class RecordedBatches:
    """Batches as a dataset, and the order in which they came."""

    data: Dataset
    order: Order


class RecordOptions(ArrayOptions, total=False):
    """The options of ``record``."""

    tasks: int | None


def record(
    batches: Iterable[Any],
    test: tuple[Any, Any] | None = None,
    *,
    name: str = "batches",
    classes: Sequence[str] | None = None,
    tasks: int | None = None,
    layout: Layout | None = None,
    test_share: float | None = None,
    seed: int = 0,
    note: Note | None = None,
) -> RecordedBatches:
    """Record all batches of an iterable, which must end. ``Stream.from_batches`` explains batches and options."""
    if not isinstance(batches, Iterable):
        raise OcilError(
            f"give a list or a generator of (x, y) or (x, y, task) as batches, not {type(batches).__name__}."
        )
    if tasks is not None:
        tasks = whole("tasks", tasks, least=1)
    came = _Arrived(layout, list(map(str, classes)) if classes is not None else None)
    for number, batch in enumerate(batches):
        came.add(batch, number)
    if not came.sizes:
        raise OcilError("there are no batches. A generator that was read before has none left.")
    labels = np.array(came.labels, dtype=np.int64)
    names = tuple(came.names)
    held = np.zeros(len(labels), np.bool_)
    x = came.inputs.array()
    if test is None:
        held = hold_out(labels, names, test_share, seed)
        if came.inputs.path is not None:
            raise OcilError("these batches are larger than memory, so none can be held out. Give test=(x, y).")
        (note or warn)(f"{name} has no test samples: {in_words(test_share)} of each class is held out to test with")
    source = ArraySource(x, "batches", "HWC")
    tested = (
        _test_part(test, came, layout)
        if test is not None
        else LabelledSamples(source, np.flatnonzero(held), labels[held])
    )
    train = LabelledSamples(source, np.flatnonzero(~held), labels[~held])
    data = Samples(name, names, train, tested).to_dataset()
    return RecordedBatches(data, _order(came, labels, held, tasks))


class _Arrived:
    """Inputs, labels and sizes of the batches that have come so far."""

    def __init__(self, layout: Layout | None, classes: list[str] | None) -> None:
        self.layout, self.fixed = layout, classes is not None
        self.names: list[str] = classes or []
        self.known: dict[Hashable, int] = {name: label for label, name in enumerate(self.names)}
        self.inputs = _Inputs()
        self.labels: list[int] = []
        self.sizes: list[int] = []
        self.tasks: list[Any] = []
        self.form: InputForm | None = None
        self.ndim = 0

    def add(self, batch: Any, number: int) -> None:
        what = f"batch {number}"
        if not isinstance(batch, tuple | list) or len(batch) not in (2, 3):
            raise OcilError(f"{what} is {type(batch).__name__}. A batch is (x, y) or (x, y, task).")
        array, labels = as_array(batch[0], what), plain_labels(batch[1], what)
        if len(array) != len(labels):
            raise OcilError(f"{what} has {len(array)} samples but {len(labels)} labels.")
        if not len(labels):
            return
        if (len(batch) == 3) != bool(self.tasks) and self.sizes:
            raise OcilError(
                f"{what} has {len(batch)} parts, unlike those before. Name the task of all batches or of none."
            )
        if self.form is None:
            self.form = form_of(array.shape[1:], array.dtype, what, self.layout)
        elif array.ndim != self.ndim:
            raise OcilError(f"{what} has the shape {list(array.shape)}, unlike those before.")
        self.ndim = array.ndim
        self.inputs.add(self.form.convert(array, what), what)
        self.labels += [self.number_of(value, what) for value in labels.tolist()]
        self.sizes.append(len(labels))
        self.tasks += [_task(batch[2], what)] if len(batch) == 3 else []

    def number_of(self, value: Any, what: str) -> int:
        """The number of a class, which is a new one if it has not come before."""
        if (label := self.known.get(value)) is not None:
            return label
        if self.fixed:
            if type(value) is int and 0 <= value < len(self.names):
                return value
            raise OcilError(f"{what} has the label {value!r}, which is not among the classes.")
        self.known[value] = len(self.names)
        self.names.append(str(value))
        return self.known[value]


def _task(value: Any, what: str) -> Any:
    """The task of a batch. A loader may give an array or a tensor of it, one number per sample."""
    if not is_tensor(value) and not isinstance(value, np.ndarray):
        return value
    found = np.unique(tensors_as_arrays(value, what)).tolist()
    if len(found) != 1:
        raise OcilError(f"{what} has samples of the tasks {found}. A batch belongs to one task.")
    return found[0]


@dataclass
class _Inputs:
    """Inputs that are appended: in memory, or in a file that has no name any more once it is mapped."""

    pieces: list[NDArray[Any]] = field(default_factory=list)
    size: int = 0
    rows: int = 0
    shape: tuple[int, ...] = ()
    dtype: np.dtype[Any] = field(default_factory=lambda: np.dtype(np.uint8))
    path: Path | None = None

    def add(self, x: NDArray[Any], what: str) -> None:
        if self.rows and (x.shape[1:] != self.shape or x.dtype != self.dtype):
            raise OcilError(f"{what} has inputs of {x.dtype} {list(x.shape[1:])}, unlike those before.")
        self.shape, self.dtype = x.shape[1:], x.dtype
        self.pieces.append(x.copy())  # a generator may fill the same array again
        self.size += x.nbytes
        self.rows += len(x)
        if self.size > MEMORY_BYTES:
            self.flush()

    def flush(self) -> None:
        try:
            if self.path is None:
                folder = cache_dir() / "streams"
                folder.mkdir(parents=True, exist_ok=True)
                descriptor, name = tempfile.mkstemp(".raw", dir=folder)
                os.close(descriptor)
                self.path = Path(name)
            with self.path.open("ab") as file:
                for piece in self.pieces:
                    file.write(piece.data)
        except OSError as error:
            self.remove()
            raise WriteError(f"cannot keep the batches in {self.path}: {error.strerror}. Set OCIL_CACHE.") from error
        self.pieces, self.size = [], 0

    def array(self) -> NDArray[Any]:
        if self.path is None:
            return np.concatenate(self.pieces)
        self.flush()
        try:
            return mapped(self.path, self.dtype, (self.rows, *self.shape))
        finally:
            self.remove()

    def remove(self) -> None:
        if self.path is not None:
            with suppress(OSError):  # Windows does not remove a file in use
                self.path.unlink()

    def __del__(self) -> None:
        self.remove()


def _test_part(test: tuple[Any, Any], came: _Arrived, layout: Layout | None) -> LabelledSamples:
    if not isinstance(test, tuple | list) or len(test) != 2:
        raise OcilError(f"test is {type(test).__name__}, not a pair (x, y): give all test samples and their labels.")
    x, y = test
    labels = []
    for value in plain_labels(y, "test_y").tolist():
        if value not in came.known and not (came.fixed and type(value) is int and 0 <= value < len(came.names)):
            raise OcilError(f"test_y has the label {value!r}, which no batch has. Leave those samples out.")
        labels.append(came.number_of(value, "test_y"))
    source = ArraySource(x, "test_x", layout)
    if len(source) != len(labels):
        raise OcilError(f"test_x has {len(source)} samples but test_y has {len(labels)} labels.")
    return LabelledSamples(source, np.arange(len(labels)), np.array(labels, dtype=np.int64))


def _order(came: _Arrived, labels: NDArray[np.int64], held: NDArray[np.bool_], tasks: int | None) -> Order:
    """The order of the samples that are not held out, in the batches in which they came."""
    ends = np.cumsum(came.sizes)
    parts = zip(np.split(labels, ends[:-1]), np.split(held, ends[:-1]), strict=True)
    kept = [part[~out] for part, out in parts]
    present = [number for number, part in enumerate(kept) if len(part)]
    stops = np.cumsum([len(kept[number]) for number in present]).tolist()
    bounds = list(zip([0, *stops[:-1]], stops, strict=True))
    batches = [set(kept[number].tolist()) for number in present]
    named = [came.tasks[number] for number in present] if came.tasks else None
    points, groups = tasks_of(batches, named)
    samples = np.arange(stops[-1], dtype=np.int64)
    if len(groups) > 1 or named is not None:
        return Order(samples, bounds, points, groups, "clear")
    (arrived,) = groups
    count = min(DEFAULT_TASKS if tasks is None else tasks, len(arrived), len(bounds))
    split = [part.tolist() for part in np.array_split(np.array(arrived), count)]
    return Order(samples, bounds, equal_distances(len(bounds), count), split, "none")
