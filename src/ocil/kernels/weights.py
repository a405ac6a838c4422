# mypy: disable-error-code="no-untyped-def"
"""Triton kernels that take the weights of all layers in one launch: packing them, and adding up their gradients."""

import triton
import triton.language as tl

from ocil.kernels.grouped import packed_tap, partial_place


@triton.jit
def pack_kernel(table, packed, counters, COLUMN: tl.constexpr, COUNTERS: tl.constexpr, BLOCK: tl.constexpr):
    """All convolutions' float32 weights, to one bfloat16 buffer, each as ``[stored_outputs, tap, stored_inputs]``.

    ``table`` has a ``PackRow`` for each program, ``COLUMN`` the numbers of its columns. The first program also sets the
    counters to zero.
    """
    row = table + tl.program_id(0) * len(COLUMN)
    source = tl.load(row + COLUMN.source).to(tl.pointer_type(tl.float32))
    target = tl.load(row + COLUMN.target)
    i = tl.load(row + COLUMN.first).to(tl.int32) + tl.arange(0, BLOCK)
    outputs = tl.load(row + COLUMN.outputs).to(tl.int32)
    inputs = tl.load(row + COLUMN.inputs).to(tl.int32)
    stored_inputs = tl.load(row + COLUMN.stored_inputs).to(tl.int32)
    length = tl.load(row + COLUMN.length).to(tl.int32)
    group = tl.load(row + COLUMN.group).to(tl.int32)
    co = i // length
    ci = i % length % stored_inputs
    tap = i % length // stored_inputs
    if group > 1:
        co, tap = packed_tap(co, tap, group, outputs, tl.load(row + COLUMN.stored_outputs).to(tl.int32))
    where = co * tl.load(row + COLUMN.output_stride)
    where = where + tap * tl.load(row + COLUMN.tap_stride) + ci * tl.load(row + COLUMN.input_stride)
    value = tl.load(source + where, mask=(co < outputs) & (ci < inputs), other=0.0)
    tl.store(packed + target + i, value.to(packed.dtype.element_ty), mask=i < tl.load(row + COLUMN.total))
    if tl.program_id(0) == 0:
        slots = tl.arange(0, COUNTERS)
        tl.store(counters + slots, tl.zeros([COUNTERS], tl.int32))


@triton.jit(do_not_specialize=["accumulate"])
def reduce_kernel(table, partial, grads, accumulate, COLUMN: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr):
    """Add up what the splits of ``wgrad_kernel`` left, for all weights; to the gradients that are there or over them.

    ``table`` has a ``ReduceRow`` for each program, ``COLUMN`` the numbers of its columns. ``CHUNK`` terms are loaded at
    a time, and the order of the additions is always the same.
    """
    row = table + tl.program_id(0) * len(COLUMN)
    source = partial + tl.load(row + COLUMN.source)
    target = grads + tl.load(row + COLUMN.target)
    total = tl.load(row + COLUMN.total).to(tl.int32)
    terms = tl.load(row + COLUMN.terms).to(tl.int32)
    i = tl.load(row + COLUMN.first).to(tl.int32) + tl.arange(0, BLOCK)
    group = tl.load(row + COLUMN.group).to(tl.int32)
    split_length = tl.load(row + COLUMN.split_length).to(tl.int32)
    pixel_step = tl.load(row + COLUMN.pixel_step).to(tl.int32)
    place = i
    if group > 1:
        inputs = tl.load(row + COLUMN.inputs).to(tl.int32)
        stored_inputs = tl.load(row + COLUMN.stored_inputs).to(tl.int32)
        place = partial_place(i, group, tl.load(row + COLUMN.length).to(tl.int32), inputs, stored_inputs)
    sums = tl.zeros([CHUNK, BLOCK], tl.float32)
    for first in range(0, terms, CHUNK):
        term = first + tl.arange(0, CHUNK)
        inside = (term < terms)[:, None] & (i < total)[None, :]
        start = term // group * split_length + term % group * pixel_step
        sums += tl.load(source + start[:, None] + place[None, :], mask=inside, other=0.0)
    earlier = tl.load(target + i, mask=i < total * accumulate, other=0.0)
    tl.store(target + i, earlier + tl.sum(sums, 0), mask=i < total)
