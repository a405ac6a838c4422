# mypy: disable-error-code="no-untyped-def"
"""Triton kernels of the backward pass.

The gradient of a batch normalisation's output, set to zero where the ReLU after it was closed, is stored as ``g``. The
gradient of the normalisation's input, the output ``y`` of a convolution, is then ``dy = p * g + q * y + r`` with three
numbers per channel. These follow from two sums per channel, of ``g`` and of ``g * (y - mean)``, so the kernel that
makes ``g`` also makes them. A gradient passes through a layer as follows:

1. ``unpool_kernel`` or the ``dgrad_kernel`` of the layer above writes ``g``; its last program writes ``p``, ``q`` and
   ``r`` and the gradients of gamma and beta.
2. ``wgrad_kernel`` computes ``dy`` from ``g`` and ``y`` as it loads them, stores it, and multiplies it by the layer's
   input. The pixels are cut into splits, and every split leaves a partial sum of the whole weight's gradient.
3. ``dgrad_kernel`` multiplies ``dy`` by the weight: the gradient that arrives at the ReLU below, which is step 1 again.
4. At the end of the pass ``weights.reduce_kernel`` adds up the splits of all layers.
"""

import triton
import triton.language as tl

from ocil.kernels.forward import FACTOR, split_rows
from ocil.kernels.norms import STATS, finish_norms, is_last, own_batch


@triton.jit
def cut_gradient(
    g,
    rows,
    valid,
    cols,
    channels,
    second,
    relu,
    to,
    WIDTH: tl.constexpr,
    STORED: tl.constexpr,
    FROM_Y: tl.constexpr,
    OTHER: tl.constexpr,
):
    """Set the gradient ``g`` to zero where the ReLU was closed, store it, and leave the sums over its rows.

    ``rows`` and ``cols`` are the rows and columns of ``g`` in a map of ``WIDTH`` columns, ``channels`` the channels of
    these columns, of ``STORED``. ``valid``, ``[rows, 1 or columns]``, is false in the padding. The ReLU was open where
    ``relu.active`` is positive, or with ``FROM_Y`` where ``bn(relu.y)`` is. The rows belong to batch ``second``.
    """
    used = cols < WIDTH
    stats = relu.stats + second * (STATS * STORED)
    inside = valid & used[None, :]
    where = rows[:, None] * WIDTH + cols[None, :]
    value = tl.load(relu.y + where, mask=inside, other=0.0).to(tl.float32)
    if FROM_Y:
        scale = tl.load(stats + 2 * STORED + channels, mask=used, other=0.0)
        shift = tl.load(stats + 3 * STORED + channels, mask=used, other=0.0)
        opened = value * scale[None, :] + shift[None, :] > 0
    else:
        opened = tl.load(relu.active + where, mask=inside, other=0.0).to(tl.float32) > 0
    rounded = tl.where(opened & inside, g, 0.0).to(to.gradient.dtype.element_ty)
    tl.store(to.gradient + where, rounded, mask=inside)
    g = rounded.to(tl.float32)
    PLANES: tl.constexpr = 3 if OTHER else 2
    spot = to.partial + tl.program_id(0) * (PLANES * WIDTH) + cols
    tl.store(spot, tl.sum(g, 0), mask=used)
    mean = tl.load(stats + channels, mask=used, other=0.0)
    tl.store(spot + WIDTH, tl.sum(g * (value - mean[None, :]), 0), mask=used)
    if OTHER:
        value = tl.load(relu.other + where, mask=inside, other=0.0).to(tl.float32)
        stats = relu.other_stats + second * (STATS * STORED)
        mean = tl.load(stats + channels, mask=used, other=0.0)
        tl.store(spot + 2 * WIDTH, tl.sum(g * (value - mean[None, :]), 0), mask=used)


