"""Where everything of a pass lies: layers, their shapes, and offsets into the buffers that they share."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ocil.kernels.layout import STATS, ConvShape, PackRow, ReduceRow
from ocil.kernels.tiles import Tile, group, group_length, padding, power, split_span, stored, tile_for

PACK_BLOCK = 1024
"""Weights that one program packs."""

REDUCE_BLOCK = 256
"""Gradients that one program adds up."""


class Offsets(NamedTuple):
    """Where the parts of a layer begin in the shared buffers, in elements."""

    packed: int
    """The weight for ``conv``, in the packed weights: ``[stored_outputs, taps * stored_inputs]``."""
    turned: int
    """The weight for ``dgrad``: the same one, or where pixels are grouped one that is turned round."""
    weight: int
    """The gradient of the weight, in the gradients: ``[outputs, taps, inputs]``."""
    norm: int
    """The gradient of gamma, in the gradients; the one of beta follows."""
    stats: int
    """For each batch of the pass ``STATS`` numbers per stored channel."""
    counters: int
    partial: int
    """The partial sums of the weight's gradient."""


@dataclass(frozen=True, eq=False)
class Layer:
    """A convolution and the batch normalisation after it."""

    conv: nn.Conv2d
    norm: nn.BatchNorm2d
    shape: ConvShape
    group: int
    """Stored pixels that are one row of the matrix products."""
    at: Offsets
    packed_length: int
    """Elements of a row of the packed weight: what belongs to one column of the product."""
    splits: int
    """Parts into which the pixels are cut for the weight's gradient."""
    span: int
    """Rows of the product in one such part."""

    @property
    def packed_size(self) -> int:
        return self.packed_length * self.group * self.shape.stored_outputs

    @property
    def partial_size(self) -> int:
        """Elements of one part of the weight's gradient."""
        s = self.shape
        if self.group == 1:
            return s.taps * s.inputs * s.outputs
        return s.size * (self.group + s.size - 1) * s.stored_inputs * self.group * s.stored_outputs


class BlockLayers(NamedTuple):
    """The layers of one residual block."""

    conv1: Layer
    conv2: Layer
    short: Layer | None
    """The 1x1 convolution of the shortcut, where the block has one."""


@dataclass(eq=False)
class KernelPlan:
    """For one network and one shape of pass."""

    first: int
    """Images of the first batch: all, if no second batch passes with it."""
    batch: int
    """Images of the pass."""
    layers: list[Layer]
    stem: Layer
    blocks: list[BlockLayers]
    window: tuple[int, int]
    """Height and width of the windows that the last map is averaged over."""
    windows: int
    """Windows per image."""
    pack_table: Tensor
    reduce_table: Tensor
    grads_size: int
    packed_size: int
    stats_size: int
    counters_size: int
    partial_size: int
    addresses: tuple[int, ...]
    """Of the weights; a plan is stale once these change."""


