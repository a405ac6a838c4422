"""Losses: pure functions of logits ``[N, C]`` and integer labels ``[N]``.

Each returns the mean over the batch, or one value per sample with ``reduction="none"``. They compute in float32 (in
float64 for float64 logits), whatever the network's precision, and hold no state: use them in any training loop.

Losses that depend on the number of classes take ``met`` ``[C]``, true for the classes met so far. The logits of other
classes then have no effect.

Examples:
    >>> import torch
    >>> logits, labels = torch.randn(32, 100, requires_grad=True), torch.randint(100, (32,))
    >>> loss = ocil.losses.revised_focal(logits, labels) + ocil.losses.virtual_distillation(logits, labels, beta=0.1)
    >>> loss.backward()
"""

import math
from collections.abc import Sequence
from functools import reduce
from operator import add
from typing import Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from ocil import kernels
from ocil.networks import NOT_MET
from ocil.precision import widest

Reduction = Literal["mean", "none"]
LabelFreeValue = Literal["smu", "gini", "entropy", "gen"]
SampleValue = Literal["p_t", LabelFreeValue]


def cross_entropy(logits: Tensor, labels: Tensor, scale: float = 1.0, reduction: Reduction = "mean") -> Tensor:
    """``-scale · log p_t``. A scale of 0.25 matches the default alpha of the focal losses."""
    if _fused(logits):
        return kernels.loss("cross_entropy", logits, labels, scale, reduction == "mean")
    return _reduce(-scale * _log_target(_log_softmax(logits), labels), reduction)


def focal(
    logits: Tensor, labels: Tensor, alpha: float = 0.25, gamma: float = 2.0, reduction: Reduction = "mean"
) -> Tensor:
    """Focal loss (Lin et al., ICCV 2017): ``-alpha · (1 - p_t)^gamma · log p_t``. Gradients flow through the weight."""
    if _fused(logits):
        return kernels.loss("focal", logits, labels, alpha, reduction == "mean", gamma=gamma)
    log_p = _log_target(_log_softmax(logits), labels)
    # 1 - p_t as -expm1(log p_t) is exact near p_t = 1. Never 0, where a power below 1 has no gradient.
    rest = (-torch.expm1(log_p)).clamp_min(torch.finfo(log_p.dtype).tiny)
    return _reduce(-alpha * rest.pow(gamma) * log_p, reduction)


def revised_focal(
    logits: Tensor,
    labels: Tensor,
    alpha: float = 0.25,
    mu: float | Tensor = 0.3,
    sigma: float = 0.5,
    value: SampleValue = "p_t",
    features: Tensor | None = None,
    reduction: Reduction = "mean",
    met: Tensor | None = None,
) -> Tensor:
    """Revised focal loss (AFS): ``-alpha · exp(-(u - mu)² / sigma) · log p_t`` with ``u = p_t``.

    Samples whose score is near ``mu``, neither easy nor hopeless, weigh most. ``mu`` is one number or one per class
    (``[C]``). ``value`` replaces ``p_t`` by another measure (see ``sample_value``). Gradients flow through the weight,
    except for ``entropy`` and ``gen``.
    """
    logits = _among(met, logits)
    if value == "p_t" and not isinstance(mu, Tensor) and _fused(logits):
        return kernels.loss("revised_focal", logits, labels, alpha, reduction == "mean", mu=mu, sigma=sigma)
    log_probabilities = _log_softmax(logits)
    log_p = _log_target(log_probabilities, labels)
    if isinstance(mu, Tensor) and mu.dim() == 1:
        mu = mu[labels]
    u = log_p.exp() if value == "p_t" else sample_value(log_probabilities, value, features, met)
    return _reduce(-alpha * torch.exp(-((u - mu) ** 2) / sigma) * log_p, reduction)


def sample_value(
    logits: Tensor, value: LabelFreeValue, features: Tensor | None = None, met: Tensor | None = None
) -> Tensor:
    """How sure the model is of each sample, 0 to 1, without looking at the label (AFS, Table III).

    ``smu``: margin of the two largest scores. ``gini``: sum of squared scores. ``entropy``: 1 - H / ln C.
    ``gen``: 1 - norm of the last layer's gradient under the predicted label, relative to the batch's largest.
    The last two carry no gradient, as in the paper. (``p_t`` needs the label: see ``revised_focal``.)
    """
    if value not in get_args(LabelFreeValue):
        known = ", ".join(get_args(LabelFreeValue))
        raise ValueError(f"unknown sample value {value!r}: use {known}, or p_t where there are labels")
    log_p = _log_softmax(_among(met, logits))
    p = log_p.exp()
    if value == "smu":
        two = torch.topk(F.pad(p, (0, 1)), 2, dim=1).values  # so that a single class has a margin too
        return torch.sub(*two.unbind(1))
    if value == "gini":
        return torch.sum(p.square(), dim=1)
    with torch.no_grad():
        if value == "entropy":
            # At least 2: a single class has no entropy.
            most = (
                math.log(max(2, logits.shape[1]))
                if met is None
                else met.sum().clamp_min(2).to(widest(met.device)).log()
            )
            return 1 + (p * log_p).sum(1) / most
        if features is None:
            raise ValueError("value='gen' needs the features that the last layer reads")
        predicted = p.argmax(1, keepdim=True)
        residual = p.scatter_add(1, predicted, -torch.ones_like(p[:, :1]))
        norm = torch.linalg.vector_norm(residual, dim=1) * torch.linalg.vector_norm(features.to(p.dtype), dim=1)
        return torch.rsub(norm / norm.max().clamp_min(torch.finfo(p.dtype).tiny), 1)


