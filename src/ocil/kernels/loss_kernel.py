# mypy: disable-error-code="no-untyped-def"
"""The losses of ``ocil.learning.losses`` with their gradients in one kernel, where autograd takes about 25.

And a kernel that records a loss.
"""

from typing import Any, Literal

import torch
import triton
import triton.language as tl
from torch import Tensor

ROWS = 8
"""Samples per program."""

ALONE = 8192
"""Scores, samples times classes, up to which one program takes all samples, so that it can compute their mean."""

Kind = Literal["cross_entropy", "focal", "revised_focal", "distillation"]


@triton.jit
def loss_kernel(
    logits,
    labels,
    values,
    grads,
    count,
    share,
    scale,
    gamma,
    mu,
    sigma,
    temperature,
    epsilon,
    CLASSES: tl.constexpr,
    KIND: tl.constexpr,
    MEAN: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
):
    """Loss of ``ROWS`` samples, or their sum times ``share`` with ``MEAN``, and the gradient times ``share``.

    ``KIND`` is a ``Kind``, ``COLS`` the power of two from ``CLASSES`` on.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLS)
    there = row < count
    inside = there[:, None] & (column < CLASSES)[None, :]
    z = tl.load(logits + row[:, None] * CLASSES + column[None, :], mask=inside, other=float("-inf")).to(tl.float32)
    z = tl.where(there[:, None], z, 0.0)
    if KIND == "distillation":
        z = z / temperature
    label = tl.load(labels + row, mask=there, other=0)
    target = column[None, :] == label[:, None]
    z = z - tl.max(z, 1)[:, None]
    e = tl.exp(z)
    total = tl.sum(e, 1)
    p = e / total[:, None]
    if KIND == "distillation":
        # The teacher is softmax(v / T) with 1 - epsilon for the label and epsilon / (classes - 1) elsewhere.
        rest = epsilon / tl.maximum(CLASSES - 1, 1) / temperature
        high = tl.exp((1.0 - epsilon) / temperature - rest)
        q = tl.where(target, high, 1.0) / (high + (CLASSES - 1))
        q = tl.where(inside, q, 0.0)
        log_p = tl.where(inside, z - tl.log(total)[:, None], 0.0)
        value = -scale * temperature * temperature * tl.sum(q * log_p, 1)
        grad = scale * temperature * (p - q)
    else:
        log_t = tl.sum(tl.where(target, z, 0.0), 1) - tl.log(total)
        p_t = tl.exp(log_t)
        if KIND == "cross_entropy":
            weight = scale + p_t * 0.0
            slope = -weight
        elif KIND == "focal":
            # 1 - p_t as the sum of the other scores keeps its digits near 1.
            others = tl.sum(tl.where(target, 0.0, p), 1)
            others = tl.maximum(others, 1.1754944e-38)
            weight = scale * tl.exp(gamma * tl.log(others))
            slope = weight * (gamma * p_t * log_t / others - 1.0)
        else:
            away = p_t - mu
            weight = scale * tl.exp(-away * away / sigma)
            slope = weight * (2.0 * p_t * away * log_t / sigma - 1.0)
        value = -weight * log_t
        grad = slope[:, None] * (tl.where(target, 1.0, 0.0) - p)
    if MEAN:
        tl.store(values, tl.sum(tl.where(there, value, 0.0), 0) * share)
    else:
        tl.store(values + row, value, mask=there)
    tl.store(grads + row[:, None] * CLASSES + column[None, :], grad * share, mask=inside)


@triton.jit
def record_kernel(loss, last_loss, failed_at, steps):
    """Keep a loss, count its step, and if the loss is the first that is not finite, keep the number of the step."""
    value = tl.load(loss).to(tl.float32)
    step = tl.load(steps)
    failed = tl.load(failed_at)
    broken = (value != value) | (tl.abs(value) == float("inf"))
    tl.debug_barrier()  # every thread has read what is written now
    tl.store(last_loss, value)
    tl.store(failed_at, tl.where(broken & (failed < 0), step, failed))
    tl.store(steps, step + 1)


class Loss(torch.autograd.Function):
    """The kernel computes the gradient along with the loss; the backward pass scales it, per sample or, if the value
    is the ``mean``, as a whole.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, kind: Kind, mean: bool, *parameters: float) -> Tensor:
        count, classes = logits.shape
        cols, rows = triton.next_power_of_2(classes), triton.next_power_of_2(count)
        alone = mean and count > 0 and rows * cols <= ALONE
        rows = rows if alone else ROWS
        values = torch.empty(() if alone else count, device=logits.device)
        grads = torch.empty(count, classes, device=logits.device)
        loss_kernel[(triton.cdiv(count, rows),)](
            logits.contiguous(),
            labels.contiguous(),
            values,
            grads,
            count,
            1 / count if mean and count else 1.0,
            *parameters,
            CLASSES=classes,
            KIND=kind,
            MEAN=alone,
            ROWS=rows,
            COLS=cols,
            num_warps=8 if rows * cols > ALONE // 2 else 4,
        )
        ctx.save_for_backward(grads)
        ctx.dtype = logits.dtype
        return values.mean() if mean and not alone else values

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (grads,) = ctx.saved_tensors
        return (grads * (grad[:, None] if grad.ndim else grad)).to(ctx.dtype), *(None,) * 9


def evaluate(
    kind: Kind,
    logits: Tensor,
    labels: Tensor,
    scale: float,
    mean: bool = False,
    gamma: float = 0.0,
    mu: float = 0.0,
    sigma: float = 1.0,
    temperature: float = 1.0,
    epsilon: float = 0.0,
) -> Tensor:
    """One value per sample of ``logits``, ``[samples, classes]``, or their mean. A loss uses some of the parameters."""
    values: Tensor = Loss.apply(logits, labels, kind, mean, scale, gamma, mu, sigma, temperature, epsilon)
    return values
