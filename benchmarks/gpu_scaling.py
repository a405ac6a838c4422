"""How the cost of a step grows on a GPU: with seeds side by side, memory, classes and precision.

    python benchmarks/gpu_scaling.py OUT.json [--methods afs er] [--seconds 1]

CIFAR-100's shapes, random images. `python tools/performance_figures.py OUT.json` draws the curves.
"""

import argparse
import json
import time
from pathlib import Path

import torch

from ocil.bench import made_up, measure
from ocil.config import resolve

SEEDS = (1, 2, 5, 10, 20, 40)
MEMORY = (100, 1_000, 5_000, 20_000, 100_000)
CLASSES = (10, 100, 1_000)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--methods", nargs="+", default=["afs", "er"])
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--kinds", nargs="+", default=["precision", "seeds", "memory", "classes"])
    parser.add_argument("--seconds", type=float, default=1.0)
    options = parser.parse_args()
    device = torch.device("cuda")
    rows = []

    def row(kind: str, at: object, method: str, data: object, seeds: int = 10, **settings: object) -> None:
        settings = {"precision": options.precision, "tasks": 5, **settings}
        configs = [resolve(method, "cifar100", seed=seed, settings=settings) for seed in range(seeds)]
        started = time.perf_counter()
        timing = measure(configs, data, device, repeats=5, seconds=options.seconds)  # type: ignore[arg-type]
        rows.append({"kind": kind, "at": at, **timing.to_json()})
        took = time.perf_counter() - started
        print(kind, at, method, f"{timing.ms_per_step:.3f} ms a seed-step, {took:.1f} s", flush=True)
        options.out.write_text(
            json.dumps({"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}, indent=1)
        )
        torch.cuda.empty_cache()

    usual = made_up(100, (32, 32, 3), 120)
    for method in options.methods:
        for precision in ("fp32", "tf32", "bf16") if "precision" in options.kinds else ():
            row("precision", precision, method, usual, precision=precision)
        for seeds in SEEDS if "seeds" in options.kinds else ():
            row("seeds", seeds, method, usual, seeds)
        for memory in MEMORY if "memory" in options.kinds else ():
            row("memory", memory, method, usual, memory=memory)
        for classes in CLASSES if "classes" in options.kinds else ():
            row("classes", classes, method, made_up(classes, (32, 32, 3), 12_000 // classes))


if __name__ == "__main__":
    main()
