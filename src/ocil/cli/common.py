"""What the commands that run something share: settings from words, Ctrl-C, messages, the run of many configurations."""

import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter, Token

from ocil.engine import Engine as Engine
from ocil.errors import OcilError, WriteError
from ocil.files import first_existing
from ocil.text import escaped

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from ocil.config import RunConfig
    from ocil.data import Dataset
    from ocil.engine.local import Job, Outcome
    from ocil.metrics import Estimate
    from ocil.results import Result, Summary

MEASURES = (
    "average_accuracy",
    "average_forgetting",
    "average_forgetting_common",
    "average_intransigence",
    "wall_seconds",
)


def whole_number(_: Any, tokens: Sequence[Token]) -> int:
    """Cyclopts alone would round 2.5 to 2."""
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(f"'{tokens[0].value}' is not a whole number.") from None


Whole = Annotated[int, Parameter(converter=whole_number)]


def _usable_folder(_: Any, place: Path | None) -> None:
    if place is not None:
        nearest_folder(place)


FOLDER = Parameter(validator=_usable_folder)
"""Of an option that names a folder, there or not: what cannot be one is refused before anything else is done."""
Out = Annotated[Path, Parameter(alias="-o"), FOLDER]
WORDS = Parameter(consume_multiple=1, negative=())
"""Of an option that takes one or more words."""
Settings = Annotated[tuple[str, ...], Parameter(name="--set", alias="-s"), WORDS]
MOST_WORKERS = 1024  # and threads: more are processes that a machine cannot start
LONGEST_SECONDS = 86_400.0


@Parameter(name="*")
@dataclass(frozen=True)
class Where:
    """Where runs are run, and what is told of them meanwhile."""

    device: str = "auto"
    """auto, cpu or cuda."""
    workers: Whole = 0
    """Runs side by side. Default: as many as keep the cores busy on a CPU, ten on a GPU."""
    threads: Whole = 1
    """CPU threads a run uses. One is best for many seeds; results depend on it in the last digits."""
    engine: Engine = "local"
    """local: this machine. ray: the nodes of a Ray cluster, which must share the folder of the runs."""
    address: str | None = None
    """HOST:PORT of the Ray cluster. Default: the one this machine belongs to."""
    gpu_share: float = 1.0
    """With `--engine ray`: how much of a GPU a worker takes. Below 1, several workers share it."""
    tensorboard: Annotated[Path | None, FOLDER] = None
    """Folder for TensorBoard: loss and accuracy as runs go on, and what is measured after each task."""

    def __post_init__(self) -> None:
        refuse_small(self.workers, self.threads)
        if not 0 < self.gpu_share <= 1:
            raise OcilError(f"--gpu-share {self.gpu_share:g} must be more than 0 and at most 1.")
        if self.address is not None and self.engine != "ray":
            raise OcilError("--address is for a Ray cluster: add --engine ray.")
        if self.gpu_share != 1 and self.engine != "ray":
            raise OcilError("--gpu-share is for a Ray cluster: add --engine ray.")

    def job(self, out: Path, data_dir: Path | None) -> "Job":
        from ocil.engine import device_for
        from ocil.engine.local import Job

        device = device_for(self.device, self.engine)
        return Job(out, device, data_dir, threads=self.threads, gpu_share=self.gpu_share)


