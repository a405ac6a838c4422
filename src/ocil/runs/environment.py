"""The environment of a run: device, versions, memory use; and digests of what it has learned."""

import hashlib
import platform
import sys
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

import ocil
from ocil.errors import OcilError
from ocil.methods.base import Learner


def pick_device(name: str = "auto") -> torch.device:
    """The device of that name; ``auto`` is a GPU if there is one. Raises ``OcilError`` if it cannot be used."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.ones(1, device=device).item()
    except (RuntimeError, AssertionError):
        there = "auto, cpu or cuda" if torch.cuda.is_available() else "auto or cpu"
        raise OcilError(f"device '{name}' is not there: use {there}.") from None
    return device


def environment(device: torch.device) -> dict[str, Any]:
    """The part of a result that describes where it was measured."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    return {
        "ocil": ocil.__version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": name,
        "threads": torch.get_num_threads(),
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
