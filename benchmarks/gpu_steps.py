"""How long a step takes on a GPU: by method, precision and number of seeds side by side, and where the time goes.

    python benchmarks/gpu_steps.py [--profile] [--json OUT.json]

Images are random (the cost of a step does not depend on them): CIFAR-100's shapes, memory 5000, batch 10 + 100 images.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import torch

from ocil.bench import made_up
from ocil.config import resolve
from ocil.data import Dataset
from ocil.engine.captured import CapturedStepper
from ocil.precision import numerics
from ocil.runner import build
from ocil.streams import DeviceData, Stream


def lanes(method: str, precision: str, seeds: int, data: Dataset, resident: DeviceData, **settings: object) -> list:
    found = []
    for seed in range(seeds):
        settings = {"precision": precision, **settings}
        config = resolve(method, "cifar100", seed=seed, memory=5000, settings=settings)
        lane = torch.cuda.Stream()
        with torch.cuda.stream(lane):
            stream = Stream(data, config.stream, seed, resident=resident)
            stepper = CapturedStepper(build(config, data, torch.device("cuda")), stream)
            for number in range(14):
                stepper.learn(number)
            stepper.slots.copy_(torch.arange(10, device="cuda"))
            stepper.learner.review_step(stepper.slots)
            stepper.review_step = stepper.record(lambda s=stepper: s.learner.review_step(s.slots))
        found.append((stepper, lane))
    torch.cuda.synchronize()
    return found


def milliseconds(found: list, kind: str, rounds: int) -> float:
    """Wall time of a round: one step of every seed."""
    times = []
    for _ in range(5):
        started = time.perf_counter()
        for _ in range(rounds):
            for stepper, lane in found:
                with torch.cuda.stream(lane):
                    (stepper.step if kind == "step" else stepper.review_step).replay()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - started) / rounds * 1e3)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--json")
    parser.add_argument("--methods", nargs="+", default=["afs", "er"])
    parser.add_argument("--precisions", nargs="+", default=["fp32", "tf32", "bf16"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 10])
    options = parser.parse_args()
    data = made_up(100, (32, 32, 3), 500)
    resident = DeviceData(data, "cuda")
    rows = []
    for method in options.methods:
        for precision in options.precisions:
            for seeds in options.seeds:
                with numerics(precision):
                    found = lanes(method, precision, seeds, data, resident)
                    row = {"method": method, "precision": precision, "seeds": seeds}
                    for kind in ("step", "review"):
                        row[f"{kind}_ms_per_seed"] = round(milliseconds(found, kind, 30) / seeds, 4)
                    row["peak_gb"] = round(torch.cuda.max_memory_allocated() / 1e9, 2)
                    rows.append(row)
                    print(row, flush=True)
                    if options.profile and seeds == 1:
                        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
                            for _ in range(5):
                                found[0][0].step.replay()
                            torch.cuda.synchronize()
                        print(profile.key_averages().table(sort_by="cuda_time_total", row_limit=25))
                    del found
                    torch.cuda.empty_cache()
    if options.json:
        with Path(options.json).open("w") as file:
            json.dump(
                {"device": torch.cuda.get_device_name(), "torch": torch.__version__, "rows": rows}, file, indent=1
            )


if __name__ == "__main__":
    main()
