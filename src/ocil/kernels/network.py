"""The whole backbone as one autograd function over the kernels."""

from collections.abc import Sequence
from dataclasses import dataclass
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ocil.kernels import launch
from ocil.kernels.launch import NetworkPass, Target
from ocil.kernels.plan import BlockLayers, KernelPlan, Layer, addresses, build

_plans: WeakKeyDictionary[nn.Module, dict[tuple[object, ...], KernelPlan]] = WeakKeyDictionary()
_compiled: set[tuple[object, ...]] = set()
_compiling = Lock()


def plan_for(network: nn.Module, images: Tensor, first: int | None = None) -> KernelPlan:
    """The plan of a network for a shape of images, made and its kernels compiled at the first pass of that shape.

    That pass therefore cannot be the one that a CUDA graph records. The first ``first`` images are a batch of their
    own; by default all images are one batch. The number of images and of batches does not matter to the kernels.
    """
    first = len(images) if first is None else first
    plans = _plans.setdefault(network, {})
    key = (*images.shape, first, images.device)
    plan = plans.get(key)
    if plan is None or plan.addresses != addresses(network):
        plan = plans[key] = build(network, images, first)
        kind = (*images.shape[1:], plan.stem.shape.outputs, images.device)
        if images.device.type == "cuda":
            with _compiling:  # another thread waits rather than compile the same
                if kind not in _compiled:
                    _compile(plan, images)
                    _compiled.add(kind)
    return plan


@dataclass
class BlockState:
    """What the backward pass needs of a block."""

    layers: BlockLayers
    x: Tensor
    """The input of the block."""
    y1: Tensor
    """The output of the first convolution."""
    a1: Tensor
    """The activation between the two convolutions."""
    y2: Tensor
    short: Tensor | None
    """The output of the shortcut's convolution."""
    out: Tensor
    """The output of the block."""

    def target(self) -> Target:
        return Target(self.layers.conv2, self.y2, self.out, self.layers.short, self.short)


def run(network: nn.Module, images: Tensor, into_grad: bool, first: int | None = None) -> Tensor:
    """See ``kernels.features`` and, for two batches, ``kernels.features_of_both``: ``first`` images are the first."""
    plan = plan_for(network, images, first)
    if not network.training:
        return infer(plan, images)
    features: Tensor = _Backbone.apply(plan, into_grad, images, *_parameters(plan))
    return features


def infer(plan: KernelPlan, images: Tensor) -> Tensor:
    """Features by running statistics, without a gradient."""
    p = NetworkPass(plan, images.device)
    launch.pack(p)
    a = launch.infer(p, plan.stem, images.contiguous(memory_format=torch.channels_last))
    for conv1, conv2, short in plan.blocks:
        residual = a if short is None else launch.infer(p, short, a, relu=False)
        a = launch.infer(p, conv2, launch.infer(p, conv1, a), residual)
    return launch.pool(p, plan.blocks[-1].conv2, a)


