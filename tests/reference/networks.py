"""The reduced ResNet-18 as one function of its weights."""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

EPSILON = 1e-5  # of batch normalisation


def features(weights: Mapping[str, Tensor], x: Tensor, training: bool) -> Tensor:
    """Images [N, C, H, W] to features, by the weights' names. Running statistics are read, never changed."""
    y = _norm(weights, "bn1", F.conv2d(x, weights["conv1.weight"], padding=1), training).relu()
    for block in range(8):
        name = f"blocks.{block}"
        stride = 2 if block in (2, 4, 6) else 1
        shortcut = y
        if stride == 2:
            shortcut = F.conv2d(y, weights[f"{name}.shortcut.0.weight"], stride=2)
            shortcut = _norm(weights, f"{name}.shortcut.1", shortcut, training)
        inner = F.conv2d(y, weights[f"{name}.conv1.weight"], stride=stride, padding=1)
        inner = _norm(weights, f"{name}.bn1", inner, training).relu()
        inner = F.conv2d(inner, weights[f"{name}.conv2.weight"], padding=1)
        y = (_norm(weights, f"{name}.bn2", inner, training) + shortcut).relu()
    return _pool(y)


def logits(weights: Mapping[str, Tensor], x: Tensor, training: bool) -> Tensor:
    return features(weights, x, training) @ weights["head.weight"].T + weights["head.bias"]


def _norm(weights: Mapping[str, Tensor], name: str, x: Tensor, training: bool) -> Tensor:
    if training:
        mean, variance = x.mean((0, 2, 3)), x.var((0, 2, 3), unbiased=False)
    else:
        mean, variance = weights[f"{name}.running_mean"], weights[f"{name}.running_var"]
    scale = weights[f"{name}.weight"] / torch.sqrt(variance + EPSILON)
    return (x - mean[:, None, None]) * scale[:, None, None] + weights[f"{name}.bias"][:, None, None]


def _pool(x: Tensor) -> Tensor:
    """Means of whole 4x4 windows, or of all there is along a side shorter than 4; what is left over is dropped."""
    high, wide = min(4, x.shape[2]), min(4, x.shape[3])
    windows = [
        x[:, :, top : top + high, left : left + wide].mean((2, 3))
        for top in range(0, x.shape[2] - high + 1, high)
        for left in range(0, x.shape[3] - wide + 1, wide)
    ]
    return torch.stack(windows, 2).flatten(1)
