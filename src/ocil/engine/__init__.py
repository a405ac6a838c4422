"""Many runs: ``local`` uses the cores of this machine, ``gpu`` shares one GPU among them."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ocil.config import RunConfig
    from ocil.engine.local import Job, Outcome, Watcher


def execute(
    configs: "Sequence[RunConfig]",
    job: "Job",
    workers: int = 0,
    watch: "Watcher" = lambda number, event: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> "list[Outcome]":
    """Run every configuration where it is fastest. ``workers`` run side by side; 0 chooses."""
    from ocil.engine import gpu, local

    engine = gpu.run_all if job.device.startswith("cuda") else local.run_all
    return engine(configs, job, workers, watch, should_stop)
