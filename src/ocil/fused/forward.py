# mypy: disable-error-code="no-untyped-def"
"""Triton kernels of the forward pass. Activations are NHWC; a convolution is a matrix product over unfolded patches.

Channel counts such as 20 or 40 would waste a third of every tile if each of the nine taps were padded on its own, so
taps and channels form one axis ``k = tap * channels + channel`` that only its end is padded.

What limits these kernels is not memory but the number of instructions, most of them to find out which inputs lie
outside the map. So a map may be stored with one more row and column, of zeros (``PI`` and ``PO``, the padding of a
kernel's input and output, are 1 then): every neighbour of a pixel is then at a fixed distance from it, the zeros on the
right of a row being those on the left of the next. Only activations and ``dy`` need to hold those zeros. For the same
reason channels are stored in multiples of four, which a thread loads at once: ``CI`` and ``CO`` are stored channels,
``CIR`` and ``COR`` real ones. All weights of the others are zero, so they are zero everywhere.
"""

import os

import triton
import triton.language as tl

# What the matrix units take. Triton's interpreter multiplies bfloat16 as if it were integers.
FACTOR = tl.constexpr(tl.float32 if os.environ.get("TRITON_INTERPRET") == "1" else tl.bfloat16)


@triton.jit
def pack_kernel(table, packed, counters, COUNTERS: tl.constexpr, BLOCK: tl.constexpr):
    """All convolutions' float32 weights, to one bfloat16 buffer, each as ``[CO, tap, CI]``; counters to zero.

    ``table`` has a row of eleven int64 for each program: the weight's address, where it goes, the first element of
    this program, the weight's output channels, input channels, input channels as stored, elements for one output
    channel as stored, three strides, and all elements as stored.
    """
    row = table + tl.program_id(0) * 11
    weight = tl.load(row).to(tl.pointer_type(tl.float32))
    target = tl.load(row + 1)
    i = tl.load(row + 2).to(tl.int32) + tl.arange(0, BLOCK)
    outputs = tl.load(row + 3).to(tl.int32)
    inputs = tl.load(row + 4).to(tl.int32)
    stored = tl.load(row + 5).to(tl.int32)
    length = tl.load(row + 6).to(tl.int32)
    co = i // length
    ci = i % stored
    source = co * tl.load(row + 7) + (i % length) // stored * tl.load(row + 8) + ci * tl.load(row + 9)
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
        if PI == 1:  # what is read past K meets a weight of zero
            inside = where.to(tl.uint32) < limit
        else:
            ih = top[:, None] + kh[None, :]
            iw = left[:, None] + kw[None, :]
            inside = valid[:, None] & (k < K)[None, :] & (ih >= 0) & (ih < H) & (iw >= 0) & (iw < W)
        patch = tl.load(x + where, mask=inside, other=0.0)
        weight = tl.load(w + cols[None, :] * K + k[:, None], mask=(k < K)[:, None] & (cols < CO)[None, :], other=0.0)
        acc = tl.dot(patch.to(w.dtype.element_ty).to(FACTOR), weight.to(FACTOR), acc)
    return acc, valid


