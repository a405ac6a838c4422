"""Runs that another process works on: they come last, and are waited for."""

import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from ocil.errors import InUseError
from ocil.files import is_locked
from ocil.runner import Interrupted, Progress

LOOK_EVERY = 1.0  # seconds between two looks at what the other process holds

Found = TypeVar("Found")  # what comes of a run
Watcher = Callable[[int, Progress | Found | Interrupted], None]
Attempt = Callable[[list[int], Watcher[Found]], list[Found]]
"""Does the runs of these numbers; its watcher counts them from 0."""

log = logging.getLogger(__name__)


def patiently(
    attempt: Attempt[Found], count: int, watch: Watcher[Found], should_stop: Callable[[], bool]
) -> list[Found | Interrupted]:
    """What comes of ``count`` runs. One that is held elsewhere has not failed: once it is free, its result is there,
    or it goes on here.
    """
    outcomes: dict[int, Found | Interrupted] = {}
    now, held, announced = list(range(count)), dict[int, Path](), False
    while now:
        found = attempt(now, _patient(watch, now))
        outcomes |= dict(zip(now, found, strict=True))
        held |= {number: folder for number in now if (folder := _held_in(outcomes[number])) is not None}
        if held and not announced and not should_stop():
            log.warning("Another process works on %d of the runs: waiting for it. Ctrl-C stops.", len(held))
            announced = True
        now = _wait_for_some(held, should_stop)
        held = {number: folder for number, folder in held.items() if number not in now}
    for number, folder in held.items():
        outcomes[number] = Interrupted(f"another process works on {folder}")
        watch(number, outcomes[number])
    return [outcomes[number] for number in range(count)]


def _held_in(outcome: object) -> Path | None:
    """The folder that another process works in, if that is what came of a run."""
    return outcome.folder if isinstance(outcome, InUseError) else None


def _patient(watch: Watcher[Found], numbers: list[int]) -> Watcher[Found]:
    """A watcher that counts from 0 and is not shown what is waited for."""

    def hear(position: int, event: Progress | Found | Interrupted) -> None:
        if _held_in(event) is None:
            watch(numbers[position], event)

    return hear


def _wait_for_some(held: Mapping[int, Path], should_stop: Callable[[], bool]) -> list[int]:
    """Those that can be taken, once there are some. None: there was nothing to wait for, or it is to stop."""

    def look() -> list[int]:
        return [number for number, folder in held.items() if not is_locked(folder)]

    while held and not should_stop():
        free = look()
        if 0 < len(free) < len(held):  # a process that stops gives up its runs one by one, moments apart
            time.sleep(LOOK_EVERY)
            free = look()  # a third process may have taken them meanwhile
        if free:
            return free
        time.sleep(LOOK_EVERY)
    return []
