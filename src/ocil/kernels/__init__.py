"""A training step on a GPU in a few dozen hand-written kernels instead of several hundred.

``features`` computes what ``ReducedResNet18.features`` computes in bfloat16, and the same gradients;
``features_of_both`` that of two batches in the launches of one; ``views`` what ``RandomViews.apply`` computes; ``loss``
and ``focus`` what ``ocil.learning.losses`` computes; ``label_offset`` what ``Stride.count_labels`` does;
``reservoir_slots`` and ``put`` what ``Memory.add`` does; ``record_loss`` what ``Learner.record_loss`` does. They need
Triton, which comes with the CUDA builds of PyTorch; ``usable`` and ``present`` answer whether they can be used. Methods
know next to nothing of them: the network, the views, the losses and the memory call them where they apply.
``docs/kernels.md`` explains how they work.

| module | what it has |
|---|---|
| ``network`` | the backbone as one autograd function: which kernel comes after which |
| ``plan``, ``tiles``, ``layout`` | shapes and places of everything; sizes of tiles; what host and kernels agree on |
| ``launch`` | one function per kernel: grid, outputs, arguments |
| ``forward``, ``backward``, ``weights`` | the kernels of the network |
| ``norms`` | their parts that have to do with batch statistics |
| ``grouped`` | other versions of them for layers of few channels |
| ``draw``, ``draw_kernel``, ``view_kernel`` | views: what is drawn for them, drawing it, making them |
| ``loss_kernel``, ``memory_kernel`` | losses; storing a batch in the memory |
| ``focus_kernel`` | AFS's loss of two batches at once; the label frequency of stride |
| ``convolution`` | not for a GPU: a convolution whose backward pass is fast on ARM |
"""

import importlib.util
import math
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from ocil import precision
from ocil.kernels.draw import Draw, Ranges

if TYPE_CHECKING:
    from ocil.kernels.loss_kernel import Kind


@cache
def _triton() -> bool:
    return importlib.util.find_spec("triton") is not None


_has_bf16_units = cache(precision.has_bf16_units)


def usable(network: nn.Module, *batches: Tensor) -> bool:
    """Whether the kernels can take the place of the network's own pass of these batches of images, all at once: in
    bf16, on a GPU that has matrix units for it.
    """
    return all(map(present, batches)) and fits(network, *batches)


def present(tensor: Tensor) -> bool:
    """Whether kernels can run on a tensor: Triton, a GPU, and no ``torch.func``, which cannot look into kernels."""
    if tensor.device.type != "cuda" or not _triton() or torch._C._are_functorch_transforms_active():
        return False
    return _has_bf16_units(tensor.device)