def round_up(number: int, to: int = 64) -> int:
    return -(-number // to) * to


def counters(channels: int) -> int:
    """One for each column of programs, the narrowest of 16 channels; a multiple of 16 bytes, as Triton likes it."""
    return round_up(-(-channels // 16), 4)


class _Builder:
    def __init__(self, first: int, batch: int) -> None:
        self.first, self.batch = first, batch
        self.layers: list[Layer] = []
        self.grads = self.packed = self.stats = self.counters = self.partial = 0

    def layer(self, conv: nn.Conv2d, norm: nn.BatchNorm2d, height: int, width: int) -> Layer:
        shape = self._shape(conv, height, width)
        pixels = group(shape)
        parts, span = weight_splits(tile_for("wgrad", shape, pixels), shape, self.first, self.batch, pixels)
        norm_at = self.grads + round_up(conv.weight.numel())
        length = packed_length(shape, pixels)
        size = round_up(length * pixels * shape.stored_outputs)
        turned = self.packed if pixels == 1 else self.packed + size
        at = Offsets(self.packed, turned, self.grads, norm_at, self.stats, self.counters, self.partial)
        layer = Layer(conv, norm, shape, pixels, at, length, parts, span)
        self.packed = turned + size
        self.grads = norm_at + round_up(2 * shape.outputs)
        self.stats += round_up(2 * STATS * shape.stored_outputs)
        self.counters += 2 * counters(shape.outputs)
        self.partial += round_up(parts * layer.partial_size)
        self.layers.append(layer)
        return layer

    def _shape(self, conv: nn.Conv2d, height: int, width: int) -> ConvShape:
        outputs, inputs, size, _ = conv.weight.shape
        stride = conv.stride[0]
        out_height, out_width = -(-height // stride), -(-width // stride)
        images = not self.layers  # they come as they are
        return ConvShape(
            height,
            width,
            out_height,
            out_width,
            pad=0 if images else padding(height, width, inputs),
            out_pad=padding(out_height, out_width, outputs),
            inputs=inputs,
            stored_inputs=inputs if images else stored(inputs),
            outputs=outputs,
            stored_outputs=stored(outputs),
            size=size,
            stride=stride,
        )


def packed_length(shape: ConvShape, pixels: int) -> int:
    return shape.taps * shape.stored_inputs if pixels == 1 else group_length(shape.stored_inputs, pixels)


def weight_splits(t: Tile, shape: ConvShape, first: int, batch: int, pixels: int) -> tuple[int, int]:
    """Into how many parts to cut a pass's rows, groups of pixels, for a weight's gradient; and the rows of a part.

    A part lies in one of the two batches.
    """
    length = shape.size * (pixels + shape.size - 1) * shape.stored_inputs
    rows = shape.out_pixels // pixels
    span = split_span(t, batch * rows, length, pixels * shape.stored_outputs)
    parts = [-(-images * rows // span) for images in (first, batch - first)]
    return sum(parts), span


def addresses(network: nn.Module) -> tuple[int, ...]:
    return tuple(module.weight.data_ptr() for module in network.modules() if isinstance(module, nn.Conv2d))


def build(network: Any, images: Tensor, first: int) -> KernelPlan:
    batch, _, height, width = images.shape
    builder = _Builder(first, batch)
    stem = builder.layer(network.conv1, network.bn1, height, width)
    blocks = []
    for block in network.blocks:
        short = builder.layer(block.shortcut[0], block.shortcut[1], height, width) if len(block.shortcut) else None
        conv1 = builder.layer(block.conv1, block.bn1, height, width)
        height, width = conv1.shape.out_height, conv1.shape.out_width
        blocks.append(BlockLayers(conv1, builder.layer(block.conv2, block.bn2, height, width), short))
    window = (int(network.window[0]), int(network.window[1]))
    return KernelPlan(
        first,
        batch,
        builder.layers,
        stem,
        blocks,
        window,
        (height // window[0]) * (width // window[1]),
        _table([rows for layer in builder.layers for rows in _pack_rows(layer)], images.device),
        _table([_reduce_rows(layer) for layer in builder.layers], images.device),
        builder.grads,
        builder.packed,
        builder.stats,
        power(builder.counters, 16, 1 << 20),
        builder.partial,
        addresses(network),
    )


def _table(parts: Sequence[NDArray[np.int64]], device: torch.device) -> Tensor:
    return torch.from_numpy(np.concatenate(parts)).to(device)


def _cut(row: PackRow | ReduceRow, block: int) -> NDArray[np.int64]:
    """A row for each block of what a row stands for: they differ in ``first``. Thousands of them, so not one by one."""
    starts = np.arange(0, row.total, block)
    rows = np.tile(np.array(row, dtype=np.int64), (len(starts), 1))
    rows[:, row._fields.index("first")] = starts
    return rows


def _pack_rows(layer: Layer) -> list[NDArray[np.int64]]:
    s, weight = layer.shape, layer.conv.weight
    row = PackRow(
        source=weight.data_ptr(),
        target=layer.at.packed,
        first=0,
        outputs=s.outputs,
        inputs=s.inputs,
        stored_inputs=s.stored_inputs,
        length=layer.packed_length,
        output_stride=weight.stride(0),
        tap_stride=weight.stride(3),
        input_stride=weight.stride(1),
        total=layer.packed_size,
        group=layer.group,
        stored_outputs=s.stored_outputs,
    )
    found = [_cut(row, PACK_BLOCK)]
    if layer.group > 1:  # inputs and outputs change places, and the last tap comes first
        turned = row._replace(
            source=row.source + (s.taps - 1) * row.tap_stride * weight.element_size(),
            target=layer.at.turned,
            outputs=s.inputs,
            inputs=s.outputs,
            stored_inputs=s.stored_outputs,
            output_stride=row.input_stride,
            tap_stride=-row.tap_stride,
            input_stride=row.output_stride,
            stored_outputs=s.stored_inputs,
        )
        found.append(_cut(turned, PACK_BLOCK))
    return found


def _reduce_rows(layer: Layer) -> NDArray[np.int64]:
    s, pixels, total = layer.shape, layer.group, layer.conv.weight.numel()
    length = layer.partial_size // (pixels * s.stored_outputs)
    row = ReduceRow(
        source=layer.at.partial,
        target=layer.at.weight,
        first=0,
        total=total,
        terms=layer.splits * pixels,
        group=pixels,
        split_length=layer.partial_size,
        pixel_step=s.stored_outputs * length + s.stored_inputs,
        length=length,
        inputs=s.inputs,
        stored_inputs=s.stored_inputs,
    )
    return _cut(row, REDUCE_BLOCK)
