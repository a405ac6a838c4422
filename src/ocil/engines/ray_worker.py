"""The actor that carries out runs on a node of a Ray cluster."""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from threading import Thread

from ocil import plugins
from ocil.devices import pick_device
from ocil.engines import gpu, pool
from ocil.engines.job import Event, Job, Observer
from ocil.errors import InUseError, OcilError, WriteError
from ocil.plugins import PluginFile
from ocil.runs.protocol import Progress, Run, RunKey

DRIVER_TIMEOUT = 20.0  # seconds without the driver after which a worker saves and stops; Ray takes longer to give up
LOCK_TIMEOUT = 120.0  # seconds to wait for a folder that a worker cut off from its driver, or a dead node, still holds


@dataclass(frozen=True)
class WorkerSpec:
    """What a worker takes and does, and how many there are."""

    cpus: float
    gpus: float
    side_by_side: int
    """How many runs it gets at a time."""
    most_workers: int | None = None
    """How many workers there may be; None: as many as fit."""
    interleaved: bool = False
    """Whether its runs take turns on a GPU."""

    def room(self, resources: Mapping[str, float]) -> int:
        """How many workers a node with these resources has room for."""
        fits = [resources.get(name, 0) / need for name, need in (("CPU", self.cpus), ("GPU", self.gpus)) if need]
        return int(min(fits) + 1e-6)


class Worker:
    """An actor. A thread carries out the runs it was given; meanwhile ``events`` reports to the driver."""

    def __init__(self, job: Job, spec: WorkerSpec, files: Sequence[PluginFile] = ()) -> None:
        plugins.install(files)  # before a run is received: its settings may be of a class that a plugin defines
        self.spec = spec
        self.job = replace(job, workers=spec.side_by_side if spec.interleaved else 1)
        self.queue: SimpleQueue[tuple[RunKey, Event]] = SimpleQueue()
        self.stop = False
        self.last_call = time.monotonic()

    def problem(self) -> str | None:
        """Why it cannot work; None if it can."""
        try:
            pick_device(self.job.device)
        except OcilError as error:
            return str(error)
        return None

    def start(self, runs: Sequence[Run]) -> None:
        self.last_call = time.monotonic()
        Thread(target=self.work, args=(runs,), daemon=True).start()

    def events(self, stop: bool) -> list[tuple[RunKey, Event]]:
        """The events since the last call. Waits up to a second for the first one."""
        self.last_call, self.stop = time.monotonic(), self.stop or stop
        found = []
        with suppress(Empty):
            found.append(self.queue.get(timeout=1.0))
            while True:
                found.append(self.queue.get_nowait())
        self.last_call = time.monotonic()
        return found

    def should_stop(self) -> bool:
        return self.stop or time.monotonic() - self.last_call > DRIVER_TIMEOUT

    def work(self, runs: Sequence[Run]) -> None:
        """Carry out runs. Each one puts one outcome among the events."""
        until = time.monotonic() + LOCK_TIMEOUT
        while runs := self.attempt(runs, may_wait=time.monotonic() < until):
            time.sleep(1)

    def attempt(self, runs: Sequence[Run], may_wait: bool) -> list[Run]:
        """Carry out runs. Returns those to try again, because another process held their folder."""
        left = {run.key: run for run in runs}

        def on_event(run: Run, event: Event) -> None:
            if isinstance(event, InUseError | WriteError) and may_wait and not self.should_stop():
                return
            if not isinstance(event, Progress):
                del left[run.key]
            self.queue.put((run.key, event))

        run_all = gpu.run_all if self.spec.interleaved else pool.run_all
        try:
            found = run_all(runs, self.job, Observer(on_event, self.should_stop))
        except Exception as error:  # before the first run
            found = {run.key: run.failed(error) for run in runs}
        for run in runs:
            if run.key in left:  # it was not begun
                on_event(run, found[run.key])
        return list(left.values())
