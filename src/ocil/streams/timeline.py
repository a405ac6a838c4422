"""What arrives when: samples of each class or domain, counted in spans of a stream."""

from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ocil.streams.stream import Stream


@dataclass(frozen=True, eq=False)
class Timeline:
    """How many samples of each class arrive in each span of a stream; with the scenario ``domain``, of each domain."""

    counts: NDArray[np.int64]
    """``[classes, spans]``, classes in the order of their groups."""
    units: list[int]
    """The labels of these classes, or the numbers of the domains."""
    names: list[str]
    ends: list[int]
    """The number of samples that have arrived at the end of each span."""
    points: list[int]
    """The number of samples that have arrived at each evaluation point."""
    announced: bool
    """Whether methods hear of these points as task ends."""
    by_task: NDArray[np.int64]
    """``[tasks, classes]``: the same between two evaluation points."""
    group_sizes: list[int]
    """The number of classes of each group; classes are in this order."""
    wrong_labels: int

    def to_json(self) -> dict[str, Any]:
        return {
            "names": self.names,
            "units": self.units,
            "group_sizes": self.group_sizes,
            "points": self.points,
            "announced": self.announced,
            "ends": self.ends,
            "counts": self.counts.tolist(),
            "by_task": self.by_task.tolist(),
            "wrong_labels": self.wrong_labels,
        }


def timeline(stream: Stream, spans: int = 60) -> Timeline:
    """Count the samples of a stream in ``spans`` equal spans, or fewer if it has fewer batches."""
    order, data = stream.arrivals, stream.data
    domains = data.train_domain if order.scenario == "domain" else None
    label_of = stream.given_labels if domains is None else domains
    names = data.classes if domains is None else data.domains
    units = list(chain(*order.groups))
    row_of = np.empty(len(names), dtype=np.int64)
    row_of[units] = np.arange(len(units))
    arrived = np.concatenate([order.samples[first:last] for first, last in stream.bounds])
    rows = row_of[label_of[arrived]]
    ends = np.cumsum([last - first for first, last in stream.bounds])
    count = min(spans, len(ends))
    span_ends = [int(ends[len(ends) * (number + 1) // count - 1]) for number in range(count)]
    points = [int(ends[point]) for point in order.points]
    true = data.train_y[arrived]
    return Timeline(
        _counted(rows, len(units), span_ends).T,
        units,
        [names[unit] for unit in units],
        span_ends,
        points,
        stream.announces_tasks,
        _counted(rows, len(units), points),
        [len(group) for group in order.groups],
        int((stream.given_labels[arrived] != true).sum()),
    )


def _counted(rows: NDArray[np.int64], count: int, ends: list[int]) -> NDArray[np.int64]:
    """``[len(ends), count]``: how often each row occurs before the first end, then before the second, ..."""
    parts = np.split(rows[: ends[-1]], ends[:-1])
    return np.stack([np.bincount(part, minlength=count) for part in parts]).astype(np.int64)
