"""The network's GPU kernels: whether they are right, which tiles are fastest, how long a pass takes, and where.

    python benchmarks/fused_kernels.py [--plain] [--tune] [--side 84] [--no-groups] [--out FOLDER]

A pass is forward and backward of images of 32 pixels, or ``--side``, captured as a CUDA graph, replayed alone and ten
on ten streams. ``--no-groups``: every row of a product is one pixel.
"""

import argparse
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

from ocil import kernels
from ocil.kernels import launch, tiles
from ocil.kernels import network as fused_network
from ocil.kernels.plan import Layer, weight_splits
from ocil.kernels.tiles import Tile
from ocil.networks import ReducedResNet18, build
from ocil.precision import numerics

STARTED = time.perf_counter()
WORKERS = 14
SIDE = 32


def log(*what: object) -> None:
    print(f"[{time.perf_counter() - STARTED:5.1f}]", *what, flush=True)


def network(seed: int = 0, precision: str = "bf16", device: str = "cuda") -> ReducedResNet18:
    return build((SIDE, SIDE, 3), 100, 20, seed, torch.device(device), precision)


def images(batch: int, seed: int = 0, device: str = "cuda") -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    found = torch.rand((batch, 3, SIDE, SIDE), generator=generator).to(device)
    return found.to(memory_format=torch.channels_last)


# ---------------------------------------------------------------- tiles


def candidates(kind: str, ci: int, co: int, size: int, stride: int) -> list[Tile]:
    """What is used now and its neighbours: one value changed at a time."""
    now = tiles.tile(kind, ci, co, size, stride)
    found = [now]
    for name, factors in {"rows": (0.5, 2), "cols": (0.5, 2), "depth": (0.5, 2), "warps": (0.5, 2)}.items():
        found += [now._replace(**{name: int(getattr(now, name) * factor)}) for factor in factors]
    found += [now._replace(stages=stages) for stages in (2, 3, 4)]
    if kind.startswith("wgrad"):
        found += [now._replace(programs=programs) for programs in (80, 160, 320, 640)]
    if kind.endswith(tiles.GROUPED):  # a program takes all of a group's columns
        found = [t for t in found if t.cols == now.cols]
        found += [now._replace(rows=2 * now.rows, warps=2 * now.warps), now._replace(depth=2 * now.depth, stages=3)]
    return [t for t in dict.fromkeys(found) if min(t.rows, t.cols, t.depth) >= 16 and t.rows * t.cols <= 4096 * t.warps]


class Case:
    """One kernel of the pass, ready to be launched with any tile."""

    def __init__(self, kind: str, layer: Layer, batch: int, device: str, holder: launch.NetworkPass) -> None:
        # The plan in ``holder`` keeps the network's parameters alive.
        self.kind, self.layer, self.holder, self.batch = kind, layer, holder, batch
        shape = layer.shape
        inputs = (batch * shape.pixels, shape.stored_inputs)
        outputs = (batch * shape.out_pixels, shape.stored_outputs)

        def some(shape: tuple[int, int]) -> torch.Tensor:
            if device == "cpu":  # only to be compiled for
                return torch.empty(shape, dtype=torch.bfloat16)
            return torch.randn(shape, device=device).to(torch.bfloat16)

        self.x = images(batch, device=device) if shape.inputs == 3 else some(inputs)
        self.back = some(inputs)
        self.y, self.g = some(outputs), some(outputs)

    @property
    def key(self) -> tiles.Key:
        s = self.layer.shape
        return (self.kind + (tiles.GROUPED if self.layer.group > 1 else ""), s.inputs, s.outputs, s.size, s.stride)

    def __call__(self, t: Tile) -> None:
        p, layer = self.holder, self.layer
        inputs = layer.shape.inputs
        if self.kind == "conv":
            launch.conv(p, layer, self.x, t=t)
        elif self.kind == "wgrad":
            launch.wgrad(p, fitted(layer, t, self.batch), self.x, self.g, self.y, store=inputs != 3, t=t)
        else:
            before = next(b.conv1 for b in p.plan.blocks if b.conv2.shape.outputs == inputs)
            launch.dgrad(p, layer, self.g, launch.Target(before, self.back), t=t)


