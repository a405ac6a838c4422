"""What every kind of run shares: the protocol that engines use, progress, and when to save.

An engine uses a run and nothing below it: configuration, folder, lock, data, network and test are hidden behind the
protocol. ``StreamRun`` is a class-incremental run; ``ocil.longtail.runs`` has the two kinds of the long-tailed study.
"""

import pickle
import time
import traceback
from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar

import torch

import ocil
from ocil.data import Dataset
from ocil.errors import OcilError
from ocil.evaluation.evaluator import Evaluation
from ocil.limits import MAX_THREADS, whole
from ocil.precision import Precision, numerics
from ocil.runs.folder import RunFolder, RunSettings
from ocil.streams import Order
from ocil.threads import using

T = TypeVar("T")


@dataclass(frozen=True)
class Progress:
    """How far a run is. ``done`` and ``total`` count batches of a stream, or epochs of a long-tailed run."""

    done: int
    total: int
    loss: float | None = None
    """The loss of the last stream batch, or the mean loss of the last epoch."""
    accuracy: float | None = None
    """Mean accuracy over the groups shown so far, or accuracy on the validation images, once it is known."""
    evaluations: tuple[Evaluation, ...] = ()
    """The evaluation after each group so far."""
    losses: Mapping[str, float] = field(default_factory=dict)
    """The loss of the last batch of a ``review`` or a ``rehearsal``, if there was one since the last event, and the
    terms of each loss: ``stream/memory`` is a term of ``loss``."""
    warning: str = ""
    """What is wrong with the run although it goes on, in one line. Each later progress has it too."""


class Interrupted(Exception):  # noqa: N818
    """The run was asked to stop. Its folder holds what is needed to go on."""


class SaveTimes:
    """When work that may be killed is saved: after 3, 9 and 27 seconds, then every ``seconds``.

    So a kill loses at most about two thirds of the work, and never more than ``seconds``. ``first`` is the time before
    the first save.
    """

    def __init__(self, seconds: float, first: float = 3.0) -> None:
        self.seconds, self.first = seconds, first
        self.started = self.saved = time.monotonic()

    def due(self) -> bool:
        gap = max(self.first, 2 * (self.saved - self.started))
        return time.monotonic() - self.saved >= min(self.seconds, gap)

    def note(self) -> None:
        """Called when the work has been saved."""
        self.saved = time.monotonic()


class RunKey(NamedTuple):
    """What identifies a run: ``cell`` stands for all of its settings but the seed."""

    cell: str
    seed: int


