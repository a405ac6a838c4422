"""The reduced ResNet-18 for predictions on ARM processors, of weights that do not change meanwhile.

Two things make it faster than the modules themselves, which compute all but the same numbers (to about five digits):

- Batch normalisation by running statistics is a scale and a shift per channel. They are folded into the weights and a
  bias of the convolution before it.
- A 3x3 convolution of stride 1 takes half the multiplications by Winograd's F(4, 3) along the width: four neighbouring
  outputs come from six products instead of twelve. PyTorch's ARM build has no such convolution. Along the width only:
  in both directions the transforms of a map of few channels cost what the products save.

Maps are kept as [height, images, width, channels], so that a row above or below is a contiguous part of the same array,
and the three rows of the kernel are three matrix products that add up.

Where PyTorch can still trace a function, a pass is one call into it, which does not hold Python's lock: some hundred
small operations would each wait for it while other threads answer requests.
"""

import platform
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

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

Pass = Callable[..., Tensor]


class Form(NamedTuple):
    """All that a pass depends on, besides weights and the number of images."""

    image: tuple[int, int, int]
    """Channels, height and width."""
    channels: int
    """Of the first stage."""
    window: tuple[int, int]
    blocks: tuple[tuple[int, bool], ...]
    """The stride of each block, and whether its shortcut is a convolution."""


class FoldedResNet:
    """``features`` of a network in evaluation mode, as its weights are now."""

    @torch.no_grad()
    def __init__(self, network: "ReducedResNet18") -> None:
        height, width, channels = network.image_shape
        blocks: list[Any] = list(network.blocks)
        kinds = tuple((block.conv1.stride[0], len(block.shortcut) > 0) for block in blocks)
        self.form = Form((channels, height, width), network.width, network.window, kinds)
        self.weights = [*_for_patches(*_folded(network.conv1, network.bn1))]
        self.weights += [part for block in blocks for part in _weights(block)]
        _trace(self.form, self.weights)

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """[N, C, H, W] to [N, features]."""
        found: Tensor = (_passes.get(self.form) or _pass_of(self.form))(x, *self.weights)
        return found


def _weights(block: Any) -> Iterator[Tensor]:
    """The weights of a block's convolutions in their order, two tensors for each, as the functions below take them."""
    first = _folded(block.conv1, block.bn1)
    yield from _for_winograd(*first) if block.conv1.stride == (1, 1) else _for_patches(*first)
    yield from _for_winograd(*_folded(block.conv2, block.bn2))
    if len(block.shortcut):
        yield from _for_patches(*_folded(*block.shortcut))


def _pass_of(form: Form) -> Pass:
    """A function of images and these weights."""

    def features(x: Tensor, *weights: Tensor) -> Tensor:
        left = iter(weights)
        y = _patches(x.permute(2, 0, 3, 1), next(left), next(left), stride=1).relu_()
        for stride, shortcut in form.blocks:
            before, given = y, (next(left), next(left))
            y = (_winograd(y, *given) if stride == 1 else _patches(y, *given, stride)).relu_()
            y = _winograd(y, next(left), next(left))
            y = y.add_(_pointwise(before, next(left), next(left), stride) if shortcut else before).relu_()
        return F.avg_pool2d(y.permute(1, 3, 0, 2), form.window).flatten(1)

    return features


_passes: dict[Form, Pass] = {}  # those that were traced


def _trace(form: Form, weights: Sequence[Tensor]) -> None:
    """Make the function one call into PyTorch, if this version can still trace: that is deprecated."""
    if form not in _passes:
        with suppress(Exception), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            example = (weights[0].new_zeros(2, *form.image), *weights)
            _passes[form] = torch.jit.trace(_pass_of(form), example, check_trace=False)


def _folded(convolution: nn.Conv2d, norm: nn.BatchNorm2d) -> tuple[Tensor, Tensor]:
    """The weight [out, in, k, k] and the bias [out] of a convolution with the batch normalisation after it."""
    mean, variance = norm.running_mean, norm.running_var
    assert mean is not None and variance is not None  # noqa: S101, PT018
    scale = norm.weight * (variance + norm.eps).rsqrt()
    return convolution.weight * scale[:, None, None, None], norm.bias - mean * scale


def _for_patches(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """The weights of ``_patches`` and ``_pointwise``: a matrix [k · k · in, out], and the bias."""
    return weight.permute(2, 3, 1, 0).flatten(0, 2).contiguous(), bias


def _patches(x: Tensor, matrix: Tensor, bias: Tensor, stride: int) -> Tensor:
    """A 3x3 convolution as one matrix product over unfolded patches."""
    windows = F.pad(x, (0, 0, 1, 1, 0, 0, 1, 1)).unfold(0, 3, stride).unfold(2, 3, stride)  # [H', N, W', C, 3, 3]
    seen = windows.permute(0, 1, 2, 4, 5, 3).reshape(-1, matrix.shape[0])
    return torch.addmm(bias, seen, matrix).view(windows.shape[0], windows.shape[1], windows.shape[2], -1)


def _pointwise(x: Tensor, matrix: Tensor, bias: Tensor, stride: int) -> Tensor:
    """A 1x1 convolution."""
    seen = x[::stride, :, ::stride]
    y = torch.addmm(bias, seen.reshape(-1, matrix.shape[0]), matrix)
    return y.view(seen.shape[0], seen.shape[1], seen.shape[2], -1)


def _for_winograd(weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """The weights of ``_winograd``: [3 rows, TILE, in, out], and what is added to each product: [TILE, 1, out]."""
    shift = weight.new_zeros(TILE, 1, len(bias))
    shift[CONSTANT] = bias
    return torch.einsum("tk,oirk->rtio", weight.new_tensor(KERNEL), weight).contiguous(), shift


def _winograd(x: Tensor, rows: Tensor, shift: Tensor) -> Tensor:
    """A 3x3 convolution of stride 1."""
    height, count, width, channels = x.shape
    tiles = (width + OUTPUTS - 1) // OUTPUTS
    padded = F.pad(x, (0, 0, 1, 1 + tiles * OUTPUTS - width, 0, 0, 1, 1))
    seen = padded.unfold(2, TILE, OUTPUTS).permute(4, 0, 1, 2, 3).reshape(TILE, -1)
    inputs = (x.new_tensor(INPUT) @ seen).view(TILE, -1, channels)  # of all rows, with one above and one below
    row = count * tiles
    y = torch.baddbmm(shift, inputs[:, : height * row], rows[0])
    for below in (1, 2):
        y.baddbmm_(inputs[:, below * row : (below + height) * row], rows[below])
    outputs = (x.new_tensor(RESULT) @ y.view(TILE, -1)).view(OUTPUTS, height, count, tiles, -1)
    return outputs.permute(1, 2, 3, 0, 4).reshape(height, count, tiles * OUTPUTS, -1)[:, :, :width]
