"""Small steps on a GPU: stream and memory batch in one pass of the kernels or in two, and whole steps of methods.

    python benchmarks/small_steps.py [--json OUT.json] [--seeds 10] [--stride steps=4] [--limit 80] [--quick]

Ten learners side by side, captured, bf16, CIFAR-100's shapes and settings, random images. A row of ``passes`` is
forward, cross-entropy and backward of 10 stream images and a memory batch, and SGD; a row of ``steps`` is a method's
whole ``learn``. Both are timed with one pass for the two batches and with two, by turns in one process. Times are ms
per learner and stream batch: the median of the repeats. ``kernels`` counts what one such step launches.

It takes about a minute, most of it to compile the kernels. After ``--limit`` seconds it begins nothing new.
"""

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from ocil.data import Dataset
from ocil.devices import pick_device
from ocil.engines.bench import made_up
from ocil.errors import OcilError
from ocil.learning.sgd import SGD
from ocil.methods import METHODS
from ocil.networks import Network, ReducedResNet18, build
from ocil.precision import numerics
from ocil.runs.build import build as build_learner
from ocil.runs.captured import CapturedStepper
from ocil.runs.config import resolve
from ocil.runs.stepper import Stepper
from ocil.streams import DeviceData, Stream

STARTED = time.perf_counter()
STREAM, MEMORY = 10, (200, 100, 50, 20)
CLASSES = 100
FIRST = 60  # steps that fill the memory, and the one that is recorded
VARIANTS = {"one pass": True, "two passes": False}

Work = Callable[[], None]


def log(*what: object) -> None:
    print(f"[{time.perf_counter() - STARTED:5.1f}]", *what, flush=True)


@contextmanager
def passes(together: bool) -> Iterator[None]:
    """Inside the block, where steps are recorded, two batches pass together or one after the other."""
    own = ReducedResNet18.outputs_of
    if not together:
        ReducedResNet18.outputs_of = Network.outputs_of  # type: ignore[method-assign]
    try:
        yield
    finally:
        ReducedResNet18.outputs_of = own  # type: ignore[method-assign]


class PassLearner:
    """A network with the fixed images of its steps, on a CUDA stream of its own."""

    def __init__(self, counts: tuple[int, int], side: int, width: int, seed: int, device: torch.device) -> None:
        self.network = build((side, side, 3), CLASSES, width, seed, device, "bf16")
        self.optimizer = SGD(self.network.parameters(), 0.1)
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        generator = torch.Generator().manual_seed(seed)
        self.batches = []
        for count in counts:
            images = torch.rand((count, 3, side, side), generator=generator).to(device)
            labels = torch.randint(CLASSES, (count,), generator=generator).to(device)
            self.batches.append((images.to(memory_format=torch.channels_last), labels))

    def step(self) -> None:
        self.optimizer.zero_grad()
        outputs = self.network.outputs_of([images for images, _ in self.batches])
        stream, memory = (F.cross_entropy(o.scores, y) for o, (_, y) in zip(outputs, self.batches, strict=True))
        (stream + memory).backward()
        self.optimizer.step()

    def work(self) -> Work:
        """A step: captured, where there is a GPU."""
        if self.stream is None:
            return self.step
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(self.stream):
            for _ in range(3):
                self.step()
            self.optimizer.zero_grad()
            torch.cuda.synchronize()
            graph.capture_begin()  # torch.cuda.graph would collect garbage each time
            try:
                self.step()
            finally:
                graph.capture_end()

        def replay() -> None:
            with torch.cuda.stream(self.stream):
                graph.replay()

        return replay


class MethodLearner:
    """A learner of a method in its steady state, on a CUDA stream of its own."""

    def __init__(self, method: str, settings: dict[str, Any], seed: int, data: Dataset, resident: DeviceData) -> None:
        config = resolve(method, "cifar100", seed=seed, settings=settings)
        self.stream = torch.cuda.Stream(resident.device) if resident.device.type == "cuda" else None
        self.batches = Stream(data, config.stream, seed, resident=resident)
        with torch.cuda.stream(self.stream):
            learner = build_learner(config, data, resident.device)
            self.stepper = (Stepper if self.stream is None else CapturedStepper)(learner, self.batches)
        self.number = 0

    def work(self) -> Work:
        """A step; the first ones are taken here, among them the one that is recorded."""
        while self.number < (2 if self.stream is None else FIRST):
            self.step()
        return self.step

    def step(self) -> None:
        with torch.cuda.stream(self.stream):
            self.stepper.learn(self.number)
        self.number = (self.number + 1) % len(self.batches)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def milliseconds(works: list[Work], rounds: int, device: torch.device) -> float:
    """Per learner and step."""
    synchronize(device)
    started = time.perf_counter()
    for _ in range(rounds):
        for work in works:
            work()
    synchronize(device)
    return (time.perf_counter() - started) / rounds / len(works) * 1e3


