# mypy: disable-error-code="no-untyped-def"
"""Triton kernels of the forward pass. Activations are NHWC; a convolution is a matrix product over unfolded patches.

Channel counts such as 20 or 40 would waste a third of every tile if each of the nine taps were padded on its own, so
taps and channels form one axis ``k = tap * channels + channel`` that only its end is padded.

What limits these kernels is not memory but the number of instructions, most of them to find out which inputs lie
outside the map. So a map may be stored with one more row and column, of zeros (``PI`` and ``PO``, the padding of a
kernel's input and output, are 1 then, or more): every neighbour of a pixel is then at a fixed distance from it, the
zeros on the right of a row being those on the left of the next. Only activations and ``dy`` need to hold those zeros.
For the same reason channels are stored in multiples of four, which a thread loads at once: ``CI`` and ``CO`` are stored
channels, ``CIR`` and ``COR`` real ones. All weights of the others are zero, so they are zero everywhere.

Where channels are few, a row of the product stands for ``GROUP`` stored pixels side by side instead of one: their
patches overlap, so five pixels of each kernel row serve three outputs, and loads fall by 45 %. The weight is then
``[GROUP * CO, 3, GROUP + 2, CI]``, for each output pixel the kernel moved along by one and zeros beside it, in rows of
``LENGTH`` elements. The ``GROUP * CO`` results lie in memory as the pixels do, so nothing outside these kernels knows.
"""

import os

import triton
import triton.language as tl

# What the matrix units take. Triton's interpreter multiplies bfloat16 as if it were integers.
FACTOR = tl.constexpr(tl.float32 if os.environ.get("TRITON_INTERPRET") == "1" else tl.bfloat16)


@triton.jit
def pack_kernel(table, packed, counters, COUNTERS: tl.constexpr, BLOCK: tl.constexpr):
    """All convolutions' float32 weights, to one bfloat16 buffer, each as ``[CO, tap, CI]``; counters to zero.

    ``table`` has a row of thirteen int64 for each program: the weight's address, where it goes, the first element of
    this program, the weight's output channels, input channels, input channels as stored, elements for one output
    channel as stored, three strides, all elements as stored, pixels of a group, and output channels as stored. For
    more than one pixel it is ``[pixel, CO, kernel row, input pixel, CI]``.
    """
    row = table + tl.program_id(0) * 13
    weight = tl.load(row).to(tl.pointer_type(tl.float32))
    target = tl.load(row + 1)
    i = tl.load(row + 2).to(tl.int32) + tl.arange(0, BLOCK)
    outputs = tl.load(row + 3).to(tl.int32)
    inputs = tl.load(row + 4).to(tl.int32)
    stored = tl.load(row + 5).to(tl.int32)
    length = tl.load(row + 6).to(tl.int32)
    group = tl.load(row + 11).to(tl.int32)
    co = i // length
    ci = i % length % stored
    tap = i % length // stored
    if group > 1:
        outputs_stored = tl.load(row + 12).to(tl.int32)
        kw = tap % (group + 2) - co // outputs_stored
        kh = tap // (group + 2)
        tap = kh * 3 + kw
        co = tl.where((kh < 3) & (kw >= 0) & (kw < 3), co % outputs_stored, outputs)  # no such tap, no such channel
    source = co * tl.load(row + 7) + tap * tl.load(row + 8) + ci * tl.load(row + 9)
    value = tl.load(weight + source, mask=(co < outputs) & (ci < inputs), other=0.0)
    tl.store(packed + target + i, value.to(packed.dtype.element_ty), mask=i < tl.load(row + 10))
    if tl.program_id(0) == 0:
        slots = tl.arange(0, COUNTERS)
        tl.store(counters + slots, tl.zeros([COUNTERS], tl.int32))


