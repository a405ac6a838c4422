"""Many runs on one GPU at once: each on a CUDA stream of its own, their steps interleaved."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import torch

from ocil import data
from ocil.config import RunConfig
from ocil.data import Dataset
from ocil.engine.captured import CapturedStepper
from ocil.engine.fit import free_bytes, how_many_fit
from ocil.engine.local import Job, Outcome, Watcher, explained, look_up, watch_one
from ocil.errors import OcilError
from ocil.methods import method
from ocil.precision import numerics
from ocil.results import RunFolder
from ocil.runner import Interrupted, Stepper, Work
from ocil.streams import DeviceData

SIDE_BY_SIDE = 10  # more gain little: ten keep an H200 busy
CHECKPOINT_SECONDS = 120.0  # at least: while one run writes, the others soon have nothing to do
AHEAD = 8  # steps a run may be handed to the GPU before they are done: a slow method does not hold up quick ones
POLL_SECONDS = 5e-5  # how long to wait when every run has that many

DONE = object()


@dataclass
class _Lane:
    """A run under way: its steps, the CUDA stream they go to, the lock on its folder, an event for each step ahead."""

    work: Work
    steps: Iterator[None]
    stream: torch.cuda.Stream | None
    locks: ExitStack
    ahead: deque[torch.cuda.Event] = field(default_factory=deque)

    def has_room(self) -> bool:
        while self.ahead and self.ahead[0].query():
            self.ahead.popleft()
        return len(self.ahead) < AHEAD

    def step(self) -> bool:
        """Hand one more step to the GPU; whether there was one."""
        with torch.cuda.stream(self.stream):
            if next(self.steps, DONE) is DONE:
                return False
            if self.stream is not None:
                self.ahead.append(self.stream.record_event())
            return True


def run_all(
    configs: Sequence[RunConfig],
    job: Job,
    side_by_side: int = 0,
    watch: Watcher = lambda number, event: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[Outcome]:
    """Run any configurations, those that share dataset and precision up to ``side_by_side`` at a time."""
    outcomes = look_up(configs, job, watch)
    groups: dict[tuple[str, str], list[int]] = {}
    for number, config in enumerate(configs):
        if number not in outcomes:
            groups.setdefault((config.dataset, config.learner.precision), []).append(number)
    for numbers in groups.values():
        dataset = data.load(configs[numbers[0]].dataset, job.data_dir)
        size = side_by_side or SIDE_BY_SIDE
        free = free_bytes(torch.device(job.device))
        for number in numbers.copy():
            try:
                size = min(size, how_many_fit(configs[number], dataset, free))
            except OcilError as error:
                outcomes[number] = error
                watch(number, error)
                numbers.remove(number)
        if not numbers:
            continue
        hear = _renumbered(watch, numbers)
        found = run_together([configs[number] for number in numbers], job, size, hear, should_stop, dataset)
        outcomes |= dict(zip(numbers, found, strict=True))
    return [outcomes[number] for number in range(len(configs))]


def run_together(
    configs: Sequence[RunConfig],
    job: Job,
    side_by_side: int = SIDE_BY_SIDE,
    watch: Watcher = lambda number, event: None,
    should_stop: Callable[[], bool] = lambda: False,
    dataset: Dataset | None = None,
) -> list[Outcome]:
    """Run unfinished configurations on ``job.device``, ``side_by_side`` at a time; when one ends, the next one begins.

    They must share dataset and precision. Each goes at its own pace. A run alone and the same run among others take the
    same steps in the same order.
    """
    outcomes: list[Outcome] = [Interrupted("not started")] * len(configs)

    def settle(number: int, outcome: Outcome) -> None:
        outcomes[number] = outcome
        watch(number, outcome)

    device = torch.device(job.device)
    dataset = dataset or data.load(configs[0].dataset, job.data_dir)
    resident = DeviceData(dataset, device)
    waiting = deque(range(len(configs)))
    live: dict[int, _Lane] = {}

    def begin(number: int) -> _Lane:
        config, lane, locks = configs[number], _cuda_stream(device), ExitStack()
        folder = RunFolder.of(job.root, config)
        locks.enter_context(folder.lock())
        try:
            with torch.cuda.stream(lane):
                captured = lane is not None and method(config.method).capturable
                work = Work(config, folder, dataset, resident, CapturedStepper if captured else Stepper)
                seconds = max(job.checkpoint_seconds, CHECKPOINT_SECONDS)
                return _Lane(work, work.steps(seconds, watch_one(watch, number), should_stop), lane, locks)
        except BaseException:
            locks.close()
            raise

    def end(number: int) -> None:
        live.pop(number).locks.close()

    with numerics(configs[0].learner.precision):
        try:
            while live or (waiting and not should_stop()):
                while waiting and len(live) < side_by_side and not should_stop():
                    number = waiting.popleft()
                    try:
                        live[number] = begin(number)
                    except Exception as error:
                        settle(number, explained(error, configs[number]))
                ready = [number for number, lane in live.items() if lane.has_room()]
                for number in ready:
                    lane = live[number]
                    try:
                        if not lane.step():
                            with torch.cuda.stream(lane.stream):
                                settle(number, lane.work.finish())
                            end(number)
                    except Exception as error:
                        settle(number, explained(error, configs[number]))
                        end(number)
                if not ready:
                    time.sleep(POLL_SECONDS)
        finally:
            for number in list(live):
                end(number)
    return outcomes


def _cuda_stream(device: torch.device) -> torch.cuda.Stream | None:
    """A stream that begins after what is under way; None on a CPU, where the same loop runs for the tests."""
    if device.type != "cuda":
        return None
    lane = torch.cuda.Stream(device)
    lane.wait_stream(torch.cuda.current_stream(device))
    return lane


def _renumbered(watch: Watcher, numbers: Sequence[int]) -> Watcher:
    return lambda position, event: watch(numbers[position], event)
