"""The disc-centroids loss: features near their class's centroid, far from the others'."""

from typing import Any

import torch
from torch import Tensor


def disc_centroids(
    features: Tensor,
    labels: Tensor,
    centroids: Tensor,
    margin: float = 10.0,
    repel_weight: float = 0.01,
    weight: float = 1.0,
    weighted_centroids: bool = False,
) -> Tensor:
    """``weight`` times ``1/(2B) Σ |f - c_y|² + repel_weight · max(0, margin - 1/(B·C) Σ_i Σ_{j≠y_i} |f_i - c_j|²)``.

    The first term moves a centroid by the mean distance to its images of the batch, damped: its gradient is
    ``Σ (c - f) / (1 + count) / B`` over the images of the class. OLTR's released code returns that gradient whatever
    the loss is multiplied by, so ``weight`` does not scale it; ``weighted_centroids`` makes it do so.
    """
    attract: Tensor = _Attract.apply(features, labels, centroids, weighted_centroids)  # type: ignore[no-untyped-call]
    classes = torch.arange(len(centroids), device=labels.device)
    squared = _squared_distances(features, centroids).masked_fill(labels[:, None] == classes, 0.0)
    repel = (margin - squared.sum() / squared.numel()).clamp_min(0.0)
    return weight * (attract + repel_weight * repel)


def _squared_distances(features: Tensor, centroids: Tensor) -> Tensor:
    """``[B, C]``. This form loses digits, but only the sum of the distances is used."""
    return features.square().sum(1, keepdim=True) + centroids.square().sum(1) - 2 * features @ centroids.T


class _Attract(torch.autograd.Function):
    """``1/(2B) Σ |f - c_y|²``, with a gradient of its own for the centroids."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, labels: Tensor, centroids: Tensor, weighted: bool) -> Tensor:
        apart = features - centroids[labels]
        ctx.save_for_backward(apart, labels)
        ctx.classes, ctx.weighted = len(centroids), weighted
        return apart.square().sum() / (2 * len(features))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, Tensor, None]:
        apart, labels = ctx.saved_tensors
        # A matrix product, because a scatter on a GPU adds in another order each time.
        member = (torch.arange(ctx.classes, device=labels.device)[:, None] == labels).to(apart.dtype)
        pull = -(member @ apart) / (1 + member.sum(1, keepdim=True)) / len(apart)
        return grad * apart / len(apart), None, grad * pull if ctx.weighted else pull, None
