# mypy: disable-error-code="no-untyped-def"
"""AFS's loss of two batches, revised focal loss plus virtual distillation, with its gradient in one kernel; and the
running label frequency that adjusts logits. Single losses are in ``loss_kernel``.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

ELEMENTS = 8192
"""Scores, samples times classes, that one program takes."""

ROWS = 64
"""Samples per program, if there are few classes."""

PARTS = 5
"""Numbers that a program leaves: by batch the classification loss and the distillation, and the sum of all four."""


@triton.jit(do_not_specialize=["first", "count"])
def focus_kernel(
    first_logits,
    second_logits,
    first_labels,
    second_labels,
    offset,
    met,
    parts,
    grads,
    first,
    count,
    first_share,
    second_share,
    scale,
    mu,
    sigma,
    beta,
    temperature,
    epsilon,
    CLASSES: tl.constexpr,
    FOCAL: tl.constexpr,
    OFFSET: tl.constexpr,
    MET: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    PARTS: tl.constexpr,
):
    """Losses of ``ROWS`` of ``count`` samples, ``first`` of which are the first batch, and the gradient of their sum.

    A sample weighs the share of its batch, one over the batch's size. ``offset`` ``[CLASSES]`` is added to the logits;
    classes outside of ``met`` are left out. ``COLS`` is the power of two from ``CLASSES`` on.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLS)
    there = row < count
    early = row < first
    known = column < CLASSES
    classes = CLASSES + 0.0
    if MET:
        known = known & (tl.load(met + column, mask=known, other=0) != 0)
        classes = tl.sum(known.to(tl.float32), 0)
    inside = there[:, None] & known[None, :]
    z = tl.load(first_logits + row[:, None] * CLASSES + column[None, :], mask=inside & early[:, None], other=0.0)
    late = inside & (row >= first)[:, None]
    z += tl.load(second_logits + (row - first)[:, None] * CLASSES + column[None, :], mask=late, other=0.0)
    if OFFSET:
        z += tl.load(offset + column, mask=known, other=0.0)[None, :]
    z = tl.where(inside, z, tl.where(there[:, None], float("-inf"), 0.0))
    label = tl.load(first_labels + row, mask=there & early, other=0)
    label += tl.load(second_labels + (row - first), mask=there & (row >= first), other=0)
    target = column[None, :] == label[:, None]
    share = tl.where(early, first_share, second_share)

    z = z - tl.max(z, 1)[:, None]
    e = tl.exp(z)
    total = tl.sum(e, 1)
    log_t = tl.sum(tl.where(target, z, 0.0), 1) - tl.log(total)
    if FOCAL:
        p_t = tl.exp(log_t)
        away = p_t - mu
        weight = scale * tl.exp(-away * away / sigma)
        slope = weight * (2.0 * p_t * away * log_t / sigma - 1.0)
    else:
        weight = scale + log_t * 0.0
        slope = -weight
    value = -weight * log_t * share
    grad = slope[:, None] * (tl.where(target, 1.0, 0.0) - e / total[:, None])

    # The teacher is softmax(v / T) with 1 - epsilon for the label and epsilon / (classes - 1) elsewhere. Without
    # distillation all this is multiplied by 0: a kernel of its own would have to be compiled for reviews.
    soft = z / temperature
    e = tl.exp(soft)
    total = tl.sum(e, 1)
    rest = epsilon / tl.maximum(classes - 1.0, 1.0) / temperature
    high = tl.exp((1.0 - epsilon) / temperature - rest)
    q = tl.where(target, high, 1.0) / (high + (classes - 1.0))
    q = tl.where(inside, q, 0.0)
    log_p = tl.where(inside, soft - tl.log(total)[:, None], 0.0)
    distils = beta > 0
    distilled = tl.where(distils, -beta * temperature * temperature * tl.sum(q * log_p, 1) * share, 0.0)
    grad += tl.where(distils, beta * temperature * (e / total[:, None] - q), 0.0)
    where = grads + row[:, None] * CLASSES + column[None, :]
    tl.store(where, tl.where(inside, grad * share[:, None], 0.0), mask=there[:, None] & (column < CLASSES)[None, :])

    before = there & early
    after = there & (row >= first)
    first_value = tl.sum(tl.where(before, value, 0.0), 0)
    first_distilled = tl.sum(tl.where(before, distilled, 0.0), 0)
    second_value = tl.sum(tl.where(after, value, 0.0), 0)
    second_distilled = tl.sum(tl.where(after, distilled, 0.0), 0)
    part = parts + tl.program_id(0) * PARTS
    tl.store(part, first_value)
    tl.store(part + 1, first_distilled)
    tl.store(part + 2, second_value)
    tl.store(part + 3, second_distilled)
    tl.store(part + 4, first_value + first_distilled + second_value + second_distilled)


