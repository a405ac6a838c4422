"""Figures for worker processes to draw. A worker loads this module, and so nothing here loads PyTorch."""

import multiprocessing
import os
import time
from pathlib import Path

from matplotlib.figure import Figure

from ocil.evaluation.measures import Estimate
from ocil.report import plots

TIMES = {"er": Estimate(20.0, 1.0, ()), "mir": Estimate(40.0, 1.0, ())}


def of_times(prefix: str) -> Figure:
    return plots.running_time({f"{prefix} {name}": time for name, time in TIMES.items()})


def only_here(name: str) -> Figure:
    """A figure that ends a worker."""
    if multiprocessing.parent_process() is not None:
        os._exit(9)
    return of_times(name)


def wrong(name: str) -> Figure:
    raise ZeroDivisionError(name)


def slow(file: Path) -> Figure:
    """A figure that leaves a file."""
    file.touch()
    time.sleep(0.2)
    return of_times("one")
