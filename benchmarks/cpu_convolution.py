"""Forward and backward of the network on this CPU: PyTorch's own convolution and ours, in one run.

python benchmarks/cpu_convolution.py [--quick]
"""

import argparse
import statistics
import time

import torch

from ocil.kernels import convolution
from ocil.networks import ReducedResNet18

CASES = (  # images, side, channels, width
    (10, 32, 3, 20),
    (100, 32, 3, 20),
    (10, 14, 1, 8),
    (40, 14, 1, 8),
    (200, 14, 1, 8),
)
QUICK = ((2, 8, 1, 2),)


def milliseconds(network: ReducedResNet18, x: torch.Tensor, repeats: int) -> float:
    times = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        network(x).sum().backward()
        times.append((time.perf_counter() - started) * 1e3)
    return statistics.median(times[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only the smallest case, once: does it run?")
    options = parser.parse_args()
    cases, repeats = (QUICK, 1) if options.quick else (CASES, 7)
    torch.set_num_threads(1)
    print(
        "| images | side | width | PyTorch, ms | channels-last, ms | ours, ms | gain |\n|---|---|---|---|---|---|---|"
    )
    for count, side, channels, width in cases:
        row = []
        for layout, own in (
            (torch.contiguous_format, False),
            (torch.channels_last, False),
            (torch.channels_last, True),
        ):
            convolution.SLOW_BACKWARD = own
            network = ReducedResNet18((side, side, channels), 10, width).to(memory_format=layout)
            x = torch.rand(count, channels, side, side).contiguous(memory_format=layout)
            row.append(milliseconds(network, x, repeats))
        print(f"| {count} | {side} | {width} | " + " | ".join(f"{t:.1f}" for t in row) + f" | {row[0] / row[2]:.2f} |")


if __name__ == "__main__":
    main()
