"""Many pieces of work on one device, in one thread: each on a CUDA stream of its own, their steps interleaved.

Threads would not do: while one records a graph, no other may ask the device for memory.
"""

import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch

AHEAD = 8  # steps that may be handed to the GPU before they are done: slow work does not hold up quick work
POLL_SECONDS = 5e-5  # how long to wait when everyone has that many

DONE = object()

Begin = Callable[[int, ExitStack], tuple[Iterator[None], Callable[[], Any]]]
"""Starts a piece of work: its steps, and what to do after the last one. What it holds meanwhile goes on the stack."""


@dataclass
class Lane:
    """A piece of work under way, the stream its steps go to, what it holds, an event for each step ahead."""

    steps: Iterator[None]
    finish: Callable[[], Any]
    stream: torch.cuda.Stream | None
    held: ExitStack
    ahead: deque[torch.cuda.Event] = field(default_factory=deque)

    def has_room(self) -> bool:
        while self.ahead and self.ahead[0].query():
            self.ahead.popleft()
        return len(self.ahead) < AHEAD

    def step(self) -> bool:
        """Hand one more step to the device; whether there was one."""
        with torch.cuda.stream(self.stream):
            if next(self.steps, DONE) is DONE:
                return False
            if self.stream is not None:
                self.ahead.append(self.stream.record_event())
            return True

    def outcome(self) -> Any:
        with torch.cuda.stream(self.stream):
            return self.finish()


def take_turns(
    numbers: Sequence[int],
    side_by_side: int,
    device: torch.device,
    begin: Begin,
    settle: Callable[[int, Any], None],
    explained: Callable[[int, Exception], Any],
    should_stop: Callable[[], bool] = lambda: False,
) -> None:
    """Work through ``numbers``, ``side_by_side`` at a time; when one ends, the next one begins. On a CPU too.

    ``settle`` hears what came of each that was started: what it finished with, or what ``explained`` makes of its
    exception, which leaves the others alone.
    """
    waiting = deque(numbers)
    live: dict[int, Lane] = {}
    # Used again by the next one: what the allocator keeps for a stream is of no use to another.
    streams = [torch.cuda.Stream(device) if device.type == "cuda" else None for _ in range(side_by_side)]

    def start(number: int) -> Lane:
        held, stream = ExitStack(), streams[-1]
        try:
            if stream is not None:
                stream.wait_stream(torch.cuda.current_stream(device))
            with torch.cuda.stream(stream):
                steps, finish = begin(number, held)
        except BaseException:
            held.close()
            raise
        return Lane(steps, finish, streams.pop(), held)

    try:
        while live or (waiting and not should_stop()):
            while waiting and len(live) < side_by_side and not should_stop():
                number = waiting.popleft()
                try:
                    live[number] = start(number)
                except Exception as error:
                    settle(number, _without_locals(explained(number, error)))
            ready = [number for number, lane in live.items() if lane.has_room()]
            for number in ready:
                try:
                    if live[number].step():
                        continue
                    outcome = live[number].outcome()
                except Exception as error:
                    outcome = _without_locals(explained(number, error))
                lane = live.pop(number)
                streams.append(lane.stream)
                lane.held.close()
                del lane  # and all it worked with: the next one needs the room
                settle(number, outcome)
            if live and not ready:
                time.sleep(POLL_SECONDS)
    finally:
        for lane in live.values():
            lane.held.close()


def _without_locals(outcome: Any) -> Any:
    """An error that is kept would keep all that its functions worked with, on the device too."""
    error = outcome
    while isinstance(error, BaseException):
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__
    return outcome
