"""Does a model's memory grow with the length of its stream? Host memory and time per step along an endless stream.

    python benchmarks/stream_length.py [--images 1000000] [--methods er afs] [--device cpu] [--json OUT.json]

Images are random and tiny, labels are text, classes keep arriving until there are 100, reviews come every 500 batches,
the network is narrow: what is measured is whether anything piles up.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch

from ocil.engines.bench import made_up
from ocil.online.images import ImageFormat
from ocil.online.model import Model, Recipe

BATCH, LOOKS, CLASSES, SHAPE = 100, 20, 100, (9, 9, 3)  # large batches: a million images in minutes


def resident_bytes() -> int:
    """The memory of this process now."""
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
    data = made_up(CLASSES, SHAPE, 10)
    rng = np.random.default_rng(0)
    rows = []
    for method in options.methods:
        settings = {"memory_batch": 10}
        model = Model(Recipe(method, 1000, BATCH, 2, 500, settings=settings), ImageFormat(SHAPE), device)
        steps = max(LOOKS, options.images // BATCH)
        part = steps // LOOKS
        for look in range(1, LOOKS + 1):
            started = time.perf_counter()
            for step in range((look - 1) * part, look * part):
                known = min(CLASSES, 2 + step * 2 * CLASSES // steps)  # all of them after half of the stream
                index = rng.integers(known * 10, size=BATCH)
                model.learn(data.train_x[index], [f"class {number}" for number in data.train_y[index]])
            row = {
                "method": method,
                "images": model.samples,
                "classes": len(model.labels),
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
