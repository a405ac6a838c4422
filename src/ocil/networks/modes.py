"""Context managers that change how a network behaves, and seeded initialisation."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import RLock
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

M = TypeVar("M", bound=nn.Module)


_default_generator = RLock()


@contextmanager
def default_generator_kept() -> Iterator[None]:
    """Inside the block PyTorch's own generator may be used; afterwards it is as it was. It belongs to the process, so
    one thread at a time is inside.
    """
    with _default_generator, torch.random.fork_rng(devices=[]):
        yield


def seeded(make: Callable[[], M], seed: int) -> M:
    """A module whose initial weights come from ``seed`` alone."""
    with default_generator_kept():
        torch.default_generator.manual_seed(seed)
        return make()


@contextmanager
def bn_momentum(network: nn.Module, momentum: float) -> Iterator[None]:
    """Inside the block running statistics move by ``momentum``."""
    norms = [m for m in network.modules() if isinstance(m, _BatchNorm)]
    before = [m.momentum for m in norms]
    for norm in norms:
        norm.momentum = momentum
    try:
        yield
    finally:
        for norm, value in zip(norms, before, strict=True):
            norm.momentum = value


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Inside the block batch normalisation uses running statistics."""
    mode = network.training
    network.eval()
    try:
        yield
    finally:
        network.train(mode)


@contextmanager
def virtual_step(module: nn.Module, lr: float) -> Iterator[None]:
    """Inside the block a module has the weights that one plain SGD step along its present gradients would give it.

    Afterwards its weights and running statistics are what they were, bit for bit.
    """
    with torch.no_grad():
        weights: list[Tensor] = [parameter for parameter in module.parameters() if parameter.grad is not None]
        slopes = [parameter.grad for parameter in module.parameters() if parameter.grad is not None]
        touched = [*weights, *module.buffers()]
        before = [value.clone() for value in touched]
        torch._foreach_add_(weights, slopes, alpha=-lr)
    try:
        yield
    finally:
        with torch.no_grad():
            torch._foreach_copy_(touched, before)
