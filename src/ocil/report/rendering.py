"""Draws the figures of a report, in worker processes if there are many. Workers import this module and do without
PyTorch, which takes seconds to load."""

import multiprocessing
import signal
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from ocil import processes
from ocil.processes import end_with_parent, signals_blocked
from ocil.report.style import render, render_pdf

FIGURES_PER_WORKER = 24  # at least: a worker starts in the time of about six figures

T = TypeVar("T")
Paint = tuple[Callable[..., Any], tuple[Any, ...]]
"""A function that makes a figure, and its arguments. Both can be sent to another process."""
OnFigure = Callable[[int, int], None]
"""Called with how many figures are drawn, and how many there are."""


def ignore(_done: int, _total: int) -> None:
    """For a caller that shows no progress."""


def render_all(paints: Sequence[Paint], workers: int = 1, progress: OnFigure = ignore) -> list[str]:
    """The SVG of each figure, drawn in up to so many processes; 1 draws them in this one."""
    return _drawn(render, paints, workers, progress)


def render_all_as_pdf(paints: Sequence[Paint], workers: int = 1, progress: OnFigure = ignore) -> list[bytes]:
    """The same figures as PDF files."""
    return _drawn(render_pdf, paints, workers, progress)


def _drawn(draw: Callable[..., T], paints: Sequence[Paint], workers: int, progress: OnFigure) -> list[T]:
    workers = min(workers, len(paints) // FIGURES_PER_WORKER)
    if workers > 1 and not multiprocessing.current_process().daemon:  # Python lets a daemon start no processes
        try:
            return _in_workers(draw, paints, workers, progress)
        except (BrokenProcessPool, OSError):  # there was no room for more processes, or one of them was killed
            pass
        except NotImplementedError:  # the system has no semaphores, or too few
            pass
    return _counted((draw(paint, *args) for paint, args in paints), len(paints), progress)


def _counted(figures: Iterable[T], total: int, progress: OnFigure) -> list[T]:
    found = []
    for figure in figures:
        found.append(figure)
        progress(len(found), total)
    return found


def _in_workers(draw: Callable[..., T], paints: Sequence[Paint], workers: int, progress: OnFigure) -> list[T]:
    context = multiprocessing.get_context(processes.START_METHOD)
    with ProcessPoolExecutor(workers, context, initializer=_begin) as pool:
        try:
            with signals_blocked(signal.SIGINT):
                drawn = [pool.submit(draw, paint, *args) for paint, args in paints]
            return _counted((each.result() for each in drawn), len(drawn), progress)
        except BaseException:  # Ctrl-C, for example
            pool.shutdown(cancel_futures=True)  # the end of the block alone would draw the rest first
            raise


def _begin() -> None:
    threading.Thread(target=end_with_parent, daemon=True).start()
    if not hasattr(signal, "pthread_sigmask"):  # Windows: Ctrl-C comes to the workers too
        signal.signal(signal.SIGINT, signal.SIG_IGN)