class Focus(torch.autograd.Function):
    """The sum of all losses, which has a gradient, and its parts ``[2, 2]``, by batch and loss, which have none."""

    @staticmethod
    def forward(
        ctx: Any,
        first: Tensor,
        second: Tensor,
        first_labels: Tensor,
        second_labels: Tensor,
        offset: Tensor | None,
        met: Tensor | None,
        focal: bool,
        *parameters: float,
    ) -> tuple[Tensor, Tensor]:
        sizes, classes = (len(first), len(second)), first.shape[1]
        count, cols = sum(sizes), triton.next_power_of_2(classes)
        rows = max(1, min(ROWS, ELEMENTS // cols))  # whatever the size of the batches: one kernel serves all
        programs = triton.cdiv(count, rows)
        parts = torch.empty(programs, PARTS, device=first.device)
        grads = torch.empty(count, classes, device=first.device)
        none = parts  # stands for what is not there
        focus_kernel[(programs,)](
            first.contiguous(),
            second.contiguous(),
            first_labels.contiguous(),
            second_labels.contiguous(),
            none if offset is None else offset,
            none if met is None else met.view(torch.uint8),
            parts,
            grads,
            sizes[0],
            count,
            *(1 / max(1, size) for size in sizes),
            *parameters,
            CLASSES=classes,
            FOCAL=focal,
            OFFSET=offset is not None,
            MET=met is not None,
            ROWS=rows,
            COLS=cols,
            PARTS=PARTS,
            num_warps=8 if rows * cols > ELEMENTS // 2 else 4,
        )
        numbers = parts[0] if programs == 1 else parts.sum(0)
        ctx.save_for_backward(grads)
        ctx.first = sizes[0]
        of_losses = numbers[: PARTS - 1].view(2, 2)
        ctx.mark_non_differentiable(of_losses)
        ctx.set_materialize_grads(False)  # no zeros for them
        return numbers[PARTS - 1], of_losses

    @staticmethod
    def backward(ctx: Any, grad: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
        if grad is None:
            return (None,) * 13
        (grads,) = ctx.saved_tensors
        grads = grads * grad
        return grads[: ctx.first], grads[ctx.first :], *(None,) * 11


@triton.jit(do_not_specialize=["first_count", "second_count"])
def frequency_kernel(
    frequency,
    seen,
    first,
    second,
    offset,
    first_count,
    second_count,
    decay,
    adjustment,
    least,
    CLASSES: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
):
    """Count the labels of two batches in a running frequency, and compute the offset of the logits. One program."""
    column = tl.arange(0, COLS)
    known = column < CLASSES
    share = tl.load(frequency + column, mask=known, other=0.0) * decay
    before = tl.load(seen + column, mask=known, other=0)
    share += occurrences(first, first_count, column, ROWS, COLS)
    share += occurrences(second, second_count, column, ROWS, COLS)
    share = tl.where(known, share, 0.0)
    tl.debug_barrier()  # every thread has read what is written now
    tl.store(frequency + column, share, mask=known)
    tl.store(seen + column, tl.where(share > 0, 1, before).to(tl.uint8), mask=known)
    relative = tl.maximum(share / tl.sum(share, 0), least)
    tl.store(offset + column, adjustment * tl.log(relative), mask=known)


@triton.jit
def occurrences(labels, count, column, ROWS: tl.constexpr, COLS: tl.constexpr):
    """The share of each class among ``count`` labels; 0 if there are none."""
    found = tl.zeros([COLS], tl.float32)
    for start in range(0, count, ROWS):
        row = start + tl.arange(0, ROWS)
        label = tl.load(labels + row, mask=row < count, other=-1)
        found += tl.sum((label[:, None] == column[None, :]).to(tl.float32), 0)
    return found / tl.maximum(count, 1).to(tl.float32)


def offset_after(
    frequency: Tensor, seen: Tensor, first: Tensor, second: Tensor, decay: float, adjustment: float, least: float
) -> Tensor:
    offset, classes = torch.empty_like(frequency), len(frequency)
    cols = triton.next_power_of_2(classes)
    rows = max(1, min(16, ELEMENTS // cols))
    frequency_kernel[(1,)](
        frequency,
        seen.view(torch.uint8),
        first.contiguous(),
        second.contiguous(),
        offset,
        len(first),
        len(second),
        decay,
        adjustment,
        least,
        CLASSES=classes,
        ROWS=rows,
        COLS=cols,
    )
    return offset
