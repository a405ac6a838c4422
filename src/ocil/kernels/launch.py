"""One function for each kernel: grid, output, and arguments from a layer."""

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from ocil.kernels import backward, forward, grouped, tiles, weights
from ocil.kernels.layout import PACK_COLUMNS, REDUCE_COLUMNS, Norm, PixelGroup, Relu, ReluGrads
from ocil.kernels.plan import PACK_BLOCK, REDUCE_BLOCK, KernelPlan, Layer, counters
from ocil.kernels.tiles import Tile, power, tile_for

ELEMENTS = 4096
"""That a program of an elementwise kernel takes."""


class NetworkPass:
    """The buffers that all layers of one pass share."""

    def __init__(self, plan: KernelPlan, device: torch.device) -> None:
        self.plan = plan
        self.device = device
        self.packed = torch.empty(plan.packed_size, dtype=tiles.DTYPE, device=device)
        self.counters = torch.empty(plan.counters_size, dtype=torch.int32, device=device)
        self.stats = torch.empty(plan.stats_size, dtype=torch.float32, device=device)
        self.grads = self.partial = self.stats  # until the backward pass makes them
        self.accumulate = False

    def weight(self, layer: Layer) -> Tensor:
        return self.packed[layer.at.packed :]

    def turned_weight(self, layer: Layer) -> Tensor:
        return self.packed[layer.at.turned :]

    def stats_of(self, layer: Layer) -> Tensor:
        return self.stats[layer.at.stats :]

    def coefficients(self, layer: Layer) -> Tensor:
        return self.stats[layer.at.stats + 4 * layer.shape.stored_outputs :]

    def norm_grads(self, layer: Layer) -> Tensor:
        return self.grads[layer.at.norm :]

    def forward_counter(self, layer: Layer) -> Tensor:
        return self.counters[layer.at.counters :]

    def backward_counter(self, layer: Layer) -> Tensor:
        return self.counters[layer.at.counters + counters(layer.shape.outputs) :]

    def empty(self, pixels: int, channels: int) -> Tensor:
        return torch.empty((pixels, channels), dtype=tiles.DTYPE, device=self.device)

    def partials(self, programs: int, planes: int, columns: int) -> Tensor:
        return torch.empty(programs * planes * columns, dtype=torch.float32, device=self.device)


class _Pending(threading.local):
    """What a thread would launch, while it only asks which kernels there will be."""

    calls: dict[str, tuple[Any, ...]] | None = None


_pending = _Pending()


def _call(kernel: Any, grid: tuple[int, ...], *arguments: Any, **options: Any) -> None:
    if _pending.calls is None:
        kernel[grid](*arguments, **options)
    else:
        _pending.calls.setdefault(f"{kernel.fn.__name__} {sorted(options.items())}", (kernel, grid, arguments, options))


def compile_all(work: Callable[[], object]) -> None:
    """Compile the kernels that ``work`` would launch, many at a time; launch none."""
    _pending.calls = {}
    try:
        work()
        calls = list(_pending.calls.values())
    finally:
        _pending.calls = None

    def compile_one(call: tuple[Any, ...]) -> None:
        kernel, grid, arguments, options = call
        kernel.warmup(*arguments, grid=grid, **options)

    compile_one(calls.pop())  # Triton reads all of itself once: alone, or every thread would
    with ThreadPoolExecutor(min(16, os.cpu_count() or 1)) as pool:
        for _ in pool.map(compile_one, calls):
            pass


def pack(p: NetworkPass) -> None:
    """Copy all weights into the layout of the kernels, and set the counters to zero."""
    table = p.plan.pack_table
    options = {"COLUMN": PACK_COLUMNS, "COUNTERS": len(p.counters), "BLOCK": PACK_BLOCK}
    _call(weights.pack_kernel, (len(table),), table, p.packed, p.counters, **options)


def _norm(layer: Layer) -> Norm:
    norm = layer.norm
    return Norm(norm.weight, norm.bias, norm.running_mean, norm.running_var)


def _programs(p: NetworkPass, rows: int, of_program: int) -> int:
    """Programs that take so many rows each, if an image has ``rows``. None of them has rows of two batches."""
    first, second = p.plan.first * rows, (p.plan.batch - p.plan.first) * rows
    return int(triton.cdiv(first, of_program) + triton.cdiv(second, of_program))


