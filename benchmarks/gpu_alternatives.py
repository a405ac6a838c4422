"""What else could make ten seeds of AFS fast on a GPU: PyTorch's compiler, and all seeds stacked into one network.

    python benchmarks/gpu_alternatives.py [OUT.json]

Times one training pass (forward, cross-entropy, backward) of 200 CIFAR images per seed in bf16, captured as a CUDA
graph, in ms per seed: as PyTorch runs it, compiled, stacked by ``torch.func.vmap`` (grouped convolutions), and fused.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from ocil import networks
from ocil.precision import numerics

SEEDS, IMAGES, CLASSES = 10, 200, 100
DEVICE = torch.device("cuda")


def build(seed: int) -> networks.ReducedResNet18:
    return networks.build((32, 32, 3), CLASSES, 20, seed, DEVICE, "bf16")


def captured(work: Callable[[], None]) -> tuple[torch.cuda.CUDAGraph, torch.cuda.Stream]:
    lane = torch.cuda.Stream()
    with torch.cuda.stream(lane):
        for _ in range(3):
            work()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=lane):
            work()
    return graph, lane


def milliseconds(graphs: list[tuple[torch.cuda.CUDAGraph, torch.cuda.Stream]], seeds: int) -> float:
    times = []
    for _ in range(7):
        torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(20):
            for graph, lane in graphs:
                with torch.cuda.stream(lane):
                    graph.replay()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - started) / 20 / seeds * 1e3)
    return round(statistics.median(times), 4)


def separate(features: Callable[[networks.ReducedResNet18], Callable[[Tensor], Tensor]]) -> float:
    x = torch.rand(IMAGES, 3, 32, 32, device=DEVICE).contiguous(memory_format=torch.channels_last)
    y = torch.arange(IMAGES, device=DEVICE) % CLASSES
    graphs = []
    networks_ = [build(seed) for seed in range(SEEDS)]  # kept: a graph does not keep what it works on
    for network in networks_:
        extract = features(network)

        def work(network: networks.ReducedResNet18 = network, extract: Callable[[Tensor], Tensor] = extract) -> None:
            for parameter in network.parameters():
                parameter.grad = None
            F.cross_entropy(network.head(extract(x)), y).backward()

        graphs.append(captured(work))
    return milliseconds(graphs, SEEDS)


def stacked() -> float:
    """One pass of ten networks on ten batches at once."""
    found = [build(seed) for seed in range(SEEDS)]
    parameters, buffers = torch.func.stack_module_state(found)
    x = torch.rand(SEEDS, IMAGES, 3, 32, 32, device=DEVICE)
    y = torch.arange(IMAGES, device=DEVICE) % CLASSES
    leaves = {name: value.detach().requires_grad_() for name, value in parameters.items()}

    def one(parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor) -> Tensor:
        logits = torch.func.functional_call(found[0], (parameters, buffers), (x,))
        return F.cross_entropy(logits, y)

    def work() -> None:
        torch.func.vmap(one)(leaves, buffers, x).sum().backward()
        for leaf in leaves.values():
            leaf.grad = None

    return milliseconds([captured(work)], SEEDS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path, nargs="?", help="a JSON file to write")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("this needs a GPU")
    found: dict[str, object] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    with numerics("bf16"):
        trials: dict[str, Callable[[], float]] = {
            "fused": lambda: separate(lambda network: network.features),
            "pytorch": lambda: separate(lambda network: network.plain_features),
            "stacked": stacked,
            "compiled": lambda: separate(lambda network: torch.compile(network.plain_features)),
        }
        for name, trial in trials.items():
            started = time.perf_counter()
            try:
                found[name] = trial()
            except Exception as error:  # an alternative that fails is a result too
                found[name] = f"{type(error).__name__}: {error}"[:300]
            print(name, found[name], f"({time.perf_counter() - started:.1f} s)", flush=True)
            torch.cuda.empty_cache()
    if options.out:
        options.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
