"""ResNet-10, and the networks of the two stages."""

import math
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ocil.kernels.convolution import Conv2d
from ocil.longtail.attention import ModulatedAttention
from ocil.longtail.config import SMALL_IMAGE
from ocil.longtail.embedding import MetaEmbedding
from ocil.networks import Block, ImageShape
from ocil.precision import Precision

N = TypeVar("N", bound=nn.Module)


class ResNet10(nn.Module):
    """Four stages of one basic block each, with ``width`` to ``8 · width`` channels; returns the last feature map.

    The stem is a 3x3 convolution that keeps the size of small images (up to 48 pixels), else the published 7x7 of
    stride 2 with max-pooling. Images in [0, 1] are standardised by the training images' mean and deviation.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, image_shape: ImageShape, width: int = 64, precision: Precision = "tf32") -> None:
        super().__init__()
        height, width_px, channels = image_shape
        self.precision = precision
        self.small = max(height, width_px) <= SMALL_IMAGE
        self.conv1 = Conv2d(channels, width, 3) if self.small else Conv2d(channels, width, 7, 2)
        self.bn1 = nn.BatchNorm2d(width)
        self.blocks = nn.Sequential(
            *(Block(width * max(1, factor // 2), width * factor, 1 if factor == 1 else 2) for factor in (1, 2, 4, 8))
        )
        self.channels = 8 * width
        self.register_buffer("mean", torch.zeros(channels, 1, 1))
        self.register_buffer("deviation", torch.ones(channels, 1, 1))
        self.map_size = _halved(height, 3 if self.small else 5), _halved(width_px, 3 if self.small else 5)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1((x - self.mean) / self.deviation)), inplace=True)
        if not self.small:
            y = F.max_pool2d(y, 3, stride=2, padding=1)
        found: Tensor = self.blocks(y)
        return found


class PlainNetwork(nn.Module):
    """The network of stage 1: ResNet-10, mean over the map, a linear layer."""

    def __init__(self, image_shape: ImageShape, classes: int, width: int, precision: Precision) -> None:
        super().__init__()
        self.backbone = ResNet10(image_shape, width, precision)
        self.head = nn.Linear(self.backbone.channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.backbone.precision == "bf16"):
            features = self.backbone(x).mean((2, 3))
        logits: Tensor = self.head(features.float())
        return logits


class OpenNetwork(nn.Module):
    """The network of stage 2. Modulated attention on the last map, mean, linear layer and ReLU give the feature;
    meta-embedding with the centroids gives the logits. The centroids are a parameter with an optimiser of their own.
    """

    def __init__(
        self, image_shape: ImageShape, classes: int, width: int, precision: Precision, scale: float, reach: float
    ) -> None:
        super().__init__()
        self.backbone = ResNet10(image_shape, width, precision)
        size = self.backbone.channels
        self.attention = ModulatedAttention(size, *self.backbone.map_size)
        self.add = nn.Linear(size, size)
        self.embedding = MetaEmbedding(size, classes, scale, reach)
        self.centroids = nn.Parameter(torch.zeros(classes, size))

    def features(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, torch.bfloat16, enabled=self.backbone.precision == "bf16"):
            pooled = self.attention(self.backbone(x)).mean((2, 3))
        return F.relu(self.add(pooled.float()))

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.embedding(self.features(x), self.centroids)
        return logits

    def feature_parameters(self) -> list[nn.Parameter]:
        return [p for part in (self.backbone, self.attention, self.add) for p in part.parameters()]

    @torch.no_grad()
    def start_from(self, plain: PlainNetwork) -> None:
        """Take the backbone from stage 1; its classifier becomes the hallucinator, which mixes the centroids."""
        self.backbone.load_state_dict(plain.backbone.state_dict())
        self.embedding.hallucinator.load_state_dict(plain.head.state_dict())


def he_normal(network: N) -> N:
    """Draw the weights of every convolution from N(0, 2 / (k² · out channels))."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.normal_(module.weight, 0.0, math.sqrt(2 / (module.kernel_size[0] ** 2 * module.out_channels)))
    return network


def _halved(side: int, times: int) -> int:
    for _ in range(times):
        side = -(-side // 2)
    return side
