"""Many runs: ``local`` uses the cores of this machine, ``gpu`` shares one GPU among them, ``ray`` uses a cluster."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from ocil.config import RunConfig
    from ocil.engine.local import Job, Outcome, Watcher

Engine = Literal["local", "ray"]


def execute(
    configs: "Sequence[RunConfig]",
    job: "Job",
    workers: int = 0,
    watch: "Watcher" = lambda number, event: None,
    should_stop: Callable[[], bool] = lambda: False,
    engine: Engine = "local",
    address: str | None = None,
) -> "list[Outcome]":
    """Run every configuration where it is fastest. ``workers`` run side by side; 0 chooses.

    Runs that another process works on are waited for. ``engine="ray"`` runs them on the Ray cluster at ``address``, by
    default the one this machine belongs to; there a worker waits two minutes for such a run.
    """
    if engine == "ray":
        from ocil.engine import ray

        return ray.run_all(configs, job, workers, watch, should_stop, address)
    from ocil.engine import gpu, local
    from ocil.engine.patience import patiently

    run_all = gpu.run_all if job.device.startswith("cuda") else local.run_all

    def attempt(numbers: list[int], hear: "Watcher") -> "list[Outcome]":
        return run_all([configs[number] for number in numbers], job, workers, hear, should_stop)

    return patiently(attempt, len(configs), watch, should_stop)


def device_for(name: str, engine: Engine) -> str:
    """What a job calls its device: looked up on this machine, but left to a cluster, whose head may have no GPU."""
    from ocil.runner import pick_device

    return name if engine == "ray" else str(pick_device(name))
