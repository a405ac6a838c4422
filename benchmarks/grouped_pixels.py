"""How much grouped pixels speed up a training step: the same step with and without them, by turns in one process.

    python benchmarks/grouped_pixels.py [--out OUT.json] [--sides 32 84] [--learners 1 10] [--repeats 15] [--quick]

A step is forward, cross-entropy and backward of 10 stream images, the same for a memory batch (AFS: 200 images, ER:
10), and SGD, in bf16 at width 20, captured as a CUDA graph. Learners side by side have a CUDA stream each. Times are ms
per step of one learner; ``gain`` is the time without groups divided by the time with them, repeat by repeat.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

QUICK = "--quick" in sys.argv
if QUICK:
    os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
import triton  # noqa: E402

from ocil import kernels  # noqa: E402
from ocil.kernels import network as kernel_network  # noqa: E402
from ocil.kernels import tiles  # noqa: E402
from ocil.learning.sgd import SGD  # noqa: E402
from ocil.networks import ReducedResNet18, build  # noqa: E402
from ocil.precision import numerics  # noqa: E402

DEVICE = torch.device("cpu" if QUICK else "cuda")
CLASSES = 100
STEPS = {"afs": (10, 200), "er": (10, 10)}
QUICK_STEPS = {"afs": (2, 3), "er": (2, 2)}
VARIANTS = {"grouped": tiles.GROUP_UP_TO, "plain": 0}
SECONDS = 0.1
"""The shortest time of one measurement."""

Graph = tuple["torch.cuda.CUDAGraph", "torch.cuda.Stream"]


@contextmanager
def variant(name: str) -> Iterator[None]:
    """Plans made inside this block, at a network's first pass, use grouped pixels or not."""
    before = tiles.GROUP_UP_TO
    tiles.GROUP_UP_TO = VARIANTS[name]
    kernel_network._compiled.clear()  # other kernels than before: compile them many at a time again
    try:
        yield
    finally:
        tiles.GROUP_UP_TO = before


class Learner:
    """A network and the fixed images of its steps."""

    def __init__(self, side: int, counts: tuple[int, ...], width: int, seed: int) -> None:
        self.network: ReducedResNet18 = build((side, side, 3), CLASSES, width, seed, DEVICE, "bf16")
        self.optimizer = SGD(self.network.parameters(), 0.1)
        generator = torch.Generator().manual_seed(seed)
        self.batches = []
        for count in counts:
            images = torch.rand((count, 3, side, side), generator=generator).to(DEVICE)
            labels = torch.randint(CLASSES, (count,), generator=generator).to(DEVICE)
            self.batches.append((images.to(memory_format=torch.channels_last), labels))

    def step(self) -> None:
        self.optimizer.zero_grad()
        for images, labels in self.batches:
            F.cross_entropy(self.network.head(self.features(images)), labels).backward()
        self.optimizer.step()

    def features(self, images: torch.Tensor) -> torch.Tensor:
        return kernels.features(self.network, images, into_grad=True)

    def groups(self) -> list[int]:
        return [layer.group for layer in kernel_network.plan_for(self.network, self.batches[0][0]).layers]

    def captured(self) -> Graph:
        stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            for _ in range(3):
                self.step()
            self.optimizer.zero_grad()
            torch.cuda.synchronize()
            with torch.cuda.graph(graph, stream=stream):
                self.step()
        torch.cuda.synchronize()
        return graph, stream


def milliseconds(graphs: list[Graph], replays: int) -> float:
    """Milliseconds per step of one learner."""
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(replays):
        for graph, stream in graphs:
            with torch.cuda.stream(stream):
                graph.replay()
    torch.cuda.synchronize()
    return (time.perf_counter() - started) / replays / len(graphs) * 1e3


def summary(values: list[float]) -> dict[str, float]:
    low, middle, high = statistics.quantiles(values, n=4)
    found = {"median": middle, "quartile_1": low, "quartile_3": high, "min": min(values), "max": max(values)}
    return {name: round(value, 5) for name, value in found.items()}


def compared(timers: dict[str, Callable[[], float]], repeats: int) -> dict[str, object]:
    """Every timer once per repeat, the order turned round each time."""
    times: dict[str, list[float]] = {name: [] for name in timers}
    for number in range(repeats):
        for name in list(timers)[:: 1 if number % 2 else -1]:
            times[name].append(timers[name]())
    gains = [plain / grouped for plain, grouped in zip(times["plain"], times["grouped"], strict=True)]
    return {"ms": {name: summary(values) for name, values in times.items()}, "gain": summary(gains)}


def timers_for(learners: dict[str, list[Learner]], count: int) -> dict[str, Callable[[], float]]:
    graphs = {name: [learner.captured() for learner in found[:count]] for name, found in learners.items()}
    for found in graphs.values():
        milliseconds(found, 20)  # warm
    replays = max(5, round(SECONDS / (milliseconds(graphs["plain"], 20) * count / 1e3)))
    return {name: partial(milliseconds, found, replays) for name, found in graphs.items()}


def learners_of(side: int, counts: tuple[int, ...], width: int, most: int) -> dict[str, list[Learner]]:
    """Learners of both variants after a step, which made their plans and compiled their kernels."""
    learners: dict[str, list[Learner]] = {}
    for name in VARIANTS:
        with variant(name):
            learners[name] = [Learner(side, counts, width, seed) for seed in range(most)]
            for learner in learners[name]:
                learner.step()
    for name, found in learners.items():
        assert (max(found[0].groups()) > 1) == (name == "grouped"), (name, found[0].groups())
    return learners


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="a JSON file to write, after every row")
    parser.add_argument("--sides", type=int, nargs="+", default=[11] if QUICK else [32, 84], help="of images")
    parser.add_argument("--learners", type=int, nargs="+", default=[1, 10], help="side by side")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--quick", action="store_true", help="tiny, in Triton's interpreter: does it run?")
    options = parser.parse_args()
    if not (QUICK or torch.cuda.is_available()):
        parser.error("this needs a GPU; --quick runs on a CPU too")
    width, steps = (4, QUICK_STEPS) if QUICK else (20, STEPS)
    result: dict[str, object] = {
        "device": "cpu" if QUICK else torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "width": width,
        "repeats": options.repeats,
    }
    rows: list[dict[str, object]] = []
    result["rows"] = rows
    with numerics("bf16"):
        for side in options.sides:
            for method, counts in steps.items():
                started = time.perf_counter()
                learners = learners_of(side, counts, width, max(options.learners))
                with torch.no_grad():
                    features = {name: found[0].features(found[0].batches[1][0]) for name, found in learners.items()}
                apart = float((features["grouped"] - features["plain"]).norm() / features["plain"].norm())
                for count in options.learners:
                    row: dict[str, object] = {"step": method, "images": list(counts), "side": side, "learners": count}
                    row["features_apart"] = apart
                    timers = {name: lambda: 1.0 for name in learners} if QUICK else timers_for(learners, count)
                    row |= compared(timers, options.repeats)
                    rows.append(row)
                    print(f"[{time.perf_counter() - started:5.1f} s]", json.dumps(row), flush=True)
                    if options.out:
                        options.out.write_text(json.dumps(result, indent=1) + "\n")
                del learners
                if not QUICK:
                    torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
