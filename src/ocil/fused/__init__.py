"""A training step on a GPU in a few dozen hand-written kernels instead of several hundred.

``features`` gives what ``ReducedResNet18.features`` gives in bfloat16, and the same gradients; ``views`` what
``Augment.apply`` gives; ``loss`` what ``ocil.losses`` gives. They need Triton, which comes with PyTorch's CUDA builds;
``usable`` and ``present`` say whether they can be used. Methods know nothing of them: the network, the augmentation and
the losses call them where they apply.
"""

import importlib.util
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from ocil.augment import Draw

LOSSES = {"cross_entropy": 0, "focal": 1, "revised_focal": 2, "distillation": 3}


@cache
def _triton() -> bool:
    return importlib.util.find_spec("triton") is not None


@cache
def _has_units(device: torch.device) -> bool:
    return torch.cuda.get_device_capability(device) >= (8, 0)


def usable(network: nn.Module, images: Tensor) -> bool:
    """Whether ``features`` can take the place of the network's own: bf16, on a GPU that has its units."""
    return present(images) and fits(network, images)


def present(tensor: Tensor) -> bool:
    """Whether kernels can run on a tensor, in plain PyTorch: ``torch.func`` cannot look into them."""
    if tensor.device.type != "cuda" or not _triton() or torch._C._are_functorch_transforms_active():
        return False
    return _has_units(tensor.device)


def fits(network: nn.Module, images: Tensor) -> bool:
    """Whether the kernels compute what the network would, wherever they may run."""
    if getattr(network, "precision", None) != "bf16" or (torch.is_grad_enabled() and not network.training):
        return False
    norms = [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]
    height, width = (-(-side // 8) for side in images.shape[2:])
    stored = (images.shape[2] + 3) * (images.shape[3] + 3) * (max(images.shape[1], norms[0].num_features) + 3)
    return (
        images.dtype == torch.float32
        and len(images) * stored < 1 << 31  # kernels count in 32 bits
        and not images.requires_grad
        # One value has no variance: PyTorch says so best.
        and (len(images) * height * width > 1 or (not network.training and len(images) > 0))
        and all(norm.momentum is not None and norm.track_running_stats and norm.affine for norm in norms)
    )


def features(network: nn.Module, images: Tensor, into_grad: bool = False) -> Tensor:
    """Features ``[B, feature_size]`` in float32 of float32 images ``[B, C, H, W]``; training moves statistics.

    With ``into_grad`` the backward pass adds to the parameters' ``.grad`` itself, in one kernel, where autograd would
    take one kernel for each parameter. Where something else is asked for, as by ``torch.autograd.grad`` or by hooks on
    the parameters, autograd gets the gradients as usual.
    """
    from ocil.fused.network import run  # Triton only now: it is absent where there is no GPU

    with torch.cuda.device_of(images):  # Triton launches on the current device
        return run(network, images, into_grad)


def views(images: Tensor, draw: "Draw") -> Tensor:
    """The views of channels-last float32 images that these parameters make."""
    from ocil.fused.view_kernel import views as make

    with torch.cuda.device_of(images):
        return make(images, draw)


def loss(kind: str, logits: Tensor, labels: Tensor, scale: float, **parameters: float) -> Tensor:
    """One value a sample of a loss in ``LOSSES``; its parameters are those of ``ocil.losses``."""
    from ocil.fused.loss_kernel import evaluate

    with torch.cuda.device_of(logits):
        return evaluate(LOSSES[kind], logits, labels, scale, **parameters)
