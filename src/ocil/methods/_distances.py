"""Distances between features, for the methods that classify or choose by them."""

import torch
from torch import Tensor


def distances(points: Tensor, others: Tensor) -> Tensor:
    """Euclidean distances ``[P, O]``, not by matrix products, which would lose the digits of close neighbours."""
    return torch.cdist(points, others, compute_mode="donot_use_mm_for_euclid_dist")


def nearness(features: Tensor, centres: Tensor, present: Tensor) -> Tensor:
    """Negative distance to each class centre ``[B, C]``; -inf for a class without a centre (not ``present``). While no
    class has a centre, 0 for all.
    """
    return torch.where(present, -distances(features, centres), torch.where(present.any(), -torch.inf, 0.0))