@triton.jit
def column_sums(
    partial, cols, count, C: tl.constexpr, THIRD: tl.constexpr, BN: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Sums of ``partial``, ``[count, 2 or 3, C]``, over its rows at the columns ``cols``, always in the same order."""
    PLANES: tl.constexpr = 3 if THIRD else 2
    first = tl.zeros([CHUNK, BN], tl.float32)
    second = tl.zeros([CHUNK, BN], tl.float32)
    third = tl.zeros([CHUNK, BN], tl.float32)
    for start in range(0, count, CHUNK):
        rows = start + tl.arange(0, CHUNK)
        inside = (rows < count)[:, None] & (cols < C)[None, :]
        where = partial + rows[:, None] * (PLANES * C) + cols[None, :]
        first += tl.load(where, mask=inside, other=0.0, cache_modifier=".cg")  # other programs wrote it just now
        second += tl.load(where + C, mask=inside, other=0.0, cache_modifier=".cg")
        if THIRD:
            third += tl.load(where + 2 * C, mask=inside, other=0.0, cache_modifier=".cg")
    return tl.sum(first, 0), tl.sum(second, 0), tl.sum(third, 0)


@triton.jit
def split_rows(rows, B, H: tl.constexpr, W: tl.constexpr, PAD: tl.constexpr):
    """Image, row and column of places in a stored map, and which of them are pixels of it."""
    ih = rows // (W + PAD) % (H + PAD)
    iw = rows % (W + PAD)
    image = rows // ((H + PAD) * (W + PAD))
    return image, ih, iw, (image < B) & (ih < H) & (iw < W)


@triton.jit
def jump(k, LINE: tl.constexpr, PATCH: tl.constexpr):
    """``k // PATCH * LINE + k % PATCH`` of three patches, in a way that leaves one addition for each load, not two."""
    return k + tl.where(k < PATCH, 0, tl.where(k < 2 * PATCH, LINE - PATCH, 2 * (LINE - PATCH)))


@triton.jit
def load_padded(x, base, shift, channels, size, C: tl.constexpr):
    """``x[base + shift]`` of a padded map of ``size`` elements, zero outside; ``channels`` are those at ``shift``.

    A mask would be half of the instructions of a load. Instead, what lies outside is read from the last elements, which
    are padding: as many as a thread loads at once, which are all inside or all outside.
    """
    VECTOR: tl.constexpr = 8 if C % 8 == 0 else 4
    part = channels % VECTOR
    last = (size - VECTOR).to(tl.uint32)
    where = tl.minimum((base[:, None] + (shift - part)[None, :]).to(tl.uint32), last) + part[None, :]
    return tl.load(x + tl.max_contiguous(tl.multiple_of(where, (1, VECTOR)), (1, VECTOR)))


@triton.jit
def convolve(
    x, w, rows, cols, B,
    H: tl.constexpr, W: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr, PI: tl.constexpr, PO: tl.constexpr,
    CI: tl.constexpr, CO: tl.constexpr, SIZE: tl.constexpr, STRIDE: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """The outputs at ``rows`` and ``cols`` in float32, and which rows are pixels of the map."""
    K: tl.constexpr = SIZE * SIZE * CI
    WI: tl.constexpr = W + PI
    image, top, left, valid = split_rows(rows, B, HO, WO, PO)
    top = top * STRIDE - SIZE // 2
    left = left * STRIDE - SIZE // 2
    base = ((image * (H + PI) + top) * WI + left) * CI
    limit = (B * ((H + PI) * WI * CI)).to(tl.uint32)
    acc = tl.zeros([BM, BN], tl.float32)
    for k0 in range(0, K, BK):
        k = k0 + tl.arange(0, BK)
        kh = k // CI // SIZE
        kw = k // CI % SIZE
        where = base[:, None] + ((kh * WI + kw) * CI + k % CI)[None, :]
        if PI > 0:  # what is read past K meets a weight of zero
            inside = where.to(tl.uint32) < limit
        else:
            ih = top[:, None] + kh[None, :]
            iw = left[:, None] + kw[None, :]
            inside = valid[:, None] & (k < K)[None, :] & (ih >= 0) & (ih < H) & (iw >= 0) & (iw < W)
        patch = tl.load(x + where, mask=inside, other=0.0)
        weight = tl.load(w + cols[None, :] * K + k[:, None], mask=(k < K)[:, None] & (cols < CO)[None, :], other=0.0)
        acc = tl.dot(patch.to(w.dtype.element_ty).to(FACTOR), weight.to(FACTOR), acc)
    return acc, valid


@triton.jit
def group_pixels(
    rows, cols, B, H: tl.constexpr, W: tl.constexpr, PAD: tl.constexpr, C: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """Which channels ``cols`` of which groups ``rows`` of a padded map belong to pixels of it: ``[rows, cols]``."""
    GROUPS: tl.constexpr = (W + PAD) // GROUP  # in a stored line, which ends where a group ends
    inside = (rows < B * ((H + PAD) * GROUPS)) & (rows // GROUPS % (H + PAD) < H)
    pixels = tl.where(inside, W - rows % GROUPS * GROUP, 0)  # from the group's first to the end of the line
    return (cols // C)[None, :] < pixels[:, None]


@triton.jit
def convolve_groups(
    x, w, rows, cols, B,
    H: tl.constexpr, W: tl.constexpr, PAD: tl.constexpr, CI: tl.constexpr, CO: tl.constexpr,
    GROUP: tl.constexpr, LENGTH: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """What ``convolve`` gives for 3x3 at stride 1 between padded maps, rows being groups of pixels and columns a
    group's channels; and ``group_pixels``.
    """
    LINE: tl.constexpr = (W + PAD) * CI
    PATCH: tl.constexpr = (GROUP + 2) * CI  # of one kernel row
    base = (rows * GROUP - 1) * CI - LINE
    acc = tl.zeros([BM, BN], tl.float32)
    for k0 in range(0, 3 * PATCH, BK):
        k = k0 + tl.arange(0, BK)
        patch = load_padded(x, base, jump(k, LINE, PATCH), k, B * ((H + PAD) * LINE), CI)
        inside = (k < LENGTH)[:, None] & (cols < GROUP * CO)[None, :]
        weight = tl.load(w + cols[None, :] * LENGTH + k[:, None], mask=inside, other=0.0)
        acc = tl.dot(patch.to(FACTOR), weight.to(FACTOR), acc)
    return acc, group_pixels(rows, cols, B, H, W, PAD, CO, GROUP)


@triton.jit
def fold(sums, cols, C: tl.constexpr, BN: tl.constexpr):
    """From sums for each of a group's pixels and ``C`` channels, ``cols``, to ``BN`` sums for each channel."""
    same = (cols % C)[:, None] == tl.arange(0, BN)[None, :]
    return tl.sum(tl.where(same, sums[:, None], 0.0), 0)


@triton.jit(do_not_specialize=["B"])
def infer_kernel(
    x, w, out, other, gamma, beta, running_mean, running_var, B, eps,
    H: tl.constexpr, W: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr, PI: tl.constexpr, PO: tl.constexpr,
    CI: tl.constexpr, CO: tl.constexpr, COR: tl.constexpr, SIZE: tl.constexpr, STRIDE: tl.constexpr,
    ADD: tl.constexpr, RELU: tl.constexpr, GROUP: tl.constexpr, LENGTH: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """``out = relu(bn(conv(x, w)) + other)`` by running statistics; the padding of ``out`` is set to zero."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    if GROUP == 1:
        value, valid = convolve(x, w, rows, cols, B, H, W, HO, WO, PI, PO, CI, CO, SIZE, STRIDE, BM, BN, BK)
        valid = valid[:, None]
        channels = cols
    else:
        value, valid = convolve_groups(x, w, rows, cols, B, H, W, PI, CI, CO, GROUP, LENGTH, BM, BN, BK)
        channels = cols % CO
    used = (cols < GROUP * CO)[None, :]
    real = channels < COR
    rstd = 1.0 / tl.sqrt(tl.load(running_var + channels, mask=real, other=0.0) + eps)
    scale = tl.load(gamma + channels, mask=real, other=0.0) * rstd
    mean = tl.load(running_mean + channels, mask=real, other=0.0)
    shift = tl.load(beta + channels, mask=real, other=0.0) - mean * scale
    value = value * scale[None, :] + shift[None, :]
    where = rows[:, None] * (GROUP * CO) + cols[None, :]
    if ADD:
        value += tl.load(other + where, mask=valid & used, other=0.0).to(tl.float32)
    if RELU:
        value = tl.maximum(value, 0.0)
    value = tl.where(valid, value, 0.0)
    inside = rows < B * ((HO + PO) * (WO + PO) // GROUP)
    tl.store(out + where, value.to(out.dtype.element_ty), mask=inside[:, None] & used)


@triton.jit(do_not_specialize=["B"])
def conv_kernel(
    x, w, y, partial, counter, stats, gamma, beta, running_mean, running_var, batches, B, momentum, eps,
    H: tl.constexpr, W: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr, PI: tl.constexpr, PO: tl.constexpr,
    CI: tl.constexpr, CO: tl.constexpr, COR: tl.constexpr, SIZE: tl.constexpr, STRIDE: tl.constexpr,
    GROUP: tl.constexpr, LENGTH: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BC: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """``y = conv(x, w)`` in bfloat16, and the statistics of the batch normalisation that follows it.

    ``x`` is ``[B, H + PI, W + PI, CI]``, bfloat16 or float32, ``w`` ``[CO, SIZE * SIZE * CI]``, ``y``
    ``[B, HO + PO, WO + PO, CO]``. Every program leaves the sums of its rows in ``partial``; the last one of a column of
    programs adds them up, writes mean, 1/std, scale and shift to ``stats`` and moves the running statistics. ``BC`` is
    how many channels a program has: ``BN`` of them, except where a group's pixels share them.
    """
    pm = tl.program_id(0)
    pn = tl.program_id(1)
    rows = pm * BM + tl.arange(0, BM)
    cols = pn * BN + tl.arange(0, BN)
    if GROUP == 1:
        acc, valid = convolve(x, w, rows, cols, B, H, W, HO, WO, PI, PO, CI, CO, SIZE, STRIDE, BM, BN, BK)
        valid = valid[:, None]
    else:
        acc, valid = convolve_groups(x, w, rows, cols, B, H, W, PI, CI, CO, GROUP, LENGTH, BM, BN, BK)
    rounded = acc.to(y.dtype.element_ty)
    inside = valid
    if GROUP > 1:  # padding may hold anything, and needs no look at every pixel
        inside = (rows < B * (HO + PO) * (WO + PO) // GROUP)[:, None]
    tl.store(y + rows[:, None] * (GROUP * CO) + cols[None, :], rounded, mask=inside & (cols < GROUP * CO)[None, :])
    value = tl.where(valid, rounded.to(tl.float32), 0.0)  # the statistics of what is stored
    spot = partial + pm * (2 * GROUP * CO) + cols
    tl.store(spot, tl.sum(value, 0), mask=cols < GROUP * CO)
    tl.store(spot + GROUP * CO, tl.sum(value * value, 0), mask=cols < GROUP * CO)
    tl.debug_barrier()
    programs = tl.num_programs(0)
    if tl.atomic_add(counter + pn, 1, sem="acq_rel") == programs - 1:
        tl.store(counter + pn, 0)
        total, squares, _ = column_sums(partial, cols, programs, GROUP * CO, False, BN, CHUNK)
        channels = cols
        if GROUP > 1:
            total = fold(total, cols, CO, BC)
            squares = fold(squares, cols, CO, BC)
            channels = tl.arange(0, BC)
        count = (B * (HO * WO)).to(tl.float32)
        mean = total / count
        var = tl.maximum(squares / count - mean * mean, 0.0)
        used = channels < CO
        real = channels < COR
        rstd = 1.0 / tl.sqrt(var + eps)
        scale = tl.load(gamma + channels, mask=real, other=0.0) * rstd
        tl.store(stats + channels, mean, mask=used)
        tl.store(stats + CO + channels, rstd, mask=used)
        tl.store(stats + 2 * CO + channels, scale, mask=used)
        tl.store(stats + 3 * CO + channels, tl.load(beta + channels, mask=real, other=0.0) - mean * scale, mask=used)
        old = tl.load(running_mean + channels, mask=real, other=0.0)
        tl.store(running_mean + channels, old + momentum * (mean - old), mask=real)
        old = tl.load(running_var + channels, mask=real, other=0.0)
        tl.store(running_var + channels, old + momentum * (var * (count / (count - 1.0)) - old), mask=real)
        if pn == 0:
            tl.store(batches, tl.load(batches) + 1)


@triton.jit(do_not_specialize=["B"])
def activate_kernel(
    y, stats, other, other_stats, out, B,
    H: tl.constexpr, W: tl.constexpr, PAD: tl.constexpr, C: tl.constexpr, ADD: tl.constexpr, ADD_NORM: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr,
):  # fmt: skip
    """``out = relu(bn(y))``, with ``ADD`` ``relu(bn(y) + other)``, with ``ADD_NORM`` ``relu(bn(y) + bn(other))``.

    All are ``[B, H + PAD, W + PAD, C]``; the padding of ``out`` is set to zero.
    """
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    image, _, _, valid = split_rows(rows, B, H, W, PAD)
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
    tl.store(out + where, value.to(out.dtype.element_ty), mask=(image < B)[:, None] & used[None, :])


@triton.jit
def pool_kernel(
    a, features,
    H: tl.constexpr, W: tl.constexpr, PAD: tl.constexpr, C: tl.constexpr, CR: tl.constexpr,
    WINDOW_H: tl.constexpr, WINDOW_W: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Means of ``a``, ``[B, H + PAD, W + PAD, C]``, over windows, to float32 ``[B, CR, windows]``.

    One program an image and window; pixels beyond the last whole window count for nothing.
    """
    HP: tl.constexpr = H // WINDOW_H
    WP: tl.constexpr = W // WINDOW_W
    cell = tl.program_id(0) % (HP * WP)
    image = tl.program_id(0) // (HP * WP)
    cols = tl.program_id(1) * BC + tl.arange(0, BC)
    total = tl.zeros([BC], tl.float32)
    for n in range(WINDOW_H * WINDOW_W):
        ih = cell // WP * WINDOW_H + n // WINDOW_W
        iw = cell % WP * WINDOW_W + n % WINDOW_W
        where = ((image * (H + PAD) + ih) * (W + PAD) + iw) * C + cols
        total += tl.load(a + where, mask=cols < C, other=0.0).to(tl.float32)
    where = features + (image * CR + cols) * (HP * WP) + cell
    tl.store(where, total / (WINDOW_H * WINDOW_W), mask=cols < CR)
