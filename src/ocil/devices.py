"""The device that a user names."""

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from ocil.errors import OcilError


def pick_device(device: torch.device | str = "auto") -> torch.device:
    """The device of that name; ``auto`` is an NVIDIA GPU if there is one, else an Apple GPU that computes correctly,
    else the CPU. Raises ``OcilError`` if the device cannot be used.
    """
    refuse_no_device(device)
    has_cuda, has_mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if device == "auto":
        return torch.device("cuda" if has_cuda else "mps" if has_mps and computes_correctly("mps") else "cpu")
    there = ["cpu", *(["cuda"] if has_cuda else []), *(["mps"] if has_mps else [])]
    if isinstance(device, torch.device) and device.type in there:  # not tried: it may be recording a graph just now
        return device
    try:
        found = torch.device(device)
        torch.ones(1, device=found).item()
    except (RuntimeError, AssertionError, TypeError):
        *others, last = ["auto", *there]
        raise OcilError(f"device '{device}' is not there: use {', '.join(others)} or {last}.") from None
    return found


def refuse_no_device(device: object) -> None:
    """Raise if this cannot be the name of a device."""
    if not isinstance(device, torch.device | str):
        raise OcilError(f"device = {device!r} must be auto, cpu, cuda or mps, or a torch.device.")


@cache
def computes_correctly(device: str) -> bool:
    """Whether a small convolution and its gradient are the same there as on the CPU. It is tried once."""

    def gradients(on: str) -> list[Tensor]:
        generator = torch.Generator().manual_seed(0)
        shapes = ((4, 3, 9, 9), (5, 3, 3, 3))
        x, weight = (torch.randn(shape, generator=generator).to(on).requires_grad_() for shape in shapes)
        loss = F.conv2d(x, weight, stride=2, padding=1).relu().square().mean()
        return [value.cpu() for value in (loss.detach(), *torch.autograd.grad(loss, [x, weight]))]

    try:
        pairs = zip(gradients(device), gradients("cpu"), strict=True)
        return all(torch.allclose(there, here, rtol=1e-3, atol=1e-5) for there, here in pairs)
    except (RuntimeError, TypeError):  # NotImplementedError is a RuntimeError
        return False
