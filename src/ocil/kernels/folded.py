"""The reduced ResNet-18 for predictions on ARM processors, of weights that do not change meanwhile.

Two things make it faster than the modules themselves, which compute all but the same numbers (to about five digits):

- Batch normalisation by running statistics is a scale and a shift per channel. They are folded into the weights and a
  bias of the convolution before it.
- A 3x3 convolution of stride 1 takes half the multiplications by Winograd's F(4, 3) along the width: four neighbouring
  outputs come from six products instead of twelve. PyTorch's ARM build has no such convolution. Along the width only:
  in both directions the transforms of a map of few channels cost what the products save.

Maps are kept as [height, images, width, channels], so that a row above or below is a contiguous part of the same array,
and the three rows of the kernel are three matrix products that add up.
"""

import platform
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:
    from ocil.networks.reduced_resnet18 import ReducedResNet18

PAYS = platform.machine().lower() in ("aarch64", "arm64")
"""Whether it is faster than oneDNN's convolutions, which are good on Intel's and AMD's processors."""
LARGE_WORK = 5_000_000  # multiply-adds for the features of an image: from here on it pays
OUTPUTS, TILE = 4, 6  # outputs of a tile, and the inputs that they depend on

# Winograd's F(4, 3) for the points 0, 1, -1, 2, -2 and infinity: outputs = RESULT @ ((KERNEL @ k) * (INPUT @ inputs)).
INPUT = ((4, 0, -5, 0, 1, 0), (0, -4, -4, 1, 1, 0), (0, 4, -4, -1, 1, 0), (0, -2, -1, 2, 1, 0), (0, 2, -1, -2, 1, 0),
         (0, 4, 0, -5, 0, 1))  # fmt: skip
KERNEL = ((1 / 4, 0, 0), (-1 / 6, -1 / 6, -1 / 6), (-1 / 6, 1 / 6, -1 / 6), (1 / 24, 1 / 12, 1 / 6),
          (1 / 24, -1 / 12, 1 / 6), (0, 0, 1))  # fmt: skip
RESULT = ((1, 1, 1, 1, 1, 0), (0, 1, -1, 2, -2, 0), (0, 1, 1, 4, 4, 0), (0, 1, -1, 8, -8, 1))
CONSTANT = 1  # the product that counts once in each of the four outputs: a bias is added to it

Convolution = Callable[[Tensor], Tensor]


class FoldedResNet:
    """``features`` of a network in evaluation mode, as its weights are now."""

    @torch.no_grad()
    def __init__(self, network: "ReducedResNet18") -> None:
        self.window = network.window
        self.stem = _patches(*_folded(network.conv1, network.bn1), stride=1)
        self.blocks = [_block(block) for block in network.blocks]

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """[N, C, H, W] to [N, features]."""
        y = self.stem(x.permute(2, 0, 3, 1)).relu_()
        for block in self.blocks:
            y = block(y)
        return F.avg_pool2d(y.permute(1, 3, 0, 2), self.window).flatten(1)


def _block(block: Any) -> Convolution:
    """A ``Block`` of the network: two convolutions and a shortcut."""
    stride = block.conv1.stride[0]
    first = _folded(block.conv1, block.bn1)
    one = _winograd(*first) if stride == 1 else _patches(*first, stride)
    two = _winograd(*_folded(block.conv2, block.bn2))
    shortcut = _pointwise(*_folded(block.shortcut[0], block.shortcut[1]), stride) if len(block.shortcut) else _same

    def forward(x: Tensor) -> Tensor:
        return two(one(x).relu_()).add_(shortcut(x)).relu_()

    return forward


def _folded(convolution: nn.Conv2d, norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """The weight [out, in, k, k] and the bias [out] of a convolution with the batch normalisation after it."""
    mean, variance = norm.running_mean, norm.running_var
    assert mean is not None and variance is not None  # noqa: S101, PT018
    scale = norm.weight * (variance + norm.eps).rsqrt()
    return convolution.weight * scale[:, None, None, None], norm.bias - mean * scale


def _patches(weight: Tensor, bias: Tensor, stride: int) -> Convolution:
    """A 3x3 convolution as one matrix product over unfolded patches."""
    matrix = weight.permute(2, 3, 1, 0).flatten(0, 2).contiguous()

    def convolve(x: Tensor) -> Tensor:
        windows = F.pad(x, (0, 0, 1, 1, 0, 0, 1, 1)).unfold(0, 3, stride).unfold(2, 3, stride)  # [H', N, W', C, 3, 3]
        places = windows.shape[:3]
        seen = windows.permute(0, 1, 2, 4, 5, 3).reshape(-1, len(matrix))
        return torch.addmm(bias, seen, matrix).view(*places, -1)

    return convolve


def _pointwise(weight: Tensor, bias: Tensor, stride: int) -> Convolution:
    """A 1x1 convolution."""
    matrix = weight[:, :, 0, 0].t().contiguous()

    def convolve(x: Tensor) -> Tensor:
        seen = x[::stride, :, ::stride]
        return torch.addmm(bias, seen.reshape(-1, len(matrix)), matrix).view(*seen.shape[:3], -1)

    return convolve


def _same(x: Tensor) -> Tensor:
    return x


def _winograd(weight: Tensor, bias: Tensor) -> Convolution:
    """A 3x3 convolution of stride 1."""
    into, out_of, of_kernel = (weight.new_tensor(matrix) for matrix in (INPUT, RESULT, KERNEL))
    rows = torch.einsum("tk,oirk->rtio", of_kernel, weight).contiguous()  # [3 rows, TILE, in, out]
    shift = weight.new_zeros(TILE, 1, len(bias))
    shift[CONSTANT] = bias

    def convolve(x: Tensor) -> Tensor:
        height, count, width, channels = x.shape
        tiles = -(-width // OUTPUTS)
        padded = F.pad(x, (0, 0, 1, 1 + tiles * OUTPUTS - width, 0, 0, 1, 1))
        seen = padded.unfold(2, TILE, OUTPUTS).permute(4, 0, 1, 2, 3).reshape(TILE, -1)
        inputs = (into @ seen).view(TILE, -1, channels)  # of all rows, with one above and one below
        row = count * tiles
        y = torch.baddbmm(shift, inputs[:, : height * row], rows[0])
        for below in (1, 2):
            y.baddbmm_(inputs[:, below * row : (below + height) * row], rows[below])
        outputs = (out_of @ y.view(TILE, -1)).view(OUTPUTS, height, count, tiles, -1)
        return outputs.permute(1, 2, 3, 0, 4).reshape(height, count, tiles * OUTPUTS, -1)[:, :, :width]

    return convolve
