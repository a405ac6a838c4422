"""Where everything of a pass lies: layers, their sizes, and offsets into the buffers they share."""

from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ocil.fused.tiles import BLOCK, GROUPED, Tile, group, group_length, padding, power, splits, stored, tile

REDUCE_BLOCK = 256

Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Unit:
    """A convolution and the batch normalisation after it."""

    conv: nn.Conv2d
    norm: nn.BatchNorm2d
    size: int
    stride: int
    ci: int
    co: int
    ci_stored: int
    co_stored: int
    h: int
    w: int
    ho: int
    wo: int
    pad_in: int
    """Rows, and columns, of zeros that the input is stored with."""
    pad_out: int
    group: int
    """Stored pixels that are one row of the products."""
    packed_at: int
    """Of the weight in the packed weights, as ``[co_stored, tap, ci_stored]``, or as a group of pixels needs it."""
    turned_at: int
    """Of the weight as ``dgrad`` needs it: the same, or for a group of pixels turned round."""
    weight_at: int
    """Of the weight in the gradients, as ``[co, tap, ci]``."""
    norm_at: int
    """Of gamma's gradient in the gradients; beta's follows."""
    stats_at: int
    counter_at: int
    partial_at: int
    splits: int
    span: int

    @property
    def taps(self) -> int:
        return self.size * self.size

    @property
    def length(self) -> int:
        """Elements of a row of the packed weight."""
        return self.taps * self.ci_stored if self.group == 1 else group_length(self.ci_stored, self.group)

    @property
    def partial_length(self) -> int:
        """Elements of one part of the weight's gradient."""
        if self.group == 1:
            return self.taps * self.ci * self.co
        return self.size * (self.group + self.size - 1) * self.ci_stored * self.group * self.co_stored

    @property
    def rows_in(self) -> int:
        """Of the stored input, for one image."""
        return (self.h + self.pad_in) * (self.w + self.pad_in)

    @property
    def rows_out(self) -> int:
        return (self.ho + self.pad_out) * (self.wo + self.pad_out)


class Blocks(NamedTuple):
    conv1: Unit
    conv2: Unit
    short: Unit | None


@dataclass(eq=False)
class Plan:
    """For one network and one shape of batch."""

    batch: int
    units: list[Unit]
    stem: Unit
    blocks: list[Blocks]
    window: tuple[int, int]
    cells: int
    """Windows of an image."""
    pack_table: Tensor
    reduce_table: Tensor
    grads_size: int
    packed_size: int
    stats_size: int
    counters_size: int
    partial_size: int
    addresses: tuple[int, ...] = field(default=())


