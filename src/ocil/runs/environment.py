"""The environment of a run: the name of the device, versions, memory use; and digests of what it has learned."""

import hashlib
import platform
import sys
import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

import ocil
from ocil.methods.base import Learner


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
