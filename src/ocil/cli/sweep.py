"""``ocil sweep``: the runs of a table or figure."""

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ocil.cli import console
from ocil.cli.dry_run import DryRun, missing_text, names
from ocil.cli.execute import execute
from ocil.cli.names import EXPERIMENT
from ocil.cli.options import FLAG, WORDS, DataDir, Execution, Json, Out, Seeds, Settings, nearest_folder, read_settings
from ocil.errors import OcilError

if TYPE_CHECKING:
    from ocil.engines.job import Job
    from ocil.experiments.estimate import Forecast
    from ocil.experiments.files import Cell, Experiment
    from ocil.experiments.part import SweepPart
    from ocil.experiments.plan import CellSummary


def sweep(
    file: Annotated[Path | None, EXPERIMENT] = None,
    /,
    *,
    only: Annotated[tuple[str, ...], WORDS] = (),
    seeds: Seeds = None,
    set: Settings = (),  # noqa: A002
    part: str | None = None,
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
    it stopped. See docs/experiments.md for the files and their format. Without FILE, the experiments that come with
    ocil are listed.

    Examples:

    * `ocil sweep` lists the experiments.
    * `ocil sweep table2 --dry-run` shows what would run, and about how long it would take.
    * `ocil sweep table2 --set dataset=fashion-mini memory=200 --seeds 1` needs no download.
    * `ocil sweep table1 --only 'dataset=cifar100 method=afs,er' --seeds 3`
    * `ocil sweep my.toml --part 3/8 --out /shared/runs` is the third of eight jobs of a cluster.

    Parameters
    ----------
    file
        A name from `ocil sweep`, for example table1, or a file of your own.
    only
        Keep the cells with these values, for example `--only 'dataset=cifar100 method=afs,er review=true'`.
    seeds
        How many seeds a cell has. Default: the file's.
    set
        A setting for every cell whose method has it, as FIELD=VALUE, for example `--set precision=fp32`.
    part
        K/N: carry out only the K-th of N equal parts of the runs. All parts write to the same folder, which the
        machines must share; afterwards the same command without it prints the table. See examples/slurm_array.sh.
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
    if file is None:
        return _list(as_json)
    place = nearest_folder(out)
    from ocil.experiments.datasets import Datasets
    from ocil.experiments.estimate import Estimator, Forecast
    from ocil.experiments.files import read
    from ocil.experiments.part import SweepPart
    from ocil.experiments.plan import Plan
    from ocil.runs.folder import make_folder

    chosen = None if part is None else SweepPart.parse(part)
    datasets = Datasets(data_dir)
    experiment = read(file, seeds=seeds, settings=read_settings(set), only=" ".join(only), source=datasets.source)
    _note_left_out(experiment)
    missing = datasets.missing_from(experiment.cells)
    if missing and skip_missing:
        experiment, missing = _without(experiment, missing), {}
    elif missing and not dry_run:
        raise OcilError(missing_text(missing) + _other_datasets(experiment, missing))
    plan = Plan(experiment.cells, out, reference)
    plan.check(datasets)
    _refuse_begun_elsewhere(experiment, out, dry_run)
    job = execution.job(out, data_dir)
    if plan.unfinished() and not os.access(place, os.W_OK | os.X_OK):
        why = "is on a read-only file system" if _is_read_only(place) else "is not yours to write to"
        raise OcilError(f"cannot write to {out}: {place} {why}. Choose another place.")
    forecast = Forecast(plan, Estimator.of(job, datasets.sizes), datasets.sizes)
    if dry_run:
        features = plan.features(datasets)
        shown = DryRun(experiment, forecast, missing, features, execution.engine == "ray", chosen)
        console.print_json(shown.to_json()) if as_json else shown.print()
        return 0
    make_folder(out)
    if chosen is not None:
        return _execute_part(chosen, experiment, forecast, job, execution, as_json)
    return _execute(experiment, forecast, job, execution, as_json)


def _refuse_begun_elsewhere(experiment: "Experiment", out: Path, only_warn: bool) -> None:
    """Raise, or say so, if nobody gave a precision and runs were begun in the default of another machine."""
    from ocil.runs.folder import refuse_begun_elsewhere

    try:
        refuse_begun_elsewhere(() if experiment.names_precision else experiment.configs, out)
    except OcilError as error:
        if not only_warn:
            raise
        console.info(str(error))


def _is_read_only(folder: Path) -> bool:
    """Whether the file system of a folder takes no writes, whoever asks. Unknown on Windows: then no."""
    return hasattr(os, "statvfs") and bool(os.statvfs(folder).f_flag & os.ST_RDONLY)


def _other_datasets(experiment: "Experiment", missing: dict[str, str]) -> str:
    """How to run the cells whose dataset is there."""
    there = sorted({Path(cell.config.dataset).stem for cell in experiment.cells} - {Path(n).stem for n in missing})
    return f" To go on without: --skip-missing, or --only dataset={','.join(there)}." if there else ""


def _without(experiment: "Experiment", missing: dict[str, str]) -> "Experiment":
    kept = tuple(cell for cell in experiment.cells if cell.config.dataset not in missing)
    if not kept:
        raise OcilError(f"nothing is left: {missing_text(missing)}")
    from ocil.report.formatting import count

    left_out = count(len(experiment.cells) - len(kept), "cell")
    console.info(f"Left out, {left_out}: {missing_text(missing)}")
    return replace(experiment, cells=kept)


def _note_left_out(experiment: "Experiment") -> None:
    """Say which rows --only leaves out as a whole: the bounds of a table among them."""
    if not experiment.left_out:
        return
    kept = {cell.config.method for cell in experiment.cells}
    gone = [name for name in dict.fromkeys(cell.config.method for cell in experiment.left_out) if name not in kept]
    count = len(experiment.cells) + len(experiment.left_out)
    rows = f", without {', '.join(gone)}" if gone else ""
    console.info(f"--only keeps {len(experiment.cells)} of {count} cells{rows}.")


def _list(as_json: bool) -> int:
    from ocil.experiments.named import shipped
    from ocil.files import read_toml

    found = {name: read_toml(path) for name, path in shipped().items()}
    if as_json:
        about = [{"name": name} | {k: c.get(k, "") for k in ("title", "paper", "about")} for name, c in found.items()]
        console.print_json({"experiments": about})
        return 0
    rows = [(name, content.get("title", ""), content.get("paper", "")) for name, content in found.items()]
    console.print_table(("experiment", "what it shows", "in the paper"), rows, lines="head")
    console.print_line("`ocil sweep table2 --dry-run` shows what would run, and about how long it would take.")
    return 0


def _execute_part(
    part: "SweepPart", experiment: "Experiment", forecast: "Forecast", job: "Job", execution: Execution, as_json: bool
) -> int:
    """Carry out a part of the runs. What they found is summarised once all parts are finished."""
    from ocil.cli.progress import CellTable

    plan = forecast.plan
    runs = part.of(plan.runs)
    outcomes, failed = execute(runs, job, CellTable.of(forecast, runs), execution, plan.describe) if runs else ({}, [])
    finished = sum(not isinstance(outcome, Exception) for outcome in outcomes.values())
    if as_json:
        counts = {"part": part.number, "of": part.parts, "runs": len(runs), "finished": finished}
        console.print_json({"experiment": experiment.name, **counts, "failed": failed})
    else:
        console.print_line(f"Part {part}: {finished} of {len(runs)} runs are finished, in {job.root}.")
        console.print_line("When all parts are finished, the same command without --part prints the table.")
    return 1 if failed else 0


def _execute(experiment: "Experiment", forecast: "Forecast", job: "Job", execution: Execution, as_json: bool) -> int:
    from ocil.cli.progress import CellTable

    plan = forecast.plan
    outcomes, failed = execute(plan.runs, job, CellTable.of(forecast), execution, plan.describe)
    found = [(cell, plan.summary(cell, outcomes)) for cell in plan.cells]
    if as_json:
        cells = [
            {"label": cell.label, "wanted": len(cell.configs)}
            | (names(cell) | {"seeds": 0, "runs": []} if summary is None else summary.to_json())
            for cell, summary in found
        ]
        console.print_json({"experiment": experiment.name, "title": experiment.title, "cells": cells, "failed": failed})
    else:
        _print_results(experiment.title, found)
        console.info(f"Runs: {job.root}")
    return 1 if failed else 0


def _print_results(title: str, found: "Sequence[tuple[Cell, CellSummary | None]]") -> None:
    from ocil.data.derived import short_name
    from ocil.report.formatting import duration, percent
    from ocil.report.result_tables import legend, measure_columns

    summaries = [known.summary for _, known in found if known is not None]
    own = measure_columns(summaries)
    rows = []
    for cell, known in found:
        place = (cell.label, short_name(cell.config.dataset), str(cell.config.learner.memory or "-"))
        if known is None:
            rows.append((*place, f"0/{len(cell.configs)}", *["-"] * (4 + len(own))))
            continue
        count, summary = len(known.folders), known.summary
        measures = (summary.average_accuracy, summary.average_forgetting, summary.average_intransigence)
        seeds = str(count) if count == len(cell.configs) else f"{count}/{len(cell.configs)}"
        numbers = (*map(percent, measures), *(value(summary).text for _, value in own))
        rows.append((*place, seeds, *numbers, duration(summary.wall_seconds.mean)))
    usual = ("row", "dataset", "memory", "seeds", "accuracy %", "forgetting %", "intransigence %")
    columns = (*usual, *(column.title for column, _ in own), "time / run")
    console.print_table(columns, rows, title, lines="head")
    for line in legend(summaries) if summaries else []:
        console.print_line(line)
