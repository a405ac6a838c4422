"""The experts of MOSE: side branches that turn the map behind each stage of a network into features of one size."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ocil.errors import OcilError
from ocil.kernels.convolution import Conv2d


class Experts(nn.ModuleList):
    """One expert for each stage, by the channels of the stages. All give as many features as the last stage has
    channels. The last expert only averages its map.
    """

    def __init__(self, stage_channels: Sequence[int]) -> None:
        size = stage_channels[-1]
        super().__init__(Expert(channels, size) for channels in stage_channels[:-1])
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, maps: Sequence[Tensor]) -> list[Tensor]:
        """Features ``[B, size]`` in float32 of the map behind each stage."""
        branches = [expert(stage).float() for expert, stage in zip(self, maps[:-1], strict=True)]
        return [*branches, maps[-1].float().mean((2, 3))]


class Expert(nn.Module):
    """A map is weighed, place by place and channel by channel, by an attention map that is computed from it at half the
    resolution. Blocks that halve the map and double its channels follow, then an average over all places.
    """

    def __init__(self, channels: int, size: int) -> None:
        super().__init__()
        doublings = max(0, (size // channels).bit_length() - 1)
        if channels * 2**doublings != size:
            raise OcilError(f"a stage of {channels} channels cannot be doubled to the {size} of the last one.")
        self.attention = nn.Sequential(SeparableBlock(channels, channels), nn.BatchNorm2d(channels), nn.ReLU())
        self.blocks = nn.Sequential(
            *(SeparableBlock(channels * 2**number, channels * 2 ** (number + 1)) for number in range(doublings))
        )

    def forward(self, stage: Tensor) -> Tensor:
        height, width = stage.shape[2:]
        found: Tensor = self.blocks(stage * torch.sigmoid(enlarged(self.attention(stage), height, width)))
        return found.mean((2, 3))


class SeparableBlock(nn.Sequential):
    """Two depthwise 3x3 convolutions, the first of which halves the map, each with a 1x1 convolution behind it."""

    def __init__(self, channels: int, channels_out: int) -> None:
        layers: list[nn.Module] = []
        for stride, wide in ((2, channels), (1, channels_out)):
            depthwise = nn.Conv2d(channels, channels, 3, stride, padding=1, groups=channels, bias=False)
            layers += [depthwise, Conv2d(channels, wide, 1), nn.BatchNorm2d(wide), nn.ReLU()]
        super().__init__(*layers)


def enlarged(maps: Tensor, height: int, width: int) -> Tensor:
    """Maps ``[B, C, h, w]`` in another size, bilinear. The size is given, since half of an odd side was rounded up.

    As two matrix products: the backward pass of ``F.interpolate`` adds in no fixed order on a GPU.
    """
    rows, columns = _interpolation(maps.shape[2], height, maps), _interpolation(maps.shape[3], width, maps)
    return rows @ maps @ columns.T


def _interpolation(before: int, after: int, like: Tensor) -> Tensor:
    """The weights ``[after, before]`` of linear interpolation: how much each of the ``before`` places adds to each of
    the ``after`` places.
    """
    place = (torch.arange(after, device=like.device) + 0.5) * (before / after) - 0.5
    apart = place.clamp(0, before - 1)[:, None] - torch.arange(before, device=like.device)
    return (1 - apart.abs()).clamp(min=0).to(like.dtype)
