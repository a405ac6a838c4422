"""Signals, garbage and the life of processes: what runs, workers and figures have in common."""

import gc
import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

START_METHOD: Final = "spawn"
"""Of workers. A copy of this process could stop at a lock of another thread, and cannot use CUDA."""


@contextmanager
def signals_blocked(*signals: signal.Signals) -> Iterator[None]:
    """Block signals, such as Ctrl-C, which a terminal sends to workers too. Processes that are started in this block
    never get them.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def garbage_kept() -> Iterator[None]:
    """No garbage is collected meanwhile. It takes time where many objects are made and kept."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def end_with_parent() -> None:
    """Wait until the process that started this one dies, then end this one. It is for a thread of a worker."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
