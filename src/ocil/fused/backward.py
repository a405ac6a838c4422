# mypy: disable-error-code="no-untyped-def"
"""Triton kernels of the backward pass.

The gradient of a batch normalisation's output, cut where its ReLU was closed, is stored as ``g``. The gradient of its
input is then ``dy = p * g + q * y + r`` with three numbers a channel, so nothing more than sums over ``g`` is needed
in between, and the kernel that makes ``g`` also makes those sums.
"""

import triton
import triton.language as tl

from ocil.fused.forward import FACTOR, column_sums, convolve_groups, fold, group_pixels, split_rows


@triton.jit
def finish_norm(
    total, moment, stats, coefficients, grads, cols, count, accumulate, C: tl.constexpr, CR: tl.constexpr,
):  # fmt: skip
    """From the sums of ``g`` and ``g * (y - mean)``: the gradients of beta and gamma, and ``p``, ``q``, ``r``.

    ``accumulate`` is 1 to add to the gradients that are there, 0 to overwrite them.
    """
    used = cols < C
    mean = tl.load(stats + cols, mask=used, other=0.0)
    rstd = tl.load(stats + C + cols, mask=used, other=0.0)
    p = tl.load(stats + 2 * C + cols, mask=used, other=0.0)
    q = -p * rstd * rstd * moment / count
    tl.store(coefficients + cols, p, mask=used)
    tl.store(coefficients + C + cols, q, mask=used)
    tl.store(coefficients + 2 * C + cols, -p * total / count - q * mean, mask=used)
    moment = moment * rstd
    earlier = cols < CR * accumulate
    tl.store(grads + cols, moment + tl.load(grads + cols, mask=earlier, other=0.0), mask=cols < CR)
    tl.store(grads + CR + cols, total + tl.load(grads + CR + cols, mask=earlier, other=0.0), mask=cols < CR)