def fitted(layer: Layer, t: Tile, batch: int) -> Layer:
    """The layer with the splits that a tile asks for."""
    parts, span = weight_splits(t, layer.shape, batch, batch, layer.group)
    return replace(layer, splits=parts, span=span, at=layer.at._replace(partial=0))


def cases(batch: int, device: str) -> list[Case]:
    """One case per shape."""
    net = network(device=device)
    plan = fused_network.plan_for(net, images(batch, device=device))
    holder = launch.NetworkPass(plan, torch.device(device))
    holder.counters.zero_()
    holder.stats.normal_()
    holder.packed.normal_(std=0.05)
    holder.grads = torch.empty(plan.grads_size, device=device)
    holder.partial = torch.empty(1 << 27, device=device)  # any number of splits
    found: dict[tiles.Key, Case] = {}
    for layer in plan.layers:
        s = layer.shape
        for kind in ("conv", "dgrad", "wgrad"):
            if kind == "dgrad" and (s.size == 1 or s.inputs == 3):
                continue
            key = (kind, s.inputs, s.outputs, s.size, s.stride)
            if key not in found:
                found[key] = Case(kind, layer, batch, device, holder)
    return list(found.values())


def one_pass(net: ReducedResNet18, x: torch.Tensor) -> None:
    kernels.features(net, x, into_grad=True).sum().backward()


def compile_part(number: int, workers: int, tune: bool) -> None:
    """Compile every ``workers``-th kernel, so that the main process finds it in Triton's cache."""
    seen: dict[str, None] = {}

    def call(kernel, grid, *arguments, **options) -> None:
        name = kernel.fn.__name__ + str(sorted(options.items())) + str([a for a in arguments if isinstance(a, int)])
        if name not in seen:
            seen[name] = None
            if len(seen) % workers == number:
                with contextlib.suppress(Exception):  # the main process meets it again and raises it
                    kernel.warmup(*arguments, grid=grid, **options)

    launch._call = call
    for batch in (200, 10):
        net = network(device="cpu")
        x = images(batch, device="cpu")
        for _ in range(2):  # the second one adds to the gradients of the first
            pooled = kernels.features(net, x, into_grad=True)
            pooled.sum().backward()
    if tune:
        for case in cases(200, "cpu"):
            for t in candidates(*case.key):
                case(t)


def graph_of(work, repeats: int, streams: int) -> torch.cuda.CUDAGraph:
    """Capture a CUDA graph. ``torch.cuda.graph`` would collect garbage first, and there are hundreds of graphs."""
    graph = torch.cuda.CUDAGraph()
    main, *side = (torch.cuda.Stream() for _ in range(streams + 1))
    with torch.cuda.stream(main):
        graph.capture_begin()
        for stream in side:
            stream.wait_stream(main)
            with torch.cuda.stream(stream):
                for _ in range(repeats):
                    work()
        for stream in side:
            main.wait_stream(stream)
        graph.capture_end()
    return graph


def microseconds(graph: torch.cuda.CUDAGraph, works: int, replays: int = 5) -> float:
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    times = []
    for _ in range(replays):
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / works)
    return statistics.median(times)


