"""Numbers in the text format of Prometheus."""

import threading
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

Labels = tuple[tuple[str, str], ...]


@dataclass
class _Histogram:
    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    total: float = 0.0


class Metrics:
    """Counters and durations that several threads add to."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counters: dict[str, dict[Labels, float]] = {}
        self._durations: dict[str, dict[Labels, _Histogram]] = {}
        self._help: dict[str, str] = {}

    def counter(self, name: str, explained: str) -> None:
        """There is such a counter, also before it counts."""
        self._help[name] = explained
        self._counters[name] = {}

    def duration(self, name: str, explained: str) -> None:
        self._help[name] = explained
        self._durations[name] = {}

    def add(self, name: str, amount: float = 1, **labels: str) -> None:
        with self._lock:
            found, key = self._counters[name], tuple(sorted(labels.items()))
            found[key] = found.get(key, 0) + amount

    def took(self, name: str, seconds: float, **labels: str) -> None:
        with self._lock:
            found = self._durations[name].setdefault(tuple(sorted(labels.items())), _Histogram())
            found.counts[bisect_left(BOUNDS, seconds)] += 1
            found.total += seconds

    def text(self, gauges: "Iterable[Gauge]") -> str:
        """Everything, and some numbers as they are now."""
        lines: list[str] = []
        for gauge in gauges:
            lines += [*_head(gauge.name, gauge.explained, "gauge"), _line(gauge.name, {}, gauge.value)]
        with self._lock:
            for name, values in self._counters.items():
                lines += _head(name, self._help[name], "counter")
                lines += [_line(name, dict(labels), value) for labels, value in values.items()]
            for name, histograms in self._durations.items():
                lines += _head(name, self._help[name], "histogram")
                for labels, histogram in histograms.items():
                    lines += _histogram_lines(name, dict(labels), histogram)
        return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Gauge:
    """One number as it is now."""

    name: str
    explained: str
    value: float


def _head(name: str, explained: str, kind: str) -> list[str]:
    return [f"# HELP {name} {explained}", f"# TYPE {name} {kind}"]


def _line(name: str, labels: Mapping[str, str], value: float) -> str:
    inside = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
    number = str(int(value)) if value == int(value) else repr(float(value))
    return f"{name}{{{inside}}} {number}" if inside else f"{name} {number}"


def _histogram_lines(name: str, labels: Mapping[str, str], histogram: _Histogram) -> list[str]:
    lines, so_far = [], 0
    for bound, count in zip([*map(str, BOUNDS), "+Inf"], histogram.counts, strict=True):
        so_far += count
        lines.append(_line(f"{name}_bucket", {**labels, "le": bound}, so_far))
    return [*lines, _line(f"{name}_sum", labels, histogram.total), _line(f"{name}_count", labels, so_far)]


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
