"""Many runs on one device, in one thread: each on a CUDA stream of its own, their steps interleaved.

Threads cannot do this: while one of them records a CUDA graph, no other may allocate memory on the device.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

import torch

from ocil.engines.job import Observer, Outcome, Outcomes, RunQueue, without_locals
from ocil.runs.protocol import Run, RunKey, RunResult, Workspace, out_of_memory

AHEAD = 8  # steps that a run may have queued on the GPU, so that slow runs do not hold up quick ones
POLL_SECONDS = 5e-5  # how long to wait when every run has that many queued

DONE = object()

log = logging.getLogger(__name__)


@dataclass
class Lane:
    """A run under way, the CUDA stream of its steps, the locks it holds, and an event for each queued step."""

    run: Run
    steps: Iterator[None]
    finish: Callable[[], RunResult]
    stream: torch.cuda.Stream | None
    held: ExitStack
    ahead: deque[torch.cuda.Event] = field(default_factory=deque)

    def has_room(self) -> bool:
        while self.ahead and self.ahead[0].query():
            self.ahead.popleft()
        return len(self.ahead) < AHEAD

    def step(self) -> bool:
        """Queue one more step on the device. Returns whether there was one."""
        with torch.cuda.stream(self.stream):
            if next(self.steps, DONE) is DONE:
                return False
            if self.stream is not None:
                self.ahead.append(self.stream.record_event())
            return True

    def outcome(self) -> RunResult:
        with torch.cuda.stream(self.stream):
            return self.finish()


def take_turns(runs: Sequence[Run], workspace: Workspace, side_by_side: int, observer: Observer) -> Outcomes:
    """Carry out runs, ``side_by_side`` at a time; when one ends, the next one begins. On a CPU too.

    If a run fails, the others go on. One that finds no memory beside others waits until one of them has ended, and goes
    on from its checkpoint; from then on there are fewer side by side.
    """
    return _Turns(runs, workspace, side_by_side, observer).execute()


class _Turns(RunQueue):
    """Runs that wait, runs under way, and the CUDA streams that no run has at the moment."""

    def __init__(self, runs: Sequence[Run], workspace: Workspace, side_by_side: int, observer: Observer) -> None:
        super().__init__(runs, observer)
        self.workspace = workspace
        self.live: dict[RunKey, Lane] = {}
        # The next run takes over a stream: memory that the allocator keeps for one stream is of no use to another.
        device = workspace.device
        self.streams = [torch.cuda.Stream(device) if device.type == "cuda" else None for _ in range(side_by_side)]

    def execute(self) -> Outcomes:
        try:
            while self.live or (self.waiting and not self.observer.should_stop()):
                while self.waiting and self.streams and not self.observer.should_stop():
                    self.begin(self.waiting.popleft())
                ready = [key for key, lane in self.live.items() if lane.has_room()]
                for key in ready:
                    self.advance(key)
                if self.live and not ready:
                    time.sleep(POLL_SECONDS)
        finally:
            for lane in self.live.values():
                lane.held.close()
        return self.outcomes

    def begin(self, run: Run) -> None:
        try:
            self.live[run.key] = self.open(run)
        except (Exception, SystemExit) as error:
            if self.postpone(run, error, others=len(self.live)):
                return
            self.settle(run, without_locals(run.failed(error)))

    def open(self, run: Run) -> Lane:
        held, stream, device = ExitStack(), self.streams[-1], self.workspace.device
        try:
            if stream is not None:
                stream.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(stream):
                active = run.open(self.workspace, held)
                steps = active.steps(partial(self.observer.on_event, run), self.observer.should_stop)
        except BaseException:
            held.close()
            raise
        return Lane(run, steps, active.finish, self.streams.pop(), held)

    def advance(self, key: RunKey) -> None:
        """Queue one more step of a run, or end the run if there is none."""
        run = self.live[key].run
        try:
            if self.live[key].step():
                return
            outcome: Outcome = self.live[key].outcome()
        except (Exception, SystemExit) as error:
            if self.postpone(run, error, others=len(self.live) - 1):
                self.live.pop(key).held.close()
                return
            outcome = without_locals(run.failed(error))
        lane = self.live.pop(key)
        self.streams.append(lane.stream)
        lane.held.close()
        del lane  # frees the memory that the next run needs: an error may keep the variables of this function
        self.settle(run, outcome)

    def postpone(self, run: Run, error: Exception | SystemExit, others: int) -> bool:
        """Let a run wait until one of the others has ended, if it fails because these take the memory that it needs.

        Its CUDA stream is given up, as are those that no run uses: no run begins before one has ended. Returns whether
        the run waits.
        """
        if others < 1 or isinstance(error, SystemExit) or not out_of_memory(error):
            return False
        without_locals(error)
        self.streams.clear()
        self.waiting.appendleft(run)
        log.warning("%s does not fit beside %d others: it goes on when one of them has ended.", run.name, others)
        return True
