"""A 3x3 or 1x1 convolution whose backward pass is fast on ARM processors, and safe on Intel's.

PyTorch's ARM build has a good forward convolution, but its weight gradient is up to nine times slower than a plain
matrix product over unfolded patches, which is what this uses.

On processors with AVX-512, PyTorch 2.13 overwrites foreign memory in the weight gradient of a 1x1 convolution that
skips pixels, for example from 8 to 16 channels of 64x64 pixels, channels-last. So pixels are left out before it.
Everywhere else this is ``nn.Conv2d``, unchanged. ``subsample_first`` does the same for the layers of other networks.
"""

import platform
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.grad import conv2d_input

SLOW_BACKWARD = platform.machine().lower() in ("aarch64", "arm64")


class Conv2d(nn.Conv2d):
    """``nn.Conv2d`` without bias, for square kernels of odd size padded to keep the map (``padding = size // 2``)."""

    def __init__(self, in_channels: int, out_channels: int, kernel: int, stride: int = 1) -> None:
        super().__init__(in_channels, out_channels, kernel, stride, padding=kernel // 2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        if SLOW_BACKWARD and x.device.type == "cpu" and self.weight.requires_grad and _plain_training():
            y: Tensor = _PatchConvolution.apply(x, self.weight, self.stride[0])
            return y
        if self.kernel_size == (1, 1) and x.device.type == "cpu" and torch.is_grad_enabled():
            return _subsampled(self, x, self.weight)
        return super().forward(x)


def subsample_first(network: nn.Module) -> None:
    """Leave pixels out before the 1x1 convolutions of any network whose weight gradient overwrites foreign memory.

    Those have 2 to 15 input channels and large maps: 48 pixels per side did it, 40 and any map of 16 channels did not.
    A layer keeps its class, and one that computes in a way of its own stays as it is.
    """
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d) and layer.kernel_size == (1, 1) and layer.stride != (1, 1):
            own = isinstance(layer, Conv2d) or type(layer)._conv_forward is not nn.Conv2d._conv_forward
            if layer.padding in ((0, 0), "valid") and layer.in_channels < 16 and not own:
                layer._conv_forward = MethodType(_conv_forward, layer)  # type: ignore[method-assign]


def _conv_forward(layer: nn.Conv2d, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """What ``subsample_first`` puts in the place of the method of that name."""
    if x.device.type == "cpu" and torch.is_grad_enabled():
        return _subsampled(layer, x, weight, bias)
    y: Tensor = nn.Conv2d._conv_forward(layer, x, weight, bias)
    return y


def _subsampled(layer: nn.Conv2d, x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """What a 1x1 convolution gives, by leaving out first the pixels that it skips."""
    down, right = layer.stride
    return F.conv2d(x[..., ::down, ::right], weight, bias, groups=layer.groups)


def _plain_training() -> bool:
    return torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")


class _PatchConvolution(torch.autograd.Function):
    generate_vmap_rule = True  # per-sample gradients by torch.func go through here too

    @staticmethod
    def forward(x: Tensor, weight: Tensor, stride: int) -> Tensor:
        return F.conv2d(x, weight, stride=stride, padding=weight.shape[2] // 2)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: Tensor) -> None:
        x, weight, ctx.stride = inputs
        ctx.save_for_backward(x, weight)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        x, weight = ctx.saved_tensors
        out_channels, in_channels, kernel, _ = weight.shape
        for_input = for_weight = None
        if ctx.needs_input_grad[0]:
            if ctx.stride == 1:
                # Stride 1: the input's gradient is itself a forward convolution, with the kernel turned around.
                for_input = F.conv2d(grad, weight.flip(2, 3).transpose(0, 1), padding=kernel // 2)
            else:
                for_input = conv2d_input(x.shape, weight, grad, ctx.stride, kernel // 2)
        if ctx.needs_input_grad[1]:
            seen = patches(x, kernel, ctx.stride).flatten(0, 1)
            flat = grad.permute(1, 0, 2, 3).reshape(out_channels, -1)
            for_weight = (flat @ seen).view(out_channels, kernel, kernel, in_channels).permute(0, 3, 1, 2)
        return for_input, for_weight, None


def patches(x: Tensor, kernel: int, stride: int) -> Tensor:
    """``[N, places, kernel² · C]``: what each output pixel of a convolution sees, channels innermost."""
    nhwc = F.pad(x.permute(0, 2, 3, 1), (0, 0) + (kernel // 2,) * 4)
    windows = nhwc.unfold(1, kernel, stride).unfold(2, kernel, stride)  # [N, H', W', C, k, k]
    return windows.permute(0, 1, 2, 4, 5, 3).flatten(3).flatten(1, 2)
