"""Many runs on one GPU: which of them go on side by side, and how many. ``lanes`` interleaves their steps."""

from collections.abc import Sequence
from dataclasses import replace

from ocil.engines.job import Job, Observer, Outcomes, not_started, without_locals
from ocil.engines.lanes import take_turns
from ocil.precision import numerics
from ocil.runs.fit import free_bytes
from ocil.runs.protocol import Run, Workspace
from ocil.threads import using


def run_all(runs: Sequence[Run], job: Job, observer: Observer) -> Outcomes:
    """Carry out runs. Those that share dataset and precision run side by side: ``job.workers`` of them, by default as
    many as ``Run.side_by_side`` says, and never more than fit into the GPU's memory.
    """
    outcomes = not_started(runs)
    groups: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        groups.setdefault((run.dataset, run.precision), []).append(run)
    for group in groups.values():
        workspace = job.workspace(interleaved=True)
        size = job.workers or group[0].side_by_side
        free = free_bytes(workspace.device)
        fitting: list[Run] = []
        for run in group:
            if observer.should_stop():  # whether a run fits is known once its dataset is loaded
                return outcomes
            try:
                size = min(size, run.how_many_fit(workspace, free) or size)
                fitting.append(run)
            except (Exception, SystemExit) as error:
                outcomes[run.key] = failed = without_locals(run.failed(error))
                observer.on_event(run, failed)
        if fitting:
            outcomes |= run_together(fitting, workspace, size, observer)
    return outcomes


def run_together(runs: Sequence[Run], workspace: Workspace, side_by_side: int, observer: Observer) -> Outcomes:
    """Carry out unfinished runs, ``side_by_side`` at a time; when one ends, the next one begins.

    They must share dataset and precision. A run takes the same steps in the same order alone and among others.
    """
    # The time of a run depends on the runs around it. Where these are not seeds of its own cell, which take as long,
    # its result records how many there were.
    if len({run.cell for run in runs}) > 1 and side_by_side > 1:
        workspace = replace(workspace, surroundings={"side_by_side": min(side_by_side, len(runs))})
    with numerics(runs[0].precision), using(workspace.threads):
        return take_turns(runs, workspace, side_by_side, observer)
