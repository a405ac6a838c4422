"""The same steps by another package: ER, MIR and SCR of Avalanche (PyPI, MIT) beside ours, on the same images.

    python benchmarks/peers.py --peer-python VENV/bin/python [--methods er mir scr] [--dataset cifar100] [--steps N]
                               [--repeats 3] [--device cpu] [--threads 1] [--precision tf32] [--json OUT.json]

Avalanche has an environment of its own, and only its public API is called:
``python -m venv VENV && VENV/bin/pip install avalanche-lib==0.6.0 torch==2.13.0``.

Each process learns one task: the images of the dataset's first task, each once, in batches of 10 (in an order of each
package's own), with the reduced ResNet-18, SGD at 0.1 and a memory of 1000. ER replays 10 images in one pass with the
stream's, MIR the 10 most interfered of 50, SCR 100 with a second view of everything. Our methods have these settings
too, whatever their defaults are, and no review. The packages take turns, ``--repeats`` times, each in a process of its
own, with the seeds 0, 1, 2, and so on: the images are the same, initial weights and what is drawn are not.

A table has the median of the repeats: milliseconds of wall time and of processor time per step, the largest memory of
the process up to the last step (on a GPU: of the device), and the accuracy of each repeat on the task's test images.
Ratios are taken within a repeat. Where other work shares the machine, processor time says more than wall time.

Without ``--dataset`` the embedded images are enlarged to 32x32x3, and all ten classes are one task.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

BATCH, MEMORY, LR = 10, 1000, 0.1
REPLAYED = {"er": 10, "mir": 10, "scr": 100}
CANDIDATES = 50
BLOCK = 5  # steps per reading of the clock
PASSED_ON = ("skip", "device", "threads", "precision")  # options of this script that its processes get too
SIDE = 32  # Avalanche's network takes no other images


def task(name: str | None, limit: int) -> dict[str, Any]:
    """The first task of a dataset as arrays; the embedded dataset is enlarged and is one task."""
    import numpy as np

    from ocil import data
    from ocil.runs.config import resolve
    from ocil.streams import Stream

    found = data.load(name or data.DEFAULT)
    config = resolve("er", name or data.DEFAULT, settings={} if name else {"tasks": "1"})
    classes = np.array(Stream(found, config.stream, 0).groups[0])

    def part(x: Any, y: Any) -> tuple[Any, Any]:
        chosen = np.isin(y, classes)
        x, y = x[chosen], np.searchsorted(np.sort(classes), y[chosen])
        if x.shape[1] < SIDE:  # each pixel twice, the rest is a border
            x = x.repeat(2, 1).repeat(2, 2)
            border = SIDE - x.shape[1]
            x = np.pad(x, ((0, 0), (border // 2, border - border // 2), (border // 2, border - border // 2), (0, 0)))
        return np.ascontiguousarray(np.broadcast_to(x, (*x.shape[:3], 3))), y

    (train_x, train_y), (test_x, test_y) = part(found.train_x, found.train_y), part(found.test_x, found.test_y)
    if train_x.shape[1:] != (SIDE, SIDE, 3):
        raise SystemExit(f"{name} has images of {train_x.shape[1:]}: Avalanche's network takes 32x32x3")
    order = np.random.RandomState(0).permutation(len(train_y))[: limit * BATCH or None]
    order = order[: len(order) // BATCH * BATCH]
    return {"train_x": train_x[order], "train_y": train_y[order], "test_x": test_x, "test_y": test_y}


class Clock:
    """Reads wall and processor time every few steps, once the first ones are over, and the largest memory so far."""

    def __init__(self, skipped: int, synchronise: Callable[[], None], peak: Callable[[], int]) -> None:
        self.skipped, self.synchronise, self.peak, self.steps = skipped, synchronise, peak, 0
        self.peak_bytes = 0
        self.marks: list[tuple[float, float]] = []

    def __call__(self) -> None:
        self.steps += 1
        if self.steps >= self.skipped and (self.steps - self.skipped) % BLOCK == 0:
            self.synchronise()
            self.peak_bytes = self.peak()
            self.marks.append((time.perf_counter(), time.process_time()))

    def milliseconds(self) -> tuple[float, float]:
        """Per step: the median of the blocks."""
        pairs = list(zip(self.marks, self.marks[1:], strict=False))
        return tuple(statistics.median(1e3 * (b[k] - a[k]) / BLOCK for a, b in pairs) for k in (0, 1))  # type: ignore[return-value]


def measured(package: str, options: argparse.Namespace) -> dict[str, Any]:
    """What a process of one package measures."""
    import numpy as np
    import torch

    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    device = torch.device(options.device)
    gpu = device.type == "cuda"
    arrays = dict(np.load(options.task))
    if gpu:
        clock = Clock(
            options.skip, lambda: torch.cuda.synchronize(device), lambda: torch.cuda.max_memory_allocated(device)
        )
    else:
        clock = Clock(options.skip, lambda: None, peak_rss)
    learn = {"ours": by_ours, "avalanche": by_avalanche}[package]
    version, accuracy = learn(options.worker_method, arrays, device, options, clock)
    wall, processor = clock.milliseconds()
    return {
        "package": version,
        "method": options.worker_method,
        "torch": torch.__version__,
        "steps": clock.steps,
        "wall_ms": wall,
        "processor_ms": processor,
        "peak_bytes": clock.peak_bytes,
        "accuracy": accuracy,
    }


def by_ours(
    method: str, arrays: dict[str, Any], device: Any, options: argparse.Namespace, clock: Clock
) -> tuple[str, float]:
    import torch

    import ocil
    from ocil.data import Dataset
    from ocil.precision import numerics
    from ocil.runs.build import build
    from ocil.runs.captured import CapturedStepper, can_be_captured
    from ocil.runs.config import resolve
    from ocil.runs.stepper import Stepper
    from ocil.streams import DeviceData, Stream
    from ocil.threads import using

    names = tuple(map(str, range(int(arrays["train_y"].max()) + 1)))
    data = Dataset("task", arrays["train_x"], arrays["train_y"], arrays["test_x"], arrays["test_y"], names)
    own = {"er": {"forward": "joint"}, "mir": {"candidates": CANDIDATES}, "scr": {}}[method]
    settings = {"tasks": 1, "batch_size": BATCH, "lr": LR, "memory_batch": REPLAYED[method], "width": 20}
    settings |= {"precision": options.precision} | own
    config = resolve(
        method, "task", memory=MEMORY, review=False, seed=options.seed, settings=settings, classes=len(names)
    )
    cuda = torch.cuda.Stream(device) if device.type == "cuda" else None
    with using(options.threads), numerics(config.learner.precision), torch.cuda.stream(cuda):
        resident = DeviceData(data, device)
        stream, learner = Stream(data, config.stream, options.seed, resident=resident), build(config, data, device)
        captured = cuda is not None and can_be_captured(config)
        stepper = (CapturedStepper if captured else Stepper)(learner, stream)
        for number in range(len(stream)):
            stepper.learn(number)
            clock()
        score = learner.scorer()
        found = [score(part.to(device)).argmax(1).cpu() for part in torch.from_numpy(data.test_x).split(500)]
    right = (torch.cat(found) == torch.from_numpy(data.test_y)).float().mean()
    return f"ocil {ocil.__version__}", float(right)


def by_avalanche(
    method: str, arrays: dict[str, Any], device: Any, options: argparse.Namespace, clock: Clock
) -> tuple[str, float]:
    import torch

    name_operators()
    import avalanche
    from avalanche.benchmarks import benchmark_from_datasets
    from avalanche.benchmarks.scenarios import task_incremental_benchmark
    from avalanche.benchmarks.scenarios.online import split_online_stream
    from avalanche.benchmarks.utils import as_classification_dataset
    from avalanche.models import SCRModel, SlimResNet18
    from avalanche.training.plugins import EvaluationPlugin, MIRPlugin, ReplayPlugin
    from avalanche.training.storage_policy import ReservoirSamplingBuffer
    from avalanche.training.supervised import SCR, Naive
    from torchvision import transforms

    def dataset(x: Any, y: Any) -> Any:
        made = torch.utils.data.TensorDataset(
            torch.from_numpy(x).permute(0, 3, 1, 2).float() / 255, torch.from_numpy(y)
        )
        made.targets = y.tolist()
        return as_classification_dataset(made)

    class Scr(SCR):  # type: ignore[misc]
        """Class means are wanted for the test alone, not after every ten images."""

        def compute_class_means(self) -> None:
            if clock.steps == steps:
                super().compute_class_means()

    steps = len(arrays["train_y"]) // BATCH
    train, test = (dataset(arrays[f"{part}_x"], arrays[f"{part}_y"]) for part in ("train", "test"))
    benchmark = task_incremental_benchmark(benchmark_from_datasets(train=[train], test=[test]))
    network = SlimResNet18(int(arrays["train_y"].max()) + 1)
    if method == "scr":
        width, network.linear = network.linear.in_features, torch.nn.Identity()
        hidden = [torch.nn.Linear(width, width), torch.nn.ReLU(inplace=True), torch.nn.Linear(width, 128)]
        network = SCRModel(feature_extractor=network, projection=torch.nn.Sequential(*hidden))
    common = {
        "model": network,
        "optimizer": torch.optim.SGD(network.parameters(), lr=LR),
        "train_mb_size": BATCH,
        "eval_mb_size": 500,
        "device": device,
        "evaluator": EvaluationPlugin(loggers=[]),
    }
    if method == "scr":
        views = [transforms.RandomResizedCrop(SIDE, (0.2, 1.0), antialias=True), transforms.RandomHorizontalFlip()]
        views += [transforms.RandomApply([transforms.ColorJitter(0.4, 0.4, 0.4, 0.1)], 0.8)]
        views += [transforms.RandomGrayscale(0.2)]
        more = {"mem_size": MEMORY, "batch_size_mem": REPLAYED[method], "temperature": 0.1}
        strategy = Scr(**common, **more, augmentations=transforms.Compose(views))
    elif method == "mir":
        plugin = MIRPlugin(batch_size_mem=REPLAYED[method], mem_size=MEMORY, subsample=CANDIDATES)
        strategy = Naive(**common, plugins=[plugin])
    else:
        buffer = ReservoirSamplingBuffer(MEMORY)
        plugin = ReplayPlugin(MEMORY, batch_size=BATCH, batch_size_mem=REPLAYED[method], storage_policy=buffer)
        strategy = Naive(**common, plugins=[plugin])
    for experience in split_online_stream(benchmark.train_stream, BATCH, shuffle=False, drop_last=True):
        if clock.steps == steps - 1:
            clock.steps = steps  # so that the last one computes class means; it is not timed
        strategy.train(experience, num_workers=0, drop_last=True)
        if clock.steps < steps:
            clock()
    network.eval()
    with torch.no_grad():
        x = torch.from_numpy(arrays["test_x"]).permute(0, 3, 1, 2).float() / 255
        found = torch.cat([network(part.to(device)).argmax(1).cpu() for part in x.split(500)])
    return f"avalanche {avalanche.__version__}", float((found == torch.from_numpy(arrays["test_y"])).float().mean())


def name_operators() -> None:
    """A torchvision of another build than PyTorch's, as PyPI has for ARM, lacks two operators of its own. No network
    uses them: to name them is enough."""
    import torch

    try:
        import torchvision  # noqa: F401
    except RuntimeError:
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")


def peak_rss() -> int:
    """The largest memory of this process so far, in bytes."""
    import resource

    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if platform.system() == "Darwin" else most * 1024


def start(
    python: str, package: str, method: str, seed: int, folder: Path, options: argparse.Namespace
) -> dict[str, Any]:
    words = [python, __file__, "--worker", package, "--worker-method", method, "--task", str(folder / "task.npz")]
    for name, value in (("seed", seed), *((name, getattr(options, name)) for name in PASSED_ON)):
        words += [f"--{name}", str(value)]
    environment = os.environ | {"OMP_NUM_THREADS": str(options.threads)}
    if package != "ours":
        environment.pop("PYTHONPATH", None)
    ended = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
    if ended.returncode:
        return {"method": method, "error": (ended.stderr.strip().splitlines() or ["no message"])[-1]}
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def summary(method: str, ours: list[dict[str, Any]], peer: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians of the repeats, and ratios (peer / ours) of runs that followed each other."""
    good = [(a, b) for a, b in zip(ours, peer, strict=True) if "error" not in a and "error" not in b]
    found: dict[str, Any] = {"method": method, "ours": ours, "peer": peer}
    if good:
        for name in ("wall_ms", "processor_ms", "peak_bytes"):
            ratios = [b[name] / a[name] for a, b in good if a[name]]
            found[f"{name}_ratio"] = statistics.median(ratios)
            found[f"{name}_ratios"] = [min(ratios), max(ratios)]
    return found


