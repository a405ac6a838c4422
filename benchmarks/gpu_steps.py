"""How long a step takes on a GPU: by method, precision and number of seeds side by side, and where the time goes.

    python benchmarks/gpu_steps.py [--methods afs er] [--profile] [--json OUT.json] [--add] [--quick]

Images are random (the cost of a step does not depend on them): CIFAR-100's shapes and settings, memory 5000. Each row
also has what the table of `ocil.experiments.estimate` expects of the step's passes (``tabled_ms``), and the measured
time as a multiple of it: the ``kernel_factor`` of the method's class, if it is far from 1 (1.15 or more on either side)
and ten seeds were timed in bf16. Numbers belong into results/performance/h200-steps.json, which a test compares with
these factors.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from ocil.data import CATALOG
from ocil.devices import pick_device
from ocil.engines.bench import made_up, measure
from ocil.experiments.estimate import MILLISECONDS, Size, cost_of_step
from ocil.methods import METHODS
from ocil.precision import numerics
from ocil.runs.build import build
from ocil.runs.captured import CapturedStepper
from ocil.runs.config import RunConfig, resolve
from ocil.streams import Stream

NARROW = {"width": 1}


def profile(method: str, precision: str, device: torch.device) -> str:
    """The kernels of five steps of one seed, the longest first."""
    data = made_up(100, (32, 32, 3), 120)
    config = resolve(method, "cifar100", settings={"precision": precision})
    # Steps cannot be recorded on the stream that CUDA uses unless told otherwise.
    with numerics(config.learner.precision), torch.cuda.stream(torch.cuda.Stream(device)):
        stepper = CapturedStepper(build(config, data, device), Stream(data, config.stream, device=device))
        for number in range(600):
            stepper.learn(number)
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as found:
            for number in range(600, 605):
                stepper.learn(number)
            torch.cuda.synchronize()
    return found.key_averages().table(sort_by="cuda_time_total", row_limit=25)


def tabled(config: RunConfig) -> float:
    """The ms of a step on a GPU by the table that time estimates are made from, without the method's factor."""
    a_pass, an_image = MILLISECONDS[f"cuda {config.learner.precision}"]
    cost = cost_of_step(config, Size.of(CATALOG["cifar100"]))
    return a_pass * cost.passes + an_image * cost.images


def merged(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All rows; a new one takes the place of the old one of the same method, precision and number of seeds."""
    rows = {(row["method"], row["precision"], row["seeds"]): row for row in (*old, *new)}
    return list(rows.values())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--add", action="store_true", help="keep the other rows of the file")
    parser.add_argument("--methods", nargs="+", default=[name for name, info in METHODS.items() if not info.offline])
    parser.add_argument("--precisions", nargs="+", default=["bf16"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 10])
    parser.add_argument("--plain", action="store_true", help="steps as they are written, not captured")
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--quick", action="store_true", help="a tiny network, on a CPU too: does it run?")
    options = parser.parse_args()
    if not (options.quick or torch.cuda.is_available()):
        parser.error("this needs a GPU; --quick runs on a CPU too")
    device = pick_device()
    data = made_up(100, (8, 8, 3) if options.quick else (32, 32, 3), 120)
    rows = []
    for method in options.methods:
        for precision in options.precisions:
            for seeds in options.seeds:
                review = {"review": True} if METHODS[method].memory else {}
                settings = {"precision": precision, **review, **(NARROW if options.quick else {})}
                configs = [resolve(method, "cifar100", seed=seed, settings=settings) for seed in range(seeds)]
                timing = measure(configs, data, device, repeats=5, seconds=options.seconds, captured=not options.plain)
                expected = tabled(configs[0])
                factor = round(timing.ms_per_step / expected, 2) if expected else None  # one that only stores has none
                rows.append(timing.to_json() | {"tabled_ms": round(expected, 3), "kernel_factor": factor})
                times = f"{timing.ms_per_step:.3f}, review {timing.ms_per_review_step}"
                print(f"{method} {precision} {seeds}: {times}, kernel_factor {factor}", flush=True)
                torch.cuda.empty_cache()
            if options.profile:
                print(profile(method, precision, device), flush=True)
    if options.json:
        if options.add and options.json.exists():
            rows = merged(json.loads(options.json.read_text())["rows"], rows)
        content = {"device": rows[0]["device"], "torch": torch.__version__, "rows": rows}
        options.json.write_text(json.dumps(content, indent=1))


if __name__ == "__main__":
    main()
