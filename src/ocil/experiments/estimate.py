"""Estimates of how long runs will take: from finished runs of the same kind, else from a table of measured times."""

import math
import platform
import statistics
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch

from ocil.data import Dataset, DatasetInfo
from ocil.engines.job import Job
from ocil.errors import OcilError
from ocil.methods.passes import FORWARD_WEIGHT, Pass
from ocil.networks import InputShape, ReducedResNet18
from ocil.networks.reduced_resnet18 import PRODUCTS
from ocil.networks.registry import names_code
from ocil.runs.build import network_of
from ocil.runs.config import RunConfig
from ocil.runs.features import Encoder
from ocil.runs.results import UNREADABLE, read_json
from ocil.runs.schedule import Schedule
from ocil.streams import StreamConfig
from ocil.threads import cores

if TYPE_CHECKING:
    from ocil.experiments.plan import Plan

# Milliseconds per pass through the network, forward and backward, and per image in it: 32x32 pixels, width 20.
# One NVIDIA H200 with ten runs side by side, divided by ten: results/ and docs/performance.md (AFS 10 + 200 images in
# 1.05 ms, ER 10 + 10 in 0.32 ms, a review of 10 in 0.15 ms for bf16). One run on one ARM core: docs/performance.md.
MILLISECONDS = {
    "cuda bf16": (0.12, 0.0037),
    "cuda tf32": (0.30, 0.0134),
    "cuda fp32": (0.60, 0.0378),
    "cpu": (19.0, 16.0),
}
MEASURED_ON = {"cuda": "one NVIDIA H200", "cpu": "one ARM core per run"}
TABLED_MULTIPLY_ADDS = PRODUCTS * 32 * 32 * 20**2
MEASURED_SIDE_BY_SIDE = 10  # runs on that GPU; ten keep it busy


class Size(NamedTuple):
    """The properties of a dataset that the cost of a run depends on."""

    train: int
    test: int
    classes: int
    input_shape: InputShape

    @classmethod
    def of(cls, data: Dataset | DatasetInfo) -> "Size":
        if isinstance(data, Dataset):
            return cls(len(data.train_y), len(data.test_y), data.num_classes, data.input_shape)
        return cls(data.train, data.test, data.classes, data.image_shape)


class Cost(NamedTuple):
    """Passes through the network and the images in them, counted in passes forward and backward.

    A pass that only goes forward counts as half a pass, and an image in it as ``FORWARD_WEIGHT``: these are the times
    that it took.
    """

    passes: float
    images: float

    @classmethod
    def of(cls, passes: Iterable[Pass]) -> "Cost":
        counted = [(1.0, each.images) if each.trains else (0.5, each.images * FORWARD_WEIGHT) for each in passes]
        return cls(sum(count for count, _ in counted), sum(images for _, images in counted))

    @classmethod
    def of_tested(cls, images: float) -> "Cost":
        """The cost of images that only pass forward. Batches are so large that their number does not matter."""
        return cls(0, images * FORWARD_WEIGHT)

    def times(self, count: float) -> "Cost":
        return Cost(count * self.passes, count * self.images)

    def plus(self, other: "Cost") -> "Cost":
        return Cost(self.passes + other.passes, self.images + other.images)


def cost_of_step(config: RunConfig, size: Size) -> Cost:
    """The cost of one stream batch."""
    return Cost.of(config.learner_class.passes(config.learner, config.stream.batch_size, size.classes))


