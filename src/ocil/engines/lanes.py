"""Many runs on one device, in one thread: each on a CUDA stream of its own, their steps interleaved.

Threads cannot do this: while one of them records a CUDA graph, no other may allocate memory on the device.
"""

import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

import torch

from ocil.engines.job import Observer, Outcome, Outcomes, not_started
from ocil.runs.protocol import Run, RunKey, RunResult, Workspace

AHEAD = 8  # steps that a run may have queued on the GPU, so that slow runs do not hold up quick ones
POLL_SECONDS = 5e-5  # how long to wait when every run has that many queued

DONE = object()


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

    If a run fails, the others go on.
    """
    device, outcomes = workspace.device, not_started(runs)
    waiting = deque(runs)
    live: dict[RunKey, Lane] = {}
    # The next run takes over a stream: memory that the allocator keeps for one stream is of no use to another.
    streams = [torch.cuda.Stream(device) if device.type == "cuda" else None for _ in range(side_by_side)]

    def start(run: Run) -> Lane:
        held, stream = ExitStack(), streams[-1]
        try:
            if stream is not None:
                stream.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(stream):
                active = run.open(workspace, held)
                steps = active.steps(partial(observer.on_event, run), observer.should_stop)
        except BaseException:
            held.close()
            raise
        return Lane(run, steps, active.finish, streams.pop(), held)

    def settle(run: Run, outcome: Outcome) -> None:
        outcomes[run.key] = outcome
        observer.on_event(run, outcome)

    try:
        while live or (waiting and not observer.should_stop()):
            while waiting and len(live) < side_by_side and not observer.should_stop():
                run = waiting.popleft()
                try:
                    live[run.key] = start(run)
                except Exception as error:
                    settle(run, _without_locals(run.failed(error)))
            ready = [key for key, lane in live.items() if lane.has_room()]
            for key in ready:
                run = live[key].run
                try:
                    if live[key].step():
                        continue
                    outcome: Outcome = live[key].outcome()
                except Exception as error:
                    outcome = _without_locals(run.failed(error))
                lane = live.pop(key)
                streams.append(lane.stream)
                lane.held.close()
                del lane  # frees the memory that the next run needs
                settle(run, outcome)
            if live and not ready:
                time.sleep(POLL_SECONDS)
    finally:
        for lane in live.values():
            lane.held.close()
    return outcomes


def _without_locals(error: Exception) -> Exception:
    """The error without the local variables of its traceback, which would keep tensors on the device alive."""
    cause: BaseException | None = error
    while cause is not None:
        traceback.clear_frames(cause.__traceback__)
        cause = cause.__cause__ or cause.__context__
    return error
