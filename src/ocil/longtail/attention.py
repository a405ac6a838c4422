"""Modulated attention: a non-local block whose output is weighted by position."""

import torch
from torch import Tensor, nn


class ModulatedAttention(nn.Module):
    """``x + softmax over positions(linear(all of x)) · conv(non-local(x))``, maps of one size (Liu et al., CVPR 2019).

    The non-local part is an embedded Gaussian with half of the channels.
    """

    def __init__(self, channels: int, height: int, width: int) -> None:
        super().__init__()
        inner = max(1, channels // 2)
        self.query, self.key, self.value = (nn.Conv2d(channels, inner, 1) for _ in range(3))
        self.out = nn.Conv2d(inner, channels, 1)
        self.place = nn.Linear(channels * height * width, height * width)

    def forward(self, x: Tensor) -> Tensor:
        batch, _, height, width = x.shape
        query, key, value = (part(x).flatten(2) for part in (self.query, self.key, self.value))  # [B, inner, places]
        similar = torch.softmax(query.transpose(1, 2) @ key, dim=2)
        seen = (value @ similar.transpose(1, 2)).view(batch, -1, height, width)
        weight = torch.softmax(self.place(x.flatten(1)), dim=1).view(batch, 1, height, width)
        found: Tensor = x + weight * self.out(seen)
        return found
