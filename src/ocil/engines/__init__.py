"""Many runs: ``execute`` carries them out where they are fastest.

``job``      where runs are carried out, who observes them, and their outcomes; ``names``: of the engines
``pool``     worker processes on the cores of this machine
``gpu``      one GPU that runs share; ``lanes``: their steps, interleaved
``ray``      a cluster; ``scheduler``: its driver, ``nodes``: which can work, ``ray_worker``: what works there
``waiting``  runs that another process holds
``bench``    how fast a step is
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ocil.engines.job import Job, Observer, Outcomes
    from ocil.runs.protocol import Run


def execute(runs: "Sequence[Run]", job: "Job", observer: "Observer | None" = None) -> "Outcomes":
    """Carry out every run where it is fastest, after the runs that it requires. Returns the outcomes by ``run.key``.

    If another process works on a run, that run is waited for; on a cluster a worker waits for two minutes.
    """
    from functools import partial

    from ocil.engines import gpu, pool
    from ocil.engines.job import Observer, in_order
    from ocil.engines.waiting import with_waiting

    runs, observer = list({run.key: run for run in runs}.values()), observer or Observer()
    if job.engine == "ray":
        from ocil.engines import ray

        return in_order(ray.run_all, runs, job, observer)
    run_all = gpu.run_all if job.device.startswith("cuda") else pool.run_all
    return with_waiting(partial(in_order, run_all), runs, job, observer)
