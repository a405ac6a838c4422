"""What the host and the kernels agree on: the shape of a layer, the columns of the tables, and bundles of pointers.

Triton takes a named tuple as an argument. One of tensors becomes one pointer per field; one of numbers, given as a
``tl.constexpr``, becomes constants of the compiled kernel.
"""

from typing import NamedTuple

from torch import Tensor


class MapShape(NamedTuple):
    """The shape of the map of one image, a constant of the kernels that work pixel by pixel.

    It lies in memory as ``[height + pad, width + pad, stored]``, channels innermost: ``pad`` rows of zeros below it and
    ``pad`` columns of zeros on its right, and channels of zeros that fill the last four. ``docs/kernels.md`` draws one.
    Activations and the gradients ``dy`` hold these zeros; in other maps the padding may hold anything.
    """

    height: int
    width: int
    pad: int
    channels: int
    """Channels that the network has."""
    stored: int
    """Channels in memory."""


class ConvShape(NamedTuple):
    """The shape of a convolution, a constant of its kernels: what ``MapShape`` has of its input and of its output."""

    height: int
    width: int
    out_height: int
    out_width: int
    pad: int
    out_pad: int
    inputs: int
    stored_inputs: int
    outputs: int
    stored_outputs: int
    size: int
    """Side of the square kernel: 3 or 1."""
    stride: int

    @property
    def output(self) -> MapShape:
        return MapShape(self.out_height, self.out_width, self.out_pad, self.outputs, self.stored_outputs)

    @property
    def taps(self) -> int:
        return self.size * self.size

    @property
    def pixels(self) -> int:
        """Stored pixels of one input map, padding included."""
        return (self.height + self.pad) * (self.width + self.pad)

    @property
    def out_pixels(self) -> int:
        return (self.out_height + self.out_pad) * (self.out_width + self.out_pad)


STATS = 7
"""Numbers per stored channel that a layer keeps for each batch of a pass: mean, 1/std, scale and shift of its
normalisation, then ``p``, ``q`` and ``r`` of the backward pass."""


class PixelGroup(NamedTuple):
    """How pixels form groups, a constant of the kernels of ``grouped.py``."""

    pixels: int
    """Stored pixels per row of the product."""
    length: int
    """Elements of a row of the packed weight."""
    block: int
    """Channels that the last program of a column of programs finishes, a power of two."""


class PackRow(NamedTuple):
    """One row of the table of ``pack_kernel``: the weights that one program copies. All numbers count elements."""

    source: int
    """Address of the weight, float32."""
    target: int
    """Where the packed weight begins in the buffer of all packed weights."""
    first: int
    """First packed element of this program."""
    outputs: int
    inputs: int
    stored_inputs: int
    length: int
    """Packed elements per output channel."""
    output_stride: int
    tap_stride: int
    input_stride: int
    total: int
    """Packed elements of the whole weight."""
    group: int
    """Pixels per row of the product: 1, or more where pixels are grouped."""
    stored_outputs: int


class ReduceRow(NamedTuple):
    """One row of the table of ``reduce_kernel``: the gradients that one program adds up. All numbers count elements."""

    source: int
    """Where the partial sums of this weight begin in the buffer of all partial sums."""
    target: int
    """Where the gradient of this weight begins in the buffer of all gradients."""
    first: int
    """First element of the gradient that this program writes."""
    total: int
    """Elements of the whole gradient."""
    terms: int
    """Partial sums per element: the splits of the weight gradient, times the pixels of a group."""
    group: int
    split_length: int
    """Elements of one split."""
    pixel_step: int
    """From a weight's partial sum for one pixel of a group to the one for the next pixel."""
    length: int
    """Elements of a split per output channel; this and the fields below matter to grouped pixels only."""
    inputs: int
    stored_inputs: int


PACK_COLUMNS = PackRow(*range(len(PackRow._fields)))
"""The number of each column, for the kernel."""

REDUCE_COLUMNS = ReduceRow(*range(len(ReduceRow._fields)))


class Norm(NamedTuple):
    """Parameters and running statistics of a batch normalisation."""

    gamma: Tensor
    beta: Tensor
    mean: Tensor | None
    """Of the running statistics, which every network here tracks, as ``var``."""
    var: Tensor | None


class Relu(NamedTuple):
    """A ReLU that a gradient arrives at, and what was added up in front of it.

    That is the normalisation of ``y``, alone, plus an activation, or plus the normalisation of ``other``. A kernel that
    needs no ``active`` or no ``other`` gets ``y`` in their place.
    """

    active: Tensor
    """The output of the ReLU."""
    y: Tensor
    stats: Tensor
    other: Tensor
    other_stats: Tensor


class ReluGrads(NamedTuple):
    """What the kernel that computes a gradient at a ``Relu`` writes."""

    gradient: Tensor
    partial: Tensor
    """``[programs, 2 or 3, channels]``: sums over the rows of each program, those of the first batch first."""
    counter: Tensor
    """How many programs of each column of programs are done."""
    coefficients: Tensor
    """``p``, ``q`` and ``r`` per channel, for the normalisation of ``y``."""
    other_coefficients: Tensor
    grads: Tensor
    """Gradients of gamma, then of beta."""
    other_grads: Tensor
