"""Numbers for Prometheus."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Histogram, Metric, generate_latest
from prometheus_client.core import GaugeMetricFamily

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Gauges = Callable[[], Iterable[tuple[str, str, float]]]
"""Gives name, explanation and value of each number as it is now."""
BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """Counters and durations that several threads add to. Each instance has a registry of its own."""

    def __init__(self) -> None:
        self._registry = registry = _Registry()
        counter = partial(Counter, registry=registry)
        self.acknowledged = counter("ocil_samples_acknowledged_total", "Samples acknowledged since the start.")
        self.predicted = counter("ocil_images_predicted_total", "Images predicted since the start.")
        self.requests = counter("ocil_requests_total", "Requests since the start.", ("path", "status"))
        durations = partial(Histogram, registry=registry, buckets=BUCKETS)
        self.request_seconds = durations("ocil_request_seconds", "Time to answer a request.", ("path",))
        self.step_seconds = durations("ocil_step_seconds", "Time to predict and learn a batch.")
        self.log_write_seconds = durations("ocil_log_write_seconds", "Time to write to the log and sync it.")
        self.checkpoint_seconds = durations("ocil_checkpoint_seconds", "Time to save the model.")

    def add_gauges(self, gauges: Gauges) -> None:
        """``gauges`` is called whenever Prometheus asks for the numbers."""
        self._registry.gauges = gauges

    def text(self) -> bytes:
        """Everything in Prometheus' text format."""
        content: bytes = generate_latest(self._registry)
        return content


def text_of(several: "Mapping[str, Metrics]") -> bytes:
    """The numbers of several models in one text: each has the label ``model``."""
    families: dict[str, Metric] = {}
    for name, metrics in several.items():
        for metric in metrics._registry.collect():
            family = families.setdefault(metric.name, Metric(metric.name, metric.documentation, metric.type))
            for sample in metric.samples:
                family.add_sample(sample.name, {"model": name} | sample.labels, sample.value)
    registry = _Registry()
    registry.register(_Families(list(families.values())))
    content: bytes = generate_latest(registry)
    return content


class _Families:
    """A collector of numbers that are known already."""

    def __init__(self, families: list[Metric]) -> None:
        self.families = families

    def collect(self) -> list[Metric]:
        return self.families


class _Registry(CollectorRegistry):  # type: ignore[misc]
    gauges: Gauges = tuple

    def collect(self) -> Iterator[Metric]:
        """Leave out the time at which each counter was created: only a global switch of the client could do that."""
        for metric in super().collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric
        for name, explanation, value in self.gauges():
            yield GaugeMetricFamily(name, explanation, value)
