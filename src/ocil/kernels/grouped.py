# mypy: disable-error-code="no-untyped-def"
"""The kernels of ``forward.py`` and ``backward.py`` again, for 3x3 layers of few channels: pixels in groups.

Where a row of the product is one pixel of 20 channels, it fills 20 of 32 columns, and neighbouring rows load mostly the
same inputs. So a row stands here for ``GROUP.pixels``, three, stored pixels side by side, and a column for one output
channel of one of them. Their patches overlap: five pixels of each kernel row serve three outputs, and loads fall by
45 %. The weight is then ``[pixel, stored_outputs, kernel row, input pixel, stored_inputs]``: for each of the three
output pixels the 3x3 kernel, shifted by one input pixel, with zeros on both sides. Each column's part of it is filled
up with zeros to ``GROUP.length`` elements. ``docs/kernels.md`` draws a group.

The results lie in memory as ungrouped ones do, so nothing outside these kernels knows of groups. A layer is grouped if
its stride is 1, its maps are padded, and a stored line ends where a group ends (``tiles.group``).
"""

import triton
import triton.language as tl

from ocil.kernels.backward import cut_gradient, gradient_of_input
from ocil.kernels.forward import FACTOR, normalise
from ocil.kernels.norms import STATS, finish_norms, finish_statistics, is_last, leave_sums, own_batch


@triton.jit
def packed_tap(output, tap, pixels, outputs, stored_outputs):
    """Output channel and tap of the 3x3 weight that belong at a row and an input pixel of a group's weight.

    Where the group's weight has a zero, the channel is ``outputs``, which does not exist.
    """
    kw = tap % (pixels + 2) - output // stored_outputs
    kh = tap // (pixels + 2)
    there = (kh < 3) & (kw >= 0) & (kw < 3)
    return tl.where(there, output % stored_outputs, outputs), kh * 3 + kw


@triton.jit
def partial_place(i, pixels, length, inputs, stored_inputs):
    """Where element ``i`` of a weight's gradient stands in the gradient of a group's weight, for the first pixel."""
    line = i // inputs // 3  # a kernel row
    place = line // 3 * length + line % 3 * (pixels + 2) * stored_inputs
    place += i // inputs % 3 * stored_inputs + i % inputs
    return place


@triton.jit
def jump(k, LINE: tl.constexpr, PATCH: tl.constexpr):
    """``k // PATCH * LINE + k % PATCH`` of three patches, in a way that leaves one addition for each load, not two."""
    return k + tl.where(k < PATCH, 0, tl.where(k < 2 * PATCH, LINE - PATCH, 2 * (LINE - PATCH)))


@triton.jit
def load_padded(x, base, shift, channels, size, CHANNELS: tl.constexpr):
    """``x[base + shift]`` of a padded map of ``size`` elements, zero outside; ``channels`` are those at ``shift``.

    A mask would be half of the instructions of a load. Instead, what lies outside is read from the last elements, which
    are padding: as many as a thread loads at once, which are all inside or all outside.
    """
    VECTOR: tl.constexpr = 8 if CHANNELS % 8 == 0 else 4
    part = channels % VECTOR
    last = (size - VECTOR).to(tl.uint32)
    where = tl.minimum((base[:, None] + (shift - part)[None, :]).to(tl.uint32), last) + part[None, :]
    return tl.load(x + tl.max_contiguous(tl.multiple_of(where, (1, VECTOR)), (1, VECTOR)))