def row(runs: list[dict[str, Any]], method: str) -> str:
    if errors := [run["error"] for run in runs if "error" in run]:
        return f"| {method} | {errors[0]} | | | | |"
    middle = {name: statistics.median(run[name] for run in runs) for name in ("wall_ms", "processor_ms", "peak_bytes")}
    right = [f"{100 * run['accuracy']:.1f}" for run in runs]
    times = f"{middle['wall_ms']:.1f} | {middle['processor_ms']:.1f} | {middle['peak_bytes'] / 2**20:.0f}"
    return f"| {method} | {runs[0]['package']} | {times} | {', '.join(right)} |"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer-python")
    parser.add_argument("--methods", nargs="+", default=list(REPLAYED), choices=list(REPLAYED))
    parser.add_argument("--dataset")
    parser.add_argument("--steps", type=int, default=0, help="of a task, at most; 0: all")
    parser.add_argument(
        "--skip", type=int, default=15, help="steps before the clock starts, so that the memory is filled"
    )
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--precision", default="tf32", help="of ours on a GPU; Avalanche computes in tf32 or fp32")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--worker", choices=("ours", "avalanche"), help=argparse.SUPPRESS)
    parser.add_argument("--worker-method", help=argparse.SUPPRESS)
    parser.add_argument("--task", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        print(json.dumps(measured(options.worker, options)))
        return
    import numpy as np

    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        np.savez(Path(folder) / "task.npz", **task(options.dataset, options.steps))
        print("| method | package | ms per step | processor ms | peak MiB | accuracy % |\n|---|---|---|---|---|---|")
        for method in options.methods:
            ours, peer = [], []
            for seed in range(options.repeats):
                ours.append(start(sys.executable, "ours", method, seed, Path(folder), options))
                if options.peer_python:
                    peer.append(start(options.peer_python, "avalanche", method, seed, Path(folder), options))
            print(row(ours, method), *([row(peer, method)] if peer else []), sep="\n", flush=True)
            found.append(summary(method, ours, peer or ours))
            if "wall_ms_ratio" in found[-1] and peer:
                print(f"{method}: {found[-1]['wall_ms_ratio']:.1f} times our wall time", file=sys.stderr, flush=True)
            if options.json:
                content = {"device": options.device, "machine": platform.machine(), "threads": options.threads}
                content |= {"dataset": options.dataset or "fashion-mini, enlarged", "methods": found}
                options.json.write_text(json.dumps(content, indent=1) + "\n")


if __name__ == "__main__":
    main()
