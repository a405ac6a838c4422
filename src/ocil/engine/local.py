"""Many runs on this machine: one after the other, or side by side in worker processes.

A small network gains little from a second thread, so on a CPU two runs on a thread each finish sooner than two runs
in a row on two threads. Every run uses ``threads`` threads, one by default, so its result does not depend on how many
run beside it.
"""

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import torch

from ocil.config import RunConfig
from ocil.errors import OcilError
from ocil.results import Result
from ocil.runner import Interrupted, Progress, run

Watcher = Callable[[int, Progress | Result | Exception], None]


@dataclass(frozen=True)
class Job:
    """What a worker needs to know besides the configuration."""

    root: Path
    device: str
    data_dir: Path | None
    checkpoint_seconds: float = 30.0
    threads: int = 1


def run_all(
    configs: Sequence[RunConfig],
    job: Job,
    workers: int = 0,
    watch: Watcher = lambda number, event: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[Result | Exception]:
    """Run every configuration; one that fails leaves its exception in its place and the others go on.

    ``workers=0`` keeps all cores busy on a CPU and takes 1 on a GPU. ``watch`` hears of everything that happens, with
    the number of the configuration. When ``should_stop`` says so, running ones save and raise ``Interrupted``.
    """
    on_cpu = job.device.startswith("cpu")
    workers = min(len(configs), workers or (max(1, _cores() // job.threads) if on_cpu else 1))
    outcomes: list[Result | Exception] = [Interrupted("not started")] * len(configs)
    if workers <= 1:
        threads = torch.get_num_threads()
        try:
            torch.set_num_threads(job.threads)
            for number, config in enumerate(configs):
                if not should_stop():
                    outcomes[number] = _attempt(config, job, _to(watch, number), should_stop)
                    watch(number, outcomes[number])
        finally:
            torch.set_num_threads(threads)
        return outcomes
    _Pool(configs, job, workers, watch, should_stop, outcomes).go()
    return outcomes


def _attempt(
    config: RunConfig, job: Job, on_progress: Callable[[Progress], None], should_stop: Callable[[], bool]
) -> Result | Exception:
    try:
        return run(
            config, job.root, device=job.device, data_dir=job.data_dir, checkpoint_seconds=job.checkpoint_seconds,
            on_progress=on_progress, should_stop=should_stop,
        )  # fmt: skip
    except (OcilError, Interrupted) as error:
        return error


class _Pool:
    """Worker processes that take one run at a time. A worker that dies fails its run and is replaced."""

    def __init__(
        self,
        configs: Sequence[RunConfig],
        job: Job,
        workers: int,
        watch: Watcher,
        should_stop: Callable[[], bool],
        outcomes: list[Result | Exception],
    ) -> None:
        self.configs, self.job, self.watch, self.should_stop = configs, job, watch, should_stop
        self.outcomes = outcomes
        self.waiting = deque(range(len(configs)))
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
                process.terminate()

    def start(self) -> None:
        if not self.waiting:
            return
        ours, theirs = self.context.Pipe()
        process = self.context.Process(target=_work, args=(theirs, self.job, self.stop), daemon=True)
        process.start()
        theirs.close()
        self.hand_over(ours, process)

    def hand_over(self, connection: Any, process: Any) -> None:
        if not self.waiting:
            self.busy.pop(connection, None)
            connection.send(None)
            process.join()
            return
        number = self.waiting.popleft()
        self.busy[connection] = (process, number)
        connection.send(self.configs[number])

    def hear(self, connection: Any) -> None:
        process, number = self.busy[connection]
        try:
            event = connection.recv()
        except EOFError:
            process.join()
            event = OcilError(
                f"{self.configs[number].cell} seed {self.configs[number].seed}: its process ended with code "
                f"{process.exitcode}. The same command goes on from its last checkpoint."
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


def _work(connection: "Connection[Any, Any]", job: Job, stop: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears Ctrl-C and tells us
    torch.set_num_threads(job.threads)
    while (config := connection.recv()) is not None:
        connection.send(_attempt(config, job, connection.send, stop.is_set))


def _to(watch: Watcher, number: int) -> Callable[[Progress], None]:
    return lambda progress: watch(number, progress)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
