"""Many runs on one GPU at once: each on a CUDA stream of its own, their steps interleaved."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

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

_Lane = tuple[Work, Iterator[None], torch.cuda.Stream | None]
DONE = object()


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
        for chunk in _batched(numbers, size):
            if should_stop():
                outcomes |= dict.fromkeys(chunk, Interrupted("not started"))
                continue
            hear = _renumbered(watch, chunk)
            found = run_together([configs[number] for number in chunk], job, hear, should_stop, dataset)
            outcomes |= dict(zip(chunk, found, strict=True))
    return [outcomes[number] for number in range(len(configs))]


def run_together(
    configs: Sequence[RunConfig],
    job: Job,
    watch: Watcher = lambda number, event: None,
    should_stop: Callable[[], bool] = lambda: False,
    dataset: Dataset | None = None,
) -> list[Outcome]:
    """Run unfinished configurations at the same time on ``job.device``; they must share dataset and precision.

    A run alone and the same run among others take the same steps in the same order.
    """
    outcomes: list[Outcome] = [Interrupted("not started")] * len(configs)

    def settle(number: int, outcome: Outcome) -> None:
        outcomes[number] = outcome
        watch(number, outcome)

    device = torch.device(job.device)
    dataset = dataset or data.load(configs[0].dataset, job.data_dir)
    resident = DeviceData(dataset, device)
    live: dict[int, _Lane] = {}
    with ExitStack() as locks, numerics(configs[0].learner.precision):
        for number, config in enumerate(configs):
            folder, lane = RunFolder.of(job.root, config), _cuda_stream(device)
            try:
                locks.enter_context(folder.lock())
                with torch.cuda.stream(lane):
                    captured = lane is not None and method(config.method).capturable
                    work = Work(config, folder, dataset, resident, CapturedStepper if captured else Stepper)
                    steps = work.steps(
                        max(job.checkpoint_seconds, CHECKPOINT_SECONDS), watch_one(watch, number), should_stop
                    )
                live[number] = (work, steps, lane)
            except Exception as error:
                settle(number, explained(error, config))
        while live:
            for number, (work, steps, lane) in list(live.items()):
                with torch.cuda.stream(lane):
                    try:
                        if next(steps, DONE) is DONE:
                            settle(number, work.finish())
                            del live[number]
                    except Exception as error:
                        settle(number, explained(error, configs[number]))
                        del live[number]
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


def _batched(numbers: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    for start in range(0, len(numbers), size):
        yield numbers[start : start + size]