@triton.jit
def finish_gradient(
    g, pixel, valid, cols, count, accumulate, active, y, stats, other, other_stats, out, partial, counter,
    coefficients, other_coefficients, grads, other_grads,
    C: tl.constexpr, CR: tl.constexpr, FROM_Y: tl.constexpr, OTHER: tl.constexpr, GROUP: tl.constexpr,
    BN: tl.constexpr, BC: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Cut the gradient ``g`` by the ReLU, store it, and prepare the normalisations in front of that ReLU.

    ``pixel`` says where its rows lie, ``valid``, ``[rows, 1 or columns]``, which are pixels of the map; with ``GROUP``
    more than 1 a row is a group of pixels. ``BC`` is how many channels a program has.
    The ReLU was open where ``active`` is positive, or with ``FROM_Y`` where ``bn(y)`` is. ``y`` is what the first
    normalisation saw; with ``OTHER`` a second one, of ``other``, was added to it. The last program of a column of
    programs adds up all programs' sums.
    """
    used = cols < GROUP * C
    channel = cols
    if GROUP > 1:
        channel = cols % C
    inside = valid & used[None, :]
    where = pixel[:, None] * (GROUP * C) + cols[None, :]
    value = tl.load(y + where, mask=inside, other=0.0).to(tl.float32)
    if FROM_Y:
        scale = tl.load(stats + 2 * C + channel, mask=used, other=0.0)
        shift = tl.load(stats + 3 * C + channel, mask=used, other=0.0)
        opened = value * scale[None, :] + shift[None, :] > 0
    else:
        opened = tl.load(active + where, mask=inside, other=0.0).to(tl.float32) > 0
    rounded = tl.where(opened & inside, g, 0.0).to(out.dtype.element_ty)
    tl.store(out + where, rounded, mask=inside)
    g = rounded.to(tl.float32)
    PLANES: tl.constexpr = 3 if OTHER else 2
    spot = partial + tl.program_id(0) * (PLANES * GROUP * C) + cols
    tl.store(spot, tl.sum(g, 0), mask=used)
    mean = tl.load(stats + channel, mask=used, other=0.0)
    tl.store(spot + GROUP * C, tl.sum(g * (value - mean[None, :]), 0), mask=used)
    if OTHER:
        value = tl.load(other + where, mask=inside, other=0.0).to(tl.float32)
        mean = tl.load(other_stats + channel, mask=used, other=0.0)
        tl.store(spot + 2 * GROUP * C, tl.sum(g * (value - mean[None, :]), 0), mask=used)
    tl.debug_barrier()
    programs = tl.num_programs(0)
    column = tl.program_id(1)
    if tl.atomic_add(counter + column, 1, sem="acq_rel") == programs - 1:
        tl.store(counter + column, 0)
        total, moment, other_moment = column_sums(partial, cols, programs, GROUP * C, OTHER, BN, CHUNK)
        channels = cols
        if GROUP > 1:
            total = fold(total, cols, C, BC)
            moment = fold(moment, cols, C, BC)
            other_moment = fold(other_moment, cols, C, BC)
            channels = tl.arange(0, BC)
        finish_norm(total, moment, stats, coefficients, grads, channels, count, accumulate, C, CR)
        if OTHER:
            finish_norm(
                total, other_moment, other_stats, other_coefficients, other_grads, channels, count, accumulate, C, CR
            )


@triton.jit(do_not_specialize=["B", "accumulate"])
def unpool_kernel(
    features_grad, active, y, stats, other, other_stats, out, partial, counter,
    coefficients, other_coefficients, grads, other_grads, B, accumulate,
    H: tl.constexpr, W: tl.constexpr, PAD: tl.constexpr, C: tl.constexpr, CR: tl.constexpr,
    WINDOW_H: tl.constexpr, WINDOW_W: tl.constexpr, OTHER: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Spread the features' gradient over their windows, then ``finish_gradient`` of the last block."""
    HP: tl.constexpr = H // WINDOW_H
    WP: tl.constexpr = W // WINDOW_W
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    image, ih, iw, valid = split_rows(rows, B, H, W, PAD)
    cell_h = ih // WINDOW_H
    cell_w = iw // WINDOW_W
    pooled = valid & (cell_h < HP) & (cell_w < WP)
    where = ((image * CR)[:, None] + cols[None, :]) * (HP * WP) + (cell_h * WP + cell_w)[:, None]
    g = tl.load(features_grad + where, mask=pooled[:, None] & (cols < CR)[None, :], other=0.0)
    finish_gradient(
        g / (WINDOW_H * WINDOW_W), rows, valid[:, None], cols, (B * (H * W)).to(tl.float32), accumulate, active, y,
        stats, other, other_stats, out, partial, counter, coefficients, other_coefficients, grads, other_grads,
        C, CR, False, OTHER, 1, BN, BN, CHUNK,
    )  # fmt: skip


@triton.jit
def spread(
    dy, w, short_dy, short_w, pm, cols, B, tiles,
    H: tl.constexpr, W: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr, PI: tl.constexpr, PO: tl.constexpr,
    CI: tl.constexpr, CO: tl.constexpr, STRIDE: tl.constexpr, SHORT: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """The product of ``dgrad_kernel``, the pixels at which it stands, and which of them are pixels of the map."""
    WY: tl.constexpr = WO + PO
    if STRIDE == 1:
        odd_h = 0
        odd_w = 0
        pixel = pm * BM + tl.arange(0, BM)
        image, bottom, right, valid = split_rows(pixel, B, H, W, PI)
        bottom += 1
        right += 1
        depth = 9 * CO
    else:
        odd_h = pm // tiles // 2
        odd_w = pm // tiles % 2
        rows = pm % tiles * BM + tl.arange(0, BM)
        image, bottom, right, valid = split_rows(rows, B, HO, WO, 0)
        ih = bottom * 2 + odd_h
        iw = right * 2 + odd_w
        valid = valid & (ih < H) & (iw < W)
        pixel = (image * (H + PI) + ih) * (W + PI) + iw
        bottom += odd_h
        right += odd_w
        depth = (1 + odd_h) * (1 + odd_w) * CO
    base = ((image * (HO + PO) + bottom) * WY + right) * CO
    limit = (B * ((HO + PO) * WY * CO)).to(tl.uint32)
    acc = tl.zeros([BM, BN], tl.float32)
    for k0 in range(0, depth, BK):
        k = k0 + tl.arange(0, BK)
        tap = k // CO
        co = k % CO
        if STRIDE == 1:
            up = tap // 3
            back = tap % 3
            kernel = tap
        else:
            up = tap >> odd_w
            back = tap & odd_w
            kernel = (1 - odd_h + 2 * up) * 3 + 1 - odd_w + 2 * back
        where = base[:, None] + (co - (up * WY + back) * CO)[None, :]
        if PO > 0:  # what is read past the end of k meets a weight of zero
            inside = where.to(tl.uint32) < limit
        else:
            oh = bottom[:, None] - up[None, :]
            ow = right[:, None] - back[None, :]
            inside = valid[:, None] & (k < depth)[None, :] & (oh >= 0) & (oh < HO) & (ow >= 0) & (ow < WO)
        patch = tl.load(dy + where, mask=inside, other=0.0)
        where = (co * (9 * CI) + kernel * CI)[:, None] + cols[None, :]
        weight = tl.load(w + where, mask=(k < depth)[:, None] & (cols < CI)[None, :], other=0.0)
        acc = tl.dot(patch.to(FACTOR), weight.to(FACTOR), acc)
    if SHORT:
        if pm < tiles:  # the class of even rows and columns: the only one that a 1x1 kernel of stride 2 reads
            for k0 in range(0, CO, BK):
                k = k0 + tl.arange(0, BK)
                inside = valid[:, None] & (k < CO)[None, :]
                patch = tl.load(short_dy + base[:, None] + k[None, :], mask=inside, other=0.0)
                inside = (k < CO)[:, None] & (cols < CI)[None, :]
                weight = tl.load(short_w + k[:, None] * CI + cols[None, :], mask=inside, other=0.0)
                acc = tl.dot(patch.to(FACTOR), weight.to(FACTOR), acc)
    return acc, pixel, valid


@triton.jit(do_not_specialize=["B", "accumulate", "tiles"])
def dgrad_kernel(
    dy, w, short_dy, short_w, residual, active, y, stats, other, other_stats, out, partial, counter,
    coefficients, other_coefficients, grads, other_grads, B, accumulate, tiles,
    H: tl.constexpr, W: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr, PI: tl.constexpr, PO: tl.constexpr,
    CI: tl.constexpr, CIR: tl.constexpr, CO: tl.constexpr, STRIDE: tl.constexpr,
    SHORT: tl.constexpr, RESIDUAL: tl.constexpr, FROM_Y: tl.constexpr, OTHER: tl.constexpr,
    GROUP: tl.constexpr, LENGTH: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BC: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Gradient of a 3x3 convolution's input, then ``finish_gradient`` of what made that input.

    ``dy`` is ``[B, HO + PO, WO + PO, CO]``, ``w`` ``[CO, 9 * CI]``, the result ``[B, H + PI, W + PI, CI]``. At stride 2
    an input pixel meets 1, 2 or 4 of the nine taps by whether its row and column are even, so a program takes pixels of
    one such class and only their taps. ``SHORT`` adds the gradient through a 1x1 stride-2 shortcut, ``RESIDUAL`` a
    stored one. With ``GROUP`` more than 1, at stride 1 only, it is the convolution of ``dy`` by a ``w`` turned round.
    """
    pm = tl.program_id(0)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    if GROUP == 1:
        acc, pixel, valid = spread(
            dy, w, short_dy, short_w, pm, cols, B, tiles, H, W, HO, WO, PI, PO, CI, CO, STRIDE, SHORT, BM, BN, BK
        )
        valid = valid[:, None]
    else:
        pixel = pm * BM + tl.arange(0, BM)
        acc, valid = convolve_groups(dy, w, pixel, cols, B, H, W, PI, CO, CI, GROUP, LENGTH, BM, BN, BK)
    if RESIDUAL:
        inside = valid & (cols < GROUP * CI)[None, :]
        where = pixel[:, None] * (GROUP * CI) + cols[None, :]
        acc += tl.load(residual + where, mask=inside, other=0.0).to(tl.float32)
    finish_gradient(
        acc, pixel, valid, cols, (B * (H * W)).to(tl.float32), accumulate, active, y, stats, other, other_stats, out,
        partial, counter, coefficients, other_coefficients, grads, other_grads, CI, CIR, FROM_Y, OTHER, GROUP, BN,
        BC, CHUNK,
    )  # fmt: skip


@triton.jit(do_not_specialize=["B", "span"])
def wgrad_kernel(
    x, g, y, coefficients, dy, partial, B, span,
    H: tl.constexpr, W: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr, PI: tl.constexpr, PO: tl.constexpr,
    CI: tl.constexpr, CIR: tl.constexpr, CO: tl.constexpr, COR: tl.constexpr,
    SIZE: tl.constexpr, STRIDE: tl.constexpr, STORE: tl.constexpr, GROUP: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Gradient of a convolution's weight over ``span`` of its output's rows: ``partial[split, COR, taps * CIR]``.

    It forms ``dy`` from ``g`` and ``y`` on the way; with ``STORE`` the first row of programs keeps it for the input's
    gradient. With ``GROUP`` more than 1 a row is a group of pixels, and what it leaves is the gradient of the weight
    that a group has, ``partial[split, GROUP * CO, SIZE * (GROUP + SIZE - 1) * CI]``.
    """
    pm = tl.program_id(0)
    split = tl.program_id(2)
    ACROSS: tl.constexpr = GROUP + SIZE - 1  # pixels of a patch in one kernel row
    K: tl.constexpr = SIZE * ACROSS * CI
    WI: tl.constexpr = W + PI
    k = pm * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    used = cols < GROUP * CO
    channels = cols
    if GROUP > 1:
        channels = cols % CO
    kh = k // CI // ACROSS - SIZE // 2
    kw = k // CI % ACROSS - SIZE // 2
    shift = (kh * WI + kw) * CI + k % CI
    p = tl.load(coefficients + channels, mask=used, other=0.0)
    q = tl.load(coefficients + CO + channels, mask=used, other=0.0)
    r = tl.load(coefficients + 2 * CO + channels, mask=used, other=0.0)
    limit = (B * ((H + PI) * WI * CI)).to(tl.uint32)
    stop = tl.minimum(split * span + span, B * ((HO + PO) * (WO + PO) // GROUP))
    kept = tl.where(pm == 0, stop, 0)
    acc = tl.zeros([BM, BN], tl.float32)
    for first in range(split * span, stop, BK):
        rows = first + tl.arange(0, BK)
        image, top, left, valid = split_rows(rows, B, HO, WO, PO)
        valid = (valid & (rows < stop))[:, None]
        if GROUP > 1:
            valid = group_pixels(rows, cols, B, H, W, PI, CO, GROUP) & (rows < stop)[:, None]
        base = ((image * (H + PI) + top * STRIDE) * WI + left * STRIDE) * CI
        if STRIDE == 1 and PI == PO:
            base = rows * (GROUP * CI)
        where = base[:, None] + shift[None, :]
        if PI > 0:  # where a row is no pixel, dy is zero
            inside = where.to(tl.uint32) < limit
        else:
            ih = (top * STRIDE)[:, None] + kh[None, :]
            iw = (left * STRIDE)[:, None] + kw[None, :]
            inside = valid & (k < K)[None, :] & (ih >= 0) & (ih < H) & (iw >= 0) & (iw < W)
        patch = tl.load(x + where, mask=inside, other=0.0).to(dy.dtype.element_ty)
        inside = valid & used[None, :]
        where = rows[:, None] * (GROUP * CO) + cols[None, :]
        value = p[None, :] * tl.load(g + where, mask=inside, other=0.0).to(tl.float32)
        value += q[None, :] * tl.load(y + where, mask=inside, other=0.0).to(tl.float32) + r[None, :]
        value = tl.where(valid, value, 0.0).to(dy.dtype.element_ty)
        if STORE:
            tl.store(dy + where, value, mask=(rows < kept)[:, None] & used[None, :])
        acc = tl.dot(tl.trans(patch.to(FACTOR)), value.to(FACTOR), acc)
    if GROUP == 1:
        inside = ((k < K) & (k % CI < CIR))[:, None] & (cols < COR)[None, :]
        KR: tl.constexpr = SIZE * SIZE * CIR
        where = cols[None, :] * KR + (k // CI * CIR + k % CI)[:, None]
        tl.store(partial + split * (KR * COR) + where, acc, mask=inside)
    else:  # as it is: there are many of these programs, and few that add up what they leave
        inside = (k < K)[:, None] & used[None, :]
        tl.store(partial + split * (GROUP * CO * K) + cols[None, :] * K + k[:, None], acc, mask=inside)


@triton.jit(do_not_specialize=["accumulate"])
def reduce_kernel(table, partial, grads, accumulate, BLOCK: tl.constexpr, CHUNK: tl.constexpr):
    """Add up the splits of all weight gradients.

    ``table`` has a row of eleven int64 for each program: where the weight's partial sums begin, where its gradient
    goes, the first element of this program, the elements of the weight, its splits times the pixels of a group, those
    pixels, the elements of a split, those from a weight for one pixel to the same one for the next, and for more than
    one pixel the elements for one output channel, input channels, and input channels as stored.
    """
    row = table + tl.program_id(0) * 11
    source = partial + tl.load(row)
    target = grads + tl.load(row + 1)
    count = tl.load(row + 3).to(tl.int32)
    splits = tl.load(row + 4).to(tl.int32)
    i = tl.load(row + 2).to(tl.int32) + tl.arange(0, BLOCK)
    group = tl.load(row + 5).to(tl.int32)
    length = tl.load(row + 6).to(tl.int32)
    step = tl.load(row + 7).to(tl.int32)
    place = i
    if group > 1:
        ci = tl.load(row + 9).to(tl.int32)
        stored = tl.load(row + 10).to(tl.int32)
        line = i // ci // 3  # a kernel row
        place = line // 3 * tl.load(row + 8).to(tl.int32) + line % 3 * (group + 2) * stored
        place += i // ci % 3 * stored + i % ci
    total = tl.zeros([CHUNK, BLOCK], tl.float32)
    for first in range(0, splits, CHUNK):
        split = first + tl.arange(0, CHUNK)
        inside = (split < splits)[:, None] & (i < count)[None, :]
        start = split // group * length + split % group * step
        total += tl.load(source + start[:, None] + place[None, :], mask=inside, other=0.0)
    earlier = tl.load(target + i, mask=i < count * accumulate, other=0.0)
    tl.store(target + i, earlier + tl.sum(total, 0), mask=i < count)
