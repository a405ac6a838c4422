"""The network of the paper: a reduced ResNet-18."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ocil import kernels
from ocil.kernels import folded
from ocil.kernels.convolution import Conv2d
from ocil.networks.base import Network, Outputs, autocast
from ocil.networks.inputs import ImageShape
from ocil.precision import Precision

PRODUCTS = 144  # multiply-adds per pixel of the image and squared width: 16 convolutions of 3x3, each stage as costly


class Block(nn.Module):
    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = Conv2d(in_channels, channels, 3, stride)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = Conv2d(channels, channels, 3)
        self.bn2 = nn.BatchNorm2d(channels)
        self.shortcut = nn.Sequential()
        if stride != 1 or in_channels != channels:
            self.shortcut = nn.Sequential(Conv2d(in_channels, channels, 1, stride), nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn2(self.conv2(y))
        return F.relu(y + self.shortcut(x), inplace=True)


class ReducedResNet18(Network):
    """ResNet-18 for small images with a third of the width: 3x3 stem, stages of 20/40/80/160 channels, no max-pool.

    ``features`` averages the last map over 4x4 windows (over the whole map where it is smaller) and flattens it:
    160 numbers for a 32x32 image, 640 for 84x84. ``head`` gives one logit for each class.
    """

    _folded: folded.FoldedResNet | None = None  # for predictions by weights that do not change

    def __init__(self, image_shape: ImageShape, classes: int, width: int = 20, precision: Precision = "tf32") -> None:
        super().__init__()
        self.precision, self.width, self.image_shape = precision, width, image_shape
        height, width_px, channels = image_shape
        self.conv1 = Conv2d(channels, width, 3)
        self.bn1 = nn.BatchNorm2d(width)
        blocks: list[nn.Module] = []
        in_channels = width
        for factor, stride in ((1, 1), (2, 2), (4, 2), (8, 2)):
            blocks += [Block(in_channels, factor * width, stride), Block(factor * width, factor * width, 1)]
            in_channels = factor * width
        self.blocks = nn.Sequential(*blocks)
        self.stage_channels = (width, 2 * width, 4 * width, 8 * width)
        last_map = (-(-height // 8), -(-width_px // 8))
        self.window = (min(4, last_map[0]), min(4, last_map[1]))
        self.feature_size = in_channels * (last_map[0] // self.window[0]) * (last_map[1] // self.window[1])
        self.channels = in_channels
        self.smallest_batch = smallest_batch(image_shape)
        self.multiply_adds = PRODUCTS * height * width_px * width**2
        self.head = nn.Linear(self.feature_size, classes)

    def prepare(self) -> None:
        large = self.multiply_adds >= folded.LARGE_WORK  # preparing takes a while, too
        suits = folded.PAYS and large and self.conv1.weight.device.type == "cpu" and self.precision != "bf16"
        self._folded = folded.FoldedResNet(self) if suits else None

    def features(self, x: Tensor) -> Tensor:
        if self._folded is not None and not self.training and not torch.is_grad_enabled():
            return self._folded(x)
        if not self.frozen_parts and kernels.usable(self, x):
            return kernels.features(self, x, into_grad=True)
        return self.plain_features(x)

    def outputs_of(self, batches: Sequence[Tensor]) -> list[Outputs]:
        if len(batches) != 2 or self.frozen_parts or not kernels.usable(self, *batches):
            return super().outputs_of(batches)
        features = kernels.features_of_both(self, batches[0], batches[1], into_grad=True)
        sizes = [len(x) for x in batches]
        scores = self.head(features)  # a head computes row by row
        return [Outputs(*both) for both in zip(features.split(sizes), scores.split(sizes), strict=True)]

    def plain_features(self, x: Tensor) -> Tensor:
        with autocast(x, self.precision):
            y = F.relu(self.bn1(self.conv1(x)), inplace=True)
            return F.avg_pool2d(self.blocks(y), self.window).flatten(1).float()

    def stage_maps(self, x: Tensor) -> list[Tensor]:
        with autocast(x, self.precision):
            y, maps = F.relu(self.bn1(self.conv1(x)), inplace=True), []
            for number, block in enumerate(self.blocks):
                y = block(y)
                if number % 2:  # a stage has two blocks
                    maps.append(y)
            return maps


def smallest_batch(image_shape: ImageShape) -> int:
    """The smallest batch that has batch statistics: 2 if the last map has one pixel, else 1."""
    return 1 if max(image_shape[:2]) > 8 else 2
