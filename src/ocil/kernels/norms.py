# mypy: disable-error-code="no-untyped-def"
"""Parts of the kernels that have to do with batch normalisation.

One or two batches of images pass together, each normalised by statistics of its own: the first ``first`` images, and
the rest of ``batch``. The rows of a program belong to one of them (``own_batch``), and the programs of the first batch
come first: ``before`` of them. A layer keeps ``STATS`` numbers per channel for each batch.

What a normalisation needs are sums over all rows of a batch. Every program leaves the sums over its own rows in
``partial``. The last program of a column of programs, found by a counter, adds them up batch by batch, always in the
same order: the sums are those that each batch would give if it passed alone.
"""

import triton
import triton.language as tl

from ocil.kernels import layout

STATS = tl.constexpr(layout.STATS)


@triton.jit
def own_batch(program, first, batch, rows, span):
    """The part of a program, if an image has ``rows`` rows and a program takes ``span``.

    Returns which batch it belongs to, 0 or 1, its first row, and the number of images up to the end of that batch.
    """
    before = tl.cdiv(first * rows, span)
    second = (program >= before).to(tl.int32)
    start = (program - second * before) * span + second * first * rows
    return second, start, tl.where(second > 0, batch, first)


@triton.jit
def is_last(counter):
    """Whether this program is the last of its column of programs to come here. It then sets the counter to zero."""
    tl.debug_barrier()
    last = tl.atomic_add(counter + tl.program_id(1), 1, sem="acq_rel") == tl.num_programs(0) - 1
    if last:
        tl.store(counter + tl.program_id(1), 0)
    return last


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
def fold(sums, cols, CHANNELS: tl.constexpr, BLOCK: tl.constexpr):
    """From sums for each column, a channel of a pixel of a group, to ``BLOCK`` sums, one for each channel."""
    same = (cols % CHANNELS)[:, None] == tl.arange(0, BLOCK)[None, :]
    return tl.sum(tl.where(same, sums[:, None], 0.0), 0)