def round_up(number: int, to: int = 64) -> int:
    return -(-number // to) * to


def counters(channels: int) -> int:
    """One for each column of programs, the narrowest of 16 channels; a multiple of 16 bytes, as Triton likes it."""
    return round_up(-(-channels // 16), 4)


class _Builder:
    def __init__(self, batch: int) -> None:
        self.batch = batch
        self.units: list[Unit] = []
        self.grads = self.packed = self.stats = self.counters = self.partial = 0

    def unit(self, conv: nn.Conv2d, norm: nn.BatchNorm2d, h: int, w: int) -> Unit:
        co, ci, size, _ = conv.weight.shape
        stride = conv.stride[0]
        ho, wo = -(-h // stride), -(-w // stride)
        pad_in = 0 if not self.units else padding(h, w, ci)  # images come as they are
        pad_out = padding(ho, wo, co)
        rows = self.batch * (ho + pad_out) * (wo + pad_out)
        ci_stored = stored(ci) if self.units else ci
        co_stored = stored(co)
        pixels = group(size, stride, ci_stored, co_stored, pad_in == pad_out > 0, w + pad_in)
        t = tile("wgrad" if pixels == 1 else "wgrad" + GROUPED, ci, co, size, stride)
        parts, span = weight_splits(t, rows, size, ci_stored, co_stored, pixels)
        unit = Unit(
            conv, norm, size, stride, ci, co, ci_stored, co_stored, h, w, ho, wo, pad_in, pad_out,
            pixels, packed_at=self.packed, turned_at=self.packed, weight_at=self.grads,
            norm_at=self.grads + round_up(conv.weight.numel()), stats_at=self.stats, counter_at=self.counters,
            partial_at=self.partial, splits=parts, span=span,
        )  # fmt: skip
        self.grads = unit.norm_at + round_up(2 * co)
        self.packed += round_up(unit.length * pixels * co_stored)
        if pixels > 1:
            unit = replace(unit, turned_at=self.packed)
            self.packed += round_up(unit.length * pixels * co_stored)
        self.stats += round_up(7 * co_stored)  # mean, 1/std, scale, shift; then the backward pass's three
        self.counters += 2 * counters(co)
        self.partial += round_up(parts * unit.partial_length)
        self.units.append(unit)
        return unit


def weight_splits(t: Tile, pixels: int, size: int, ci_stored: int, co_stored: int, group: int) -> tuple[int, int]:
    """Into how many parts to cut stored pixels for a weight's gradient, and the rows, groups of pixels, of a part."""
    return splits(t, pixels // group, size * (group + size - 1) * ci_stored, group * co_stored)


def addresses(network: nn.Module) -> tuple[int, ...]:
    """What a plan's tables point to; a plan is stale once these change."""
    return tuple(module.weight.data_ptr() for module in network.modules() if isinstance(module, nn.Conv2d))


def build(network: Any, images: Tensor) -> Plan:
    batch, _, h, w = images.shape
    builder = _Builder(batch)
    stem = builder.unit(network.conv1, network.bn1, h, w)
    blocks = []
    for block in network.blocks:
        short = builder.unit(block.shortcut[0], block.shortcut[1], h, w) if len(block.shortcut) else None
        conv1 = builder.unit(block.conv1, block.bn1, h, w)
        h, w = conv1.ho, conv1.wo
        blocks.append(Blocks(conv1, builder.unit(block.conv2, block.bn2, h, w), short))
    window = (int(network.window[0]), int(network.window[1]))
    pack: list[Rows] = []
    reduce: list[Rows] = []
    for unit in builder.units:
        weight = unit.conv.weight
        count, total = weight.numel(), unit.length * unit.group * unit.co_stored
        co, tap, ci = weight.stride(0), weight.stride(3), weight.stride(1)
        sizes = (unit.co, unit.ci, unit.ci_stored, unit.length)
        more = (total, unit.group, unit.co_stored)
        pack.append(_rows(total, BLOCK, (weight.data_ptr(), unit.packed_at), (*sizes, co, tap, ci, *more)))
        if unit.group > 1:  # inputs and outputs change places, and the last tap comes first
            last = weight.data_ptr() + (unit.taps - 1) * tap * weight.element_size()
            sizes = (unit.ci, unit.co, unit.co_stored, unit.length)
            more = (total, unit.group, unit.ci_stored)
            pack.append(_rows(total, BLOCK, (last, unit.turned_at), (*sizes, ci, -tap, co, *more)))
        pixels, length = unit.group, unit.partial_length // (unit.group * unit.co_stored)
        step = unit.co_stored * length + unit.ci_stored
        parts = (count, unit.splits * pixels, pixels, unit.partial_length, step, length, unit.ci, unit.ci_stored)
        reduce.append(_rows(count, REDUCE_BLOCK, (unit.partial_at, unit.weight_at), parts))
    return Plan(
        batch, builder.units, stem, blocks, window, (h // window[0]) * (w // window[1]),
        torch.from_numpy(np.concatenate(pack)).to(images.device),
        torch.from_numpy(np.concatenate(reduce)).to(images.device),
        builder.grads, builder.packed, builder.stats, power(builder.counters, 16, 1 << 20), builder.partial,
        addresses(network),
    )  # fmt: skip


def _rows(count: int, block: int, before: tuple[int, ...], after: tuple[int, ...]) -> Rows:
    """A row for each block of ``count`` elements: ``before``, the block's first element, ``after``."""
    first = np.arange(0, count, block)
    rows = np.empty((len(first), len(before) + 1 + len(after)), dtype=np.int64)
    rows[:, : len(before)], rows[:, len(before)], rows[:, len(before) + 1 :] = before, first, after
    return rows
