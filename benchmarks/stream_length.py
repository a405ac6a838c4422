"""Does a learner's memory grow with the length of its stream? Host memory and time a step along an endless stream.

    python benchmarks/stream_length.py [--images 1000000] [--methods er afs] [--device cpu] [--json OUT.json]

Images are random and tiny (8x8), the network is narrow: what is measured is whether anything piles up.
"""

import argparse
import json
import time
from pathlib import Path

import torch

from ocil.bench import made_up
from ocil.config import resolve
from ocil.runner import build

BATCH, LOOKS = 10, 20


def resident_bytes() -> int:
    """Of this process, now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--images", type=int, default=1_000_000)
    parser.add_argument("--methods", nargs="+", default=["er", "afs"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    device = torch.device(options.device)
    data = made_up(10, (8, 8, 3), 100)
    x, y = torch.from_numpy(data.train_x).to(device), torch.from_numpy(data.train_y).to(device)
    generator = torch.Generator(device).manual_seed(0)
    rows = []
    for method in options.methods:
        config = resolve(method, "made-up", settings={"width": 2, "memory": 1000, "memory_batch": 10, "tasks": 5})
        learner = build(config, data, device)
        part = max(1, options.images // BATCH // LOOKS)
        for look in range(1, LOOKS + 1):
            started = time.perf_counter()
            for _ in range(part):
                index = torch.randint(len(y), (BATCH,), generator=generator, device=device)
                learner.learn(x[index], y[index])
            row = {
                "method": method,
                "images": look * part * BATCH,
                "host_mb": round(resident_bytes() / 1e6, 1),
                "device_mb": round(torch.cuda.memory_allocated() / 1e6, 1) if device.type == "cuda" else None,
                "ms_per_step": round((time.perf_counter() - started) / part * 1e3, 3),
            }
            rows.append(row)
            print(row, flush=True)
    if options.json:
        content = {"torch": torch.__version__, "device": options.device, "rows": rows}
        options.json.write_text(json.dumps(content, indent=1))


if __name__ == "__main__":
    main()
