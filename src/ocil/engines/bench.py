"""How fast a method's step is on this machine, and how much faster it could be.

The floor of a step is the time that its forward and backward passes must take: on a CPU the bare passes themselves,
timed in the same run; on a GPU the larger of operations over matrix rate and bytes over copy bandwidth, both measured.
"""

import gc
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ocil import precision
from ocil.data import Dataset
from ocil.methods.base import Learner
from ocil.methods.passes import Pass
from ocil.networks import InputShape, Network, evaluating, is_image, to_float
from ocil.runs.build import build, network_of, refuse_wrong_inputs
from ocil.runs.captured import CapturedStepper, can_be_captured
from ocil.runs.config import RunConfig
from ocil.runs.features import Encoder
from ocil.runs.stepper import Stepper
from ocil.streams import DeviceData, Stream

FIRST_TASK = 20  # steps before a task's end, so that classes have been seen and images stored
FORWARD, TRAINED = 3, 10  # times a fused step reads or writes each convolution's output: forward, and with backward


@dataclass(frozen=True)
class Timing:
    """Medians over repeats; ``spread`` is the distance between the quartiles, relative to the median."""

    method: str
    device: str
    precision: str
    seeds: int
    ms_per_step: float
    """One stream batch of one seed; with several seeds side by side, the time of all divided by their number."""
    spread: float
    ms_per_review_step: float | None
    ms_per_rehearsal_step: float | None
    """None for a method that does not train on its memory when a task ends."""
    steps_per_second: float
    images_per_second: float
    """Images that go through the network, over all seeds."""
    images_per_step: int
    floor_ms: float
    share_of_floor: float
    peak_bytes: int | None
    network: str
    parameters: int
    """Numbers that the network learns; those of its head and of what is frozen are left out."""
    multiply_adds: int
    """What the features of one image cost."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def made_up(classes: int, input_shape: InputShape, per_class: int) -> Dataset:
    """Random images or vectors: the cost of a step does not depend on what they show."""
    rng = np.random.default_rng(0)
    labels = np.arange(classes, dtype=np.int64)
    train = np.repeat(labels, per_class)

    def draw(count: int) -> NDArray[Any]:
        if is_image(input_shape):
            return rng.integers(0, 256, (count, *input_shape), dtype=np.uint8)
        return rng.random((count, *input_shape), dtype=np.float32)

    names = tuple(f"class {label}" for label in labels)
    return Dataset("made-up", draw(len(train)), train, draw(classes), labels, names)


def made_up_vectors(data: Dataset, length: int) -> Dataset:
    """Random vectors with the labels of a dataset, in the place of features of its images."""
    rng = np.random.default_rng(0)
    train, test = (rng.random((len(labels), length), dtype=np.float32) for labels in (data.train_y, data.test_y))
    return replace(data, train_x=train, test_x=test)


def measure(
    configs: Sequence[RunConfig],
    data: Dataset,
    device: torch.device,
    repeats: int = 7,
    seconds: float = 4.0,
    captured: bool = True,
) -> Timing:
    """Time the steady state of configurations that differ by their seed, side by side on a GPU, one alone on a CPU.

    Without ``captured`` a GPU takes the steps as they are written, one operation after the other.
    """
    config = configs[0]
    if (encoder := Encoder.of(config.learner)) is not None and data.is_images:
        data = made_up_vectors(data, *encoder.vector_shape(data.input_shape))
    gpu = device.type == "cuda"
    refuse_wrong_inputs(config, data)
    if gpu:
        gc.collect()  # frees the learners that were measured before
        torch.cuda.reset_peak_memory_stats(device)
    with precision.numerics(config.learner.precision):
        device_data = DeviceData(data, device)
        seeds = [_TimedSeed(c, data, device_data, captured) for c in (configs if gpu else configs[:1])]
        passes = seeds[0].learner.passes(config.learner, config.stream.batch_size, data.num_classes)
        step_ms, spread = _time([seed.step for seed in seeds], device, repeats, seconds)
        review_ms = task_end_ms = None
        if config.learner.review:
            review_ms, _ = _time([seed.review for seed in seeds], device, repeats, seconds / 4)
        if seeds[0].learner.has_task_end_steps:
            task_end_ms, _ = _time([seed.task_end for seed in seeds], device, repeats, seconds / 4)
        peak = torch.cuda.max_memory_allocated(device) if gpu else None  # before the floor takes memory of its own
        floor = _floor_gpu(config, data, passes, device) if gpu else _floor_cpu(seeds[0], passes, repeats, seconds / 2)
    images, count, network = sum(each.images for each in passes), len(seeds), seeds[0].learner.network
    return Timing(
        method=config.label,
        device=torch.cuda.get_device_name(device) if gpu else "cpu",
        precision=precision.on(device, config.learner.precision),
        seeds=count,
        ms_per_step=step_ms / count,
        spread=spread,
        ms_per_review_step=None if review_ms is None else review_ms / count,
        ms_per_rehearsal_step=None if task_end_ms is None else task_end_ms / count,
        steps_per_second=1000 * count / step_ms,
        images_per_second=1000 * count * images / step_ms,
        images_per_step=images,
        floor_ms=floor,
        share_of_floor=floor * count / step_ms,
        peak_bytes=peak,
        network=config.learner.network,
        parameters=_learned_numbers(network),
        multiply_adds=network.multiply_adds,
    )


def _learned_numbers(network: Network) -> int:
    """How many weights are trained, without those of the head."""
    body = (value for name, value in network.named_parameters() if not name.startswith("head."))
    return sum(value.numel() for value in body if value.requires_grad)


class _TimedSeed:
    """One seed in its steady state, on a CUDA stream of its own if there is a GPU."""

    def __init__(self, config: RunConfig, data: Dataset, device_data: DeviceData, captured: bool) -> None:
        self.stream = Stream(data, config.stream, config.seed, resident=device_data)
        self.cuda = torch.cuda.Stream(device_data.device) if device_data.device.type == "cuda" else None
        self.number = 0
        with torch.cuda.stream(self.cuda):
            self.learner: Learner = build(config, data, device_data.device)
            replayed = captured and self.cuda is not None and can_be_captured(config)
            self.stepper = (CapturedStepper if replayed else Stepper)(self.learner, self.stream)
            for _ in range(FIRST_TASK):
                self.step()
            self._settle()
            self.learner.task_ended()  # methods that need task ends take their usual step only after the first
            self._settle()
            self.task_end_batch = next(self.learner.task_end_batches(), None)
            for _ in range(2):
                self.step()
                self.review()
                self.task_end()

    def _settle(self) -> None:
        while not self.learner.shapes_are_static():
            self.step()

    def task_end(self) -> None:
        with torch.cuda.stream(self.cuda):
            if self.task_end_batch is not None:
                self.stepper.task_end_step(self.task_end_batch)

    def step(self) -> None:
        with torch.cuda.stream(self.cuda):
            self.stepper.learn(self.number)
        self.number = (self.number + 1) % len(self.stream)

    def review(self) -> None:
        with torch.cuda.stream(self.cuda):
            if self.learner.config.review:
                size = min(self.learner.config.review_batch, self.learner.config.memory)
                self.stepper.review_step(torch.arange(size, device=self.learner.device))


def _time(
    steps: Sequence[Callable[[], None]], device: torch.device, repeats: int, seconds: float
) -> tuple[float, float]:
    """Milliseconds of one round over all steps: median and relative quartile distance."""

    def rounds(count: int) -> float:
        started = time.perf_counter()
        for _ in range(count):
            for step in steps:
                step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return (time.perf_counter() - started) / count * 1e3

    once = rounds(2)
    count = max(1, int(seconds * 1e3 / repeats / once))
    times = [rounds(count) for _ in range(repeats)]
    low, middle, high = statistics.quantiles(times, n=4)
    return middle, (high - low) / middle


def _floor_cpu(seed: _TimedSeed, passes: list[Pass], repeats: int, seconds: float) -> float:
    """The bare passes: forward, sum, backward, on batches of the sizes that a step has."""
    if not passes:
        return 0.0
    network = seed.learner.network
    x, _ = seed.stream.fetch(0)
    batches = [(to_float(x[torch.arange(size) % len(x)]), trains) for size, trains in passes]

    def take() -> None:
        for batch, trains in batches:
            with torch.set_grad_enabled(trains):
                total = network(batch).sum()
            if trains:
                total.backward()

    milliseconds, _ = _time([take], torch.device("cpu"), repeats, seconds)
    network.zero_grad()
    return milliseconds


def _floor_gpu(config: RunConfig, data: Dataset, passes: list[Pass], device: torch.device) -> float:
    operations, elements = _cost(config, data)
    used = precision.on(device, config.learner.precision)
    size = 2 if used == "bf16" else 4
    kind = torch.bfloat16 if used == "bf16" else torch.float32
    before, torch.backends.cuda.matmul.allow_tf32 = torch.backends.cuda.matmul.allow_tf32, used == "tf32"
    a = torch.randn(4096, 4096, device=device, dtype=kind)
    block = torch.empty(1 << 28, dtype=torch.uint8, device=device)
    other = torch.empty_like(block)
    product_ms, _ = _time([lambda: torch.mm(a, a)], device, 3, 0.1)  # type: ignore[list-item]
    copy_ms, _ = _time([lambda: other.copy_(block)], device, 3, 0.1)  # type: ignore[list-item]
    torch.backends.cuda.matmul.allow_tf32 = before
    computed = sum(each.images * (3 if each.trains else 1) for each in passes)
    moved = sum(each.images * (TRAINED if each.trains else FORWARD) for each in passes)
    by_operations = operations * computed / (2 * 4096**3 / product_ms)
    by_bytes = moved * elements * size / (2 * len(block) / copy_ms)
    return max(by_operations, by_bytes)


def _cost(config: RunConfig, data: Dataset) -> tuple[int, int]:
    """Operations of the forward pass of one input, and how many numbers its convolutions and linear layers write."""
    network = network_of(config.learner, data.input_shape)
    counted = [0, 0]

    def count(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        if isinstance(module, nn.Conv2d | nn.Linear):
            counted[0] += 2 * output.numel() * module.weight[0].numel()
            counted[1] += output.numel()

    hooks = [module.register_forward_hook(count) for module in network.modules()]
    with torch.no_grad(), evaluating(network):
        network.plain_features(to_float(torch.from_numpy(data.train_x[:1].copy())))
    for hook in hooks:
        hook.remove()
    return counted[0], counted[1]
