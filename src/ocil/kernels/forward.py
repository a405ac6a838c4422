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

``grouped.py`` has other versions of these kernels for layers of few channels.
"""

import os

import triton
import triton.language as tl

# What the matrix units take. Triton's interpreter multiplies bfloat16 as if it were integers.
FACTOR = tl.constexpr(tl.float32 if os.environ.get("TRITON_INTERPRET") == "1" else tl.bfloat16)


@triton.jit
def column_sums(
    partial, cols, count, WIDTH: tl.constexpr, THIRD: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr
):
    """Sums of ``partial``, ``[count, 2 or 3, WIDTH]``, over its rows at the ``BLOCK`` columns ``cols``.

    The order of the additions is always the same.
    """
    PLANES: tl.constexpr = 3 if THIRD else 2
    first = tl.zeros([CHUNK, BLOCK], tl.float32)
    second = tl.zeros([CHUNK, BLOCK], tl.float32)
    third = tl.zeros([CHUNK, BLOCK], tl.float32)
    for start in range(0, count, CHUNK):
        rows = start + tl.arange(0, CHUNK)
        inside = (rows < count)[:, None] & (cols < WIDTH)[None, :]
        where = partial + rows[:, None] * (PLANES * WIDTH) + cols[None, :]
        first += tl.load(where, mask=inside, other=0.0, cache_modifier=".cg")  # other programs wrote it just now
        second += tl.load(where + WIDTH, mask=inside, other=0.0, cache_modifier=".cg")
        if THIRD:
            third += tl.load(where + 2 * WIDTH, mask=inside, other=0.0, cache_modifier=".cg")
    return tl.sum(first, 0), tl.sum(second, 0), tl.sum(third, 0)


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


@triton.jit
def leave_sums(rounded, valid, partial, cols, WIDTH: tl.constexpr):
    """Write the sums and the sums of squares over a program's rows, where ``valid``, to ``partial``."""
    value = tl.where(valid, rounded.to(tl.float32), 0.0)  # the statistics of what is stored
    spot = partial + tl.program_id(0) * (2 * WIDTH) + cols
    tl.store(spot, tl.sum(value, 0), mask=cols < WIDTH)
    tl.store(spot + WIDTH, tl.sum(value * value, 0), mask=cols < WIDTH)


@triton.jit
def is_last(counter):
    """Whether this program is the last of its column of programs to come here. The last one must reset the counter."""
    tl.debug_barrier()
    return tl.atomic_add(counter + tl.program_id(1), 1, sem="acq_rel") == tl.num_programs(0) - 1


@triton.jit
def finish_statistics(total, squares, channels, stats, norm, batches, count, momentum, eps, SHAPE: tl.constexpr):
    """From the sums and the sums of squares of ``count`` values per channel: mean, 1/std, scale and shift to ``stats``.

    It also moves the running statistics, and ``batches``, the count of batches.
    """
    CO: tl.constexpr = SHAPE.stored_outputs
    mean = total / count
    var = tl.maximum(squares / count - mean * mean, 0.0)
    used = channels < CO
    real = channels < SHAPE.outputs
    rstd = 1.0 / tl.sqrt(var + eps)
    scale = tl.load(norm.gamma + channels, mask=real, other=0.0) * rstd
    tl.store(stats + channels, mean, mask=used)
    tl.store(stats + CO + channels, rstd, mask=used)
    tl.store(stats + 2 * CO + channels, scale, mask=used)
    tl.store(stats + 3 * CO + channels, tl.load(norm.beta + channels, mask=real, other=0.0) - mean * scale, mask=used)
    old = tl.load(norm.mean + channels, mask=real, other=0.0)
    tl.store(norm.mean + channels, old + momentum * (mean - old), mask=real)
    old = tl.load(norm.var + channels, mask=real, other=0.0)
    tl.store(norm.var + channels, old + momentum * (var * (count / (count - 1.0)) - old), mask=real)
    if tl.program_id(1) == 0:
        tl.store(batches, tl.load(batches) + 1)


@triton.jit(do_not_specialize=["batch"])
def conv_kernel(
    x,
    weight,
    y,
    partial,
    counter,
    stats,
    norm,
    batches,
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
    rows at a time, and calls ``finish_statistics``.
    """
    CO: tl.constexpr = SHAPE.stored_outputs
    rows = tl.program_id(0) * TILE.rows + tl.arange(0, TILE.rows)
    cols = tl.program_id(1) * TILE.cols + tl.arange(0, TILE.cols)
    acc, valid = convolve(x, weight, rows, cols, batch, SHAPE, TILE)
    rounded = acc.to(y.dtype.element_ty)
    tl.store(y + rows[:, None] * CO + cols[None, :], rounded, mask=valid[:, None] & (cols < CO)[None, :])
    leave_sums(rounded, valid[:, None], partial, cols, CO)
    if is_last(counter):
        tl.store(counter + tl.program_id(1), 0)
        total, squares, _ = column_sums(partial, cols, tl.num_programs(0), CO, False, TILE.cols, CHUNK)
        count = (batch * (SHAPE.out_height * SHAPE.out_width)).to(tl.float32)
        finish_statistics(total, squares, cols, stats, norm, batches, count, momentum, eps, SHAPE)


@triton.jit(do_not_specialize=["batch"])
def activate_kernel(
    y,
    stats,
    other,
    other_stats,
    out,
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
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cols = tl.program_id(1) * COLS + tl.arange(0, COLS)
    image, _, _, valid = split_rows(rows, batch, MAP.height, MAP.width, MAP.pad)
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
    tl.store(out + where, value.to(out.dtype.element_ty), mask=(image < batch)[:, None] & used[None, :])


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