def fits(network: nn.Module, *batches: Tensor) -> bool:
    """Whether the kernels compute what the network would, wherever they may run."""
    if getattr(network, "precision", None) != "bf16" or (torch.is_grad_enabled() and not network.training):
        return False
    norms = [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]
    channels, *sides = batches[0].shape[1:]
    last_map = math.prod(-(-side // 8) for side in sides)
    stored = (sides[0] + 3) * (sides[1] + 3) * (max(channels, norms[0].num_features) + 3)
    fewest = min(map(len, batches))
    return (
        all(images.dtype == torch.float32 and not images.requires_grad for images in batches)
        and all(images.shape[1:] == batches[0].shape[1:] for images in batches)
        and sum(map(len, batches)) * stored < 1 << 31  # kernels count in 32 bits
        # One value has no variance: PyTorch has the better message.
        and (fewest * last_map > 1 or (not network.training and fewest > 0))
        and all(norm.momentum is not None and norm.track_running_stats and norm.affine for norm in norms)
    )


def features(network: nn.Module, images: Tensor, into_grad: bool = False) -> Tensor:
    """Features ``[B, feature_size]`` in float32 of float32 images ``[B, C, H, W]``; training moves statistics.

    With ``into_grad`` the backward pass adds to the parameters' ``.grad`` itself, in one kernel, where autograd would
    take one kernel for each parameter. Where something else is asked for, as by ``torch.autograd.grad`` or by hooks on
    the parameters, autograd gets the gradients as usual.
    """
    from ocil.kernels.network import run  # Triton only now: it is absent where there is no GPU

    with torch.cuda.device_of(images):  # Triton launches on the current device
        return run(network, images, into_grad)


def features_of_both(network: nn.Module, first: Tensor, second: Tensor, into_grad: bool = False) -> Tensor:
    """``features`` of two batches in one pass, ``[B1 + B2, feature_size]``.

    Each batch is normalised by its own batch statistics, as if one followed the other: the running statistics move by
    the first, then by the second.
    """
    from ocil.kernels.network import run

    with torch.cuda.device_of(first):
        return run(network, torch.cat((first, second)), into_grad, len(first))


def views(images: Tensor, draw: Draw) -> Tensor:
    """The views of channels-last float32 images that these parameters make."""
    from ocil.kernels.view_kernel import views as make

    with torch.cuda.device_of(images):
        return make(images, draw)


def draw(ranges: Ranges, rows: int, generator: torch.Generator, batches: int = 1) -> Draw:
    """Random parameters of the views of ``rows`` images, from one call of the generator, which lives on a GPU.

    The images are ``batches`` of one size; the order of the jitter is drawn for each.
    """
    from ocil.kernels.draw_kernel import draw as make

    orders = 4 * batches
    drawn = torch.rand(ranges.numbers * rows + orders, generator=generator, device=generator.device)
    with torch.cuda.device_of(drawn):
        return make(ranges, drawn[:-orders].view(-1, rows), drawn[-orders:])


def loss(kind: "Kind", logits: Tensor, labels: Tensor, scale: float, mean: bool = False, **parameters: float) -> Tensor:
    """One value per sample, or their mean; the parameters are those of ``ocil.learning.losses``."""
    from ocil.kernels.loss_kernel import evaluate

    with torch.cuda.device_of(logits):
        return evaluate(kind, logits, labels, scale, mean, **parameters)


def focus(
    batches: Sequence[tuple[Tensor, Tensor]],
    offset: Tensor | None,
    met: Tensor | None,
    focal: bool,
    *,
    alpha: float,
    mu: float,
    sigma: float,
    beta: float,
    temperature: float,
    epsilon: float,
) -> tuple[Tensor, Tensor]:
    """``losses.focus`` of one or two batches of float32 logits and labels; parts ``[2, 2]``, 0 of a batch that is not
    there.
    """
    from ocil.kernels.focus_kernel import Focus

    (first, first_labels), (second, second_labels) = (*batches, tuple(each[:0] for each in batches[0]))[:2]
    numbers = (alpha, mu, sigma, beta, temperature, epsilon)
    with torch.cuda.device_of(first):
        found: tuple[Tensor, Tensor] = Focus.apply(
            first, second, first_labels, second_labels, offset, met, focal, *numbers
        )
        return found


def label_offset(
    frequency: Tensor,
    seen: Tensor,
    batches: Sequence[Tensor],
    decay: float,
    adjustment: float,
    least: float,
) -> Tensor | None:
    """What ``Stride.count_labels`` does with one or two batches; None if there are too many classes."""
    from ocil.kernels import focus_kernel

    if len(frequency) > focus_kernel.ELEMENTS:
        return None
    first, second = (*batches, batches[0][:0])[:2]
    with torch.cuda.device_of(frequency):
        return focus_kernel.offset_after(frequency, seen, first, second, decay, adjustment, least)


def record_loss(loss: Tensor, last_loss: Tensor, failed_at: Tensor, steps: Tensor) -> None:
    """What ``Learner.record_loss`` does with these single numbers."""
    from ocil.kernels.loss_kernel import record_kernel

    with torch.cuda.device_of(loss):
        record_kernel[(1,)](loss, last_loss, failed_at, steps)


def reservoir_slots(seen: Tensor, drawn: Tensor, size: int) -> Tensor | None:
    """The slots that a batch gets by reservoir sampling, from random numbers ``drawn``, ``[B]``; ``size`` for none.

    ``seen``, the number of samples so far, counts the batch. None if a batch is too large for the kernel.
    """
    from ocil.kernels import memory_kernel

    if not 0 < len(drawn) <= memory_kernel.MOST:
        return None
    with torch.cuda.device_of(seen):
        return memory_kernel.reservoir_slots(seen, drawn, size)


def put(images: Tensor, labels: Tensor, slots: Tensor, x: Tensor, y: Tensor) -> None:
    """Copy samples to slots, which must differ. The last slot stands for none."""
    from ocil.kernels import memory_kernel

    with torch.cuda.device_of(images):
        memory_kernel.put(images, labels, slots, x, y)