@triton.jit
def finish_gradient(
    g,
    rows,
    valid,
    cols,
    second,
    before,
    first,
    batch,
    accumulate,
    relu,
    to,
    PIXELS: tl.constexpr,
    STORED: tl.constexpr,
    REAL: tl.constexpr,
    FROM_Y: tl.constexpr,
    OTHER: tl.constexpr,
    BLOCK: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """``cut_gradient``; then the last program of a column of programs adds up all programs' sums: ``finish_norms``."""
    cut_gradient(g, rows, valid[:, None], cols, cols, second, relu, to, STORED, STORED, FROM_Y, OTHER)
    if is_last(to.counter):
        finish_norms(
            relu,
            to,
            cols,
            cols,
            first,
            batch,
            before,
            accumulate,
            PIXELS,
            WIDTH=STORED,
            STORED=STORED,
            REAL=REAL,
            OTHER=OTHER,
            COLS=BLOCK,
            BLOCK=BLOCK,
            CHUNK=CHUNK,
        )


@triton.jit(do_not_specialize=["first", "batch", "accumulate"])
def unpool_kernel(
    features_grad,
    relu,
    to,
    first,
    batch,
    accumulate,
    MAP: tl.constexpr,
    WINDOW_H: tl.constexpr,
    WINDOW_W: tl.constexpr,
    OTHER: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Spread the features' gradient over their windows, then ``finish_gradient`` of the last block."""
    HEIGHT: tl.constexpr = MAP.height
    WIDTH: tl.constexpr = MAP.width
    WINDOWS_H: tl.constexpr = HEIGHT // WINDOW_H
    WINDOWS_W: tl.constexpr = WIDTH // WINDOW_W
    REAL: tl.constexpr = MAP.channels
    STORED: tl.constexpr = MAP.stored
    PIXELS: tl.constexpr = (HEIGHT + MAP.pad) * (WIDTH + MAP.pad)
    second, start, end = own_batch(tl.program_id(0), first, batch, PIXELS, ROWS)
    rows = start + tl.arange(0, ROWS)
    cols = tl.program_id(1) * COLS + tl.arange(0, COLS)
    image, ih, iw, valid = split_rows(rows, end, HEIGHT, WIDTH, MAP.pad)
    window_h = ih // WINDOW_H
    window_w = iw // WINDOW_W
    pooled = valid & (window_h < WINDOWS_H) & (window_w < WINDOWS_W)
    window = window_h * WINDOWS_W + window_w
    where = ((image * REAL)[:, None] + cols[None, :]) * (WINDOWS_H * WINDOWS_W) + window[:, None]
    g = tl.load(features_grad + where, mask=pooled[:, None] & (cols < REAL)[None, :], other=0.0)
    g = g / (WINDOW_H * WINDOW_W)
    before = tl.cdiv(first * PIXELS, ROWS)
    finish_gradient(
        g,
        rows,
        valid,
        cols,
        second,
        before,
        first,
        batch,
        accumulate,
        relu,
        to,
        PIXELS=HEIGHT * WIDTH,
        STORED=STORED,
        REAL=REAL,
        FROM_Y=False,
        OTHER=OTHER,
        BLOCK=COLS,
        CHUNK=CHUNK,
    )


@triton.jit
def convolve_back(
    dy,
    weight,
    short_dy,
    short_weight,
    cols,
    start,
    end,
    parity,
    SHAPE: tl.constexpr,
    SHORT: tl.constexpr,
    TILE: tl.constexpr,
):
    """The product of ``dgrad_kernel``, the stored pixels of its rows, and which of them are pixels of the map.

    Its rows begin at ``start``, in the class ``parity`` of pixels; its batch ends before image ``end``.
    """
    ROWS: tl.constexpr = TILE.rows
    COLS: tl.constexpr = TILE.cols
    CI: tl.constexpr = SHAPE.stored_inputs
    CO: tl.constexpr = SHAPE.stored_outputs
    OUT_HEIGHT: tl.constexpr = SHAPE.out_height
    OUT_WIDTH: tl.constexpr = SHAPE.out_width
    LINE: tl.constexpr = OUT_WIDTH + SHAPE.out_pad
    rows = start + tl.arange(0, TILE.rows)
    if SHAPE.stride == 1:
        odd_h = 0
        odd_w = 0
        pixel = rows
        image, bottom, right, valid = split_rows(pixel, end, SHAPE.height, SHAPE.width, SHAPE.pad)
        bottom += 1
        right += 1
        depth = 9 * CO
    else:
        odd_h = parity // 2
        odd_w = parity % 2
        image, bottom, right, valid = split_rows(rows, end, OUT_HEIGHT, OUT_WIDTH, 0)
        ih = bottom * 2 + odd_h
        iw = right * 2 + odd_w
        valid = valid & (ih < SHAPE.height) & (iw < SHAPE.width)
        pixel = (image * (SHAPE.height + SHAPE.pad) + ih) * (SHAPE.width + SHAPE.pad) + iw
        bottom += odd_h
        right += odd_w
        depth = (1 + odd_h) * (1 + odd_w) * CO
    base = ((image * (OUT_HEIGHT + SHAPE.out_pad) + bottom) * LINE + right) * CO
    limit = (end * ((OUT_HEIGHT + SHAPE.out_pad) * LINE * CO)).to(tl.uint32)
    acc = tl.zeros([ROWS, COLS], tl.float32)
    for k0 in range(0, depth, TILE.depth):
        k = k0 + tl.arange(0, TILE.depth)
        tap = k // CO
        co = k % CO
        if SHAPE.stride == 1:
            up = tap // 3
            back = tap % 3
            kernel = tap
        else:
            up = tap >> odd_w
            back = tap & odd_w
            kernel = (1 - odd_h + 2 * up) * 3 + 1 - odd_w + 2 * back
        where = base[:, None] + (co - (up * LINE + back) * CO)[None, :]
        if SHAPE.out_pad > 0:  # what is read past the end of k meets a weight of zero
            inside = where.to(tl.uint32) < limit
        else:
            oh = bottom[:, None] - up[None, :]
            ow = right[:, None] - back[None, :]
            inside = valid[:, None] & (k < depth)[None, :]
            inside = inside & (oh >= 0) & (oh < OUT_HEIGHT) & (ow >= 0) & (ow < OUT_WIDTH)
        patch = tl.load(dy + where, mask=inside, other=0.0)
        where = (co * (9 * CI) + kernel * CI)[:, None] + cols[None, :]
        factor = tl.load(weight + where, mask=(k < depth)[:, None] & (cols < CI)[None, :], other=0.0)
        acc = tl.dot(patch.to(FACTOR), factor.to(FACTOR), acc)
    if SHORT:
        if parity == 0:  # the class of even rows and columns: the only one that a 1x1 kernel of stride 2 reads
            for k0 in range(0, CO, TILE.depth):
                k = k0 + tl.arange(0, TILE.depth)
                inside = valid[:, None] & (k < CO)[None, :]
                patch = tl.load(short_dy + base[:, None] + k[None, :], mask=inside, other=0.0)
                inside = (k < CO)[:, None] & (cols < CI)[None, :]
                factor = tl.load(short_weight + k[:, None] * CI + cols[None, :], mask=inside, other=0.0)
                acc = tl.dot(patch.to(FACTOR), factor.to(FACTOR), acc)
    return acc, pixel, valid


@triton.jit(do_not_specialize=["first", "batch", "accumulate"])
def dgrad_kernel(
    dy,
    weight,
    short_dy,
    short_weight,
    residual,
    relu,
    to,
    first,
    batch,
    accumulate,
    SHAPE: tl.constexpr,
    SHORT: tl.constexpr,
    RESIDUAL: tl.constexpr,
    FROM_Y: tl.constexpr,
    OTHER: tl.constexpr,
    TILE: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Gradient of a 3x3 convolution's input, then ``finish_gradient`` of the ReLU that made that input.

    ``dy`` is the gradient of the convolution's output, a stored map, and ``weight`` the packed weight. At stride 2 an
    input pixel meets 1, 2 or 4 of the nine taps by whether its row and column are even. So there are four classes of
    pixels in each batch, and a program takes pixels of one class and only their taps. ``SHORT`` adds the gradient
    through a 1x1 stride-2 shortcut, ``RESIDUAL`` a stored one.
    """
    CI: tl.constexpr = SHAPE.stored_inputs
    CLASSES: tl.constexpr = SHAPE.stride * SHAPE.stride
    STORED_PIXELS: tl.constexpr = (SHAPE.height + SHAPE.pad) * (SHAPE.width + SHAPE.pad)
    ROWS_OF_IMAGE: tl.constexpr = STORED_PIXELS if CLASSES == 1 else SHAPE.out_height * SHAPE.out_width  # and class
    before = CLASSES * tl.cdiv(first * ROWS_OF_IMAGE, TILE.rows)
    second = (tl.program_id(0) >= before).to(tl.int32)
    own = tl.program_id(0) - second * before
    of_class = tl.cdiv(tl.where(second > 0, batch - first, first) * ROWS_OF_IMAGE, TILE.rows)  # programs
    parity = own // of_class
    start = own % of_class * TILE.rows + second * first * ROWS_OF_IMAGE
    end = tl.where(second > 0, batch, first)
    cols = tl.program_id(1) * TILE.cols + tl.arange(0, TILE.cols)
    acc, pixel, valid = convolve_back(dy, weight, short_dy, short_weight, cols, start, end, parity, SHAPE, SHORT, TILE)
    if RESIDUAL:
        inside = valid[:, None] & (cols < CI)[None, :]
        where = pixel[:, None] * CI + cols[None, :]
        acc += tl.load(residual + where, mask=inside, other=0.0).to(tl.float32)
    finish_gradient(
        acc,
        pixel,
        valid,
        cols,
        second,
        before,
        first,
        batch,
        accumulate,
        relu,
        to,
        PIXELS=SHAPE.height * SHAPE.width,
        STORED=CI,
        REAL=SHAPE.inputs,
        FROM_Y=FROM_Y,
        OTHER=OTHER,
        BLOCK=TILE.cols,
        CHUNK=CHUNK,
    )


@triton.jit
def gradient_of_input(g, y, p, q, r, where, inside, valid):
    """``dy`` at ``where``, zero in the padding."""
    value = p[None, :] * tl.load(g + where, mask=inside, other=0.0).to(tl.float32)
    value += q[None, :] * tl.load(y + where, mask=inside, other=0.0).to(tl.float32) + r[None, :]
    return tl.where(valid, value, 0.0)


@triton.jit(do_not_specialize=["first", "batch", "span"])
def wgrad_kernel(
    x, g, y, coefficients, dy, partial, first, batch, span, SHAPE: tl.constexpr, STORE: tl.constexpr, TILE: tl.constexpr
):
    """Gradient of a convolution's weight over ``span`` stored pixels of its output.

    It is the product of the transposed unfolded ``x`` and ``dy``: a row is a tap and an input channel, a column is an
    output channel, and the inner axis runs over pixels. The third axis of the grid counts the splits, those of the
    first batch first; each one writes ``partial[split, outputs, taps * inputs]``. ``dy`` is computed from ``g`` and
    ``y`` on the way; with ``STORE`` the first row of programs keeps it for ``dgrad_kernel``.
    """
    ROWS: tl.constexpr = TILE.rows
    COLS: tl.constexpr = TILE.cols
    CI: tl.constexpr = SHAPE.stored_inputs
    CO: tl.constexpr = SHAPE.stored_outputs
    SIZE: tl.constexpr = SHAPE.size
    STRIDE: tl.constexpr = SHAPE.stride
    LENGTH: tl.constexpr = SIZE * SIZE * CI
    LINE: tl.constexpr = SHAPE.width + SHAPE.pad
    pm = tl.program_id(0)
    split = tl.program_id(2)
    k = pm * TILE.rows + tl.arange(0, TILE.rows)
    cols = tl.program_id(1) * TILE.cols + tl.arange(0, TILE.cols)
    used = cols < CO
    kh = k // CI // SIZE - SIZE // 2
    kw = k // CI % SIZE - SIZE // 2
    shift = (kh * LINE + kw) * CI + k % CI
    PIXELS: tl.constexpr = (SHAPE.out_height + SHAPE.out_pad) * (SHAPE.out_width + SHAPE.out_pad)
    second, start, end = own_batch(split, first, batch, PIXELS, span)
    stop = tl.minimum(start + span, end * PIXELS)
    coefficients += second * (STATS * CO)
    p = tl.load(coefficients + cols, mask=used, other=0.0)
    q = tl.load(coefficients + CO + cols, mask=used, other=0.0)
    r = tl.load(coefficients + 2 * CO + cols, mask=used, other=0.0)
    limit = (batch * ((SHAPE.height + SHAPE.pad) * LINE * CI)).to(tl.uint32)
    kept = tl.where(pm == 0, stop, 0)
    acc = tl.zeros([ROWS, COLS], tl.float32)
    for begin in range(start, stop, TILE.depth):
        rows = begin + tl.arange(0, TILE.depth)
        image, top, left, valid = split_rows(rows, batch, SHAPE.out_height, SHAPE.out_width, SHAPE.out_pad)
        valid = (valid & (rows < stop))[:, None]
        base = ((image * (SHAPE.height + SHAPE.pad) + top * STRIDE) * LINE + left * STRIDE) * CI
        if STRIDE == 1 and SHAPE.pad == SHAPE.out_pad:
            base = rows * CI
        where = base[:, None] + shift[None, :]
        if SHAPE.pad > 0:  # where a row is no pixel, dy is zero
            inside = where.to(tl.uint32) < limit
        else:
            ih = (top * STRIDE)[:, None] + kh[None, :]
            iw = (left * STRIDE)[:, None] + kw[None, :]
            inside = valid & (k < LENGTH)[None, :]
            inside = inside & (ih >= 0) & (ih < SHAPE.height) & (iw >= 0) & (iw < SHAPE.width)
        patch = tl.load(x + where, mask=inside, other=0.0).to(dy.dtype.element_ty)
        where = rows[:, None] * CO + cols[None, :]
        value = gradient_of_input(g, y, p, q, r, where, valid & used[None, :], valid).to(dy.dtype.element_ty)
        if STORE:
            tl.store(dy + where, value, mask=(rows < kept)[:, None] & used[None, :])
        acc = tl.dot(tl.trans(patch.to(FACTOR)), value.to(FACTOR), acc)
    REAL: tl.constexpr = SHAPE.inputs
    REAL_LENGTH: tl.constexpr = SIZE * SIZE * REAL
    inside = ((k < LENGTH) & (k % CI < REAL))[:, None] & (cols < SHAPE.outputs)[None, :]
    where = cols[None, :] * REAL_LENGTH + (k // CI * REAL + k % CI)[:, None]
    tl.store(partial + split * (REAL_LENGTH * SHAPE.outputs) + where, acc, mask=inside)
