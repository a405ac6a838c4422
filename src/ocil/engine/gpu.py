"""Many runs on one GPU at once: each on a CUDA stream of its own, their steps interleaved."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import torch

from ocil import data
from ocil.config import RunConfig
from ocil.engine.captured import CapturedStepper
from ocil.engine.local import Job, Outcome, Watcher, watch_one
from ocil.errors import OcilError
from ocil.methods import method
from ocil.precision import numerics
from ocil.results import RunFolder
from ocil.runner import Interrupted, Stepper, Work
from ocil.streams import DeviceData

SIDE_BY_SIDE = 10  # more gain little: ten keep an H200 busy

_Lane = tuple[Work, Iterator[None], torch.cuda.Stream]


def run_all(
    configs: Sequence[RunConfig],
    job: Job,
    side_by_side: int = 0,
    watch: Watcher = lambda number, event: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[Outcome]:
    """Run any configurations, those that share dataset and precision up to ``side_by_side`` at a time."""
    outcomes: dict[int, Outcome] = {}
    groups: dict[tuple[str, str], list[int]] = {}
    for number, config in enumerate(configs):
        groups.setdefault((config.dataset, config.learner.precision), []).append(number)
    for numbers in groups.values():
        for chunk in _batched(numbers, side_by_side or SIDE_BY_SIDE):
            if should_stop():
                outcomes |= dict.fromkeys(chunk, Interrupted("not started"))
                continue
            hear = _renumbered(watch, chunk)
            found = run_together([configs[number] for number in chunk], job, hear, should_stop)
            outcomes |= dict(zip(chunk, found, strict=True))
    return [outcomes[number] for number in range(len(configs))]


def run_together(
    configs: Sequence[RunConfig],
    job: Job,
    watch: Watcher = lambda number, event: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[Outcome]:
    """Run every configuration at the same time on ``job.device``; they must share dataset and precision.

    A run alone and the same run among others take the same steps in the same order.
    """
    outcomes: list[Outcome] = [Interrupted("not started")] * len(configs)

    def settle(number: int, outcome: Outcome) -> None:
        outcomes[number] = outcome
        watch(number, outcome)

    device = torch.device(job.device)
    dataset = data.load(configs[0].dataset, job.data_dir)
    resident = DeviceData(dataset, device)
    live: dict[int, _Lane] = {}
    with ExitStack() as locks, numerics(configs[0].learner.precision):
        for number, config in enumerate(configs):
            folder = RunFolder.of(job.root, config)
            try:
                if (finished := folder.result()) is not None:
                    settle(number, finished)
                    continue
                locks.enter_context(folder.lock())
                lane = torch.cuda.Stream(device)
                lane.wait_stream(torch.cuda.current_stream(device))
                with torch.cuda.stream(lane):
                    capturable = method(config.method).capturable
                    work = Work(config, folder, dataset, resident, CapturedStepper if capturable else Stepper)
                    steps = work.steps(job.checkpoint_seconds, watch_one(watch, number), should_stop)
                live[number] = (work, steps, lane)
            except OcilError as error:
                settle(number, error)
        while live:
            for number, (work, steps, lane) in list(live.items()):
                with torch.cuda.stream(lane):
                    try:
                        next(steps)
                    except StopIteration:
                        settle(number, work.finish())
                        del live[number]
                    except (OcilError, Interrupted) as error:
                        settle(number, error)
                        del live[number]
    return outcomes


def _renumbered(watch: Watcher, numbers: Sequence[int]) -> Watcher:
    return lambda position, event: watch(numbers[position], event)


def _batched(numbers: Sequence[int], size: int) -> Iterator[Sequence[int]]:
    for start in range(0, len(numbers), size):
        yield numbers[start : start + size]
