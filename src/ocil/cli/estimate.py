"""About how long runs will take: from finished runs of the same kind, else from a table of measured times."""

import math
import platform
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ocil.methods import method

if TYPE_CHECKING:
    from ocil.config import RunConfig
    from ocil.data import Dataset, DatasetInfo
    from ocil.engine.local import Job

# Milliseconds of a pass through the network, forward and backward, and of each image in it: 32x32 pixels, width 20.
# One NVIDIA H200 with ten runs side by side, divided by ten: results/ and docs/performance.md (AFS 10 + 200 images in
# 1.05 ms, ER 10 + 10 in 0.32 ms, a review of 10 in 0.15 ms for bf16). One run on one ARM core: docs/performance.md.
MILLISECONDS = {
    "cuda bf16": (0.12, 0.0037),
    "cuda tf32": (0.30, 0.0134),
    "cuda fp32": (0.60, 0.0378),
    "cpu": (19.0, 16.0),
}
# What a step took there in bf16 over what its passes and images come to, where that is not about 1
# (results/performance/h200-steps.json): GSS's gradients of single samples have no fused kernels.
SLOWER = {"gss": 3.3, "agem": 1.4, "aser": 1.2}
MEASURED_ON = {"cuda": "one NVIDIA H200", "cpu": "one ARM core a run"}
SIDE_BY_SIDE = 10  # on a GPU; it is full then


class Size(NamedTuple):
    """What the cost of a run depends on in a dataset."""

    train: int
    test: int
    classes: int
    pixels: int

    @classmethod
    def of(cls, data: "Dataset | DatasetInfo") -> "Size":
        from ocil.data import Dataset

        height, width, _ = data.image_shape
        if isinstance(data, Dataset):
            return cls(len(data.train_y), len(data.test_y), data.num_classes, height * width)
        return cls(data.train, data.test, data.classes, height * width)


class Work(NamedTuple):
    """Passes through the network and the images in them. A pass without gradients counts a third."""

    passes: float
    images: float

    def times(self, count: float) -> "Work":
        return Work(count * self.passes, count * self.images)

    def plus(self, other: "Work") -> "Work":
        return Work(self.passes + other.passes, self.images + other.images)


Step = Callable[[Any, int, Size], Work]
STEPS: dict[str, Step] = {  # what a stream batch of b images costs a method; others are taken to replay as ER does
    "afs": lambda c, b, _: Work(2, b + c.memory_batch * (2 if c.views == "both" else 1)),
    "scr": lambda c, b, _: Work(2, 2 * (b + c.memory_batch)),
    "aaer": lambda c, b, _: Work(3, b + 2 * c.memory_batch),
    "mir": lambda c, b, _: Work(3, b + c.memory_batch + 2 * c.candidates / 3),
    "dvc": lambda c, b, _: Work(4, 2 * (b + c.memory_batch + c.candidates / 3)),
    "gss": lambda c, b, _: Work(4, b + c.memory_batch + c.groups * c.group_size),
    "aser": lambda c, b, size: Work(4, b + c.memory_batch + 2 * c.per_class * size.classes / 3),
    "ocm": lambda c, b, _: Work(3, 32 * (b + c.memory_batch)),
    "gdumb": lambda c, b, _: Work(0, 0),
}


def step(config: "RunConfig", size: Size) -> Work:
    """A stream batch."""
    info, batch = method(config.method), config.stream.batch_size
    if info.name in STEPS:
        return STEPS[info.name](config.learner, batch, size)
    return Work(2, batch + config.learner.memory_batch) if info.memory else Work(1, batch)


def work(config: "RunConfig", size: Size, slower: float = 1.0) -> Work:
    """A whole run: stream, reviews, what a task's end calls for, evaluations. ``slower`` is for the stream's steps."""
    stream = config.stream
    learner: Any = config.learner  # some methods have fields of their own that matter here
    batches = stream.epochs * size.train // stream.batch_size
    total = step(config, size).times(batches * slower)
    tasks = 1 if stream.boundary == "iid" else stream.tasks
    if learner.review:
        count = batches // learner.review_every if learner.review_every else tasks
        total = total.plus(_passes_over_memory(config, size, count, learner.review_batch))
    if hasattr(learner, "rehearsal_epochs"):
        total = total.plus(
            _passes_over_memory(config, size, tasks, learner.rehearsal_batch).times(learner.rehearsal_epochs)
        )
    return total.plus(Work(0, tasks * (size.test + size.train / stream.tasks) / 3))


