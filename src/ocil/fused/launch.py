"""One function for each kernel: grid, output, and arguments from a layer."""

import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import triton
from torch import Tensor

from ocil.fused import backward, forward, tiles
from ocil.fused.plan import REDUCE_BLOCK, Plan, Unit, counters
from ocil.fused.tiles import BLOCK, ELEMENTS, GROUPED, Tile, chunk, power, tile


class Pass:
    """The buffers that all layers of one pass share."""

    def __init__(self, plan: Plan, device: torch.device) -> None:
        self.plan = plan
        self.device = device
        self.packed = torch.empty(plan.packed_size, dtype=tiles.DTYPE, device=device)
        self.counters = torch.empty(plan.counters_size, dtype=torch.int32, device=device)
        self.stats = torch.empty(plan.stats_size, dtype=torch.float32, device=device)
        self.grads = self.partial = self.stats  # until the backward pass makes them
        self.accumulate = False

    def weight(self, unit: Unit) -> Tensor:
        return self.packed[unit.packed_at :]

    def turned_weight(self, unit: Unit) -> Tensor:
        return self.packed[unit.turned_at :]

    def stats_of(self, unit: Unit) -> Tensor:
        return self.stats[unit.stats_at :]

    def coefficients(self, unit: Unit) -> Tensor:
        return self.stats[unit.stats_at + 4 * unit.co_stored :]

    def norm_grads(self, unit: Unit) -> Tensor:
        return self.grads[unit.norm_at :]

    def forward_counter(self, unit: Unit) -> Tensor:
        return self.counters[unit.counter_at :]

    def backward_counter(self, unit: Unit) -> Tensor:
        return self.counters[unit.counter_at + counters(unit.co) :]

    def empty(self, pixels: int, channels: int) -> Tensor:
        return torch.empty((pixels, channels), dtype=tiles.DTYPE, device=self.device)

    def partials(self, programs: int, planes: int, channels: int) -> Tensor:
        return torch.empty(programs * planes * channels, dtype=torch.float32, device=self.device)


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


def pack(p: Pass) -> None:
    table = p.plan.pack_table
    _call(forward.pack_kernel, (len(table),), table, p.packed, p.counters, COUNTERS=len(p.counters), BLOCK=BLOCK)


def _sizes(unit: Unit) -> dict[str, int]:
    return {
        "H": unit.h, "W": unit.w, "HO": unit.ho, "WO": unit.wo, "PI": unit.pad_in, "PO": unit.pad_out,
        "CI": unit.ci_stored, "CO": unit.co_stored, "STRIDE": unit.stride,
    }  # fmt: skip


def _tile(kind: str, unit: Unit) -> Tile:
    return tile(kind if unit.group == 1 else kind + GROUPED, unit.ci, unit.co, unit.size, unit.stride)