@dataclass
class Workspace:
    """Where runs are opened. Runs that share a device share a workspace."""

    root: Path
    device: torch.device
    data_dir: Path | None = None
    threads: int = 1
    checkpoint_seconds: float = 30.0
    interleaved: bool = False
    """Whether runs take turns on the device, each on a CUDA stream of its own."""
    surroundings: Mapping[str, Any] = field(default_factory=dict)
    """What a result records about the runs that share the device."""
    dataset: Dataset | None = None
    """Used instead of the dataset that a configuration names."""
    arrivals: Order | None = None
    """Used instead of the order of arrival that a configuration describes."""
    _shared: dict[Hashable, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.threads = whole("threads", self.threads, 1, MAX_THREADS)

    def share(self, key: Hashable, make: Callable[[], T]) -> T:
        """The object of this key, made on first use: images on the device, for example."""
        if key not in self._shared:
            self._shared[key] = make()
        found: T = self._shared[key]
        return found


class RunResult(Protocol):
    """What the results of all kinds of run have in common."""

    @property
    def wall_seconds(self) -> float: ...

    @property
    def headline(self) -> str:
        """The most important number with its name: ``accuracy 71.3 %``."""

    @property
    def curves(self) -> Iterator[tuple[str, int, float]]:
        """Name, step and value of everything that a tracker plots for a run that was finished before."""


Outcome = RunResult | Exception
"""How a run ended: its result, or what stopped it."""
Event = Progress | Outcome
"""What an observer of runs is called with."""


class ActiveRun(Protocol):
    """A run that has been opened, and has loaded its checkpoint if there was one."""

    def steps(self, on_progress: Callable[[Progress], None], should_stop: Callable[[], bool]) -> Iterator[None]:
        """Do the work. Yields whenever something was queued on the device: a batch, a review batch, an evaluation.

        Raises ``Interrupted`` soon after ``should_stop`` has returned True.
        """

    def finish(self) -> RunResult:
        """Write the result and return it. Called once, after the last step."""


@dataclass(frozen=True)
class Finished:
    """A run that another process has finished meanwhile: there is nothing to do."""

    result: RunResult

    def steps(self, on_progress: Callable[[Progress], None], should_stop: Callable[[], bool]) -> Iterator[None]:
        return iter(())

    def finish(self) -> RunResult:
        return self.result


class Run(Protocol):
    """A run that may be finished, begun or neither: a light value that can be pickled, compared and used as a key."""

    side_by_side: ClassVar[int]
    """How many runs of this kind keep a GPU busy."""
    advice: ClassVar[str]
    """What to do if the run does not fit into the device's memory."""
    config: RunSettings

    @property
    @abstractmethod
    def label(self) -> str:
        """How tables name it: ``er-rv``, ``oltr``."""

    @property
    @abstractmethod
    def precision(self) -> Precision: ...

    @cached_property
    def key(self) -> RunKey:
        return RunKey(self.config.cell, self.config.seed)

    @property
    def cell(self) -> str:
        return self.key.cell

    @property
    def seed(self) -> int:
        return self.key.seed

    @property
    def dataset(self) -> str:
        return self.config.dataset

    @property
    def name(self) -> str:
        """How messages name it: ``er-rv seed 3``."""
        return f"{self.label} seed {self.seed}"

    def folder(self, root: Path) -> RunFolder:
        """Where it is, or will be, under ``root``."""
        return RunFolder.of(root, self.config)

    @abstractmethod
    def fingerprint(self, data_dir: Path | None) -> str:
        """Digest of the images that it would be trained on, on this machine."""

    def fingerprint_there(self) -> "Callable[[Path | None], str]":
        """``fingerprint`` as a function for another machine, which answers sooner if it need not load PyTorch."""
        return self.fingerprint

    @abstractmethod
    def result(self, root: Path) -> RunResult | None:
        """The result, if the run is finished. Raises ``OcilError`` if it cannot be read or is of other settings."""

    def requires(self) -> "Sequence[Run]":
        """Runs that must be finished before this one is opened."""
        return ()

    def how_many_fit(self, workspace: Workspace, free: int) -> int | None:
        """How many runs like this one fit into ``free`` bytes of the device, None if that is not known.

        Raises ``OcilError`` if not even one does.
        """
        return None

    @abstractmethod
    def open(self, workspace: Workspace, held: ExitStack) -> ActiveRun:
        """Take the folder's lock, which ``held`` releases, and resume; or return the result if there is one by now.

        Raises ``InUseError`` if another process holds the folder.
        """

    def does_not_fit(self) -> OcilError:
        return OcilError(f"{self.cell} does not fit on the device: {self.advice}.")

    def failed(self, error: Exception | SystemExit) -> Exception:
        """The error as one line for a person, in a form that other processes can read.

        An ``OcilError`` is returned unchanged, unless it is of a class of the user's own: then its message is kept.
        Another error is the cause of the one that is returned, as long as that stays in this process.
        """
        found = self._in_one_line(error)
        if found is not error:
            found.__cause__ = error
        return found

    def _in_one_line(self, error: Exception | SystemExit) -> Exception:
        if isinstance(error, SystemExit):
            return OcilError(
                f"{self.name}: its code ends the program ({code_location(error)}): raise an error instead."
            )
        if isinstance(error, OcilError | Interrupted):
            return error if _is_readable_elsewhere(error) else OcilError(str(error))
        if out_of_memory(error):
            return self.does_not_fit()
        said = str(error).strip()
        if said.startswith("CUDA error"):
            said = said.partition("\n")[0]  # the other lines say how to debug a kernel
        return OcilError(f"{self.name}: {type(error).__name__}: {' '.join(said.split())} ({code_location(error)})")


def perform(
    run: Run,
    workspace: Workspace,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> RunResult:
    """Carry out a single run in this thread, after the runs that it requires."""
    for needed in run.requires():
        if needed.result(workspace.root) is None:
            perform(needed, workspace, on_progress, should_stop)
    with ExitStack() as held, numerics(run.precision), using(workspace.threads):
        active = run.open(workspace, held)
        for _ in active.steps(on_progress, should_stop):
            pass
        return active.finish()


def code_location(error: BaseException) -> str:
    """The file and the line where a mistake is to be looked for: the last that is neither ours nor PyTorch's, as in a
    plugin; else where the error was raised."""
    libraries = [Path(module.__file__ or "").parent for module in (ocil, torch)]
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<frozen")]
    own = [frame for frame in frames if not any(Path(frame.filename).is_relative_to(folder) for folder in libraries)]
    frame = (own or frames)[-1]
    return f"{Path(frame.filename).name}, line {frame.lineno}"


def _is_readable_elsewhere(error: Exception) -> bool:
    """Whether the process that waits for a worker can read this error.

    A class of the user's own may need more than its message to be made again, or be one that the other process lacks.
    """
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 # it was made here
    except Exception:  # pickle passes on whatever the error's own class raises
        return False
    return type(error).__module__.startswith("ocil.")


def out_of_memory(error: Exception) -> bool:
    """Whether a device or the host has no memory left. PyTorch has an exception for a GPU only."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error)
