"""Environment variables that libraries read once, when PyTorch is loaded or a GPU is first used. ``import ocil`` sets
them before that."""

import os
import platform
from collections.abc import MutableMapping

WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY")
PROFILING = ("ONEDNN_JIT_PROFILE", "DNNL_JIT_PROFILE")


def prepare(variables: MutableMapping[str, str] = os.environ, machine: str = platform.machine()) -> None:
    """Set the variables that are not set yet. If PyTorch is loaded already, only later processes are affected.

    A thread that waits for others shall sleep. By default it spins, and next to another busy process it takes the core
    from the very thread that it waits for. On ARM, oneDNN shall not write a file perf-PID.map for the profiler ``perf``
    into the temporary folder, which it does for every process that computes a convolution. Runs side by side on a GPU
    have a CUDA stream each; by default all streams share 8 hardware queues, where one run's kernels wait for another's,
    and 32 is the most there can be.
    """
    variables.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
    if not any(name in variables for name in WAITING):
        variables["OMP_WAIT_POLICY"] = "passive"
    if machine.lower() in ("aarch64", "arm64") and not any(name in variables for name in PROFILING):
        variables["ONEDNN_JIT_PROFILE"] = "0"
