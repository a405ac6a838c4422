"""A Python that loads everything once and forks a process for each order, which may die in the middle of a sync."""

import subprocess

# Goes before a driver's own lines, which call ready once all is loaded. A forked process calls die_at_sync; from then
# on os.fsync counts.
START = """
import gc, json, os, signal, sys
import torch
import torch._dynamo  # the first step of an optimiser would load it, in every process again

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
