"""Many runs on a Ray cluster: the driver keeps the queue, and workers on the cores or GPUs take runs from it.

The folders of the runs are under ``job.root``, which all nodes must share; only progress and results travel through
Ray. If a worker dies, alone or with its node, its unfinished runs go back to the queue and on from their checkpoints.

Only the worker that the driver gave a run to may write to its folder. A folder's lock also holds between machines if
the shared file system passes locks on, as NFS does by default, but nothing here relies on that. Ray ends the workers of
a driver that has died. A worker that is cut off from its driver stops by itself.
"""

import importlib
import logging
import signal
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from ocil.engines.job import Job, Observer, Outcomes, not_started
from ocil.engines.ray_worker import WorkerSpec
from ocil.engines.scheduler import Scheduler
from ocil.errors import OcilError, optional
from ocil.runs.protocol import Run


def run_all(runs: Sequence[Run], job: Job, observer: Observer) -> Outcomes:
    """Carry out runs on the cluster at ``job.address``, as the other engines do on this machine.

    On CPUs a worker takes ``job.threads`` of them and one run at a time; there are at most ``job.workers``, by default
    as many as fit. On GPUs a worker takes ``job.gpu_share`` of one and carries out ``job.workers`` runs at once, by
    default as many as keep it busy. The device ``auto`` is a GPU if the cluster has one.
    """
    if not 0 < job.gpu_share <= 1:
        raise OcilError(f"--gpu-share {job.gpu_share:g} must be above 0 and at most 1.")
    if not runs or observer.should_stop():
        return not_started(runs)
    with connected(job.address) as ray:
        device = _device(job.device, ray.cluster_resources())
        data_dir = job.data_dir and job.data_dir.expanduser().resolve()
        job = replace(job, root=job.root.resolve(), device=device, data_dir=data_dir)
        if device == "cuda":
            spec = WorkerSpec(job.gpu_share, job.gpu_share, job.workers or runs[0].side_by_side, interleaved=True)
        else:
            spec = WorkerSpec(job.threads, 0.0, 1, most_workers=job.workers or None)
        return Scheduler(ray, runs, job, spec, observer).execute()


@contextmanager
def connected(address: str | None) -> Iterator[Any]:
    """The package ``ray``, connected to a cluster: by the connection there is, else by one for this block."""
    with optional("the engine ray needs a package", "ray", "ray"):
        ray: Any = importlib.import_module("ray")
    if ray.is_initialized():
        yield ray
        return
    how = "Start one with `ray start --head`, or give the address of one, HOST:PORT (--address)."
    if address is not None and address != "auto":
        _must_answer(address, how)
    terminated = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(address=address or "auto", log_to_driver=False, logging_level=logging.ERROR)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, terminated)  # Ray's own would end this process before its runs are saved
    except (ConnectionError, ValueError, RuntimeError) as error:
        if address is None:
            raise OcilError(f"this machine belongs to no Ray cluster. {how}") from error
        raise OcilError(f"no Ray cluster at {address}: {str(error).splitlines()[0]} {how}") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def _must_answer(address: str, how: str) -> None:
    """Raise if nothing listens at an address: Ray would try for minutes."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isdigit() or "/" in host:
        raise OcilError(f"address = {address} is not HOST:PORT, as `ray start --head` prints it.")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=5).close()
    except (OSError, OverflowError) as error:
        raise OcilError(f"no Ray cluster at {address}: {error}. {how}") from None


def _device(wanted: str, resources: Mapping[str, float]) -> str:
    has_gpu = resources.get("GPU", 0) > 0
    if wanted not in ("auto", "cpu", "cuda"):
        raise OcilError(f"device '{wanted}' does not name a kind of node: use auto, cpu or cuda with the engine ray.")
    if wanted == "cuda" and not has_gpu:
        raise OcilError("no node of the Ray cluster has a GPU: use CPUs (--device cpu), or start a node that has one.")
    return "cuda" if has_gpu and wanted != "cpu" else "cpu"