@triton.jit
def channel_sums(
    partial,
    cols,
    second,
    before,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    THIRD: tl.constexpr,
    COLS: tl.constexpr,
    BLOCK: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """The sums of batch ``second``, one for each channel. Where pixels are grouped, ``WIDTH`` is larger."""
    PLANES: tl.constexpr = 3 if THIRD else 2
    programs = tl.where(second > 0, tl.num_programs(0) - before, before)
    own = partial + second * before * (PLANES * WIDTH)
    a, b, c = column_sums(own, cols, programs, WIDTH, THIRD, COLS, CHUNK)
    if WIDTH > CHANNELS:
        a = fold(a, cols, CHANNELS, BLOCK)
        b = fold(b, cols, CHANNELS, BLOCK)
        c = fold(c, cols, CHANNELS, BLOCK)
    return a, b, c


@triton.jit
def leave_sums(rounded, valid, partial, cols, WIDTH: tl.constexpr):
    """Write the sums and the sums of squares over a program's rows, where ``valid``, to ``partial``."""
    value = tl.where(valid, rounded.to(tl.float32), 0.0)  # the statistics of what is stored
    spot = partial + tl.program_id(0) * (2 * WIDTH) + cols
    tl.store(spot, tl.sum(value, 0), mask=cols < WIDTH)
    tl.store(spot + WIDTH, tl.sum(value * value, 0), mask=cols < WIDTH)


@triton.jit
def finish_statistics(
    partial,
    stats,
    norm,
    batches,
    cols,
    channels,
    first,
    batch,
    before,
    momentum,
    eps,
    SHAPE: tl.constexpr,
    WIDTH: tl.constexpr,
    COLS: tl.constexpr,
    BLOCK: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Mean, 1/std, scale and shift of each batch to ``stats``.

    The running statistics move by the first batch, then by the second, and so does ``batches``, the count of batches.
    """
    CO: tl.constexpr = SHAPE.stored_outputs
    used = channels < CO
    real = channels < SHAPE.outputs
    gamma = tl.load(norm.gamma + channels, mask=real, other=0.0)
    beta = tl.load(norm.beta + channels, mask=real, other=0.0)
    running_mean = tl.load(norm.mean + channels, mask=real, other=0.0)
    running_var = tl.load(norm.var + channels, mask=real, other=0.0)
    number = 1 + (first < batch).to(tl.int32)
    for second in range(number):
        total, squares, _ = channel_sums(partial, cols, second, before, WIDTH, CO, False, COLS, BLOCK, CHUNK)
        images = tl.where(second > 0, batch - first, first)
        count = (images * (SHAPE.out_height * SHAPE.out_width)).to(tl.float32)
        mean = total / count
        var = tl.maximum(squares / count - mean * mean, 0.0)
        rstd = 1.0 / tl.sqrt(var + eps)
        scale = gamma * rstd
        own = stats + second * (STATS * CO) + channels
        tl.store(own, mean, mask=used)
        tl.store(own + CO, rstd, mask=used)
        tl.store(own + 2 * CO, scale, mask=used)
        tl.store(own + 3 * CO, beta - mean * scale, mask=used)
        running_mean += momentum * (mean - running_mean)
        running_var += momentum * (var * (count / (count - 1.0)) - running_var)
    tl.store(norm.mean + channels, running_mean, mask=real)
    tl.store(norm.var + channels, running_var, mask=real)
    if tl.program_id(1) == 0:
        tl.store(batches, tl.load(batches) + number)


@triton.jit
def load_grads(grads, channels, accumulate, REAL: tl.constexpr):
    """Gradients of gamma and beta to add to: those that are there if ``accumulate`` is 1, else zeros."""
    earlier = channels < REAL * accumulate
    gamma = tl.load(grads + channels, mask=earlier, other=0.0)
    return gamma, tl.load(grads + REAL + channels, mask=earlier, other=0.0)


@triton.jit
def store_grads(gamma, beta, grads, channels, REAL: tl.constexpr):
    tl.store(grads + channels, gamma, mask=channels < REAL)
    tl.store(grads + REAL + channels, beta, mask=channels < REAL)


@triton.jit
def finish_norm(total, moment, stats, coefficients, channels, count, STORED: tl.constexpr):
    """From the sums of ``g`` and ``g * (y - mean)`` of one batch: ``p``, ``q``, ``r``. Returns gamma's gradient."""
    used = channels < STORED
    mean = tl.load(stats + channels, mask=used, other=0.0)
    rstd = tl.load(stats + STORED + channels, mask=used, other=0.0)
    p = tl.load(stats + 2 * STORED + channels, mask=used, other=0.0)
    q = -p * rstd * rstd * moment / count
    tl.store(coefficients + channels, p, mask=used)
    tl.store(coefficients + STORED + channels, q, mask=used)
    tl.store(coefficients + 2 * STORED + channels, -p * total / count - q * mean, mask=used)
    return moment * rstd


@triton.jit
def finish_norms(
    relu,
    to,
    cols,
    channels,
    first,
    batch,
    before,
    accumulate,
    PIXELS: tl.constexpr,
    WIDTH: tl.constexpr,
    STORED: tl.constexpr,
    REAL: tl.constexpr,
    OTHER: tl.constexpr,
    COLS: tl.constexpr,
    BLOCK: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """``finish_norm`` of the normalisation in front of a ReLU, with ``OTHER`` of both, and the gradients of gamma and
    beta, which are sums over the batches. A map has ``PIXELS`` pixels, padding not counted.
    """
    gamma, beta = load_grads(to.grads, channels, accumulate, REAL)
    other_gamma, other_beta = load_grads(to.other_grads, channels, accumulate, REAL)
    for second in range(1 + (first < batch).to(tl.int32)):
        total, moment, other_moment = channel_sums(
            to.partial, cols, second, before, WIDTH, STORED, OTHER, COLS, BLOCK, CHUNK
        )
        count = (tl.where(second > 0, batch - first, first) * PIXELS).to(tl.float32)
        own = second * (STATS * STORED)
        gamma += finish_norm(total, moment, relu.stats + own, to.coefficients + own, channels, count, STORED)
        beta += total
        if OTHER:
            stats, coefficients = relu.other_stats + own, to.other_coefficients + own
            other_gamma += finish_norm(total, other_moment, stats, coefficients, channels, count, STORED)
            other_beta += total
    store_grads(gamma, beta, to.grads, channels, REAL)
    if OTHER:
        store_grads(other_gamma, other_beta, to.other_grads, channels, REAL)
