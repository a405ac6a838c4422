"""Distances between features, for the methods that classify or choose by them."""

import torch
from torch import Tensor


def distances(points: Tensor, others: Tensor) -> Tensor:
    """Euclidean, ``[P, O]``. Not by products of features, which would lose the digits of close neighbours."""
    return torch.cdist(points, others, compute_mode="donot_use_mm_for_euclid_dist")


def nearness(features: Tensor, centres: Tensor, seen: Tensor) -> Tensor:
    """Negative distance to each class centre ``[B, C]``; -inf for a class not seen, 0 for all while there is none."""
    return torch.where(seen, -distances(features, centres), torch.where(seen.any(), -torch.inf, 0.0))