def carry_out(
    order: "Sequence[RunConfig]",
    where: Where,
    job: "Job",
    board: AbstractContextManager[Any],
    describe: "Callable[[RunConfig, Exception], str]" = lambda config, error: str(error),
) -> "tuple[dict[RunConfig, Outcome], list[str]]":
    """Run everything with live progress. Returns what came of each configuration, and a line for each that failed.

    A place that cannot be written to stops all. After Ctrl-C what is running is saved first.
    """
    from ocil.cli.tensorboard import logged
    from ocil.engine import execute
    from ocil.runner import Interrupted

    unwritable = False
    with stop_when_asked() as stopped, logged(board, where.tensorboard, order) as shown:

        def hear(number: int, event: Any) -> None:
            nonlocal unwritable
            unwritable = unwritable or isinstance(event, WriteError)
            shown.hear(number, event)

        def stop() -> bool:
            return unwritable or stopped()

        runs = execute(order, job, where.workers, hear, stop, where.engine, where.address)
    outcomes = dict(zip(order, runs, strict=True))
    for outcome in outcomes.values():
        if isinstance(outcome, WriteError):
            raise outcome
    failed = [describe(config, error) for config, error in outcomes.items() if isinstance(error, OcilError)]
    for message in failed:
        say_error(message)
    if any(isinstance(outcome, Interrupted) for outcome in outcomes.values()):
        say("Stopped. What was learned is saved; the same command goes on from there.")
        raise KeyboardInterrupt
    return outcomes, failed


@contextmanager
def stop_when_asked() -> Iterator[Callable[[], bool]]:
    """The first Ctrl-C, or SIGTERM as a scheduler sends it, asks runs to save and stop; a second one stops at once."""
    asked = False
    usual: dict[signal.Signals, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}

    def ask(*_: Any) -> None:
        nonlocal asked
        asked = True
        for number, handler in usual.items():
            signal.signal(number, handler)
        os.write(2, b"Saving; once more stops at once.\n")  # not print: that may be in the middle of a line

    before = {number: signal.signal(number, ask) for number in usual}
    try:
        yield lambda: asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def summary_of(
    configs: "Sequence[RunConfig]", outcomes: "dict[RunConfig, Outcome]", references: "dict[RunConfig, RunConfig]"
) -> "tuple[Summary, list[Result]] | None":
    """Means over the runs of a cell that are finished, beside their references; None if there is none."""
    from ocil.results import Result, summarise

    results = [result for config in configs if isinstance(result := outcomes[config], Result)]
    if not results:
        return None
    if len({result.images for result in results if result.images}) > 1:
        name = results[0].config.cell
        raise OcilError(f"{name}: the images changed while its runs went on. Delete that folder and run it again.")
    compared = [outcomes[references[r.config]] if r.config in references else None for r in results]
    return summarise(results, [r if isinstance(r, Result) else None for r in compared]), results


def references_of(configs: "Sequence[RunConfig]", wanted: bool) -> "dict[RunConfig, RunConfig]":
    """The fine-tuned runs that intransigence compares with. A stream that mixes all classes has none."""
    return {config: config.reference() for config in configs if wanted and config.stream.boundary != "iid"}


def refuse_other_images(configs: "Sequence[RunConfig]", out: Path, dataset: "Dataset", reference: bool) -> None:
    """Raise if a finished run, or one that it would be compared with, was trained on other images of that name."""
    from ocil.results import RunFolder

    for config in dict.fromkeys([*configs, *references_of(configs, reference).values()]):
        folder = RunFolder.of(out, config)
        try:
            result = folder.result()
        except OcilError:  # said when it would be used
            continue
        if result is not None:
            result.refuse_other(dataset, folder.path)


def summary_json(summary: "Summary", folders: list[Path]) -> dict[str, Any]:
    config = summary.config
    note = {} if len(folders) > 1 else {"note": "one seed: no interval"}
    return {
        "method": config.label,
        "dataset": config.dataset,
        "memory": config.learner.memory,
        "seeds": len(folders),
        **{name: numbers(getattr(summary, name)) for name in MEASURES},
        "accuracy_curve": [numbers(point) for point in summary.accuracy_curve],
        "runs": [str(folder) for folder in folders],
        **note,
    }  # fmt: skip


def numbers(value: "Estimate | None") -> dict[str, Any] | None:
    return None if value is None else {"mean": value.mean, "interval": value.interval, "values": list(value.values)}


def read_settings(words: Sequence[str]) -> dict[str, str]:
    settings = {}
    for word in words:
        name, equals, value = word.partition("=")
        name, value = name.strip(), value.strip()
        if not equals or not name or not value:
            raise OcilError(f"--set {word}: write FIELD=VALUE, for example --set beta=0.2.")
        if name in settings:
            raise OcilError(f"--set {word}: {name} is given twice.")
        settings[name] = value
    return settings


