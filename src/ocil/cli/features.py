"""Features that runs learn from: computed before the first run, with a bar."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ocil.cli import console

if TYPE_CHECKING:
    from ocil.data import Dataset
    from ocil.engines.job import Job
    from ocil.runs.features import Encoder, Features
    from ocil.runs.protocol import Run


def features_of(
    dataset: "Dataset",
    encoder: "Encoder",
    data_dir: Path | None,
    device: str,
    should_stop: Callable[[], bool] = lambda: False,
) -> "Features":
    """The features of a dataset. While they are computed, a bar shows how far that is."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

    from ocil.runs.features import features_of, missing

    if missing(dataset, encoder, data_dir):
        console.info(f"Features of {dataset.name} by {encoder.network} are computed first, once for all runs.")
    columns = (TextColumn("features"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with console.bars(*columns) as bar:
        task = bar.add_task("", total=None)
        return features_of(
            dataset,
            encoder,
            data_dir=data_dir,
            device=device,
            on_progress=lambda done, total: bar.update(task, completed=done, total=total),
            should_stop=should_stop,
        )


def compute_for(runs: "Sequence[Run]", job: "Job", should_stop: Callable[[], bool]) -> None:
    """Compute the features that unfinished runs on this machine learn from. On a cluster each node does so itself."""
    from ocil import data
    from ocil.runs.features import Encoder, missing
    from ocil.runs.stream_run import StreamRun

    wanted: dict[tuple[str, Encoder], None] = {}
    for run in runs:
        if isinstance(run, StreamRun) and job.engine == "local":
            encoder = Encoder.of(run.config.learner)
            if encoder is not None and not run.is_finished(job.root):
                wanted[run.dataset, encoder] = None
    for name, encoder in wanted:
        dataset = data.load_once(name, job.data_dir)
        if missing(dataset, encoder, job.data_dir):
            features_of(dataset, encoder, job.data_dir, job.device, should_stop)