def _passes_over_memory(config: "RunConfig", size: Size, count: int, batch: int) -> Work:
    filled = sum(min(config.learner.memory, size.train * (n + 1) / count) for n in range(count))
    return Work(filled / batch, filled)


@dataclass(frozen=True)
class Estimator:
    """Seconds that a run will take among the others, and all of them together."""

    device: str
    """cuda or cpu."""
    side_by_side: int
    ratios: dict[tuple[str, str, str], float]
    """Measured over tabled seconds, by method, dataset and precision."""

    @classmethod
    def of(cls, job: "Job", workers: int, sizes: dict[str, Size]) -> "Estimator":
        """Looks at the finished runs of a job that were made on this kind of device.

        What a cluster has is not known here: the estimate is for one machine with the device of this one.
        """
        import torch

        from ocil.engine.local import cores

        on_gpu = torch.cuda.is_available() if job.device == "auto" else job.device.startswith("cuda")
        name = platform.machine()
        if on_gpu:
            name = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
        side_by_side = SIDE_BY_SIDE if on_gpu else workers or max(1, cores() // job.threads)
        bare = cls("cuda" if on_gpu else "cpu", side_by_side, {})
        return replace(bare, ratios=_ratios(job.root, name, sizes, bare))

    def seconds(self, config: "RunConfig", size: Size) -> float:
        """Of one run, others running beside it."""
        return self.tabled(config, size) * self.ratios.get(_kind(config), 1.0)

    def tabled(self, config: "RunConfig", size: Size) -> float:
        on_gpu = self.device == "cuda"
        kind = f"cuda {config.learner.precision}" if on_gpu else "cpu"
        a_pass, an_image = MILLISECONDS[kind]
        scale = size.pixels / 1024 * math.pow(config.learner.width / 20, 1.0 if on_gpu else 1.5)
        need = work(config, size, SLOWER.get(config.method, 1.0) if kind == "cuda bf16" else 1.0)
        return (need.passes * a_pass + need.images * an_image * scale) / 1000 * (SIDE_BY_SIDE if on_gpu else 1)

    def together(self, seconds: Sequence[float]) -> float:
        if not seconds:
            return 0.0
        total = sum(seconds) / self.side_by_side
        return total if self.device == "cuda" else max(total, *seconds)

    def source(self, configs: "Sequence[RunConfig]") -> str:
        """Where the numbers for these runs come from, in words."""
        known = sum(_kind(config) in self.ratios for config in configs)
        table = f"a table measured on {MEASURED_ON[self.device]} (docs/performance.md; it may be far off elsewhere)"
        if known == len(configs):
            return "from finished runs of the same method, dataset and device"
        if not known:
            return f"from {table}"
        return f"from finished runs of the same method, dataset and device for {known} runs, from {table} for the rest"


def roughly(seconds: float) -> str:
    """``40 s``, ``12 min``, ``5 h 20 min``, ``9 days``: no more digits than an estimate has."""
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    if minutes < 60:
        return f"{minutes} min"
    hours, rest = divmod(minutes, 60)
    return f"{hours} h {rest:02d} min" if hours < 48 else f"{round(hours / 24)} days"


def _ratios(root: Path, device: str, sizes: dict[str, Size], bare: Estimator) -> dict[tuple[str, str, str], float]:
    from ocil.config import RunConfig
    from ocil.errors import OcilError
    from ocil.results import UNREADABLE, read_json

    found: dict[tuple[str, str, str], list[float]] = {}
    for path in root.glob("*/seed-*/result.json"):
        try:
            content = read_json(path)
            if content["environment"]["device"] != device or content["config"]["dataset"] not in sizes:
                continue
            config = RunConfig.from_json(content["config"])
            tabled = bare.tabled(config, sizes[config.dataset])
            found.setdefault(_kind(config), []).append(content["wall_seconds"] / tabled)
        except (*UNREADABLE, ZeroDivisionError, OcilError):
            continue  # what cannot be read is reported when it is needed, not here
    return {kind: statistics.median(ratios) for kind, ratios in found.items()}


def _kind(config: "RunConfig") -> tuple[str, str, str]:
    return config.method, config.dataset, config.learner.precision
