"""Many runs on one GPU at once: each on a CUDA stream of its own, their steps interleaved."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack

import torch

from ocil import data
from ocil.config import RunConfig
from ocil.data import Dataset
from ocil.engine.captured import CapturedStepper
from ocil.engine.fit import free_bytes, how_many_fit
from ocil.engine.lanes import take_turns
from ocil.engine.local import Job, Outcome, Watcher, explained, look_up, watch_one
from ocil.errors import OcilError
from ocil.methods import method
from ocil.precision import numerics
from ocil.results import RunFolder
from ocil.runner import Interrupted, Stepper, Work
from ocil.streams import DeviceData
from ocil.threads import using

SIDE_BY_SIDE = 10  # more gain little: ten keep an H200 busy
CHECKPOINT_SECONDS = 120.0  # at least: while one run writes, the others soon have nothing to do


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
        try:
            dataset = data.load(configs[numbers[0]].dataset, job.data_dir)
        except OcilError as error:
            for number in numbers:
                outcomes[number] = error
                watch(number, error)
            continue
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
    # The seeds of one cell have their like beside them, and their times compare with those of other cells.
    mixed = len({config.cell for config in configs}) > 1 and side_by_side > 1
    surroundings = {"side_by_side": min(side_by_side, len(configs))} if mixed else {}
    dataset = dataset or data.load(configs[0].dataset, job.data_dir)
    resident = DeviceData(dataset, device)

    def begin(number: int, held: ExitStack) -> tuple[Iterator[None], Callable[[], Outcome]]:
        config = configs[number]
        folder = RunFolder.of(job.root, config)
        held.enter_context(folder.lock())
        if (finished := folder.result()) is not None:  # by another process, while this one waited for its turn
            return iter(()), lambda: finished.refuse_other(dataset, folder.path)
        captured = device.type == "cuda" and method(config.method).capturable
        work = Work(config, folder, dataset, resident, CapturedStepper if captured else Stepper, surroundings)
        seconds = max(job.checkpoint_seconds, CHECKPOINT_SECONDS)
        return work.steps(seconds, watch_one(watch, number), should_stop), work.finish

    def why(number: int, error: Exception) -> Outcome:
        return explained(error, configs[number])

    with numerics(configs[0].learner.precision), using(job.threads):
        take_turns(range(len(configs)), side_by_side, device, begin, settle, why, should_stop)
    return outcomes


def _renumbered(watch: Watcher, numbers: Sequence[int]) -> Watcher:
    return lambda position, event: watch(numbers[position], event)
