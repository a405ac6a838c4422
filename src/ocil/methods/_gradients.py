"""Inner products of the gradients of many samples and groups, from one forward and one backward pass.

``torch.func`` does it in one line, as vmap of grad. For small images this takes a third of that time, never more; it
holds the gradients of one layer at a time, and does not load PyTorch's compiler, which costs seconds per process.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from ocil.kernels.convolution import Conv2d, patches
from ocil.learning import losses
from ocil.networks import GrowingHead


def gradient_products(network: nn.Module, images: Tensor, labels: Tensor, singles: int, group_size: int) -> Tensor:
    """Inner products ``[R, R]`` in float32 of R gradients of the cross-entropy by all parameters: those of each of the
    first ``singles`` images, then those of the mean loss of each group of ``group_size`` of the images that follow.

    The network must be in evaluation mode: only then does each image have its own gradient.
    """
    layers = [layer for layer in network.modules() if any(p.requires_grad for p in layer.parameters(recurse=False))]
    if not all(map(_has_rule, layers)):
        return _by_torch_func(network, images, labels, singles, group_size)
    calls: list[tuple[nn.Module, Tensor, GradientEdge]] = []

    def remember(layer: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        # The edge, not the tensor, which an in-place ReLU may change later.
        calls.append((layer, inputs[0].detach(), get_gradient_edge(output)))

    hooks = [layer.register_forward_hook(remember) for layer in layers]
    try:
        values = losses.cross_entropy(network(images), labels, reduction="none")
    finally:
        for hook in hooks:
            hook.remove()
    over_places = any(isinstance(layer, nn.Linear) and x.ndim != 2 for layer, x, _ in calls)
    if over_places or not _uses_each_weight_once(network, [layer for layer, _, _ in calls]):
        return _by_torch_func(network, images, labels, singles, group_size)
    loss = values[:singles].sum() + values[singles:].sum() / group_size
    slopes = torch.autograd.grad(loss, [edge for _, _, edge in calls])
    rows = singles + (len(labels) - singles) // group_size
    products = torch.zeros(rows, rows, device=images.device)
    for (layer, inputs, _), slope in zip(calls, slopes, strict=True):
        gradients = _gradients(layer, inputs, slope, singles, group_size).float()
        products = products + gradients @ gradients.mT
    return products


def _has_rule(layer: nn.Module) -> bool:
    """Whether ``_gradients`` knows this kind of layer, all of whose parameters are trained."""
    if not all(parameter.requires_grad for parameter in layer.parameters(recurse=False)):
        return False
    if isinstance(layer, nn.Conv2d) and type(layer) in (nn.Conv2d, Conv2d):  # a subclass may pad or scale otherwise
        size, padding = layer.kernel_size[0], (layer.kernel_size[0] // 2,) * 2
        square = layer.kernel_size == (size, size) and layer.stride == layer.stride[:1] * 2 and layer.padding == padding
        plain = layer.groups == 1 and layer.dilation == (1, 1) and layer.padding_mode == "zeros"
        return square and plain and layer.bias is None
    if isinstance(layer, nn.Linear):
        return type(layer) in (nn.Linear, GrowingHead) and layer.bias is not None
    return type(layer) is nn.BatchNorm2d and layer.track_running_stats


def _uses_each_weight_once(network: nn.Module, called: list[nn.Module]) -> bool:
    """Whether every trained weight belongs to one of the layers that were called, and to one call alone: a weight that
    is shared has the sum of the gradients of its calls."""
    used = [id(weight) for layer in called for weight in layer.parameters(recurse=False)]
    trained = {id(weight) for weight in network.parameters() if weight.requires_grad}
    return len(used) == len(trained) and set(used) == trained


def _by_torch_func(network: nn.Module, images: Tensor, labels: Tensor, singles: int, group_size: int) -> Tensor:
    """``gradient_products`` for any network."""
    trained = {name: parameter.detach() for name, parameter in network.named_parameters() if parameter.requires_grad}

    def loss(weights: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return losses.cross_entropy(torch.func.functional_call(network, weights, (x[None],)), y[None])

    slopes = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0))(trained, images, labels)
    flat = torch.cat([slope.flatten(1) for slope in slopes.values()], 1).float()
    rows = torch.cat([flat[:singles], flat[singles:].unflatten(0, (-1, group_size)).mean(1)])
    return rows @ rows.mT


@torch.no_grad()
def _gradients(layer: nn.Module, inputs: Tensor, slope: Tensor, singles: int, group_size: int) -> Tensor:
    """One row per gradient: the part of a layer, from its inputs and the gradient of the loss by its outputs."""

    def sums(values: Tensor) -> Tensor:
        return torch.cat([values[:singles], values[singles:].unflatten(0, (-1, group_size)).sum(1)])

    def products(left: Tensor, right: Tensor) -> Tensor:
        """Sums over images and places of the outer products of ``[N, places, A]`` and ``[N, places, B]``."""
        if left.shape[1] > left.shape[2]:  # many places and few channels
            return sums((left.mT @ right).flatten(1))  # a product per image fills a GPU, a long one per group does not
        together = [values[singles:].unflatten(0, (-1, group_size)).flatten(1, 2) for values in (left, right)]
        return torch.cat([left[:singles].mT @ right[:singles], together[0].mT @ together[1]]).flatten(1)

    if isinstance(layer, nn.Conv2d):
        places = slope.permute(0, 2, 3, 1).flatten(1, 2).to(inputs.dtype)
        return products(places, patches(inputs, layer.kernel_size[0], layer.stride[0]))
    if isinstance(layer, nn.BatchNorm2d) and layer.running_mean is not None and layer.running_var is not None:
        centred = inputs - layer.running_mean[:, None, None]
        by_weight = (slope * centred).sum((2, 3)) * torch.rsqrt(layer.running_var + layer.eps)
        return sums(torch.cat([by_weight, slope.sum((2, 3), dtype=by_weight.dtype)], 1))
    if isinstance(layer, nn.Linear):
        return torch.cat([products(slope[:, None], inputs[:, None]), sums(slope)], 1)
    raise TypeError(f"no rule for the gradients of a {type(layer).__name__}")
