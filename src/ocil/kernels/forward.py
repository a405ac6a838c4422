# mypy: disable-error-code="no-untyped-def"
"""Triton kernels of the forward pass. Activations are NHWC; a convolution is a matrix product over unfolded patches.

A row of the product is a stored pixel of the output map, padding included, and a column is an output channel. The inner
axis is what the pixel sees: ``k = tap * stored_inputs + channel``. Taps and channels share that axis because channel
counts such as 20 or 40 would waste a third of every tile if each of the nine taps were padded on its own.

What limits these kernels is not memory but the number of instructions, most of them to find out which inputs lie
outside the map. So a map of some size is stored with padding (see ``layout.MapShape``): every neighbour of a pixel is
then at a fixed distance from it, the zeros on the right of a row being those on the left of the next. For the same
reason channels are stored in multiples of four, which a thread loads at once. All weights of the channels that fill up
are zero, so those channels are zero everywhere.

One or two batches of images pass together, each with its own batch statistics: see ``norms.py``.

``grouped.py`` has other versions of these kernels for layers of few channels.
"""

import os

import triton
import triton.language as tl

from ocil.kernels.norms import STATS, finish_statistics, is_last, leave_sums, own_batch

# What the matrix units take. Triton's interpreter multiplies bfloat16 as if it were integers.
FACTOR = tl.constexpr(tl.float32 if os.environ.get("TRITON_INTERPRET") == "1" else tl.bfloat16)


@triton.jit
def split_rows(rows, batch, HEIGHT: tl.constexpr, WIDTH: tl.constexpr, PAD: tl.constexpr):
    """Image, row and column of stored pixels, and which of them are pixels of the map and not of its padding."""
    ih = rows // (WIDTH + PAD) % (HEIGHT + PAD)
    iw = rows % (WIDTH + PAD)
    image = rows // ((HEIGHT + PAD) * (WIDTH + PAD))
    return image, ih, iw, (image < batch) & (ih < HEIGHT) & (iw < WIDTH)


@triton.jit
def convolve(x, weight, rows, cols, batch, SHAPE: tl.constexpr, TILE: tl.constexpr):
    """The outputs at ``rows`` and ``cols`` in float32, and which rows are pixels of the map."""
    ROWS: tl.constexpr = TILE.rows
    COLS: tl.constexpr = TILE.cols
    CI: tl.constexpr = SHAPE.stored_inputs
    SIZE: tl.constexpr = SHAPE.size
    DEPTH: tl.constexpr = SIZE * SIZE * CI
    LINE: tl.constexpr = SHAPE.width + SHAPE.pad
    image, top, left, valid = split_rows(rows, batch, SHAPE.out_height, SHAPE.out_width, SHAPE.out_pad)
    top = top * SHAPE.stride - SIZE // 2
    left = left * SHAPE.stride - SIZE // 2
    base = ((image * (SHAPE.height + SHAPE.pad) + top) * LINE + left) * CI
    limit = (batch * ((SHAPE.height + SHAPE.pad) * LINE * CI)).to(tl.uint32)
    acc = tl.zeros([ROWS, COLS], tl.float32)
    for k0 in range(0, DEPTH, TILE.depth):
        k = k0 + tl.arange(0, TILE.depth)
        kh = k // CI // SIZE
        kw = k // CI % SIZE
        where = base[:, None] + ((kh * LINE + kw) * CI + k % CI)[None, :]
        if SHAPE.pad > 0:  # what is read past DEPTH meets a weight of zero
            inside = where.to(tl.uint32) < limit
        else:
            ih = top[:, None] + kh[None, :]
            iw = left[:, None] + kw[None, :]
            inside = valid[:, None] & (k < DEPTH)[None, :]
            inside = inside & (ih >= 0) & (ih < SHAPE.height) & (iw >= 0) & (iw < SHAPE.width)
        patch = tl.load(x + where, mask=inside, other=0.0)
        inside = (k < DEPTH)[:, None] & (cols < SHAPE.stored_outputs)[None, :]
        factor = tl.load(weight + cols[None, :] * DEPTH + k[:, None], mask=inside, other=0.0)
        acc = tl.dot(patch.to(weight.dtype.element_ty).to(FACTOR), factor.to(FACTOR), acc)
    return acc, valid


