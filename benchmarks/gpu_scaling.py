"""How the cost of a step grows on a GPU: with seeds side by side, memory, classes and precision.

    python benchmarks/gpu_scaling.py OUT.json [--methods afs er] [--seconds 1] [--quick]

CIFAR-100's shapes, random images. `python tools/performance_figures.py OUT.json` draws the curves.
"""

import argparse
import json
import time
from pathlib import Path

import torch

from ocil.data import Dataset
from ocil.devices import pick_device
from ocil.engines.bench import made_up, measure
from ocil.runs.config import resolve

SEEDS = (1, 2, 5, 10, 20, 40)
MEMORY = (100, 1_000, 5_000, 20_000, 100_000)
CLASSES = (10, 100, 1_000)
NARROW = {"width": 1, "memory_batch": 10}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--methods", nargs="+", default=["afs", "er"])
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--kinds", nargs="+", default=["precision", "seeds", "memory", "classes"])
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--quick", action="store_true", help="one point per curve, tiny, on a CPU too: does it run?")
    options = parser.parse_args()
    quick = options.quick
    if not (quick or torch.cuda.is_available()):
        parser.error("this needs a GPU; --quick runs on a CPU too")
    device = pick_device()
    shape, points, usual_seeds = ((8, 8, 3), 1, 1) if quick else ((32, 32, 3), None, 10)
    rows = []

    def row(kind: str, at: object, method: str, data: Dataset, seeds: int = usual_seeds, **settings: object) -> None:
        settings = {"precision": options.precision, "tasks": 5, **settings, **(NARROW if quick else {})}
        configs = [resolve(method, "cifar100", seed=seed, settings=settings) for seed in range(seeds)]
        started = time.perf_counter()
        timing = measure(configs, data, device, repeats=5, seconds=options.seconds)
        rows.append({"kind": kind, "at": at, **timing.to_json()})
        took = time.perf_counter() - started
        print(kind, at, method, f"{timing.ms_per_step:.3f} ms per seed and step, {took:.1f} s", flush=True)
        options.out.write_text(
            json.dumps({"device": timing.device, "torch": torch.__version__, "rows": rows}, indent=1)
        )
        torch.cuda.empty_cache()

    usual = made_up(100, shape, 120)
    for method in options.methods:
        for precision in ("fp32", "tf32", "bf16")[:points] if "precision" in options.kinds else ():
            row("precision", precision, method, usual, precision=precision)
        for seeds in SEEDS[:points] if "seeds" in options.kinds else ():
            row("seeds", seeds, method, usual, seeds)
        for memory in MEMORY[:points] if "memory" in options.kinds else ():
            row("memory", memory, method, usual, memory=memory)
        for classes in CLASSES[:points] if "classes" in options.kinds else ():
            row("classes", classes, method, made_up(classes, shape, 12_000 // classes))


if __name__ == "__main__":
    main()
