"""What other networks, other optimisers and data on the host cost on a GPU.

    python benchmarks/gpu_networks.py [--json OUT.json] [--quick]

Steps: ER and AFS at the settings of CIFAR-100 with memory 5000, by network, precision and optimiser, as they are
written and captured as CUDA graphs; beside each the memory that was estimated and that was taken. Batches: ER on images
that are on the GPU, that are read ahead from a folder of raw arrays, and that are read in the loop. Images are random.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ocil.data import Dataset
from ocil.devices import pick_device
from ocil.engines.bench import made_up, measure
from ocil.errors import OcilError
from ocil.precision import numerics
from ocil.runs.build import build
from ocil.runs.captured import CapturedStepper
from ocil.runs.config import resolve
from ocil.runs.fit import dataset_bytes, run_bytes
from ocil.runs.stepper import Stepper
from ocil.streams import DeviceData, Stream
from ocil.streams.prefetch import HostBatches

STEPS: list[tuple[str, dict[str, Any]]] = [
    ("er", {}),
    ("er", {"optimizer": "adam"}),
    ("er", {"optimizer": "adamw"}),
    ("er", {"precision": "tf32"}),
    ("er", {"network": "resnet18"}),
    ("er", {"network": "resnet18", "optimizer": "adam"}),
    ("er", {"network": "resnet18", "precision": "tf32"}),
    ("afs", {}),
    ("afs", {"network": "resnet18"}),
    ("afs", {"network": "resnet18", "precision": "tf32"}),
    ("er", {"network": "timm:tf_efficientnet_lite0"}),
    ("er", {"network": "timm:tf_efficientnet_lite0", "freeze": "backbone"}),
]
QUICK = {"reduced-resnet18": "reduced-resnet18(width=1)", "resnet18": "resnet18(width=2)"}


def steps(device: torch.device, seeds: tuple[int, ...], seconds: float, quick: bool) -> list[dict[str, Any]]:
    data = made_up(100, (8, 8, 3) if quick else (32, 32, 3), 120)
    rows = []
    for method, given in STEPS:
        settings = {"network": "reduced-resnet18", "precision": "bf16", **given}
        if quick:
            if settings["network"] not in QUICK:
                continue
            settings["network"] = QUICK[settings["network"]]
        for count in seeds:
            try:
                configs = [resolve(method, "cifar100", seed=seed, settings=settings) for seed in range(count)]
                for captured in (False, True) if count == 1 else (True,):
                    timing = measure(configs, data, device, repeats=5, seconds=seconds, captured=captured)
                    estimated = dataset_bytes(data) + count * run_bytes(configs[0], data)
                    about = {"settings": settings, "captured": captured, "estimated_bytes": estimated}
                    rows.append(timing.to_json() | about)
                    print(
                        f"{method} {settings} seeds {count}, {'captured' if captured else 'as written'}: "
                        f"{timing.ms_per_step:.3f} ms per step, {estimated / 1e9:.2f} GB estimated, "
                        f"{(timing.peak_bytes or 0) / 1e9:.2f} GB taken",
                        flush=True,
                    )
            except OcilError as error:  # timm may be missing
                print(f"{method} {settings}: {error}", flush=True)
            if device.type == "cuda":
                torch.cuda.empty_cache()
    return rows


def batches(device: torch.device, count: int, quick: bool) -> list[dict[str, Any]]:
    """Milliseconds per step of one run by where its images are."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        made = made_up(100, (8, 8, 3) if quick else (64, 64, 3), max(count // 10, 1))
        data = Dataset.from_arrays(made.train_x, made.train_y, made.test_x, made.test_y, store=Path(folder) / "images")
        settings = {"precision": "bf16", **({"width": 1} if quick else {})}
        config = resolve("er", "cifar100", settings=settings)
        for place in ("on the device", "read ahead", "read in the loop"):
            cuda = torch.cuda.Stream(device) if device.type == "cuda" else None
            with torch.cuda.stream(cuda), numerics(config.learner.precision):
                resident = DeviceData(data, device, resident=place == "on the device")
                stream = Stream(data, config.stream, resident=resident)
                if place == "read in the loop":
                    fetch = in_the_loop(data, stream)
                    stream.fetch = fetch  # type: ignore[method-assign]
                learner = build(config, data, device)
                stepper = (CapturedStepper if cuda else Stepper)(learner, stream)
                for number in range(count // 2):
                    stepper.learn(number)
                synchronize(device)
                began = time.perf_counter()
                for number in range(count // 2, count):
                    stepper.learn(number)
                synchronize(device)
                took = 1000 * (time.perf_counter() - began) / (count - count // 2)
                stream.close()
            rows.append({"images": place, "ms_per_step": took})
            print(f"images {place}: {took:.3f} ms per step of ER", flush=True)
    return rows


def in_the_loop(data: Dataset, stream: Stream) -> Callable[[int], tuple[Tensor, Tensor]]:
    """Reads each batch when it is asked for, and copies it to the device."""
    host = HostBatches(data.train_x, data.train_y, stream.arrivals.samples, stream.bounds)

    def fetch(number: int) -> tuple[Tensor, Tensor]:
        x, y = host.read(number)
        return x.to(stream.device), y.to(stream.device)

    return fetch


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--seconds", type=float, default=1.0, help="for each measurement")
    parser.add_argument("--quick", action="store_true", help="tiny networks, on a CPU too: does it run?")
    options = parser.parse_args()
    if not (options.quick or torch.cuda.is_available()):
        parser.error("this needs a GPU; --quick runs on a CPU too")
    device = pick_device()
    found = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "batches": batches(device, 40 if options.quick else 2000, options.quick),
        "steps": steps(device, (1,) if options.quick else (1, 3), options.seconds, options.quick),
    }
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
