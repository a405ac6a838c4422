"""``ocil sweep``: the runs of a table or figure."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ocil.cli import console
from ocil.cli.execute import execute
from ocil.cli.options import FLAG, WORDS, DataDir, Execution, Json, Out, Seeds, Settings, nearest_folder, read_settings
from ocil.errors import OcilError

if TYPE_CHECKING:
    from ocil.engines.job import Job
    from ocil.experiments.estimate import Forecast
    from ocil.experiments.files import Cell, Experiment
    from ocil.experiments.plan import CellSummary, FeaturesToCompute
    from ocil.runs.config import RunConfig


def sweep(
    file: Path,
    /,
    *,
    only: Annotated[tuple[str, ...], WORDS] = (),
    seeds: Seeds = None,
    set: Settings = (),  # noqa: A002
    execution: Execution | None = None,
    reference: bool = True,
    skip_missing: Annotated[bool, FLAG] = False,
    dry_run: Annotated[bool, FLAG] = False,
    out: Out = Path("runs"),
    data_dir: DataDir = None,
    as_json: Json = False,
) -> int:
    """Run a whole table or figure from its TOML file. Finished runs are skipped, unfinished ones go on.

    A cell is one entry of the table: one method with its settings, run with several seeds. A run that fails does not
    stop the others; the exit code is then 1. Stop the command with Ctrl-C, or kill it: the same command goes on where
    it stopped. See docs/experiments.md for the files and their format.

    Example: `ocil sweep experiments/table1.toml --only 'dataset=cifar100 method=afs,er' --set precision=bf16`

    Parameters
    ----------
    file
        The experiment, for example experiments/table1.toml.
    only
        Keep the cells with these values, for example `--only 'dataset=cifar100 method=afs,er review=true'`.
    seeds
        How many seeds a cell has. Default: the file's.
    set
        A setting for every cell whose method has it, as FIELD=VALUE, for example `--set precision=bf16`.
    reference
        Also run fine-tuning for each stream and seed, which intransigence is measured against.
    skip_missing
        Go on without the cells whose dataset is not there.
    dry_run
        Print what would run and about how long it would take, and run nothing.
    out
        Folder of the runs.
    """
    execution = execution or Execution()
    place = nearest_folder(out)
    from ocil.experiments.datasets import Datasets
    from ocil.experiments.estimate import Estimator, Forecast
    from ocil.experiments.files import read
    from ocil.experiments.plan import Plan
    from ocil.runs.folder import make_folder

    datasets = Datasets(data_dir)
    experiment = read(file, seeds=seeds, settings=read_settings(set), only=" ".join(only), source=datasets.source)
    missing = datasets.missing_from(experiment.cells)
    if missing and skip_missing:
        experiment, missing = _without(experiment, missing), {}
    elif missing and not dry_run:
        raise OcilError(_missing_text(missing) + _other_datasets(experiment, missing))
    plan = Plan(experiment.cells, out, reference)
    plan.check(datasets)
    job = execution.job(out, data_dir)
    if plan.unfinished() and not os.access(place, os.W_OK | os.X_OK):
        raise OcilError(f"cannot write to {out}: {place} is not yours to write to. Choose another place.")
    forecast = Forecast(plan, Estimator.of(job, datasets.sizes), datasets.sizes)
    if dry_run:
        features = plan.features(datasets)
        shown = DryRun(experiment, forecast, missing, features, on_cluster=execution.engine == "ray")
        console.print_json(shown.to_json()) if as_json else shown.print()
        return 0
    make_folder(out)
    return _execute(experiment, forecast, job, execution.tensorboard, as_json)


def _missing_text(missing: dict[str, str]) -> str:
    return " ".join(text if text.endswith(".") else f"{text}." for text in missing.values())


def _other_datasets(experiment: "Experiment", missing: dict[str, str]) -> str:
    """How to run the cells whose dataset is there."""
    there = sorted({Path(cell.config.dataset).stem for cell in experiment.cells} - {Path(n).stem for n in missing})
    return f" To go on without: --skip-missing, or --only dataset={','.join(there)}." if there else ""


def _without(experiment: "Experiment", missing: dict[str, str]) -> "Experiment":
    kept = tuple(cell for cell in experiment.cells if cell.config.dataset not in missing)
    if not kept:
        raise OcilError(f"nothing is left: {_missing_text(missing)}")
    console.info(f"Left out, {len(experiment.cells) - len(kept)} cells: {_missing_text(missing)}")
    return replace(experiment, cells=kept)


def _execute(
    experiment: "Experiment", forecast: "Forecast", job: "Job", tensorboard: Path | None, as_json: bool
) -> int:
    from ocil.cli.progress import CellTable

    plan = forecast.plan
    outcomes, failed = execute(plan.runs, job, CellTable.of(forecast), tensorboard, plan.describe)
    found = [(cell, plan.summary(cell, outcomes)) for cell in plan.cells]
    if as_json:
        cells = [
            {"label": cell.label, "wanted": len(cell.configs)}
            | (_names(cell) | {"seeds": 0, "runs": []} if summary is None else summary.to_json())
            for cell, summary in found
        ]
        console.print_json({"experiment": experiment.name, "title": experiment.title, "cells": cells, "failed": failed})
    else:
        _print_results(experiment.title, found)
        console.info(f"Runs: {job.root}")
    return 1 if failed else 0


def _names(cell: "Cell") -> dict[str, Any]:
    config = cell.config
    return {"method": config.label, "dataset": config.dataset, "memory": config.learner.memory}


def _print_results(title: str, found: "Sequence[tuple[Cell, CellSummary | None]]") -> None:
    from ocil.data.derived import short_name
    from ocil.report.formatting import duration, percent
    from ocil.report.result_tables import measure_columns, measure_values

    summaries = [known.summary for _, known in found if known is not None]
    own = [column.title for column in measure_columns(summaries)]
    rows = []
    for cell, known in found:
        place = (cell.label, short_name(cell.config.dataset), str(cell.config.learner.memory or "-"))
        if known is None:
            rows.append((*place, f"0/{len(cell.configs)}", *["-"] * (4 + len(own))))
            continue
        count, summary = len(known.folders), known.summary
        measures = (summary.average_accuracy, summary.average_forgetting, summary.average_intransigence)
        seeds = str(count) if count == len(cell.configs) else f"{count}/{len(cell.configs)}"
        numbers = (*map(percent, measures), *(value.text for value in measure_values(summary, summaries)))
        rows.append((*place, seeds, *numbers, duration(summary.wall_seconds.mean)))
    usual = ("row", "dataset", "memory", "seeds", "accuracy %", "forgetting %", "intransigence %")
    columns = (*usual, *own, "time / run")
    console.print_table(columns, rows, title, lines="head")


class DryRun:
    """What a sweep would run, and an estimate of how long it would take."""

    def __init__(
        self,
        experiment: "Experiment",
        forecast: "Forecast",
        missing: dict[str, str],
        features: "Sequence[FeaturesToCompute]",
        on_cluster: bool,
    ) -> None:
        from ocil.runs.stream_run import StreamRun

        self.experiment, self.forecast, self.plan, self.missing = experiment, forecast, forecast.plan, missing
        self.features = [(each, self._seconds_of(each)) for each in features]
        wanted = {config for cell in experiment.cells for config in cell.configs}
        self.references = [config for config in self.plan.configs if config not in wanted]
        self.seconds = round(forecast.seconds(self.plan.configs), 1)
        self.source = forecast.estimator.source(self.plan.unfinished())
        if on_cluster:
            self.source += "; for this machine alone, not for the cluster"
        self.failed = [self.plan.describe(StreamRun(config), error) for config, error in self.plan.state.broken.items()]

    def to_json(self) -> dict[str, Any]:
        from ocil.runs.config import command

        return {
            "experiment": self.experiment.name,
            "title": self.experiment.title,
            "about": self.experiment.about,
            "cells": [
                {
                    "label": cell.label,
                    **_names(cell),
                    **self.plan.counts(cell.configs),
                    "seconds": round(self.forecast.seconds(cell.configs), 1),
                    "command": command(cell.config),
                }
                for cell in self.experiment.cells
            ],
            **self.plan.counts(self.plan.configs),
            "references": len(self.references),
            "features": [
                {"dataset": each.dataset, "network": each.encoder.network, "images": each.images, "seconds": seconds}
                for each, seconds in self.features
            ],
            "seconds": self.seconds,
            "estimate": self.source,
            "missing": [*self.missing.values()],
            "failed": self.failed,
        }

    def print(self) -> None:
        from ocil.experiments.estimate import roughly

        columns = ("dataset", "row", "memory", "runs", "finished", "to run", "about")
        console.print_table(columns, self._rows(), self.experiment.title, lines="head")
        counts, to_run = self.plan.counts(self.plan.configs), self.plan.unfinished()
        console.print_line(
            f"{len(self.experiment.cells)} cells, {counts['runs']} runs ({len(self.references)} of them references): "
            f"{counts['finished']} finished, {counts['begun']} begun, {counts['to_run']} to run."
        )
        if to_run:
            estimator = self.forecast.estimator
            workers = f"{min(estimator.side_by_side, len(to_run))} side by side"
            console.print_line(f"About {roughly(self.seconds)} on {estimator.device}, {workers}, {self.source}.")
        for each, seconds in self.features:
            name = f"{each.images:,} images of {Path(each.dataset).stem}"
            console.print_line(f"Before that, features of {name} by {each.encoder.network}: about {roughly(seconds)}.")
        for message in self.failed:
            console.print_line(f"The sweep would fail: {' '.join(message.split())}")
        if self.missing:
            console.print_line(f"The sweep would not start: {_missing_text(self.missing)}")
        console.print_line(f"Nothing was run. Runs would be in {self.plan.root}.")

    def _seconds_of(self, features: "FeaturesToCompute") -> float:
        size = self.forecast.sizes[features.dataset]
        return round(self.forecast.estimator.features(features.encoder, size, features.images), 1)

    def _rows(self) -> list[tuple[str, ...]]:
        """One row per dataset and label, whose cells differ in their memory; then the references."""
        from ocil.data.derived import short_name

        groups: dict[tuple[str, str], list[Cell]] = {}
        for dataset in dict.fromkeys(cell.config.dataset for cell in self.experiment.cells):
            for cell in self.experiment.cells:
                if cell.config.dataset == dataset:
                    groups.setdefault((dataset, cell.label), []).append(cell)
        rows = []
        for (dataset, label), cells in groups.items():
            memories = ", ".join(str(cell.config.learner.memory or "-") for cell in cells)
            configs = [config for cell in cells for config in cell.configs]
            rows.append((short_name(dataset), label, memories, *self._counts(configs)))
        if self.references:
            rows.append(("", "references (fine-tune)", "", *self._counts(self.references)))
        return rows

    def _counts(self, configs: "Sequence[RunConfig]") -> tuple[str, ...]:
        from ocil.experiments.estimate import roughly

        counts = self.plan.counts(configs)
        about = roughly(self.forecast.seconds(configs)) if counts["to_run"] else ""
        return (*(str(counts[key]) for key in ("runs", "finished", "to_run")), about)