@triton.jit
def valid_columns(rows, cols, batch, CHANNELS: tl.constexpr, SHAPE: tl.constexpr, GROUP: tl.constexpr):
    """Which columns of which rows, groups of a padded map, belong to pixels of the map: ``[rows, cols]``."""
    GROUPS: tl.constexpr = (SHAPE.width + SHAPE.pad) // GROUP.pixels  # in a stored line
    LINES: tl.constexpr = SHAPE.height + SHAPE.pad
    inside = (rows < batch * (LINES * GROUPS)) & (rows // GROUPS % LINES < SHAPE.height)
    pixels = tl.where(inside, SHAPE.width - rows % GROUPS * GROUP.pixels, 0)  # from the group's first to the line's end
    return (cols // CHANNELS)[None, :] < pixels[:, None]


@triton.jit
def convolve(
    x,
    weight,
    rows,
    cols,
    batch,
    CI: tl.constexpr,
    CO: tl.constexpr,
    SHAPE: tl.constexpr,
    GROUP: tl.constexpr,
    TILE: tl.constexpr,
):
    """A map of ``CI`` stored channels, convolved to ``CO``, at groups ``rows`` and columns ``cols``, in float32."""
    ROWS: tl.constexpr = TILE.rows
    COLS: tl.constexpr = TILE.cols
    LINE: tl.constexpr = (SHAPE.width + SHAPE.pad) * CI
    PATCH: tl.constexpr = (GROUP.pixels + 2) * CI  # of one kernel row
    base = (rows * GROUP.pixels - 1) * CI - LINE
    acc = tl.zeros([ROWS, COLS], tl.float32)
    for k0 in range(0, 3 * PATCH, TILE.depth):
        k = k0 + tl.arange(0, TILE.depth)
        patch = load_padded(x, base, jump(k, LINE, PATCH), k, batch * ((SHAPE.height + SHAPE.pad) * LINE), CI)
        inside = (k < GROUP.length)[:, None] & (cols < GROUP.pixels * CO)[None, :]
        factor = tl.load(weight + cols[None, :] * GROUP.length + k[:, None], mask=inside, other=0.0)
        acc = tl.dot(patch.to(FACTOR), factor.to(FACTOR), acc)
    return acc


@triton.jit(do_not_specialize=["batch"])
def infer_kernel(
    x,
    weight,
    out,
    other,
    norm,
    batch,
    eps,
    SHAPE: tl.constexpr,
    ADD: tl.constexpr,
    RELU: tl.constexpr,
    GROUP: tl.constexpr,
    TILE: tl.constexpr,
):
    """``forward.infer_kernel`` by groups."""
    CO: tl.constexpr = SHAPE.stored_outputs
    WIDTH: tl.constexpr = GROUP.pixels * CO
    rows = tl.program_id(0) * TILE.rows + tl.arange(0, TILE.rows)
    cols = tl.program_id(1) * TILE.cols + tl.arange(0, TILE.cols)
    value = convolve(x, weight, rows, cols, batch, SHAPE.stored_inputs, CO, SHAPE, GROUP, TILE)
    valid = valid_columns(rows, cols, batch, CO, SHAPE, GROUP)
    used = (cols < WIDTH)[None, :]
    value = normalise(value, norm, cols % CO, eps, SHAPE.outputs)
    where = rows[:, None] * WIDTH + cols[None, :]
    if ADD:
        value += tl.load(other + where, mask=valid & used, other=0.0).to(tl.float32)
    if RELU:
        value = tl.maximum(value, 0.0)
    value = tl.where(valid, value, 0.0)
    inside = rows < batch * ((SHAPE.height + SHAPE.pad) * (SHAPE.width + SHAPE.pad) // GROUP.pixels)
    tl.store(out + where, value.to(out.dtype.element_ty), mask=inside[:, None] & used)


@triton.jit(do_not_specialize=["first", "batch"])
def conv_kernel(
    x,
    weight,
    y,
    partial,
    counter,
    stats,
    norm,
    batches,
    first,
    batch,
    momentum,
    eps,
    SHAPE: tl.constexpr,
    GROUP: tl.constexpr,
    TILE: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """``forward.conv_kernel`` by groups."""
    CO: tl.constexpr = SHAPE.stored_outputs
    WIDTH: tl.constexpr = GROUP.pixels * CO
    ROWS_OF_IMAGE: tl.constexpr = (SHAPE.height + SHAPE.pad) * (SHAPE.width + SHAPE.pad) // GROUP.pixels
    _, start, end = own_batch(tl.program_id(0), first, batch, ROWS_OF_IMAGE, TILE.rows)
    rows = start + tl.arange(0, TILE.rows)
    cols = tl.program_id(1) * TILE.cols + tl.arange(0, TILE.cols)
    acc = convolve(x, weight, rows, cols, batch, SHAPE.stored_inputs, CO, SHAPE, GROUP, TILE)
    valid = valid_columns(rows, cols, end, CO, SHAPE, GROUP)
    rounded = acc.to(y.dtype.element_ty)
    # Padding may hold anything, and needs no look at every pixel.
    inside = (rows < end * ROWS_OF_IMAGE)[:, None]
    tl.store(y + rows[:, None] * WIDTH + cols[None, :], rounded, mask=inside & (cols < WIDTH)[None, :])
    leave_sums(rounded, valid, partial, cols, WIDTH)
    if is_last(counter):
        finish_statistics(
            partial,
            stats,
            norm,
            batches,
            cols,
            tl.arange(0, GROUP.block),
            first,
            batch,
            tl.cdiv(first * ROWS_OF_IMAGE, TILE.rows),
            momentum,
            eps,
            SHAPE,
            WIDTH=WIDTH,
            COLS=TILE.cols,
            BLOCK=GROUP.block,
            CHUNK=CHUNK,
        )


@triton.jit(do_not_specialize=["first", "batch", "accumulate"])
def dgrad_kernel(
    dy,
    weight,
    residual,
    relu,
    to,
    first,
    batch,
    accumulate,
    SHAPE: tl.constexpr,
    RESIDUAL: tl.constexpr,
    FROM_Y: tl.constexpr,
    OTHER: tl.constexpr,
    GROUP: tl.constexpr,
    TILE: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """``backward.dgrad_kernel`` by groups: the convolution of ``dy`` by a ``weight`` turned round."""
    CI: tl.constexpr = SHAPE.stored_inputs
    WIDTH: tl.constexpr = GROUP.pixels * CI
    ROWS_OF_IMAGE: tl.constexpr = (SHAPE.height + SHAPE.pad) * (SHAPE.width + SHAPE.pad) // GROUP.pixels
    second, start, end = own_batch(tl.program_id(0), first, batch, ROWS_OF_IMAGE, TILE.rows)
    rows = start + tl.arange(0, TILE.rows)
    cols = tl.program_id(1) * TILE.cols + tl.arange(0, TILE.cols)
    acc = convolve(dy, weight, rows, cols, batch, SHAPE.stored_outputs, CI, SHAPE, GROUP, TILE)
    valid = valid_columns(rows, cols, end, CI, SHAPE, GROUP)
    if RESIDUAL:
        where = rows[:, None] * WIDTH + cols[None, :]
        acc += tl.load(residual + where, mask=valid & (cols < WIDTH)[None, :], other=0.0).to(tl.float32)
    cut_gradient(acc, rows, valid, cols, cols % CI, second, relu, to, WIDTH, CI, FROM_Y, OTHER)
    if is_last(to.counter):
        finish_norms(
            relu,
            to,
            cols,
            tl.arange(0, GROUP.block),
            first,
            batch,
            tl.cdiv(first * ROWS_OF_IMAGE, TILE.rows),
            accumulate,
            PIXELS=SHAPE.height * SHAPE.width,
            WIDTH=WIDTH,
            STORED=CI,
            REAL=SHAPE.inputs,
            OTHER=OTHER,
            COLS=TILE.cols,
            BLOCK=GROUP.block,
            CHUNK=CHUNK,
        )


@triton.jit(do_not_specialize=["first", "batch", "span"])
def wgrad_kernel(
    x, g, y, coefficients, dy, partial, first, batch, span, SHAPE: tl.constexpr, GROUP: tl.constexpr, TILE: tl.constexpr
):
    """``backward.wgrad_kernel`` over ``span`` groups. It leaves the gradient of a group's weight, without its filling.

    That is ``partial[split, pixel, stored_outputs, kernel row, input pixel, stored_inputs]``. ``weights.reduce_kernel``
    picks out of it what belongs to the layer's own weight: it has fewer programs to spend that work.
    """
    ROWS: tl.constexpr = TILE.rows
    COLS: tl.constexpr = TILE.cols
    CI: tl.constexpr = SHAPE.stored_inputs
    CO: tl.constexpr = SHAPE.stored_outputs
    WIDTH: tl.constexpr = GROUP.pixels * CO
    ACROSS: tl.constexpr = GROUP.pixels + 2  # pixels of a patch in one kernel row
    LENGTH: tl.constexpr = 3 * ACROSS * CI
    LINE: tl.constexpr = SHAPE.width + SHAPE.pad
    pm = tl.program_id(0)
    split = tl.program_id(2)
    k = pm * TILE.rows + tl.arange(0, TILE.rows)
    cols = tl.program_id(1) * TILE.cols + tl.arange(0, TILE.cols)
    used = cols < WIDTH
    channels = cols % CO
    kh = k // CI // ACROSS - 1
    kw = k // CI % ACROSS - 1
    shift = (kh * LINE + kw) * CI + k % CI
    ROWS_OF_IMAGE: tl.constexpr = (SHAPE.height + SHAPE.pad) * LINE // GROUP.pixels
    second, start, end = own_batch(split, first, batch, ROWS_OF_IMAGE, span)
    stop = tl.minimum(start + span, end * ROWS_OF_IMAGE)
    coefficients += second * (STATS * CO)
    p = tl.load(coefficients + channels, mask=used, other=0.0)
    q = tl.load(coefficients + CO + channels, mask=used, other=0.0)
    r = tl.load(coefficients + 2 * CO + channels, mask=used, other=0.0)
    limit = (batch * ((SHAPE.height + SHAPE.pad) * LINE * CI)).to(tl.uint32)
    kept = tl.where(pm == 0, stop, 0)
    acc = tl.zeros([ROWS, COLS], tl.float32)
    for begin in range(start, stop, TILE.depth):
        rows = begin + tl.arange(0, TILE.depth)
        valid = valid_columns(rows, cols, batch, CO, SHAPE, GROUP) & (rows < stop)[:, None]
        where = (rows * (GROUP.pixels * CI))[:, None] + shift[None, :]
        inside = where.to(tl.uint32) < limit  # where a row is no pixel, dy is zero
        patch = tl.load(x + where, mask=inside, other=0.0).to(dy.dtype.element_ty)
        where = rows[:, None] * WIDTH + cols[None, :]
        value = gradient_of_input(g, y, p, q, r, where, valid & used[None, :], valid).to(dy.dtype.element_ty)
        tl.store(dy + where, value, mask=(rows < kept)[:, None] & used[None, :])
        acc = tl.dot(tl.trans(patch.to(FACTOR)), value.to(FACTOR), acc)
    inside = (k < LENGTH)[:, None] & used[None, :]
    tl.store(partial + split * (WIDTH * LENGTH) + cols[None, :] * LENGTH + k[:, None], acc, mask=inside)
