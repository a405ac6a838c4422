# mypy: disable-error-code="no-untyped-def"
"""Storing a batch in a replay memory: two kernels, where PyTorch's operators take about 17."""

import torch
import triton
import triton.language as tl
from torch import Tensor

MOST = 64
"""Samples of a batch up to which one program compares each with each."""

ELEMENTS = 1024
"""That a program copies."""


@triton.jit
def reservoir_slot(i, seen, drawn, count, size):
    """The slots that samples ``i`` draw: the next free one, or any of all samples seen, which may be none."""
    position = seen + i
    draw = tl.load(drawn + i, mask=i < count, other=0) % (position + 1)
    return tl.where(position < size, position, draw)


@triton.jit(do_not_specialize=["count", "size"])
def slots_kernel(seen, drawn, slots, count, size, BLOCK: tl.constexpr):
    """Slots of a batch by reservoir sampling, from random numbers ``drawn``; ``seen`` counts the batch. One program."""
    i = tl.arange(0, BLOCK)
    before = tl.load(seen)
    slot = reservoir_slot(i, before, drawn, count, size)
    same = slot[:, None] == reservoir_slot(i, before, drawn, count, size)[None, :]
    later = (i[None, :] > i[:, None]) & (i < count)[None, :]
    hit_again = tl.max((same & later).to(tl.int32), 1) > 0  # the later sample gets the slot
    tl.store(slots + i, tl.where(hit_again, size, tl.minimum(slot, size)), mask=i < count)
    tl.debug_barrier()  # every thread has read it
    tl.store(seen, before + count)


@triton.jit(do_not_specialize=["size"])
def put_kernel(images, labels, slots, x, y, size, LENGTH: tl.constexpr, BLOCK: tl.constexpr):
    """Copy samples of ``LENGTH`` numbers, and their labels, to their slots; those with slot ``size`` nowhere."""
    slot = tl.load(slots + tl.program_id(0))
    part = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    kept = (part < LENGTH) & (slot < size)
    tl.store(images + slot * LENGTH + part, tl.load(x + tl.program_id(0) * LENGTH + part, mask=kept), mask=kept)
    if tl.program_id(1) == 0:
        tl.store(labels + slot, tl.load(y + tl.program_id(0)), mask=slot < size)


def reservoir_slots(seen: Tensor, drawn: Tensor, size: int) -> Tensor:
    slots = torch.empty_like(drawn)
    slots_kernel[(1,)](seen, drawn, slots, len(drawn), size, BLOCK=triton.next_power_of_2(len(drawn)))
    return slots


def put(images: Tensor, labels: Tensor, slots: Tensor, x: Tensor, y: Tensor) -> None:
    length = images[0].numel()
    grid = (len(y), triton.cdiv(length, ELEMENTS))
    tensors = (images, labels, slots.contiguous(), x.contiguous(), y.contiguous())
    put_kernel[grid](*tensors, len(labels) - 1, LENGTH=length, BLOCK=ELEMENTS)