def tune(limit: float, rows: list[dict]) -> None:
    """Time every candidate, alone and four side by side; use the best of the latter from here on."""
    for case in cases(200, "cuda"):
        tried = []
        for t in candidates(*case.key):
            if time.perf_counter() - STARTED > limit:
                log("tuning stopped: out of time")
                return
            try:
                case(t)
                together = microseconds(graph_of(lambda case=case, t=t: case(t), 3, 4), 12)
                alone = microseconds(graph_of(lambda case=case, t=t: case(t), 5, 1), 5)
            except Exception as error:  # too much shared memory, for example
                rows.append({"key": case.key, "tile": repr(t), "error": repr(error)[:200]})
                continue
            cost = together
            if case.kind == "wgrad":  # what adding up the splits costs
                cost += fitted(case.layer, t, 200).splits * case.layer.partial_size * 8 / 3e6
            rows.append({"key": case.key, "tile": repr(t), "together": together, "alone": alone, "cost": cost})
            tried.append((cost, alone, t))
        tried.sort(key=lambda entry: entry[0])
        if tried:
            tiles.MEASURED[case.key] = tried[0][2]
            log(case.key, *(f"| {cost:.1f} ({alone:.1f}) {short(t)}" for cost, alone, t in tried[:3]))
        torch.cuda.empty_cache()


def short(t: Tile) -> str:
    return f"{t.rows}x{t.cols}x{t.depth} w{t.warps} s{t.stages} p{t.programs}"


# ---------------------------------------------------------------- whole passes


def plain_pass(net: ReducedResNet18, x: torch.Tensor) -> None:
    net.plain_features(x).sum().backward()


def capture(work, net: ReducedResNet18, x: torch.Tensor, stream: torch.cuda.Stream) -> torch.cuda.CUDAGraph:
    with torch.cuda.stream(stream):
        for _ in range(3):
            net.zero_grad()
            work(net, x)
        net.zero_grad()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            work(net, x)
    return graph


def pass_times(name: str, work, precision: str, batch: int, detail: bool = False) -> dict:
    row = {"variant": name, "batch": batch}
    with numerics(precision):
        graphs = []
        for seed in range(10):
            stream = torch.cuda.Stream()
            net, x = network(seed, precision), images(batch, seed)
            torch.cuda.synchronize()
            graphs.append((capture(work, net, x, stream), stream, net, x))
        torch.cuda.synchronize()
        for count in (1, 10):
            times = []
            for _ in range(5):
                started = time.perf_counter()
                for _ in range(20):
                    for graph, stream, *_ in graphs[:count]:
                        with torch.cuda.stream(stream):
                            graph.replay()
                torch.cuda.synchronize()
                times.append((time.perf_counter() - started) / 20 / count * 1e3)
            row[f"ms_{count}"] = round(statistics.median(times), 4)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA], acc_events=True) as profile:
            graphs[0][0].replay()
            torch.cuda.synchronize()
        events = sorted(profile.events(), key=lambda e: e.time_range.start)
        events = [(e.name, e.time_range.elapsed_us()) for e in events if "CUDA" in str(e.device_type)]
        row["nodes"] = len(events)
        row["kernel_us"] = round(sum(us for _, us in events), 1)
        if detail:
            by_name: dict[str, list[float]] = {}
            for kernel, us in events:
                by_name.setdefault(kernel[:40], []).append(round(us, 1))
            for kernel, values in sorted(by_name.items(), key=lambda item: -sum(item[1])):
                log(f"  {kernel:40s} {sum(values):8.1f} us in {len(values)}:", *values)
            row["events"] = events
    log({k: v for k, v in row.items() if k != "events"})
    return row