@triton.jit
def normalise(value, norm, channels, eps, REAL: tl.constexpr):
    """``value``, ``[rows, columns]``, by running statistics; ``channels`` are those of the columns."""
    real = channels < REAL
    rstd = 1.0 / tl.sqrt(tl.load(norm.var + channels, mask=real, other=0.0) + eps)
    scale = tl.load(norm.gamma + channels, mask=real, other=0.0) * rstd
    mean = tl.load(norm.mean + channels, mask=real, other=0.0)
    shift = tl.load(norm.beta + channels, mask=real, other=0.0) - mean * scale
    return value * scale[None, :] + shift[None, :]


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
    TILE: tl.constexpr,
):
    """``out = relu(bn(conv(x, weight)) + other)`` by running statistics; the padding of ``out`` is set to zero."""
    rows = tl.program_id(0) * TILE.rows + tl.arange(0, TILE.rows)
    cols = tl.program_id(1) * TILE.cols + tl.arange(0, TILE.cols)
    value, valid = convolve(x, weight, rows, cols, batch, SHAPE, TILE)
    valid = valid[:, None]
    used = (cols < SHAPE.stored_outputs)[None, :]
    value = normalise(value, norm, cols, eps, SHAPE.outputs)
    where = rows[:, None] * SHAPE.stored_outputs + cols[None, :]
    if ADD:
        value += tl.load(other + where, mask=valid & used, other=0.0).to(tl.float32)
    if RELU:
        value = tl.maximum(value, 0.0)
    value = tl.where(valid, value, 0.0)
    inside = rows < batch * ((SHAPE.out_height + SHAPE.out_pad) * (SHAPE.out_width + SHAPE.out_pad))
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
    TILE: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """``y = conv(x, weight)`` in bfloat16, and the statistics of the batch normalisation that follows it.

    ``x`` is a stored map of bfloat16, or images of float32, ``weight`` the packed weight, ``y`` a stored map. Every
    program leaves the sums of its rows in ``partial``; the last one of a column of programs adds them up, ``CHUNK``
    rows at a time: ``finish_statistics``.
    """
    CO: tl.constexpr = SHAPE.stored_outputs
    PIXELS: tl.constexpr = (SHAPE.out_height + SHAPE.out_pad) * (SHAPE.out_width + SHAPE.out_pad)
    _, start, end = own_batch(tl.program_id(0), first, batch, PIXELS, TILE.rows)
    rows = start + tl.arange(0, TILE.rows)
    cols = tl.program_id(1) * TILE.cols + tl.arange(0, TILE.cols)
    acc, valid = convolve(x, weight, rows, cols, end, SHAPE, TILE)
    rounded = acc.to(y.dtype.element_ty)
    tl.store(y + rows[:, None] * CO + cols[None, :], rounded, mask=valid[:, None] & (cols < CO)[None, :])
    leave_sums(rounded, valid[:, None], partial, cols, CO)
    if is_last(counter):
        finish_statistics(
            partial,
            stats,
            norm,
            batches,
            cols,
            cols,
            first,
            batch,
            tl.cdiv(first * PIXELS, TILE.rows),
            momentum,
            eps,
            SHAPE,
            WIDTH=CO,
            COLS=TILE.cols,
            BLOCK=TILE.cols,
            CHUNK=CHUNK,
        )


@triton.jit(do_not_specialize=["first", "batch"])
def activate_kernel(
    y,
    stats,
    other,
    other_stats,
    out,
    first,
    batch,
    MAP: tl.constexpr,
    ADD: tl.constexpr,
    ADD_NORM: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
):
    """``out = relu(bn(y))``, with ``ADD`` ``relu(bn(y) + other)``, with ``ADD_NORM`` ``relu(bn(y) + bn(other))``.

    All are maps of the shape ``MAP``; the padding of ``out`` is set to zero.
    """
    C: tl.constexpr = MAP.stored
    PIXELS: tl.constexpr = (MAP.height + MAP.pad) * (MAP.width + MAP.pad)
    second, start, end = own_batch(tl.program_id(0), first, batch, PIXELS, ROWS)
    stats += second * (STATS * C)
    other_stats += second * (STATS * C)
    rows = start + tl.arange(0, ROWS)
    cols = tl.program_id(1) * COLS + tl.arange(0, COLS)
    image, _, _, valid = split_rows(rows, end, MAP.height, MAP.width, MAP.pad)
    used = cols < C
    where = rows[:, None] * C + cols[None, :]
    inside = valid[:, None] & used[None, :]
    value = tl.load(y + where, mask=inside, other=0.0).to(tl.float32)
    scale = tl.load(stats + 2 * C + cols, mask=used, other=0.0)
    shift = tl.load(stats + 3 * C + cols, mask=used, other=0.0)
    value = value * scale[None, :] + shift[None, :]
    if ADD:
        more = tl.load(other + where, mask=inside, other=0.0).to(tl.float32)
        if ADD_NORM:
            scale = tl.load(other_stats + 2 * C + cols, mask=used, other=0.0)
            shift = tl.load(other_stats + 3 * C + cols, mask=used, other=0.0)
            more = more * scale[None, :] + shift[None, :]
        value += more
    value = tl.where(valid[:, None], tl.maximum(value, 0.0), 0.0)
    tl.store(out + where, value.to(out.dtype.element_ty), mask=(image < end)[:, None] & used[None, :])


@triton.jit
def pool_kernel(a, features, MAP: tl.constexpr, WINDOW_H: tl.constexpr, WINDOW_W: tl.constexpr, COLS: tl.constexpr):
    """Means of the map ``a`` over windows, to float32 ``[batch, channels, windows]``.

    One program takes one window of one image; pixels beyond the last whole window count for nothing.
    """
    WINDOWS_H: tl.constexpr = MAP.height // WINDOW_H
    WINDOWS_W: tl.constexpr = MAP.width // WINDOW_W
    C: tl.constexpr = MAP.stored
    window = tl.program_id(0) % (WINDOWS_H * WINDOWS_W)
    image = tl.program_id(0) // (WINDOWS_H * WINDOWS_W)
    cols = tl.program_id(1) * COLS + tl.arange(0, COLS)
    total = tl.zeros([COLS], tl.float32)
    for n in range(WINDOW_H * WINDOW_W):
        ih = window // WINDOWS_W * WINDOW_H + n // WINDOW_W
        iw = window % WINDOWS_W * WINDOW_W + n % WINDOW_W
        where = ((image * (MAP.height + MAP.pad) + ih) * (MAP.width + MAP.pad) + iw) * C + cols
        total += tl.load(a + where, mask=cols < C, other=0.0).to(tl.float32)
    where = features + (image * MAP.channels + cols) * (WINDOWS_H * WINDOWS_W) + window
    tl.store(where, total / (WINDOW_H * WINDOW_W), mask=cols < MAP.channels)
