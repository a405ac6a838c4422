"""The environment of a run: device, versions, memory use; and digests of what it has learned."""

import hashlib
import platform
import sys
import time
from collections.abc import Mapping
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import ocil
from ocil.errors import OcilError
from ocil.methods.base import Learner


def pick_device(name: str = "auto") -> torch.device:
    """The device of that name; ``auto`` is an NVIDIA GPU if there is one, else an Apple GPU that computes correctly,
    else the CPU. Raises ``OcilError`` if the device cannot be used.
    """
    has_cuda, has_mps = torch.cuda.is_available(), torch.backends.mps.is_available()
    if name == "auto":
        return torch.device("cuda" if has_cuda else "mps" if has_mps and computes_correctly("mps") else "cpu")
    try:
        device = torch.device(name)
        torch.ones(1, device=device).item()
    except (RuntimeError, AssertionError, TypeError):
        there = ["auto", "cpu", *(["cuda"] if has_cuda else []), *(["mps"] if has_mps else [])]
        raise OcilError(f"device '{name}' is not there: use {', '.join(there[:-1])} or {there[-1]}.") from None
    return device


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


def environment(device: torch.device) -> dict[str, Any]:
    """The part of a result that describes where it was measured."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    name = f"{name} GPU" if device.type == "mps" else name
    # The last digits of a CPU's results depend on it: AVX2, AVX512 and ARM's round products differently.
    instructions = {"instructions": torch.backends.cpu.get_cpu_capability()} if device.type == "cpu" else {}
    return {
        "ocil": ocil.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": name,
        "threads": torch.get_num_threads(),
        **instructions,
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def peak_memory(device: torch.device) -> dict[str, int]:
    """The most bytes that this process has used: ``host``, where the system counts it, and ``device`` on a GPU."""
    found = {}
    try:
        import resource
    except ImportError:  # Windows
        pass
    else:
        unit = 1 if sys.platform == "darwin" else 1024
        found["host"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    if device.type == "cuda":
        found["device"] = torch.cuda.max_memory_allocated(device)
    return found


def digest(learner: Learner) -> str:
    """Equal digests mean bit-identical learners."""
    return digest_of(learner.state())


def digest_of(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over tensors and their names."""
    sha = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        sha.update(name.encode())
        sha.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return sha.hexdigest()
