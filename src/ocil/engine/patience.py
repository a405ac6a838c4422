"""Runs that another process works on: they come last, and are waited for."""

import logging
import time
from collections.abc import Callable, Sequence

from ocil.config import RunConfig
from ocil.engine.local import Job, Outcome, Watcher
from ocil.errors import InUseError, OcilError
from ocil.results import RunFolder
from ocil.runner import Interrupted, Progress

LOOK_EVERY = 1.0  # seconds between two looks at what the other process holds

RunAll = Callable[[Sequence[RunConfig], Job, int, Watcher, Callable[[], bool]], list[Outcome]]

log = logging.getLogger(__name__)


def patiently(
    run_all: RunAll,
    configs: Sequence[RunConfig],
    job: Job,
    workers: int,
    watch: Watcher,
    should_stop: Callable[[], bool],
) -> list[Outcome]:
    """``run_all``, but a run that is held elsewhere is none that failed: when it is free again, its result is there, or
    it goes on here.
    """
    outcomes: dict[int, Outcome] = {}
    now, held, said = list(range(len(configs))), [], False
    while now:
        found = run_all([configs[number] for number in now], job, workers, _told(watch, now), should_stop)
        outcomes |= dict(zip(now, found, strict=True))
        held += [number for number in now if isinstance(outcomes[number], InUseError)]
        if held and not said and not should_stop():
            log.warning("Another process works on %d of the runs: waiting for it. Ctrl-C stops.", len(held))
            said = True
        now = _free(held, configs, job, should_stop)
        held = [number for number in held if number not in now]
    for number in held:
        outcomes[number] = Interrupted(f"another process works on {configs[number].cell}")
        watch(number, outcomes[number])
    return [outcomes[number] for number in range(len(configs))]


def _told(watch: Watcher, numbers: list[int]) -> Watcher:
    def hear(position: int, event: Progress | Outcome) -> None:
        if not isinstance(event, InUseError):
            watch(numbers[position], event)

    return hear


def _free(held: list[int], configs: Sequence[RunConfig], job: Job, should_stop: Callable[[], bool]) -> list[int]:
    """Wait until some can be taken. None: there was nothing to wait for, or it is to stop."""

    def look() -> list[int]:
        return [number for number in held if not _is_held(RunFolder.of(job.root, configs[number]))]

    while held and not should_stop():
        if free := look():
            if len(free) < len(held):  # a process that stops gives up its runs one by one, moments apart
                time.sleep(LOOK_EVERY)
            return look()
        time.sleep(LOOK_EVERY)
    return []


def _is_held(folder: RunFolder) -> bool:
    try:
        with folder.lock():
            return False
    except InUseError:
        return True
    except OcilError:  # whoever takes it will say what is wrong
        return False
