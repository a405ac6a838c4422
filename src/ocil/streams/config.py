"""The settings of a stream."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import numpy as np

from ocil.data import CATALOG, Dataset
from ocil.data.derived import base_of, parts_of
from ocil.errors import OcilError
from ocil.files import read_regular
from ocil.limits import check, python_value, use_python_values
from ocil.streams.choices import Boundary, ClassOrder, ImbalanceOrder, NoiseAmong, Scenario, TaskEnds
from ocil.streams.order_file import settings_in
from ocil.text import lines_of

# Metadata of fields that concern online methods only, or offline methods only: see ``ocil.runs.config.concerns``.
BOUNDARIES: Mapping[str, str] = {"concerns": "boundaries"}
EPOCHS: Mapping[str, str] = {"concerns": "epochs"}
EVALUATION: Mapping[str, str] = {"concerns": "evaluation"}  # what is measured: it does not change what is learned
DEFAULT_TASKS = 5
MAX_EPOCHS = 10_000  # the order of all epochs is drawn at once
MAX_FADE = 1_000_000  # long before that, all classes are mixed
MAX_LIST_BYTES = 2**24  # of a file with names of classes
UNANNOUNCED: tuple[Boundary, ...] = ("none", "i-blurry", "si-blurry")
"""Kinds that announce no task ends unless ``task_ends`` asks for it, as their papers do."""
TYPES: Mapping[Any, tuple[type, str]] = {
    int: (Integral, "a whole number"),
    float: (Real, "a number"),
    bool: (bool, "true or false"),
    str: (str, "text"),
}
"""What a field of a type may hold, and what messages call that. Choices and lists are checked where they are read."""
NOT_WITH_ORDER = (
    "arrival_order",
    "task_sizes",
    "first_task",
    "imbalance_factor",
    "class_counts",
    "label_noise",
)
"""Settings that change which samples come, when, and with which label: a file with an order decides all of that."""


@cache  # a report makes thousands of configurations of a few classes
def _typed(kind: Any) -> list[tuple[str, Any, tuple[Any, str]]]:
    """The fields of a config class that hold one of ``TYPES``: name, type, and what ``TYPES`` has about it."""
    return [(each.name, each.type, TYPES[each.type]) for each in fields(kind) if each.type in TYPES]


@cache
def _chosen(kind: Any) -> list[tuple[str, tuple[Any, ...]]]:
    """The fields of a config class that hold one of a few values: name and values."""
    return [(each.name, get_args(each.type)) for each in fields(kind) if get_origin(each.type) is Literal]


@dataclass(frozen=True)
class StreamConfig:
    """How a dataset becomes a stream. The defaults are the paper's protocol.

    Raises:
        OcilError: A value is out of its bounds, or does not go with another.

    Examples:
        >>> ocil.StreamConfig(tasks=10, boundary="blurry", blurry_share=0.3).batch_size
        10
        >>> ocil.StreamConfig(tasks=0)
        Traceback (most recent call last):
        ocil.errors.OcilError: ...
    """

    tasks: int = 5
    """Number of class groups. They arrive one after the other; the accuracy matrix has one column per group."""
    batch_size: int = 10
    """Samples that arrive together."""
    class_order: ClassOrder = "fixed"
    """``fixed``: ascending labels, as in the paper. ``seeded``: shuffled by the seed."""
    boundary: Boundary = field(default="clear", metadata=BOUNDARIES)
    """``clear``: one task after the other. ``blurry``: a share of each task's samples moves to other tasks.
    ``none``: classes fade in and out, without announced tasks. ``iid``: all classes mixed, for the upper bound.
    ``i-blurry``: some classes come in one task only, the others also in a few samples of other tasks. ``si-blurry``:
    the same with random task sizes and shares. ``repeated``: classes return in later tasks with new samples."""
    blurry_share: float = field(default=0.1, metadata=BOUNDARIES)
    """With ``blurry``: the share of each task's samples that goes into a pool, which is dealt out to all tasks. With
    ``i-blurry`` and ``si-blurry``: the share of the blurry classes' samples that comes in other tasks (M of the
    paper)."""
    fade: float = field(default=0.5, metadata=BOUNDARIES)
    """With ``none``: how far a class spreads in time, in units of the time one class takes."""
    epochs: int = field(default=1, metadata=EPOCHS)
    """Passes over the data: one for online learning, or more with ``iid``."""
    drop_last: bool = True
    """Whether a task's incomplete last batch is dropped, as in the published protocol. Where task ends are hidden,
    batches go on from task to task, and only the stream's last one may be incomplete."""
    order: str = field(default="", metadata=BOUNDARIES)
    """A file that ``Stream.save_order`` wrote: the same samples arrive in the same batches, whatever the seed.
    ``tasks``, ``batch_size`` and ``boundary`` come from the file."""
    order_digest: str = field(default="", metadata=BOUNDARIES)
    """Digest of what that file holds, which stands for its path. It is filled in."""
    evaluate_every: int = field(default=0, metadata=EVALUATION)
    """Stream batches between two evaluations on the classes that have arrived, besides those after each task; 0: none.
    The accuracy after task ends and reviews is then seen beside that between them."""
    evaluate_on: int = field(default=0, metadata=EVALUATION)
    """With ``evaluate_every``: how many test images these evaluations take, equally many per class and the same in all
    runs; 0: all. Those after each task take all."""
    prequential: int = field(default=0, metadata=EVALUATION)
    """Each stream batch is classified before it is learned, and correct samples are counted in windows of so many
    batches; 0: not."""
    probe: bool = field(default=False, metadata=EVALUATION)
    """Whether a linear probe of the final features is trained, on all training samples of the stream."""
    scenario: Scenario = "class"
    """What is new in a task. ``class``: classes. ``domain``: domains, which the dataset must have; ``tasks``,
    ``task_sizes``, ``class_order`` and ``arrival_order`` are then about domains."""
    arrival_order: tuple[str, ...] = ()
    """The classes in the order of their arrival, all of them, by name or number; or a text file with one per line."""
    task_sizes: tuple[int, ...] = ()
    """The number of classes of each task, in place of ``tasks`` equal ones."""
    first_task: int = 0
    """The number of classes of the first task, if it is not 0; the others share the rest equally."""
    task_ends: TaskEnds = field(default="usual", metadata=BOUNDARIES)
    """Whether methods hear that a task is over: ``announced`` or ``hidden``. ``usual``: they do, except with ``none``,
    ``i-blurry`` and ``si-blurry``."""
    disjoint_share: float = field(default=0.5, metadata=BOUNDARIES)
    """With ``i-blurry`` and ``si-blurry``: the share of classes that come in one task only (N of the paper)."""
    return_share: float = field(default=0.2, metadata=BOUNDARIES)
    """With ``repeated``: how likely a class is to return in each task after its first."""
    imbalance_factor: float = 1.0
    """How many times as many samples the largest class has as the smallest; sizes fall exponentially between them."""
    imbalance_order: ImbalanceOrder = "arrival"
    """With ``imbalance_factor``: ``arrival``, the class that arrives first is the largest. With it or ``class_counts``:
    ``seeded``, the seed shuffles the sizes."""
    class_counts: tuple[int, ...] = ()
    """The number of training samples of each class, by label, in place of ``imbalance_factor``. If the seed shuffles
    them, no class gets more than it has."""
    label_noise: float = 0.0
    """The share of training samples that come with a wrong label, drawn by the seed. Test labels stay as they are."""
    noise_among: NoiseAmong = "all"
    """Wrong labels are drawn evenly from ``all`` other classes, or from those of the same ``task``."""

    def __post_init__(self) -> None:
        self._check_types()
        if self.order and not self.order_digest:
            self._read_order()
        self._read_lists()
        self._check_choices()
        self._check_numbers()
        self._check_boundary()
        self._check_classes()
        self._check_order()

    @property
    def announces_tasks(self) -> bool:
        """Whether methods hear of task ends."""
        if self.task_ends == "usual":
            return self.boundary not in UNANNOUNCED
        return self.task_ends == "announced"

    @property
    def lacks_ends(self) -> str:
        """Which setting is the reason that no task ends are announced, for messages."""
        return f"task_ends = {self.task_ends!r}" if self.task_ends == "hidden" else f"boundary = {self.boundary!r}"

    def _check_types(self) -> None:
        """Raise for a value of another type; numbers of NumPy become Python's, which JSON can hold."""
        mine: Any = type(self)
        use_python_values(self)
        for name, kind, (wanted, in_words) in _typed(mine):
            value: Any = getattr(self, name)
            if type(value) is kind:
                continue
            if not isinstance(value, wanted) or isinstance(value, bool):
                raise OcilError(f"{name} = {str(value)[:60]!r} is not {in_words}.")
            if kind is int:
                object.__setattr__(self, name, int(value))

    def _check_choices(self) -> None:
        mine: Any = type(self)
        for name, choices in _chosen(mine):
            if (value := getattr(self, name)) not in choices:
                raise OcilError(f"{name} = {value!r} is not one of {', '.join(choices)}.")

    def _check_numbers(self) -> None:
        given: dict[str, Any] = vars(self)
        for name in ("tasks", "batch_size", "epochs"):
            check(given[name] >= 1, name, given[name], "at least 1")
        for name in ("first_task", "evaluate_every", "evaluate_on", "prequential"):
            check(given[name] >= 0, name, given[name], "at least 0")
        for name in ("blurry_share", "disjoint_share", "return_share", "label_noise"):
            check(0 <= given[name] <= 1, name, given[name], "from 0 to 1")
        for name in ("task_sizes", "class_counts"):
            numbers = given[name]
            check(all(number >= 1 for number in numbers), name, ",".join(map(str, numbers)), "numbers of at least 1")
        check(0 <= self.fade <= MAX_FADE, "fade", self.fade, f"from 0 to {MAX_FADE:,}")
        check(self.epochs <= MAX_EPOCHS, "epochs", self.epochs, f"at most {MAX_EPOCHS:,}")
        good = 1 <= self.imbalance_factor < math.inf
        check(good, "imbalance_factor", self.imbalance_factor, "at least 1: the largest class over the smallest")
        if self.evaluate_on and not self.evaluate_every:
            raise OcilError(
                f"evaluate_on = {self.evaluate_on} is about the evaluations of evaluate_every: give that too."
            )

    def _check_boundary(self) -> None:
        """Raise for settings that contradict the kind of boundary."""
        if self.epochs > 1 and self.boundary != "iid":
            raise OcilError("epochs > 1 needs boundary = 'iid': an online stream is seen once.")
        if self.boundary == "none" and not self.fade:
            raise OcilError("fade = 0 with boundary = 'none' lets no class fade: give more, or boundary = 'clear'.")
        if self.boundary == "none" and self.task_ends == "announced":
            raise OcilError("boundary = 'none' has no task ends to announce: leave out task_ends.")
        if self.boundary == "si-blurry" and (self.task_sizes or self.first_task):
            raise OcilError("boundary = 'si-blurry' draws the task sizes: leave out task_sizes and first_task.")

    def _check_classes(self) -> None:
        """Raise for settings about classes and labels that contradict each other."""
        if self.task_sizes and self.first_task:
            raise OcilError("task_sizes names the first task's size too: leave out first_task.")
        if self.arrival_order and self.class_order == "seeded":
            raise OcilError("arrival_order gives the order that class_order = 'seeded' would draw: leave one out.")
        if self.class_counts and self.imbalance_factor != 1:
            raise OcilError("class_counts and imbalance_factor both say how large classes are: leave one out.")
        if self.scenario == "domain" and self.noise_among == "task" and self.label_noise:
            raise OcilError("noise_among = 'task' needs tasks of classes: with scenario = 'domain' use 'all'.")

    def _check_order(self) -> None:
        """Raise for settings that contradict a file with an order."""
        for name in NOT_WITH_ORDER if self.order else ():
            if getattr(self, name) != type(self).__dataclass_fields__[name].default:
                raise OcilError(f"order = {self.order} gives every sample and label: leave out {name}.")

    @property
    def unmeasured(self) -> "StreamConfig":
        """The same stream, evaluated after each task alone."""
        usual: dict[str, Any] = {f.name: f.default for f in fields(self) if f.metadata == EVALUATION}
        if all(getattr(self, name) == value for name, value in usual.items()):
            return self
        return replace(self, **usual)

    def measured_as(self, other: "StreamConfig") -> "StreamConfig":
        """The same stream, with those evaluations of another one that this one does not ask for."""
        names = [f.name for f in fields(self) if f.metadata == EVALUATION]
        return replace(self, **{name: getattr(self, name) or getattr(other, name) for name in names})

    def _read_order(self) -> None:
        path = Path(self.order).expanduser().resolve()
        for name, value in (settings_in(path) | {"order": str(path)}).items():
            object.__setattr__(self, name, value)

    def _read_lists(self) -> None:
        """Lists become tuples, a file's lines the names in it, and the number of tasks that of ``task_sizes``."""
        names = _texts(self.arrival_order)
        if len(names) == 1 and names[0].lower().endswith(".txt"):
            names = _lines_of(Path(names[0]).expanduser())
        object.__setattr__(self, "arrival_order", names)
        for name in ("task_sizes", "class_counts"):
            object.__setattr__(self, name, _whole_numbers(name, getattr(self, name)))
        if self.task_sizes:
            object.__setattr__(self, "tasks", len(self.task_sizes))