@triton.jit(do_not_specialize=["B"])
def infer_kernel(
    x, w, out, other, gamma, beta, running_mean, running_var, B, eps,
    H: tl.constexpr, W: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr, PI: tl.constexpr, PO: tl.constexpr,
    CI: tl.constexpr, CO: tl.constexpr, COR: tl.constexpr, SIZE: tl.constexpr, STRIDE: tl.constexpr,
    ADD: tl.constexpr, RELU: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """``out = relu(bn(conv(x, w)) + other)`` by running statistics; the padding of ``out`` is set to zero."""
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    cols = tl.program_id(1) * BN + tl.arange(0, BN)
    value, valid = convolve(x, w, rows, cols, B, H, W, HO, WO, PI, PO, CI, CO, SIZE, STRIDE, BM, BN, BK)
    real = cols < COR
    rstd = 1.0 / tl.sqrt(tl.load(running_var + cols, mask=real, other=0.0) + eps)
    scale = tl.load(gamma + cols, mask=real, other=0.0) * rstd
    shift = tl.load(beta + cols, mask=real, other=0.0) - tl.load(running_mean + cols, mask=real, other=0.0) * scale
    value = value * scale[None, :] + shift[None, :]
    where = rows[:, None] * CO + cols[None, :]
    if ADD:
        value += tl.load(other + where, mask=valid[:, None] & (cols < CO)[None, :], other=0.0).to(tl.float32)
    if RELU:
        value = tl.maximum(value, 0.0)
    value = tl.where(valid[:, None], value, 0.0)
    inside = rows < B * ((HO + PO) * (WO + PO))
    tl.store(out + where, value.to(out.dtype.element_ty), mask=inside[:, None] & (cols < CO)[None, :])


@triton.jit(do_not_specialize=["B"])
def conv_kernel(
    x, w, y, partial, counter, stats, gamma, beta, running_mean, running_var, batches, B, momentum, eps,
    H: tl.constexpr, W: tl.constexpr, HO: tl.constexpr, WO: tl.constexpr, PI: tl.constexpr, PO: tl.constexpr,
    CI: tl.constexpr, CO: tl.constexpr, COR: tl.constexpr, SIZE: tl.constexpr, STRIDE: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """``y = conv(x, w)`` in bfloat16, and the statistics of the batch normalisation that follows it.

    ``x`` is ``[B, H + PI, W + PI, CI]``, bfloat16 or float32, ``w`` ``[CO, SIZE * SIZE * CI]``, ``y``
    ``[B, HO + PO, WO + PO, CO]``. Every program leaves the sums of its rows in ``partial``; the last one of a column of
    programs adds them up, writes mean, 1/std, scale and shift to ``stats`` and moves the running statistics.
    """
    pm = tl.program_id(0)
    pn = tl.program_id(1)
    rows = pm * BM + tl.arange(0, BM)
    cols = pn * BN + tl.arange(0, BN)
    acc, valid = convolve(x, w, rows, cols, B, H, W, HO, WO, PI, PO, CI, CO, SIZE, STRIDE, BM, BN, BK)
    rounded = acc.to(y.dtype.element_ty)
    tl.store(y + rows[:, None] * CO + cols[None, :], rounded, mask=valid[:, None] & (cols < CO)[None, :])
    value = tl.where(valid[:, None], rounded.to(tl.float32), 0.0)  # the statistics of what is stored
    spot = partial + pm * (2 * CO) + cols
    tl.store(spot, tl.sum(value, 0), mask=cols < CO)
    tl.store(spot + CO, tl.sum(value * value, 0), mask=cols < CO)
    tl.debug_barrier()
    programs = tl.num_programs(0)
    if tl.atomic_add(counter + pn, 1, sem="acq_rel") == programs - 1:
        tl.store(counter + pn, 0)
        total, squares, _ = column_sums(partial, cols, programs, CO, False, BN, CHUNK)
        count = (B * (HO * WO)).to(tl.float32)
        mean = total / count
        var = tl.maximum(squares / count - mean * mean, 0.0)
        used = cols < CO
        real = cols < COR
        rstd = 1.0 / tl.sqrt(var + eps)
        scale = tl.load(gamma + cols, mask=real, other=0.0) * rstd
        tl.store(stats + cols, mean, mask=used)
        tl.store(stats + CO + cols, rstd, mask=used)
        tl.store(stats + 2 * CO + cols, scale, mask=used)
        tl.store(stats + 3 * CO + cols, tl.load(beta + cols, mask=real, other=0.0) - mean * scale, mask=used)
        old = tl.load(running_mean + cols, mask=real, other=0.0)
        tl.store(running_mean + cols, old + momentum * (mean - old), mask=real)
        old = tl.load(running_var + cols, mask=real, other=0.0)
        tl.store(running_var + cols, old + momentum * (var * (count / (count - 1.0)) - old), mask=real)
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
