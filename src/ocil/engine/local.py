"""Many runs on this machine: one after the other, or side by side in worker processes.

A small network gains little from a second thread, so on a CPU two runs on a thread each finish sooner than two runs
in a row on two threads. Every run uses ``threads`` threads, one by default, so its result does not depend on how many
run beside it.
"""

import multiprocessing
import os
import signal
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from ocil import data
from ocil.config import RunConfig
from ocil.errors import OcilError
from ocil.results import Result, RunFolder
from ocil.runner import Interrupted, Progress, does_not_fit, out_of_memory, run
from ocil.threads import cores as cores

Outcome = Result | Exception
Watcher = Callable[[int, Progress | Outcome], None]


@dataclass(frozen=True)
class Job:
    """What a worker needs to know besides the configuration."""

    root: Path
    device: str
    data_dir: Path | None
    checkpoint_seconds: float = 30.0
    threads: int = 1
    gpu_share: float = 1.0
    """Of a GPU, for each worker on a cluster: below 1, several workers share it."""


def run_all(
    configs: Sequence[RunConfig],
    job: Job,
    workers: int = 0,
    watch: Watcher = lambda number, event: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[Outcome]:
    """Run every configuration; one that fails leaves its exception in its place and the others go on.

    ``workers=0`` keeps all cores busy on a CPU and takes 1 on a GPU. ``watch`` hears of everything that happens, with
    the number of the configuration. When ``should_stop`` says so, running ones save and raise ``Interrupted``.
    """
    outcomes: list[Outcome] = [Interrupted("not started")] * len(configs)
    finished = look_up(configs, job, watch)
    waiting = [number for number in range(len(configs)) if number not in finished]
    for number, known in finished.items():
        outcomes[number] = known
    on_cpu = job.device.startswith("cpu")
    workers = min(len(waiting), workers or (max(1, cores() // job.threads) if on_cpu else 1))
    if workers > 1:
        _Pool(configs, waiting, job, workers, watch, should_stop, outcomes).go()
        return outcomes
    for number in waiting:
        if not should_stop():
            outcomes[number] = _attempt(configs[number], job, watch_one(watch, number), should_stop)
            watch(number, outcomes[number])
    return outcomes


def look_up(configs: Sequence[RunConfig], job: Job, watch: Watcher) -> dict[int, Outcome]:
    """What finished runs found, by their number: nothing has to start for them."""
    known: dict[int, Outcome] = {}
    for number, config in enumerate(configs):
        try:
            outcome: Outcome | None = RunFolder.of(job.root, config).result()
        except OcilError as error:
            outcome = error
        if outcome is not None:
            known[number] = outcome
            watch(number, outcome)
    return known


def _attempt(
    config: RunConfig, job: Job, on_progress: Callable[[Progress], None], should_stop: Callable[[], bool]
) -> Outcome:
    try:
        dataset = data.load_once(config.dataset, job.data_dir)
        return run(
            config, job.root, device=job.device, dataset=dataset, threads=job.threads,
            checkpoint_seconds=job.checkpoint_seconds, on_progress=on_progress, should_stop=should_stop,
        )  # fmt: skip
    except Exception as error:  # the other runs go on, whatever happened to this one
        return explained(error, config)


def explained(error: Exception, config: RunConfig) -> Exception:
    return in_a_line(error, f"{config.label} seed {config.seed}", does_not_fit(config))


def in_a_line(error: Exception, name: str, too_large: OcilError) -> Exception:
    """The error as it is, if it was meant for a person, else a line that says where it came from.

    ``name``: of the run. ``too_large``: what to say if there was no memory left.
    """
    if isinstance(error, OcilError | Interrupted):
        return error
    if out_of_memory(error):
        return too_large
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(place.filename).name}, line {place.lineno}"
    return OcilError(f"{name}: {type(error).__name__}: {error} ({where})")


class _Pool:
    """Worker processes that take one run at a time. A worker that dies fails its run and is replaced."""

    def __init__(
        self,
        configs: Sequence[RunConfig],
        waiting: Sequence[int],
        job: Job,
        workers: int,
        watch: Watcher,
        should_stop: Callable[[], bool],
        outcomes: list[Outcome],
    ) -> None:
        self.configs, self.job, self.watch, self.should_stop = configs, job, watch, should_stop
        self.outcomes = outcomes
        self.waiting = deque(waiting)
        self.context = multiprocessing.get_context("spawn")
        self.stop = self.context.Event()
        self.busy: dict[Any, tuple[Any, int]] = {}  # connection -> (process, number of the run)
        self.workers = workers

    def go(self) -> None:
        try:
            for _ in range(self.workers):
                self.start()
            while self.busy:
                if self.should_stop():
                    self.stop.set()
                    self.waiting.clear()
                for connection in wait(list(self.busy), timeout=0.2):
                    self.hear(connection)
        finally:
            for process, _ in self.busy.values():
                process.kill()

    def start(self) -> None:
        if not self.waiting:
            return
        ours, theirs = self.context.Pipe()
        process = self.context.Process(target=_work, args=(theirs, self.job, self.stop), daemon=True)
        # A terminal sends Ctrl-C to the workers too, a scheduler its SIGTERM. Blocked here, both are blocked in them
        # from their first moment; the parent tells them to save.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        try:
            with _threads_of_children(self.job.threads):
                process.start()
            self.busy[ours] = (process, self.waiting[0])  # from here on it is ended with the others, whatever happens
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        self.hand_over(ours, process)

    def hand_over(self, connection: Any, process: Any) -> None:
        if not self.waiting:
            self.busy.pop(connection, None)
            _send(connection, None)
            process.join()
            return
        number = self.waiting.popleft()
        self.busy[connection] = (process, number)
        _send(connection, self.configs[number])

    def hear(self, connection: Any) -> None:
        process, number = self.busy[connection]
        try:
            event = connection.recv()
        except (EOFError, OSError):
            process.join()
            config, killed = self.configs[number], process.exitcode == -signal.SIGKILL
            perhaps = " If there was no memory left: fewer --workers, or a smaller --memory." if killed else ""
            event = OcilError(
                f"{config.cell} seed {config.seed}: its process ended with code {process.exitcode}. "
                f"The same command goes on from its last checkpoint.{perhaps}"
            )
            del self.busy[connection]
            self.outcomes[number] = event
            self.watch(number, event)
            self.start()
            return
        self.watch(number, event)
        if not isinstance(event, Progress):
            self.outcomes[number] = event
            self.hand_over(connection, process)


def _send(connection: Any, message: Any) -> None:
    with suppress(OSError):  # a worker that has just died is heard of when it is listened to
        connection.send(message)


def _work(connection: "Connection[Any, Any]", job: Job, stop: Any) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with suppress(EOFError, OSError):  # the parent has died: there is nobody to work for
        while (config := connection.recv()) is not None:
            outcome = (
                Interrupted("not started") if stop.is_set() else _attempt(config, job, connection.send, stop.is_set)
            )
            connection.send(outcome)


def _end_with_parent() -> None:
    """A run may be killed at any moment, and one whose parent was killed would hold its folder for long."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def watch_one(watch: Watcher, number: int) -> Callable[[Progress], None]:
    return lambda progress: watch(number, progress)


@contextmanager
def _threads_of_children(count: int) -> Iterator[None]:
    """Processes begun in this block never make more threads, in any library: also where ``ocil.threads`` has no say."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = str(count)
    try:
        yield
    finally:
        os.environ.pop("OMP_NUM_THREADS")
        if before is not None:
            os.environ["OMP_NUM_THREADS"] = before
