"""Many runs on this machine: one after the other, or side by side in worker processes.

A small network gains little from a second thread, so on a CPU two runs side by side on one thread each finish sooner
than one after the other on two threads. Every run uses ``threads`` threads, one by default, so its result does not
depend on how many run at the same time.
"""

import gc
import multiprocessing
import os
import pickle
import re
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, cast

from ocil import plugins, processes
from ocil.data.samples import HELD_OUT
from ocil.engines.job import Event, Job, Observer, Outcome, Outcomes, RunQueue, not_started, without_locals
from ocil.errors import OcilError, UnknownNameError
from ocil.plugins import PluginFile
from ocil.processes import end_with_parent, signals_blocked
from ocil.runs.protocol import Interrupted, Progress, Run, perform
from ocil.threads import cores

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess
    from multiprocessing.synchronize import Event as StopEvent

    WorkerConnection = Connection[Run | None, Event]
    """To a worker, which gets runs and sends events."""
    DriverConnection = Connection[Event, Run | None]
    """Of a worker, to the process that started it."""

STARTS_RUNS_ITSELF = 79
"""The exit code of a worker that was asked for runs by the script that it imports."""
MAIN = 'if __name__ == "__main__":'


def run_all(runs: Sequence[Run], job: Job, observer: Observer) -> Outcomes:
    """Carry out runs in ``job.workers`` processes: 0 keeps all cores busy on a CPU and takes 1 on a GPU."""
    on_cpu = job.device.startswith("cpu")
    workers = min(len(runs), job.workers or (max(1, cores() // job.threads) if on_cpu else 1))
    if workers > 1:
        return WorkerPool(runs, job, workers, observer).execute()
    outcomes = not_started(runs)
    for run in runs:
        if not observer.should_stop():
            outcomes[run.key] = attempt(run, job, partial(observer.on_event, run), observer.should_stop)
            observer.on_event(run, outcomes[run.key])
    return outcomes


def attempt(run: Run, job: Job, on_progress: Callable[[Progress], None], should_stop: Callable[[], bool]) -> Outcome:
    """Carry out one run. If it fails, the error is its outcome, and the others go on."""
    try:
        return perform(run, job.workspace(), on_progress, should_stop)
    except (Exception, SystemExit) as error:
        return without_locals(run.failed(error))


def end_if_starting() -> None:
    """End this process if it is a worker that still imports the user's script, and the script asks it for runs.

    The process that started it then says what is wrong, once.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise SystemExit(STARTS_RUNS_ITSELF)


class WorkerPool(RunQueue):
    """Worker processes that take one run at a time. A worker that dies fails its run and is replaced."""

    def __init__(self, runs: Sequence[Run], job: Job, workers: int, observer: Observer) -> None:
        end_if_starting()
        super().__init__(runs, observer)
        self.job, self.workers = job, workers
        self.context = multiprocessing.get_context(processes.START_METHOD)
        self.stop = self.context.Event()
        self.busy: dict[WorkerConnection, tuple[SpawnProcess, Run]] = {}  # the process behind it, and its run
        self.heard: set[WorkerConnection] = set()  # connections of workers that have sent something

    def execute(self) -> Outcomes:
        try:
            for _ in range(self.workers):
                self.start()
            while self.busy:
                if self.observer.should_stop() and not self.stop.is_set():
                    self.stop.set()
                    self.waiting.clear()
                    self.end_unheard()
                for connection in cast("list[WorkerConnection]", wait(list(self.busy), timeout=0.2)):
                    self.receive(connection)
        finally:
            for process, _ in self.busy.values():
                process.kill()
        return self.outcomes

    def end_unheard(self) -> None:
        """End the workers that still load PyTorch, which takes seconds: they have nothing to save."""
        for connection in self.busy.keys() - self.heard:
            process, run = self.busy.pop(connection)
            process.kill()
            process.join()
            self.settle(run, Interrupted("not started"))

    def start(self) -> None:
        if not self.waiting:
            return
        ours, theirs = self.context.Pipe()
        process = self.context.Process(target=_work, args=(theirs, self.job, plugins.loaded(), self.stop), daemon=True)
        with signals_blocked(signal.SIGINT, signal.SIGTERM), _threads_of_children(self.job.threads):
            process.start()
            # From here on it is killed with the others, if it comes to that.
            self.busy[ours] = (process, self.waiting[0])
        theirs.close()
        self.assign(ours, process)

    def assign(self, connection: "WorkerConnection", process: "SpawnProcess") -> None:
        """Give a worker its next run; end it if there is none."""
        while self.waiting:
            run = self.waiting.popleft()
            self.busy[connection] = (process, run)
            try:
                _send(connection, run)
                return
            except (AttributeError, pickle.PicklingError) as error:  # its settings are of a class inside a function
                self.settle(run, _not_here(f"{error}."))
        self.busy.pop(connection, None)
        _send(connection, None)
        process.join()

    def receive(self, connection: "WorkerConnection") -> None:
        process, run = self.busy[connection]
        try:
            event = connection.recv()
        except (EOFError, OSError):
            process.join()
            del self.busy[connection]
            if process.exitcode == STARTS_RUNS_ITSELF:
                self.waiting.clear()  # all others would end like this one
            self.settle(run, self.died(run, process.exitcode))
            self.start()
            return
        self.heard.add(connection)
        if isinstance(event, Progress):
            self.observer.on_event(run, event)
        else:
            self.settle(run, event)
            self.assign(connection, process)

    def died(self, run: Run, code: int | None) -> OcilError:
        if code == STARTS_RUNS_ITSELF:
            return OcilError(
                "worker processes import this script, and it starts runs when it is imported: "
                f"put the call below `{MAIN}`, or give workers=1."
            )
        killed = code == -getattr(signal, "SIGKILL", 9)
        perhaps = " If there was no memory left: fewer workers, or a smaller memory." if killed else ""
        return OcilError(
            f"{run.cell} seed {run.seed}: its process ended with code {code}. "
            f"Given again, it goes on from its last checkpoint.{perhaps}"
        )


def _send(connection: "WorkerConnection", run: Run | None) -> None:
    with suppress(OSError):  # a worker that has just died is noticed when its connection is read
        connection.send(run)


def _work(connection: "DriverConnection", job: Job, files: Sequence[PluginFile], stop: "StopEvent") -> None:
    threading.Thread(target=end_with_parent, daemon=True).start()
    if not hasattr(signal, "pthread_sigmask"):  # Windows: Ctrl-C comes to the workers too, and the parent tells them
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    warnings.filterwarnings("ignore", message=f".*{re.escape(HELD_OUT)}")  # the parent makes the dataset too
    plugins.install(files)  # before a run is received: its settings may be of a class that a plugin defines
    with suppress(EOFError, OSError):  # the parent has died
        while (run := _received(connection)) is not None:
            if isinstance(run, OcilError):
                connection.send(run)
            elif stop.is_set():
                connection.send(Interrupted("not started"))
            else:
                outcome = attempt(run, job, connection.send, stop.is_set)
                connection.send(_not_here(outcome.brief) if isinstance(outcome, UnknownNameError) else outcome)
    gc.freeze()  # leaves out Python's last search for garbage: half a second, while the parent waits


def _received(connection: "DriverConnection") -> Run | OcilError | None:
    """The next run; an error if its settings are of a class that this process does not have; None at the end."""
    try:
        return connection.recv()
    except (AttributeError, ImportError) as error:
        return _not_here(f"{error}.")


def _not_here(reason: str) -> OcilError:
    """The error for what the process that planned a run has, and this worker does not."""
    return OcilError(
        f"a worker process does not have what this run needs: {reason} It imports the script, without what stands "
        f"below `{MAIN}`: define and register it above that line, or in a plugin file, or give workers=1."
    )


@contextmanager
def _threads_of_children(count: int) -> Iterator[None]:
    """Limit the threads of processes that are started in this block, also in libraries that ``ocil.threads`` cannot
    limit.
    """
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = str(count)
    try:
        yield
    finally:
        os.environ.pop("OMP_NUM_THREADS")
        if before is not None:
            os.environ["OMP_NUM_THREADS"] = before