def _grid(p: NetworkPass, layer: Layer, pixels: int, channels: int, t: Tile) -> tuple[int, int]:
    """Programs over the rows and the columns of a product; an image has so many stored pixels and channels."""
    return _programs(p, pixels // layer.group, t.rows), triton.cdiv(layer.group * channels, t.cols)


def _of(module: Any, name: str, layer: Layer, channels: int, t: Tile) -> tuple[Any, dict[str, Any]]:
    """A kernel of ``forward`` or ``backward``, or where pixels are grouped its counterpart, and its constants."""
    options = {"SHAPE": layer.shape, "TILE": t, **t.launch_options}
    if layer.group == 1:
        return getattr(module, name), options
    if t.cols < layer.group * channels:
        raise ValueError("A program takes all channels of a group.")
    group = PixelGroup(layer.group, layer.packed_length, power(channels, 16, t.cols))
    return getattr(grouped, name), options | {"GROUP": group}


def conv(p: NetworkPass, layer: Layer, x: Tensor, t: Tile | None = None) -> Tensor:
    """The convolution of a layer, and the batch statistics of its output."""
    t = t or tile_for("conv", layer.shape, layer.group)
    pixels, channels = layer.shape.out_pixels, layer.shape.stored_outputs
    grid = _grid(p, layer, pixels, channels, t)
    kernel, options = _of(forward, "conv_kernel", layer, channels, t)
    y, norm = p.empty(p.plan.batch * pixels, channels), layer.norm
    sums = (p.partials(grid[0], 2, layer.group * channels), p.forward_counter(layer))
    statistics = (p.stats_of(layer), _norm(layer), norm.num_batches_tracked)
    numbers = (p.plan.first, p.plan.batch, float(norm.momentum or 0.0), norm.eps)
    _call(kernel, grid, x, p.weight(layer), y, *sums, *statistics, *numbers, CHUNK=t.chunk, **options)
    return y


def infer(p: NetworkPass, layer: Layer, x: Tensor, other: Tensor | None = None, relu: bool = True) -> Tensor:
    """Convolution, normalisation by running statistics, addition and ReLU at once."""
    t = tile_for("conv", layer.shape, layer.group)
    pixels, channels = p.plan.batch * layer.shape.out_pixels, layer.shape.stored_outputs
    grid = (triton.cdiv(pixels // layer.group, t.rows), triton.cdiv(layer.group * channels, t.cols))
    kernel, options = _of(forward, "infer_kernel", layer, channels, t)
    out = p.empty(pixels, channels)
    tensors = (x, p.weight(layer), out, out if other is None else other, _norm(layer))
    _call(kernel, grid, *tensors, p.plan.batch, layer.norm.eps, ADD=other is not None, RELU=relu, **options)
    return out


def activate(
    p: NetworkPass, layer: Layer, y: Tensor, other: Tensor | None = None, other_layer: Layer | None = None
) -> Tensor:
    """Normalisation of ``y``, addition of ``other``, normalised too where it comes from a layer, and ReLU."""
    out = torch.empty_like(y)
    stats = p.stats_of(layer)
    channels = layer.shape.stored_outputs
    cols = power(channels, 16, 64)
    rows = ELEMENTS // cols
    grid = (_programs(p, layer.shape.out_pixels, rows), triton.cdiv(channels, cols))
    added = (y if other is None else other, stats if other_layer is None else p.stats_of(other_layer))
    options = {"MAP": layer.shape.output, "ADD": other is not None, "ADD_NORM": other_layer is not None}
    tensors, numbers = (y, stats, *added, out), (p.plan.first, p.plan.batch)
    _call(forward.activate_kernel, grid, *tensors, *numbers, **options, ROWS=rows, COLS=cols)
    return out


def _window(plan: KernelPlan) -> dict[str, int]:
    return {"WINDOW_H": plan.window[0], "WINDOW_W": plan.window[1]}


def pool(p: NetworkPass, layer: Layer, a: Tensor) -> Tensor:
    """The features: means of the last map over windows."""
    channels, windows = layer.shape.outputs, p.plan.windows
    out = torch.empty((p.plan.batch, channels * windows), dtype=torch.float32, device=p.device)
    cols = power(channels, 16, 256)
    grid = (p.plan.batch * windows, triton.cdiv(channels, cols))
    _call(forward.pool_kernel, grid, a, out, MAP=layer.shape.output, COLS=cols, **_window(p.plan))
    return out


class Target(NamedTuple):
    """What a gradient arrives at: a ReLU, ``active`` its output, over the normalisation of ``y`` (and of ``other``)."""

    layer: Layer
    y: Tensor
    active: Tensor | None = None
    other_layer: Layer | None = None
    other: Tensor | None = None

    def relu(self, p: NetworkPass) -> Relu:
        active = self.y if self.active is None else self.active
        other = self.y if self.other is None else self.other
        return Relu(active, self.y, p.stats_of(self.layer), other, p.stats_of(self.other_layer or self.layer))

    def grads(self, p: NetworkPass, programs: int, group: int = 1) -> ReluGrads:
        layer, other = self.layer, self.other_layer or self.layer
        planes = 2 if self.other is None else 3
        return ReluGrads(
            torch.empty_like(self.y),
            p.partials(programs, planes, group * layer.shape.stored_outputs),
            p.backward_counter(layer),
            p.coefficients(layer),
            p.coefficients(other),
            p.norm_grads(layer),
            p.norm_grads(other),
        )


def unpool(p: NetworkPass, target: Target, features_grad: Tensor) -> Tensor:
    """The gradient of the features, carried to the ReLU of the last block."""
    shape = target.layer.shape
    rows, cols = 32, power(shape.outputs, 16, 32)
    grid = (_programs(p, shape.out_pixels, rows), triton.cdiv(shape.stored_outputs, cols))
    to = target.grads(p, grid[0])
    arguments = (features_grad, target.relu(p), to, p.plan.first, p.plan.batch, int(p.accumulate))
    options = {"MAP": shape.output, "OTHER": target.other is not None, "ROWS": rows, "COLS": cols, "CHUNK": 64}
    _call(backward.unpool_kernel, grid, *arguments, **options, **_window(p.plan))
    return to.gradient


def dgrad(
    p: NetworkPass,
    layer: Layer,
    dy: Tensor,
    target: Target,
    residual: Tensor | None = None,
    short: Layer | None = None,
    short_dy: Tensor | None = None,
    t: Tile | None = None,
) -> Tensor:
    """From the gradient of a convolution's output to the gradient at the ReLU in front of it.

    ``residual`` is a gradient that arrives there by an identity shortcut, ``short`` and ``short_dy`` are the layer of a
    convolutional shortcut and the gradient of its output.
    """
    shape = layer.shape
    t = t or tile_for("dgrad", shape, layer.group)
    classes = shape.stride * shape.stride  # of pixels, by whether row and column are even
    pixels = shape.pixels if classes == 1 else shape.out_height * shape.out_width  # of one class
    count, columns = _grid(p, layer, pixels, shape.stored_inputs, t)
    grid = (count * classes, columns)
    kernel, options = _of(backward, "dgrad_kernel", layer, shape.stored_inputs, t)
    to = target.grads(p, grid[0], layer.group)
    options |= {"RESIDUAL": residual is not None, "FROM_Y": target.active is None, "OTHER": target.other is not None}
    inputs, numbers = [dy, p.turned_weight(layer)], (p.plan.first, p.plan.batch, int(p.accumulate))
    if layer.group == 1:  # dy stands in the place of tensors that are not used
        inputs += [dy if short_dy is None else short_dy, p.weight(short or layer)]
        options["SHORT"] = short is not None
    inputs.append(dy if residual is None else residual)
    _call(kernel, grid, *inputs, target.relu(p), to, *numbers, CHUNK=t.chunk, **options)
    return to.gradient


def wgrad(
    p: NetworkPass, layer: Layer, x: Tensor, g: Tensor, y: Tensor, store: bool = True, t: Tile | None = None
) -> Tensor:
    """Leaves the partial sums of the weight's gradient; returns the gradient of the convolution's output, if stored."""
    shape, pixels = layer.shape, layer.group
    t = t or tile_for("wgrad", shape, pixels)
    length = shape.size * (pixels + shape.size - 1) * shape.stored_inputs
    grid = (triton.cdiv(length, t.rows), triton.cdiv(pixels * shape.stored_outputs, t.cols), layer.splits)
    kernel, options = _of(backward, "wgrad_kernel", layer, shape.stored_outputs, t)
    if pixels == 1:
        options["STORE"] = store
    dy = torch.empty_like(g) if store else g
    partial = p.partial[layer.at.partial :]
    numbers = (p.plan.first, p.plan.batch, layer.span)
    _call(kernel, grid, x, g, y, p.coefficients(layer), dy, partial, *numbers, **options)
    return dy


def reduce(p: NetworkPass) -> None:
    """Add up the partial sums of all weights' gradients."""
    table = p.plan.reduce_table
    options = {"COLUMN": REDUCE_COLUMNS, "BLOCK": REDUCE_BLOCK, "CHUNK": 16}
    _call(weights.reduce_kernel, (len(table),), table, p.partial, p.grads, int(p.accumulate), **options)