def virtual_distillation(
    logits: Tensor,
    labels: Tensor,
    beta: float = 0.1,
    temperature: float = 20.0,
    epsilon: float = 0.01,
    reduction: Reduction = "mean",
    met: Tensor | None = None,
) -> Tensor:
    """Virtual knowledge distillation (AFS): ``beta · T² · Σ_c -q_c log p_c^T``.

    The teacher is virtual: logits ``1 - epsilon`` for the label and ``epsilon / (C - 1)`` elsewhere, softened by ``T``.
    As a cross-entropy it includes a constant of about ``beta · T² · ln C``: large logged values are normal.
    """
    if met is None and _fused(logits):
        softness = {"temperature": temperature, "epsilon": epsilon}
        return kernels.loss("distillation", logits, labels, beta, reduction == "mean", **softness)
    log_p = F.log_softmax(_among(met, _widen(logits) / temperature), dim=1)
    teacher = torch.softmax(_among(met, _smoothed(log_p, labels, epsilon, met) / temperature), dim=1)
    return _reduce(-beta * temperature**2 * (teacher * log_p).sum(1), reduction)


def focus(
    batches: Sequence[tuple[Tensor, Tensor]],
    alpha: float = 0.25,
    mu: float = 0.3,
    sigma: float = 0.5,
    beta: float = 0.1,
    temperature: float = 20.0,
    epsilon: float = 0.01,
    *,
    focal: bool = True,
    offset: Tensor | None = None,
    met: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """AFS's loss of batches, each a pair of logits and labels: the sum over batches of the mean revised focal loss plus
    the mean virtual distillation. On a GPU one kernel computes it for two batches, with its gradient.

    ``focal=False`` has cross-entropy in the place of the revised focal loss, ``beta=0`` no distillation. ``offset``
    ``[C]`` is added to the logits first, and classes outside of ``met`` have no part. Returns the loss, and its parts
    ``[batches, 2]`` without a gradient: the classification loss and the distillation of each batch.
    """
    if len(batches) <= 2 and all(_fused(logits) for logits, _ in batches):
        numbers = {"alpha": alpha, "mu": mu, "sigma": sigma}
        softness = {"beta": beta, "temperature": temperature, "epsilon": epsilon}
        loss, parts = kernels.focus(batches, offset, met, focal, **numbers, **softness)
        return loss, parts[: len(batches)]
    parts_of: list[list[Tensor]] = []
    for logits, labels in batches:
        adjusted = _among(met, logits if offset is None else logits + offset)
        if focal:
            parts_of.append([revised_focal(adjusted, labels, alpha, mu, sigma, met=met)])
        else:
            parts_of.append([cross_entropy(adjusted, labels, alpha)])
        if beta:
            parts_of[-1].append(virtual_distillation(adjusted, labels, beta, temperature, epsilon, met=met))
    loss = reduce(add, (reduce(add, each) for each in parts_of))
    parts = torch.stack([torch.stack(each).detach() for each in parts_of])
    return loss, parts if beta else F.pad(parts, (0, 1))


def label_smoothing(
    logits: Tensor,
    labels: Tensor,
    epsilon: float = 0.01,
    scale: float = 1.0,
    reduction: Reduction = "mean",
    met: Tensor | None = None,
) -> Tensor:
    """Cross-entropy to the smoothed label: ``1 - epsilon`` for the label, ``epsilon / (C - 1)`` for the others."""
    log_p = _log_softmax(_among(met, logits))
    return _reduce(-scale * (_smoothed(log_p, labels, epsilon, met) * log_p).sum(1), reduction)


def _fused(logits: Tensor) -> bool:
    """Whether one kernel can compute value and gradient: on a GPU, in single precision."""
    return logits.dtype == torch.float32 and kernels.present(logits)


def _among(met: Tensor | None, logits: Tensor) -> Tensor:
    """Logits whose softmax is 0 for classes not met."""
    return logits if met is None else logits.masked_fill(~met, NOT_MET)


def _log_softmax(logits: Tensor) -> Tensor:
    return F.log_softmax(_widen(logits), dim=1)


def _widen(logits: Tensor) -> Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _log_target(log_probabilities: Tensor, labels: Tensor) -> Tensor:
    return log_probabilities.gather(1, labels[:, None]).squeeze(1)


def _smoothed(like: Tensor, labels: Tensor, epsilon: float, met: Tensor | None = None) -> Tensor:
    if met is None:
        rest = torch.full_like(like, epsilon / max(1, like.shape[1] - 1))
    else:
        share = epsilon / (met.sum() - 1).clamp_min(1).to(widest(met.device))  # rounded once, as in the branch above
        rest = torch.where(met, share, 0).to(like.dtype).expand_as(like)
    return rest.scatter(1, labels[:, None], 1 - epsilon)


def _reduce(values: Tensor, reduction: Reduction) -> Tensor:
    return values.mean() if reduction == "mean" else values