def cost_of_run(config: RunConfig, size: Size, factor: float = 1.0) -> Cost:
    """The cost of a run: stream, reviews, task ends, evaluations. ``factor`` multiplies the steps on the stream."""
    learner_class, stream, learner = config.learner_class, config.stream, config.learner
    schedule = Schedule.expected(config, _expected_samples(stream, size))
    batches = schedule.batches
    total = cost_of_step(config, size).times(batches * factor)
    for passes, times in schedule.passes_on_memory(learner_class, learner, size.classes):
        total = total.plus(Cost.of(passes).times(times))
    if stream.evaluate_every:  # on the classes that have arrived: on average half of the test images
        tested = min(stream.evaluate_on or size.test, size.test)
        total = total.plus(Cost.of_tested(batches // stream.evaluate_every * tested / 2))
    if stream.prequential:
        total = total.plus(Cost.of([Pass(stream.batch_size, trains=False)]).times(batches))
    if stream.probe:
        total = total.plus(Cost.of_tested(size.train + size.test))
    tasks = 1 if stream.boundary == "iid" else stream.tasks
    return total.plus(Cost.of_tested(tasks * (size.test + size.train / stream.tasks)))


def _expected_samples(stream: StreamConfig, size: Size) -> int:
    """How many training samples take part, or about how many: with an imbalance r, sizes fall to 1/r, whose mean is
    (1 - 1/r) / ln r."""
    if stream.class_counts:
        return min(size.train, sum(stream.class_counts) * size.classes // len(stream.class_counts))
    if stream.imbalance_factor == 1:
        return size.train
    return int(size.train * (1 - 1 / stream.imbalance_factor) / math.log(stream.imbalance_factor))


@dataclass(frozen=True)
class Estimator:
    """How long runs will take: each one among the others, and all of them together."""

    device: str
    """cuda or cpu."""
    side_by_side: int
    ratios: dict[tuple[str, ...], float]
    """Measured over tabled seconds, by method, dataset, precision, network, and what of it is frozen: see ``_kind``."""

    @classmethod
    def of(cls, job: Job, sizes: dict[str, Size]) -> "Estimator":
        """An estimator that knows the finished runs in the job's folder that were measured on this kind of device.

        It does not know what a cluster has: the estimate is for this machine alone.
        """
        on_gpu = torch.cuda.is_available() if job.device == "auto" else job.device.startswith("cuda")
        name = platform.machine()
        if on_gpu:
            there = None if job.device == "auto" else job.device
            name = torch.cuda.get_device_name(there) if torch.cuda.is_available() else ""
        side_by_side = MEASURED_SIDE_BY_SIDE if on_gpu else job.workers or max(1, cores() // job.threads)
        bare = cls("cuda" if on_gpu else "cpu", side_by_side, {})
        return replace(bare, ratios=_ratios(job.root, name, sizes, bare))

    def seconds(self, config: RunConfig, size: Size) -> float:
        """The time of one run while others go on side by side with it."""
        return self.tabled(config, size) * self.ratios.get(_kind(config), 1.0)

    def tabled(self, config: RunConfig, size: Size) -> float:
        """The same time, from the table alone."""
        on_gpu = self.device == "cuda"
        kind = f"cuda {config.learner.precision}" if on_gpu else "cpu"
        a_pass, an_image = MILLISECONDS[kind]
        scale = _scale(config, size, on_gpu)
        factor = config.learner_class.kernel_factor if kind == "cuda bf16" else 1.0
        need = cost_of_run(config, size, factor)
        return (need.passes * a_pass + need.images * an_image * scale) / 1000 * (MEASURED_SIDE_BY_SIDE if on_gpu else 1)

    def features(self, encoder: Encoder, size: Size, images: int) -> float:
        """The time to compute the features of so many images, from the table alone."""
        kind = "cuda fp32" if self.device == "cuda" else "cpu"
        _, an_image = MILLISECONDS[kind]
        scale = encoder.multiply_adds(size.input_shape) / TABLED_MULTIPLY_ADDS
        return Cost.of_tested(images).images * an_image * scale / 1000

    def together(self, seconds: Sequence[float]) -> float:
        """The time of all runs, from the time of each."""
        if not seconds:
            return 0.0
        total = sum(seconds) / self.side_by_side
        return total if self.device == "cuda" else max(total, *seconds)

    def source(self, configs: Sequence[RunConfig]) -> str:
        """Where the estimates of these runs come from, in words."""
        known = sum(_kind(config) in self.ratios for config in configs)
        table = f"a table measured on {MEASURED_ON[self.device]} (docs/performance.md; it may be far off elsewhere)"
        if known == len(configs):
            return "from finished runs of the same method, dataset and device"
        if not known:
            return f"from {table}"
        return f"from finished runs of the same method, dataset and device for {known} runs, from {table} for the rest"


@dataclass(frozen=True)
class Forecast:
    """How long the runs of a plan will take. ``sizes`` are those of the datasets that are there, by name."""

    plan: "Plan"
    estimator: Estimator
    sizes: dict[str, Size]
    _known: dict[tuple[Hashable, ...], float] = field(default_factory=dict, compare=False)
    """Seconds of a run, which its seed does not change."""

    @property
    def each(self) -> list[float]:
        """Seconds of each run of the plan, 0 where its dataset is not there."""
        return [self._run(config) for config in self.plan.configs]

    def seconds(self, configs: Sequence[RunConfig]) -> float:
        """The time of all given runs that are not finished, together."""
        return self.estimator.together([self._run(c) for c in self.plan.unfinished(configs) if c.dataset in self.sizes])

    def _run(self, config: RunConfig) -> float:
        if config.dataset not in self.sizes:
            return 0.0
        key = (config.method, config.dataset, config.stream, config.learner)
        if key not in self._known:
            self._known[key] = self.estimator.seconds(config, self.sizes[config.dataset])
        return self._known[key]


def roughly(seconds: float) -> str:
    """``40 s``, ``12 min``, ``5 h 20 min``, ``9 days``: no more digits than an estimate has."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    if minutes < 60:
        return f"{minutes} min"
    hours, rest = divmod(minutes, 60)
    return f"{hours} h {rest:02d} min" if hours < 48 else f"{round(hours / 24)} days"


def _scale(config: RunConfig, size: Size, on_gpu: bool) -> float:
    """How much longer an image takes than one of the table.

    For other networks the multiply-adds are compared: how well a network suits the device is not known.
    """
    encoder, shape = Encoder.of(config.learner), size.input_shape
    if encoder is not None:
        shape = encoder.vector_shape(shape)
    network = network_of(config.learner, shape)
    if isinstance(network, ReducedResNet18):
        return math.prod(shape[:2]) / 1024 * math.pow(network.width / 20, 1.0 if on_gpu else 1.5)
    return network.multiply_adds / TABLED_MULTIPLY_ADDS


def _ratios(root: Path, device: str, sizes: dict[str, Size], bare: Estimator) -> dict[tuple[str, ...], float]:
    found: dict[tuple[str, ...], list[float]] = {}
    for path in root.glob("*/seed-*/result.json"):
        try:
            content = read_json(path)
            if content["environment"]["device"] != device or content["config"]["dataset"] not in sizes:
                continue
            config = RunConfig.from_json(content["config"])
            if names_code(config.learner.network) or names_code(config.learner.features):
                continue  # a result may come from anywhere
            tabled = bare.tabled(config, sizes[config.dataset])
            found.setdefault(_kind(config), []).append(content["wall_seconds"] / tabled)
        except (*UNREADABLE, ZeroDivisionError, OcilError):
            continue  # a result that cannot be read is reported when it is needed, not here
    return {kind: statistics.median(ratios) for kind, ratios in found.items()}


def _kind(config: RunConfig) -> tuple[str, ...]:
    learner = config.learner
    return config.method, config.dataset, learner.precision, learner.network, learner.freeze, learner.features