def _groups(unit: Unit, rows: int, channels: int, t: Tile) -> tuple[tuple[int, int], dict[str, int]]:
    """Grid over stored pixels and channels, and how pixels form groups."""
    if unit.group > 1 and t.cols < unit.group * channels:
        raise ValueError("A program takes all channels of a group.")
    grid = triton.cdiv(rows // unit.group, t.rows), triton.cdiv(unit.group * channels, t.cols)
    return grid, {"GROUP": unit.group, "LENGTH": unit.length}


def _sums(unit: Unit, channels: int, t: Tile) -> dict[str, int]:
    """How the last program adds up the others' sums."""
    return {"BC": t.cols if unit.group == 1 else power(channels, 16, t.cols), "CHUNK": chunk(t)}


def _options(t: Tile) -> dict[str, int]:
    return {"BM": t.rows, "BN": t.cols, "BK": t.depth, "num_warps": t.warps, "num_stages": t.stages}


def conv(p: Pass, unit: Unit, x: Tensor, t: Tile | None = None) -> Tensor:
    t = t or _tile("conv", unit)
    rows = p.plan.batch * unit.rows_out
    grid, groups = _groups(unit, rows, unit.co_stored, t)
    y = p.empty(rows, unit.co_stored)
    norm = unit.norm
    _call(
        forward.conv_kernel, grid, x, p.weight(unit), y, p.partials(grid[0], 2, unit.group * unit.co_stored),
        p.forward_counter(unit), p.stats_of(unit), norm.weight, norm.bias, norm.running_mean, norm.running_var,
        norm.num_batches_tracked,
        p.plan.batch, float(norm.momentum or 0.0), norm.eps,
        COR=unit.co, SIZE=unit.size, **groups, **_sums(unit, unit.co_stored, t), **_sizes(unit), **_options(t),
    )  # fmt: skip
    return y


def infer(p: Pass, unit: Unit, x: Tensor, other: Tensor | None = None, relu: bool = True) -> Tensor:
    """Convolution, normalisation by running statistics, addition and ReLU at once."""
    t = _tile("conv", unit)
    rows = p.plan.batch * unit.rows_out
    grid, groups = _groups(unit, rows, unit.co_stored, t)
    out = p.empty(rows, unit.co_stored)
    norm = unit.norm
    _call(
        forward.infer_kernel, grid, x, p.weight(unit), out, out if other is None else other,
        norm.weight, norm.bias, norm.running_mean, norm.running_var, p.plan.batch, norm.eps,
        COR=unit.co, SIZE=unit.size, ADD=other is not None, RELU=relu, **groups, **_sizes(unit), **_options(t),
    )  # fmt: skip
    return out


def activate(p: Pass, unit: Unit, y: Tensor, other: Tensor | None = None, other_unit: Unit | None = None) -> Tensor:
    out = torch.empty_like(y)
    stats = p.stats_of(unit)
    cols = power(unit.co_stored, 16, 64)
    rows = ELEMENTS // cols
    _call(
        forward.activate_kernel, (triton.cdiv(len(y), rows), triton.cdiv(unit.co_stored, cols)),
        y, stats, y if other is None else other, stats if other_unit is None else p.stats_of(other_unit), out,
        p.plan.batch, H=unit.ho, W=unit.wo, PAD=unit.pad_out, C=unit.co_stored,
        ADD=other is not None, ADD_NORM=other_unit is not None, BM=rows, BN=cols,
    )  # fmt: skip
    return out


def pool(p: Pass, unit: Unit, a: Tensor) -> Tensor:
    window, cells = p.plan.window, p.plan.cells
    out = torch.empty((p.plan.batch, unit.co * cells), dtype=torch.float32, device=p.device)
    cols = power(unit.co, 16, 256)
    _call(
        forward.pool_kernel, (p.plan.batch * cells, triton.cdiv(unit.co, cols)), a, out,
        H=unit.ho, W=unit.wo, PAD=unit.pad_out, C=unit.co_stored, CR=unit.co,
        WINDOW_H=window[0], WINDOW_W=window[1], BC=cols,
    )  # fmt: skip
    return out


class Target:
    """What a gradient arrives at: a ReLU, ``active`` its output, over the normalisation of ``y`` (and of ``other``)."""

    def __init__(
        self, unit: Unit, y: Tensor, active: Tensor | None = None, other_unit: Unit | None = None,
        other: Tensor | None = None,
    ) -> None:  # fmt: skip
        self.unit, self.y, self.active, self.other_unit, self.other = unit, y, active, other_unit, other

    def inputs(self, p: Pass) -> tuple[Tensor, ...]:
        active = self.y if self.active is None else self.active
        other = self.y if self.other is None else self.other
        return active, self.y, p.stats_of(self.unit), other, p.stats_of(self.other_unit or self.unit)

    def outputs(self, p: Pass, programs: int, group: int = 1) -> tuple[Tensor, ...]:
        unit, other = self.unit, self.other_unit or self.unit
        planes = 2 if self.other is None else 3
        return (
            torch.empty_like(self.y), p.partials(programs, planes, group * unit.co_stored), p.backward_counter(unit),
            p.coefficients(unit), p.coefficients(other), p.norm_grads(unit), p.norm_grads(other),
        )  # fmt: skip


def unpool(p: Pass, target: Target, features_grad: Tensor) -> Tensor:
    unit, window = target.unit, p.plan.window
    rows, cols = 32, power(unit.co, 16, 32)
    grid = (triton.cdiv(p.plan.batch * unit.rows_out, rows), triton.cdiv(unit.co_stored, cols))
    outputs = target.outputs(p, grid[0])
    _call(
        backward.unpool_kernel, grid, features_grad, *target.inputs(p), *outputs, p.plan.batch, int(p.accumulate),
        H=unit.ho, W=unit.wo, PAD=unit.pad_out, C=unit.co_stored, CR=unit.co,
        WINDOW_H=window[0], WINDOW_W=window[1], OTHER=target.other is not None, BM=rows, BN=cols, CHUNK=64,
    )  # fmt: skip
    return outputs[0]


def dgrad(
    p: Pass, unit: Unit, dy: Tensor, target: Target, residual: Tensor | None = None,
    short: Unit | None = None, short_dy: Tensor | None = None, t: Tile | None = None,
) -> Tensor:  # fmt: skip
    t = t or _tile("dgrad", unit)
    classes = unit.stride * unit.stride
    rows = p.plan.batch * (unit.rows_in if classes == 1 else unit.ho * unit.wo)  # of one class
    (count, columns), groups = _groups(unit, rows, unit.ci_stored, t)
    grid = (count * classes, columns)
    outputs = target.outputs(p, grid[0], unit.group)
    _call(
        backward.dgrad_kernel, grid, dy, p.turned_weight(unit), dy if short_dy is None else short_dy,
        p.weight(short or unit), dy if residual is None else residual, *target.inputs(p), *outputs,
        p.plan.batch, int(p.accumulate), count,
        CIR=unit.ci, SHORT=short is not None, RESIDUAL=residual is not None, FROM_Y=target.active is None,
        OTHER=target.other is not None, **groups, **_sums(unit, unit.ci_stored, t), **_sizes(unit), **_options(t),
    )  # fmt: skip
    return outputs[0]


def wgrad(p: Pass, unit: Unit, x: Tensor, g: Tensor, y: Tensor, store: bool = True, t: Tile | None = None) -> Tensor:
    """Leaves the partial sums; returns the gradient of the convolution's output."""
    t = t or _tile("wgrad", unit)
    pixels = unit.group
    length = unit.size * (pixels + unit.size - 1) * unit.ci_stored
    grid = (triton.cdiv(length, t.rows), triton.cdiv(pixels * unit.co_stored, t.cols), unit.splits)
    dy = torch.empty_like(g) if store else g
    _call(
        backward.wgrad_kernel, grid, x, g, y, p.coefficients(unit), dy, p.partial[unit.partial_at :],
        p.plan.batch, unit.span, CIR=unit.ci, COR=unit.co, SIZE=unit.size, STORE=store, GROUP=pixels,
        **_sizes(unit), **_options(t),
    )  # fmt: skip
    return dy


def reduce(p: Pass) -> None:
    table = p.plan.reduce_table
    _call(
        backward.reduce_kernel, (len(table),), table, p.partial, p.grads, int(p.accumulate),
        BLOCK=REDUCE_BLOCK, CHUNK=16,
    )  # fmt: skip
