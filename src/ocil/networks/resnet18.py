"""ResNet-18 at full width (He et al., Deep Residual Learning for Image Recognition, CVPR 2016)."""

import torch.nn.functional as F
from torch import Tensor, nn

from ocil.errors import OcilError
from ocil.kernels.convolution import Conv2d
from ocil.limits import MAX_WIDTH, whole
from ocil.networks.inputs import InputShape, image_shape

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class BasicBlock(nn.Module):
    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = Conv2d(in_channels, channels, 3, stride)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = Conv2d(channels, channels, 3)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample: nn.Module | None = None
        if stride != 1 or in_channels != channels:
            shortcut = Conv2d(in_channels, channels, 1, stride)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn2(self.conv2(y))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)), inplace=True)


class ResNet18(nn.Module):
    """Stages of 64, 128, 256 and 512 channels and an average over the last map: 512 features.

    Its parts have the names that published weights of ResNet-18 use, so these can be loaded (``pretrained``).
    """

    def __init__(self, input_shape: InputShape, width: int = 64, stem: str = "small") -> None:
        """``width``: channels of the first stage; the next ones have 2, 4 and 8 times as many.

        ``stem``: 'small' begins with a 3x3 convolution, for images of about 32 pixels, as the methods of this field do;
        'imagenet' with a 7x7 convolution and max-pooling, and images are resized to 224 pixels and normalised.
        """
        super().__init__()
        if stem not in ("small", "imagenet"):
            raise OcilError(f"resnet18(stem={stem!r}): use 'small' or 'imagenet'.")
        width = whole("resnet18: width", width, 1, MAX_WIDTH)
        self.stem = stem
        channels = image_shape(input_shape)[2]
        if stem == "imagenet":
            channels = self.in_channels = 3
            self.input_size, self.mean, self.std = (224, 224), IMAGENET_MEAN, IMAGENET_STD
            self.conv1 = Conv2d(channels, width, 7, 2)
        else:
            self.conv1 = Conv2d(channels, width, 3)
        self.bn1 = nn.BatchNorm2d(width)
        self.layer1 = nn.Sequential(BasicBlock(width, width, 1), BasicBlock(width, width, 1))
        self.layer2 = nn.Sequential(BasicBlock(width, 2 * width, 2), BasicBlock(2 * width, 2 * width, 1))
        self.layer3 = nn.Sequential(BasicBlock(2 * width, 4 * width, 2), BasicBlock(4 * width, 4 * width, 1))
        self.layer4 = nn.Sequential(BasicBlock(4 * width, 8 * width, 2), BasicBlock(8 * width, 8 * width, 1))

        self.stage_channels = (width, 2 * width, 4 * width, 8 * width)

    def forward(self, x: Tensor) -> Tensor:
        return self.stage_maps(x)[-1].mean((2, 3))

    def stage_maps(self, x: Tensor) -> list[Tensor]:
        """The map behind each of the four stages."""
        x = F.relu(self.bn1(self.conv1(x)), inplace=True)
        if self.stem == "imagenet":
            x = F.max_pool2d(x, 3, 2, 1)
        maps = []
        for stage in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = stage(x)
            maps.append(x)
        return maps