def check() -> dict:
    """Gradients of fused and autocast against float32, and the same bits twice and next to other streams."""

    def error(found: torch.Tensor, expected: torch.Tensor) -> float:
        return float((found.double() - expected.double()).norm() / expected.double().norm())

    result = {}
    for batch in (10, 200):
        x, direction = images(batch), torch.randn(batch, network().feature_size, device="cuda")
        found = {}
        for name in ("fp32", "autocast", "fused", "again"):
            net = network(precision="fp32" if name == "fp32" else "bf16")
            with numerics("fp32"):
                out = kernels.features(net, x) if name in ("fused", "again") else net.plain_features(x)
                (out * direction).sum().backward()
            grads = {n: p.grad for n, p in net.named_parameters() if p.grad is not None}
            found[name] = {"features": out.detach()} | grads
            found[name] |= {n: b.clone() for n, b in net.named_buffers()}
        exact = found["fp32"]
        for name in ("autocast", "fused"):
            errors = {n: error(v, exact[n]) for n, v in found[name].items()}
            ordered = sorted(errors.values())
            worst = max(errors, key=lambda n: errors[n])
            result[f"{name}_{batch}"] = errors
            middle = ordered[len(ordered) // 2]
            log(name, batch, f"features {errors['features']:.4f} median {middle:.4f} worst {ordered[-1]:.4f} {worst}")
        same = all(torch.equal(found["fused"][n], found["again"][n]) for n in exact)
        log("fused twice, same bits:", same)
    nets = [network(seed) for seed in range(10)]
    x = images(200)
    for net in nets[:1]:
        one_pass(net, x)
    alone = nets[0].conv1.weight.grad.clone()
    nets[0].zero_grad()
    torch.cuda.synchronize()
    for net in nets:
        stream = torch.cuda.Stream()
        with torch.cuda.stream(stream):
            one_pass(net, x)
    torch.cuda.synchronize()
    log("among nine others, same bits:", torch.equal(alone, nets[0].conv1.weight.grad))
    return result


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tune", action="store_true")
    parser.add_argument("--plain", action="store_true", help="time cuDNN too")
    parser.add_argument("--limit", type=float, default=150, help="seconds after which tuning stops")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--side", type=int, default=SIDE, help="of the images, in pixels")
    parser.add_argument("--no-groups", action="store_true", help="without pixels in groups where channels are few")
    parser.add_argument("--cold", action="store_true", help="only measure how long compiling everything takes")
    parser.add_argument("--compile", type=int, help="(a worker of the above)")
    options = parser.parse_args()
    globals()["SIDE"] = options.side
    if options.no_groups:
        tiles.GROUP_UP_TO = 0
    shape = ["--side", str(options.side), *(["--no-groups"] if options.no_groups else [])]
    if options.compile is not None:
        compile_part(options.compile, WORKERS, options.tune)
        return
    if not torch.cuda.is_available():
        parser.error("this needs a GPU")
    if options.cold:
        net, x = network(), images(200)
        started = time.perf_counter()
        one_pass(net, x)
        torch.cuda.synchronize()
        log(f"a first pass with nothing compiled: {time.perf_counter() - started:.1f} s")
        return
    fused_network._compile = lambda plan, images: None  # the workers do that here
    command = [sys.executable, __file__, *shape, *(["--tune"] if options.tune else []), "--compile"]
    workers = [subprocess.Popen([*command, str(number)]) for number in range(WORKERS)]
    result: dict[str, object] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    result |= {"side": options.side, "groups": not options.no_groups, "passes": []}

    def save() -> None:
        if options.out:
            (options.out / "fused_kernels.json").write_text(json.dumps(result, indent=1))

    passes: list[dict] = result["passes"]  # type: ignore[assignment]
    if options.plain:
        for precision in ("tf32", "bf16"):
            for batch in (200, 10):
                passes.append(pass_times(f"cudnn {precision}", plain_pass, precision, batch))
                save()
    codes = [worker.wait() for worker in workers]
    log("compiled", "" if not any(codes) else codes)
    result["errors"] = check()
    save()
    for batch in (200, 10):
        passes.append(pass_times("fused", one_pass, "bf16", batch, detail=batch == 200))
        save()
    if options.tune:
        rows: list[dict] = []
        result["tiles"] = rows
        tune(options.limit, rows)
        save()
        log({key: repr(t) for key, t in tiles.MEASURED.items()})
        for batch in (200, 10):
            passes.append(pass_times("fused, tuned", one_pass, "bf16", batch, detail=True))
            save()
    with tempfile.TemporaryDirectory() as cache:
        environment = os.environ | {"TRITON_CACHE_DIR": cache}
        try:
            subprocess.run([sys.executable, __file__, *shape, "--cold"], env=environment, timeout=60)
        except subprocess.TimeoutExpired:
            log("compiling took more than a minute")


if __name__ == "__main__":
    main()
