"""How maps are stored and which part of a matrix product one program takes, by layer: choices measured on an H200."""

from typing import NamedTuple

import torch

from ocil.kernels.layout import ConvShape

DTYPE = torch.bfloat16
"""Of maps and packed weights."""


class Tile(NamedTuple):
    """The part of a product that one program computes. Kernels get it as a constant."""

    rows: int
    cols: int
    depth: int
    """Of one step of the inner loop."""
    warps: int = 4
    stages: int = 3
    """Steps of the inner loop whose loads are in flight."""
    programs: int = 160
    """Programs of a weight gradient at most: more of them fill the GPU better but leave more to add up."""

    @property
    def chunk(self) -> int:
        """Rows of partial sums that the last program of a column of programs loads at a time."""
        return max(16, 1024 * self.warps // self.cols)

    @property
    def launch_options(self) -> dict[str, int]:
        return {"num_warps": self.warps, "num_stages": self.stages}


Key = tuple[str, int, int, int, int]  # kind, input channels, output channels, kernel size, stride

GROUPED = " grouped"
"""What follows the kind where pixels are grouped."""

MEASURED: dict[Key, Tile] = {  # for a batch of 200 at width 20, four launches side by side
    ("conv", 3, 20, 3, 1): Tile(256, 32, 32, 4, 2),
    ("conv", 20, 20, 3, 1): Tile(256, 32, 32, 4, 2),
    ("conv", 20, 40, 1, 2): Tile(256, 64, 32, 4, 2),
    ("conv", 20, 40, 3, 2): Tile(256, 64, 64, 4, 2),
    ("conv", 40, 40, 3, 1): Tile(256, 64, 64, 4, 2),
    ("conv", 40, 80, 1, 2): Tile(256, 64, 64, 4, 2),
    ("conv", 40, 80, 3, 2): Tile(128, 128, 64, 4, 3),
    ("conv", 80, 80, 3, 1): Tile(128, 128, 64, 4, 3),
    ("conv", 80, 160, 1, 2): Tile(128, 32, 32, 4, 4),
    ("conv", 80, 160, 3, 2): Tile(64, 64, 64, 4, 3),
    ("conv", 160, 160, 3, 1): Tile(64, 64, 64, 4, 3),
    ("conv grouped", 20, 20, 3, 1): Tile(128, 64, 64, 4, 2),
    ("dgrad", 20, 20, 3, 1): Tile(256, 32, 32, 4, 2),
    ("dgrad", 20, 40, 3, 2): Tile(256, 32, 32, 4, 2),
    ("dgrad", 40, 40, 3, 1): Tile(256, 64, 32, 4, 3),
    ("dgrad", 40, 80, 3, 2): Tile(256, 64, 32, 4, 3),
    ("dgrad", 80, 80, 3, 1): Tile(128, 128, 64, 4, 3),
    ("dgrad", 80, 160, 3, 2): Tile(128, 128, 32, 4, 3),
    ("dgrad", 160, 160, 3, 1): Tile(128, 64, 64, 4, 3),
    ("dgrad grouped", 20, 20, 3, 1): Tile(128, 64, 64, 4, 2),
    ("wgrad", 3, 20, 3, 1): Tile(32, 32, 32, 2, 3, 320),
    ("wgrad", 20, 20, 3, 1): Tile(256, 32, 32, 4, 3, 160),
    ("wgrad grouped", 20, 20, 3, 1): Tile(128, 64, 32, 4, 3, 240),
    ("wgrad", 20, 40, 1, 2): Tile(32, 64, 64, 4, 2, 320),
    ("wgrad", 20, 40, 3, 2): Tile(256, 64, 32, 4, 3, 160),
    ("wgrad", 40, 40, 3, 1): Tile(128, 64, 32, 4, 3, 160),
    ("wgrad", 40, 80, 1, 2): Tile(64, 64, 64, 4, 3, 640),
    ("wgrad", 40, 80, 3, 2): Tile(128, 64, 32, 4, 3, 160),
    ("wgrad", 80, 80, 3, 1): Tile(128, 64, 64, 4, 2, 160),  # the fastest needs all shared memory of an SM
    ("wgrad", 80, 160, 1, 2): Tile(128, 32, 32, 4, 4, 160),
    ("wgrad", 80, 160, 3, 2): Tile(128, 64, 64, 4, 2, 160),
    ("wgrad", 160, 160, 3, 1): Tile(128, 64, 64, 4, 2, 160),
}

WGRAD_STEPS = 4
"""Steps of the inner loop that a program of a weight gradient takes at least."""


def power(number: int, low: int, high: int) -> int:
    """The next power of two, within bounds."""
    return max(low, min(high, 1 << (number - 1).bit_length()))


def tile(kind: str, ci: int, co: int, size: int, stride: int) -> Tile:
    """For ``kind`` ``conv``, ``dgrad`` or ``wgrad``, or one of these and ``GROUPED``."""
    found = MEASURED.get((kind, ci, co, size, stride))
    if found is not None:
        return found
    taps = size * size
    if kind == "wgrad" + GROUPED:
        return Tile(power(3 * (GROUP + 2) * stored(ci), 16, 128), power(GROUP * stored(co), 16, 64), 32, 4, 3, 240)
    if kind.endswith(GROUPED):
        return Tile(128, power(GROUP * stored(co), 16, 64), 64, 4, 2)
    if kind == "conv":
        return Tile(128 if co <= 40 else 64, power(co, 16, 64), power(taps * ci, 16, 64))
    if kind == "dgrad":
        return Tile(128 if ci <= 40 else 64, power(ci, 16, 64), power(taps * co, 16, 64))
    return Tile(power(taps * ci, 16, 128), power(co, 16, 64), 64)


def tile_for(kind: str, shape: ConvShape, pixels: int) -> Tile:
    """The tile of a layer whose rows of the product are ``pixels`` pixels."""
    return tile(kind if pixels == 1 else kind + GROUPED, shape.inputs, shape.outputs, shape.size, shape.stride)


def split_span(t: Tile, rows: int, length: int, cols: int) -> int:
    """How many rows a part has if ``rows`` rows are cut into parts for the gradient of a ``[cols, length]`` weight."""
    most = max(1, t.programs // (-(-length // t.rows) * -(-cols // t.cols)))
    span = max(-(-rows // most), WGRAD_STEPS * t.depth)
    return -(-span // t.depth) * t.depth


STORED = 4
"""What channels in memory are a multiple of: four bfloat16 are 8 bytes. Loads of 16 would need half as many
instructions, but they go past the multiprocessor's cache, and each input is read nine times: 20 channels took 108 us
stored as 24, 78 as they are."""

PAD_FROM = 65
"""Pixels of a map from which on it is stored with padding: in smaller ones the zeros are too many to pay off."""


def stored(channels: int) -> int:
    """Channels of a map in memory."""
    return -(-channels // STORED) * STORED


def padding(height: int, width: int, channels: int) -> int:
    """Rows and columns of zeros that a map is stored with."""
    if height * width < PAD_FROM:
        return 0
    return group_padding(height, width) if stored(channels) <= GROUP_UP_TO else 1


# Which layers have their pixels grouped, and what that asks of their maps: see grouped.py.

GROUP = 3
"""Stored pixels that a row of the product stands for where channels are few: three of 20 channels are 60 of 64 columns,
and of the weights that belong to them 60 % are not zero."""

GROUP_UP_TO = 20
"""Stored channels up to which that pays off; 0 switches it off."""

GROUP_LENGTH = 64
"""What the length of a row of a group's weight is a multiple of: with 8 a thread loads 16 bytes of it at once, which go
past the multiprocessor's cache, with 4 but not 8 only 8 bytes, through it."""

PAD_AT_MOST = 1.1
"""How much larger than by one row and column a map may become for its stored lines to end where a group of pixels ends:
84 pixels are stored as 87, 32 as 33."""


def group(shape: ConvShape) -> int:
    """Pixels of a group for a layer, 1 for the ordinary kernels."""
    few = shape.stored_inputs == shape.stored_outputs <= GROUP_UP_TO
    padded = shape.pad == shape.out_pad > 0 and (shape.width + shape.pad) % GROUP == 0
    return GROUP if shape.size == 3 and shape.stride == 1 and few and padded else 1


def group_length(channels: int, pixels: int) -> int:
    """Elements of a row of a group's weight: three rows of patches that overlap, filled up with zeros."""
    return -(-3 * (pixels + 2) * channels // GROUP_LENGTH) * GROUP_LENGTH


def group_padding(height: int, width: int) -> int:
    """Padding with which stored lines end where a group ends, or 1 where that would make the map much larger."""
    pad = 1 + -(width + 1) % GROUP
    larger = (height + pad) * (width + pad) / ((height + 1) * (width + 1))
    return pad if larger <= PAD_AT_MOST else 1