def kernels_of(work: Work, device: torch.device) -> int | None:
    """How many kernels and copies a step launches; None if the profiler does not say."""
    if device.type != "cuda":
        return None
    try:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as found:
            work()
            torch.cuda.synchronize()
        return sum("CUDA" in str(event.device_type) for event in found.events()) or None
    except RuntimeError as error:
        log("no profile:", error)
        return None


def compared(make: Callable[[int], Any], seeds: int, repeats: int, seconds: float, device: torch.device) -> dict:
    """Learners with both ways to pass, timed by turns; ``gain`` is by how much two passes take longer than one."""
    works: dict[str, list[Work]] = {}
    for name, together in VARIANTS.items():
        with passes(together):
            works[name] = [make(seed).work() for seed in range(seeds)]
    times: dict[str, list[float]] = {name: [] for name in works}
    rounds = 1
    if seconds:
        rounds = max(3, round(seconds * 1e3 / milliseconds(works["two passes"], 5, device) / seeds))
    for number in range(repeats):
        for name in list(works)[:: 1 if number % 2 else -1]:
            times[name].append(milliseconds(works[name], rounds, device))
    gains = [two / one for one, two in zip(times["one pass"], times["two passes"], strict=True)]
    row: dict[str, Any] = {"ms": {name: round(statistics.median(each), 4) for name, each in times.items()}}
    row["gain"] = round(statistics.median(gains), 3)
    row["gain_range"] = [round(min(gains), 3), round(max(gains), 3)]
    row["kernels"] = {name: kernels_of(each[0], device) for name, each in works.items()}
    return row


def settings_of(words: list[str]) -> dict[str, Any]:
    return {name: json.loads(value) for name, _, value in (word.partition("=") for word in words)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="a file to write, after every row")
    parser.add_argument("--seeds", type=int, default=10, help="learners side by side")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.15, help="of one measurement, at least")
    parser.add_argument("--methods", nargs="*", default=["afs", "stride", "er"])
    parser.add_argument("--stride", nargs="*", default=["steps=4"], help="settings of stride, as NAME=VALUE")
    parser.add_argument("--limit", type=float, default=80, help="seconds after which nothing new begins")
    parser.add_argument("--quick", action="store_true", help="tiny, on a CPU too: does it run?")
    options = parser.parse_args()
    if not (options.quick or torch.cuda.is_available()):
        parser.error("this needs a GPU; --quick runs on a CPU too")
    device = pick_device()
    side, width, memory = (8, 1, MEMORY[-1:]) if options.quick else (32, 20, MEMORY)
    data = made_up(CLASSES, (side, side, 3), 12)
    result: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "seeds": options.seeds,
        "repeats": options.repeats,
        "passes": [],
        "steps": [],
        "left_out": [],
    }
    how = (options.seeds, options.repeats, 0.0 if options.quick else options.seconds, device)

    def take(kind: str, facts: dict[str, Any], make: Callable[[int], Any]) -> None:
        if time.perf_counter() - STARTED > options.limit:
            result["left_out"].append({kind: facts})
        else:
            try:
                result[kind].append(facts | compared(make, *how))
            except OcilError as error:
                result[kind].append(facts | {"error": str(error)})
            log(kind, json.dumps(result[kind][-1]))
            gc.collect()
            if device.type == "cuda":
                torch.cuda.empty_cache()
        if options.json:
            options.json.write_text(json.dumps(result, indent=1) + "\n")

    with numerics("bf16"):
        for count in memory:
            counts = (STREAM, count)
            take("passes", {"images": counts}, lambda seed, c=counts: PassLearner(c, side, width, seed, device))
        resident = DeviceData(data, device)
        for method in options.methods:
            if method not in METHODS:
                log(method, "is not registered")
                continue
            settings: dict[str, Any] = {"precision": "bf16", "width": width}
            if method == "stride":
                settings |= settings_of(options.stride)
            take(
                "steps",
                {"method": method, "settings": settings},
                lambda seed, m=method, s=settings: MethodLearner(m, s, seed, data, resident),
            )
    log("done" if not result["left_out"] else f"out of time: left out {result['left_out']}")


if __name__ == "__main__":
    main()
