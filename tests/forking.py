"""A Python that loads everything once and forks a process for each order, which may die in the middle of a sync."""

import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Self, TextIO

LONGEST = 600.0  # seconds
# Goes before a driver's own lines, which call ready once all is loaded. A forked process calls die_at_sync; from then
# on os.fsync counts.
START = """
import gc, json, os, signal, sys
import torch

torch.set_num_threads(1)


def die_at_sync(number):
    sync, count = os.fsync, 0

    def sync_or_die(descriptor):
        nonlocal count
        count += 1
        if count == number:
            os.kill(os.getpid(), signal.SIGKILL)
        sync(descriptor)

    os.fsync = sync_or_die


def ready():
    gc.collect()  # what is loaded by now is left out of the last search for garbage, a second in each process
    gc.freeze()
    print("ready", flush=True)


def wait_for(pid):
    sys.stdin.readline()
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)

"""


# An order is {"words", "out", "err", "env", "cwd"} or {"of": a process, "wait": whether until it has ended}.
ANY = (
    START
    + """
import runpy

ready()
while line := sys.stdin.readline():
    order = json.loads(line)
    if "of" in order:
        pid, status = os.waitpid(order["of"], 0 if order["wait"] else os.WNOHANG)
        print(os.waitstatus_to_exitcode(status) if pid else "", flush=True)
        continue
    files = [os.open(order[name], os.O_WRONLY) for name in ("out", "err")]
    pid = os.fork()
    if pid:
        for file in files:
            os.close(file)
        print(pid, flush=True)
        continue
    os.setsid()
    for number, file in enumerate([os.open(os.devnull, os.O_RDONLY), *files]):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(order["env"])
    os.chdir(order["cwd"])
    kind, *words = order["words"]
    sys.path[:1] = filter(None, order["env"].get("PYTHONPATH", "").split(os.pathsep))
    if kind == "-c":
        sys.argv, code = ["-c", *words[1:]], words[0]
        sys.path.insert(0, "")
        exec(code, {"__name__": "__main__"})
    elif kind == "-m":
        sys.argv = words
        sys.path.insert(0, os.getcwd())
        runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = [kind, *words]
        sys.path.insert(0, os.path.dirname(kind))
        runpy.run_path(kind, run_name="__main__")
    break
"""
)


class Driver:
    """The other end: a line is an order, the next one waits for the process. Until then its number is its own, even if
    it has ended."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        assert self.read() == "ready"

    def read(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        print(line, file=self.process.stdin, flush=True)

    def exit_code(self) -> int:
        self.tell("wait")
        return int(self.read())


class Forked:
    """What of ``subprocess.Popen`` is needed for a process that was forked."""

    def __init__(self, driver: "Forks", pid: int, out: TextIO, err: Path) -> None:
        self.driver, self.pid, self.stdout, self.err = driver, pid, out, err
        self.returncode: int | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stdout.close()
        with self._at_most(LONGEST):
            self._ended(wait=True)

    def poll(self) -> int | None:
        return self._ended(wait=False)

    def _ended(self, wait: bool) -> int | None:
        if self.returncode is None:
            self.driver.tell(json.dumps({"of": self.pid, "wait": wait}))
            self.returncode = int(said) if (said := self.driver.read()) else None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:  # until then its number is its own
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """What it printed, and wrote on standard error. It has no standard input. After ``timeout`` it is killed."""
        with self._at_most(timeout or LONGEST):
            if not self.stdout.closed:
                with self.stdout:
                    self.said = self.stdout.read()
            self._ended(wait=True)
        return self.said, self.err.read_text()

    @contextmanager
    def _at_most(self, seconds: float) -> Iterator[None]:
        """Kill it, and what it has started, if this takes longer: a test that hangs would keep all others waiting."""
        timer = threading.Timer(seconds, os.killpg, (self.pid, signal.SIGKILL))
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


class Forks(Driver):
    """Starts Pythons with any words: a script, -c or -m. PyTorch is loaded before, and nothing of ocil."""

    def start(self, words: Sequence[object], folder: Path, env: Mapping[str, str], cwd: Path) -> Forked:
        """``folder`` is for what it prints."""
        out, err = folder / "out", folder / "err"
        os.mkfifo(out)
        err.touch()
        reader = os.fdopen(os.open(out, os.O_RDONLY | os.O_NONBLOCK))
        order = {"words": [*map(str, words)], "out": str(out), "err": str(err), "env": dict(env), "cwd": str(cwd)}
        self.tell(json.dumps(order))
        pid = int(self.read())
        os.set_blocking(reader.fileno(), True)
        return Forked(self, pid, reader, err)
