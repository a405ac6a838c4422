"""Variables that libraries below PyTorch read once, when PyTorch is loaded. ``import ocil`` sets them before that."""

import os
import platform
from collections.abc import MutableMapping

WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY")
PROFILING = ("ONEDNN_JIT_PROFILE", "DNNL_JIT_PROFILE")


def prepare(variables: MutableMapping[str, str] = os.environ, machine: str = platform.machine()) -> None:
    """Set what nobody has set. It has no effect on a PyTorch that is loaded already, but on processes started later.

    A thread that waits for the others sleeps. By default it spins, which beside another busy process takes the core
    from the very thread it waits for. On ARM, oneDNN otherwise writes a file perf-PID.map for the profiler ``perf``
    into the temporary folder, one for every process that computes a convolution.
    """
    if not any(name in variables for name in WAITING):
        variables["OMP_WAIT_POLICY"] = "passive"
    if machine.lower() in ("aarch64", "arm64") and not any(name in variables for name in PROFILING):
        variables["ONEDNN_JIT_PROFILE"] = "0"
