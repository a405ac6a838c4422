"""A head that scores by cosines, for the methods whose classes are directions without a length."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ocil import networks
from ocil.networks import Growing


class CosineHead(nn.Module):
    """``scale`` times the cosine of the feature and each class's weight, without bias.

    ``epsilon`` is added to both lengths, so that a vector of zeros has the cosine 0.
    """

    def __init__(self, features: int, classes: int, scale: float, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.scale, self.epsilon = scale, epsilon
        self.weight = nn.Linear(features, classes, bias=False).weight

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(unit(x, self.epsilon), unit(self.weight, self.epsilon)) * self.scale


class GrowingCosineHead(Growing, CosineHead):
    """A cosine head for classes that are not known in advance (see ``networks.Growing``)."""

    def __init__(self, features: int, classes: int, scale: float, seed: int, epsilon: float = 1e-5) -> None:
        nn.Module.__init__(self)
        self.scale, self.epsilon = scale, epsilon
        self.weight = nn.Parameter(torch.zeros(classes, features))
        self.start(classes, seed, features**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).masked_fill(~self.met, networks.NOT_MET)


def cosine_head(
    features: int, classes: int, scale: float, seed: int, growing: bool, epsilon: float = 1e-5
) -> CosineHead:
    """A head whose weights come from ``seed`` alone, for classes that are known in advance or grow."""
    if growing:
        return GrowingCosineHead(features, classes, scale, seed, epsilon)
    return networks.seeded(lambda: CosineHead(features, classes, scale, epsilon), seed)


def unit(rows: Tensor, epsilon: float) -> Tensor:
    """Rows ``[N, D]`` divided by their length plus ``epsilon``."""
    return torch.div(rows, torch.linalg.vector_norm(rows, dim=1, keepdim=True) + epsilon)