def refuse_twice(settings: Mapping[str, Any], options: Iterable[str]) -> None:
    """Raise if what has an option of its own, and was given by it, is among the settings too."""
    for name in options:
        if name in settings:
            raise OcilError(f"{name} is given twice, by its own option and with --set.")


def dataset_of_a_run(name: str, loaded: "Dataset") -> str:
    """How a configuration names a dataset: a file by its whole path, one of a folder of datasets by its name."""
    path = Path(name).expanduser()
    try:
        str(path.resolve()).encode()
    except UnicodeEncodeError:
        raise OcilError(f"the name of {name!r} is not text, so no result could hold it: rename the file.") from None
    return str(path.resolve()) if path.suffix.lower() == ".npz" or len(path.parts) > 1 else loaded.name


def refuse_small(workers: int, threads: int) -> None:
    for name, value, least in (("workers", workers, 0), ("threads", threads, 1)):
        if value < least:
            raise OcilError(f"--{name} {value} is too small: at least {least}.")
        if value > MOST_WORKERS:
            raise OcilError(f"--{name} {value} is too large: at most {MOST_WORKERS}.")


def refuse_seeds(count: int) -> None:
    from ocil.experiments import MAX_SEEDS

    if not 1 <= count <= MAX_SEEDS:
        raise OcilError(f"--seeds {count} must be a whole number from 1 to {MAX_SEEDS:,}.")


def refuse_seconds(name: str, value: float, zero: bool = False) -> None:
    """``zero``: it may be 0 too."""
    if not 0 <= value <= LONGEST_SECONDS or (value == 0 and not zero):
        least = "at least 0" if zero else "more than 0"
        raise OcilError(f"--{name} {value:g} must be {least} and at most {LONGEST_SECONDS:g}.")


def must_be_a_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OcilError(f"cannot write to {path}: {error.strerror}. Choose another place.") from None


def nearest_folder(place: Path) -> Path:
    """The folder, or the one it would be made in. Raises if that is none: nothing is made to find out."""
    try:
        there = first_existing(place)
        inside = there.is_dir()
        way = place.absolute().relative_to(there).parts
        if way and (there / way[0]).is_symlink():
            raise OcilError(f"{place} cannot be used: {there / way[0]} is a link that leads nowhere. Name a folder.")
    except OSError as error:
        raise OcilError(f"{place} cannot be used: {error.strerror}. Name another folder.") from None
    if not inside:
        what = "it is a file" if there == place.absolute() else f"{there} is a file"
        raise OcilError(f"{place} cannot be used: {what}. Name a folder.")
    return there


def refuse_place(out: Path, configs: "Iterable[RunConfig]") -> None:
    """Raise, before anything runs, if the folders of these runs cannot be made: one line, not one per run."""
    there = nearest_folder(out)
    try:
        (there / max((config.cell for config in configs), key=len)).exists()
    except OSError as error:
        raise OcilError(f"cannot write to {out}: {error.strerror}. Give the dataset a shorter name.") from None


def say_error(message: str) -> None:
    say(f"ocil: error: {' '.join(message.split())}")  # one line, whatever a library wrote


def say_warning(message: str) -> None:
    say(f"ocil: warning: {' '.join(message.split())}")


def say(message: str) -> None:
    """One line on standard error. What it names comes from others: control characters are escaped."""
    print(escaped(message), file=sys.stderr, flush=True)


def print_line(message: str) -> None:
    """One line on standard output for a person, escaped as in ``say``."""
    print(escaped(message))


def plain(text: str) -> "Text":
    """What others wrote, for a table: neither markup nor control characters have an effect."""
    from rich.text import Text

    return Text(escaped(text))


def fold(table: "Table") -> None:
    """What is too long for its column goes on in the next line instead of being cut off."""
    for column in table.columns:
        column.overflow = "fold"