class _Backbone(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: KernelPlan, into_grad: bool, images: Tensor, *parameters: Tensor) -> Tensor:
        p = NetworkPass(plan, images.device)
        x = images.contiguous(memory_format=torch.channels_last)
        y0, states = _forward(p, x)
        ctx.kept = (p, into_grad, x, y0, states)
        return launch.pool(p, plan.blocks[-1].conv2, states[-1].out)

    @staticmethod
    @once_differentiable  # the kernels have no derivative themselves
    def backward(ctx: Any, features_grad: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.kept is None:
            raise RuntimeError("The fused network keeps its activations for one backward pass only.")
        p, into_grad, images, y0, states = ctx.kept
        ctx.kept = None
        plan: KernelPlan = p.plan
        into_grad = into_grad and _all_accumulate(ctx.next_functions[3:], _parameters(plan))
        flat = _existing(plan) if into_grad else None
        p.accumulate = flat is not None
        p.grads = torch.empty(plan.grads_size, device=p.device) if flat is None else flat
        p.partial = torch.empty(plan.partial_size, device=p.device)
        _backward(p, images, y0, states, features_grad.float().contiguous())
        if flat is not None:
            return (None,) * (3 + 3 * len(plan.layers))
        grads = [grad for layer in plan.layers for grad in _views(layer, p.grads)]
        if into_grad and all(parameter.grad is None for parameter in _parameters(plan)):
            for parameter, grad in zip(_parameters(plan), grads, strict=True):
                parameter.grad = grad
            return (None,) * (3 + len(grads))
        return (None, None, None, *grads)


def _forward(p: NetworkPass, images: Tensor) -> tuple[Tensor, list[BlockState]]:
    launch.pack(p)
    y0 = launch.conv(p, p.plan.stem, images)
    a = launch.activate(p, p.plan.stem, y0)
    states = []
    for block in p.plan.blocks:
        short = None if block.short is None else launch.conv(p, block.short, a)
        y1 = launch.conv(p, block.conv1, a)
        a1 = launch.activate(p, block.conv1, y1)
        y2 = launch.conv(p, block.conv2, a1)
        out = launch.activate(p, block.conv2, y2, a if short is None else short, block.short)
        states.append(BlockState(block, a, y1, a1, y2, short, out))
        a = out
    return y0, states


def _compile(plan: KernelPlan, images: Tensor) -> None:
    """All kernels of a pass at once: one after the other they would take half a minute the first time."""

    def work() -> None:
        p = NetworkPass(plan, images.device)
        y0, states = _forward(p, images)
        features = launch.pool(p, plan.blocks[-1].conv2, states[-1].out)
        p.grads = torch.empty(plan.grads_size, device=p.device)
        p.partial = torch.empty(plan.partial_size, device=p.device)
        _backward(p, images, y0, states, features)
        infer(plan, images)

    launch.compile_all(work)


def _backward(p: NetworkPass, images: Tensor, y0: Tensor, states: list[BlockState], features_grad: Tensor) -> None:
    g = launch.unpool(p, states[-1].target(), features_grad)
    for number, state in reversed(list(enumerate(states))):
        conv1, conv2, short = state.layers
        dy2 = launch.wgrad(p, conv2, state.a1, g, state.y2)
        g1 = launch.dgrad(p, conv2, dy2, Target(conv1, state.y1))
        dy1 = launch.wgrad(p, conv1, state.x, g1, state.y1)
        target = states[number - 1].target() if number else Target(p.plan.stem, y0)
        if short is None or state.short is None:
            g = launch.dgrad(p, conv1, dy1, target, residual=g)
        else:
            short_dy = launch.wgrad(p, short, state.x, g, state.short)
            g = launch.dgrad(p, conv1, dy1, target, short=short, short_dy=short_dy)
    launch.wgrad(p, p.plan.stem, images, g, y0, store=False)
    launch.reduce(p)


def _parameters(plan: KernelPlan) -> list[Tensor]:
    return [p for layer in plan.layers for p in (layer.conv.weight, layer.norm.weight, layer.norm.bias)]


def _all_accumulate(edges: Sequence[tuple[Any, int]], parameters: Sequence[Tensor]) -> bool:
    """Whether this backward pass is to add to the ``.grad`` of every parameter, and no hook or caller is to see it.

    ``torch.autograd.grad`` wants gradients returned instead, ``backward(inputs=...)`` wants some of them only, a frozen
    parameter wants none, and a hook wants to see its parameter's gradient pass by.
    """
    for (node, _), parameter in zip(edges, parameters, strict=True):
        if getattr(node, "variable", None) is not parameter:
            return False
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            return False
        try:
            if not torch._C._will_engine_execute_node(node):
                return False
        except RuntimeError:  # a leaf whose gradient is returned
            return False
    return True


def _views(layer: Layer, flat: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of weight, gamma and beta as the parts of ``flat`` where the kernels leave them."""
    s, at = layer.shape, layer.at
    shape = (s.outputs, s.size, s.size, s.inputs)
    weight = flat[at.weight : at.weight + s.taps * s.inputs * s.outputs].view(shape).permute(0, 3, 1, 2)
    gamma = flat[at.norm : at.norm + s.outputs]
    return weight, gamma, flat[at.norm + s.outputs : at.norm + 2 * s.outputs]


def _existing(plan: KernelPlan) -> Tensor | None:
    """The one buffer of all gradients, if an earlier pass made them and they are still in place."""
    first = plan.layers[0].conv.weight.grad
    if first is None or first.untyped_storage().nbytes() != 4 * plan.grads_size:
        return None
    flat = first.as_strided((plan.grads_size,), (1,), 0)
    for layer in plan.layers:
        expected = _views(layer, flat)
        for parameter, view in zip((layer.conv.weight, layer.norm.weight, layer.norm.bias), expected, strict=True):
            grad = parameter.grad
            if grad is None or grad.data_ptr() != view.data_ptr() or grad.stride() != view.stride():
                return None
    return flat