def usual_tasks(name: str, classes: int | None = None) -> int:
    """The number of tasks in the literature for a dataset of the catalog, else five, or fewer if classes are fewer."""
    base = base_of(name)
    return CATALOG[base].tasks if base in CATALOG else min(DEFAULT_TASKS, classes or DEFAULT_TASKS)


def usual_task_sizes(data: Dataset) -> tuple[int, ...]:
    """The number of classes of each task if datasets were joined: the usual tasks of each. Empty for other datasets."""
    parts = parts_of(data.name)
    if len(parts) < 2 or len(parts) != data.num_domains:
        return ()
    sizes: list[int] = []
    for number, part in enumerate(parts):
        classes = len(np.unique(data.train_y[data.train_domain == number]))
        tasks = usual_tasks(part, classes)
        sizes += [classes // tasks + (task < classes % tasks) for task in range(tasks)]
    return tuple(sizes) if sum(sizes) == data.num_classes else ()


def _texts(value: Any) -> tuple[str, ...]:
    items = _items(value)
    if items is None or not all(isinstance(item, str | int) for item in items):
        raise OcilError(f"arrival_order = {str(value)[:60]!r} is not a list of classes.")
    return tuple(map(str, items))


def _whole_numbers(name: str, value: Any) -> tuple[int, ...]:
    items = _items(value)
    if items is None or not all(type(item) is int for item in items):
        raise OcilError(f"{name} = {str(value)[:60]!r} is not a list of whole numbers.")
    return items


def _items(value: Any) -> tuple[Any, ...] | None:
    """The items of a list, numbers of NumPy as Python's; None if it is no list."""
    return tuple(map(python_value, value)) if isinstance(value, list | tuple) else None


def _lines_of(path: Path) -> tuple[str, ...]:
    try:
        lines = lines_of(read_regular(path, MAX_LIST_BYTES).decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise OcilError(f"arrival_order: {path} is not a text file with one class per line.") from None
    except OSError as error:
        raise OcilError(f"arrival_order: cannot read {path}: {error.strerror}.") from error
    if not (found := tuple(line.strip() for line in lines if line.strip())):
        raise OcilError(f"arrival_order: {path} names no class.")
    return found
