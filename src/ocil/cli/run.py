"""``ocil run`` and ``ocil compare``."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from ocil.cli import console
from ocil.cli.execute import execute
from ocil.cli.names import METHOD
from ocil.cli.options import Execution, Json, RunOptions, check_picture, refuse_settings
from ocil.errors import OcilError
from ocil.methods.review_label import Label

if TYPE_CHECKING:
    from ocil.data import Dataset
    from ocil.experiments.files import Cell
    from ocil.experiments.plan import CellSummary
    from ocil.report.table import Row


def run(
    method: Annotated[str | None, METHOD] = None,
    /,
    *,
    options: RunOptions | None = None,
    execution: Execution | None = None,
    as_json: Json = False,
) -> int:
    """Run one method on a stream, with several seeds, and report accuracy, forgetting and intransigence.

    Forgetting is the accuracy that is lost on earlier tasks; intransigence is how much less accurate the method is on
    a task it has just learned than plain fine-tuning. Stop the command with Ctrl-C, or kill it: the same command goes
    on where it stopped.

    For example:

    * `ocil run afs --seeds 1` takes about half a minute and needs no download.
    * `ocil run afs --dataset cifar100 --memory 5000 --seeds 10`
    * `ocil run er --review --set lr=0.05 boundary=blurry` changes settings; `ocil methods er` lists them.
    * `ocil run er --track tensorboard` logs curves while it learns.

    Parameters
    ----------
    method
        A name from `ocil methods`.
    """
    options = options or RunOptions()
    from ocil import data

    found, failed = _execute([_cell(method, options, data.load_once)], options, execution or Execution())
    if not found:
        return _nothing(failed, as_json)
    if as_json:
        console.print_json(found[0].to_json() | {"failed": failed})
    else:
        _print_table(found)
        console.info(f"Runs: {found[0].folders[0].parent}")
    return 1 if failed else 0


def compare(
    *methods: Annotated[str, METHOD],
    options: RunOptions | None = None,
    execution: Execution | None = None,
    figure: Path | None = None,
    as_json: Json = False,
) -> int:
    """Run several methods under one protocol; print one table and draw the accuracy after each task.

    A method with `-rv` or `-no-rv` behind its name, as tables write it, is run with or without the review trick.

    Examples:

    * `ocil compare fine-tune er er-rv afs --seeds 3`
    * `ocil compare er afs --dataset cifar100 --memory 1000 --figure er-afs.svg`
    * `ocil show runs --against er` then has paired differences, and `ocil report runs` has tables for LaTeX.

    Parameters
    ----------
    methods
        Names from `ocil methods`.
    figure
        Where the picture goes: .png, .svg, or .pdf for LaTeX. Default: accuracy.png in the folder of the runs.
    """
    options = options or RunOptions()
    if not methods:
        raise OcilError("name the methods to compare, for example: ocil compare fine-tune er afs")
    refuse_settings(methods)
    path = figure or options.out / "accuracy.png"
    check_picture(path)
    from ocil import data
    from ocil.files import must_be_free
    from ocil.runs.folder import make_folder

    table = options.out / "table.md"
    for written in (path, table):  # before runs that may take days
        must_be_free(written)
    note = cache(console.info)  # what is so for all methods is said once
    named = (_cell(name, options, data.load_once, shared=True, note=note) for name in methods)
    cells = list({cell.configs: cell for cell in named}.values())  # afs and afs-rv are the same
    make_folder(path.parent)
    found, failed = _execute(cells, options, execution or Execution())
    if not found:
        return _nothing(failed, as_json)
    from ocil.files import write_bytes
    from ocil.report.plots import accuracy_after_each_task
    from ocil.report.result_tables import summary_table
    from ocil.report.style import save
    from ocil.report.table import markdown_table

    if not as_json:
        _print_table(found)  # first: a disk that is full by now takes neither picture nor file
    summaries = [cell.summary for cell in found]
    if boxes := save(accuracy_after_each_task(summaries), path):
        console.warning(boxes)
    content = summary_table(summaries)
    content = replace(content, remarks=tuple(map(_where, content.rows, found)))
    write_bytes(table, f"{markdown_table(content, level=0)}\n".encode())
    if as_json:
        cells_json = [cell.to_json() for cell in found]
        console.print_json({"cells": cells_json, "figure": str(path), "table": str(table), "failed": failed})
    else:
        console.info(f"Picture: {path}")
        console.info(f"Table:   {table}")
        console.info(f"Runs:    {options.out}")
    return 1 if failed else 0


def _where(row: "Row", cell: "CellSummary") -> str:
    """The runs that a row is of, for a reader who has the table and not the command."""
    from ocil.report.ranking import seeds_text

    seeds = seeds_text(int(folder.name.removeprefix("seed-")) for folder in cell.folders)
    word = "seed" if len(cell.folders) == 1 else "seeds"
    return f"{row.values[0].text}: {cell.folders[0].parent.name}, {word} {seeds}"


def _nothing(failed: list[str], as_json: bool) -> int:
    """Returns the exit code if no run succeeded. The errors have been printed."""
    if as_json:
        console.print_json({"runs": [], "failed": failed})
    return 2


def _cell(
    method: str | None,
    options: RunOptions,
    load: "Callable[..., Dataset]",
    shared: bool = False,
    note: Callable[[str], None] = console.info,
) -> "Cell":
    """The runs of one method, checked before anything runs. ``shared``: the options are those of several methods."""
    label = Label.parse(method or "")
    if not shared and None not in (label.review, options.review) and label.review != options.review:
        option = "--review" if options.review else "--no-review"
        raise OcilError(f"{method} and {option} contradict each other: leave out {option}, or name {label.method}.")
    settings = options.settings(label.method, label.review)
    from ocil.experiments import configure

    return configure(
        label.method or None,
        options.dataset,
        seeds=options.seeds,
        seed=options.seed,
        settings=settings,
        file=options.config,
        data_dir=options.data_dir,
        root=options.out,
        with_references=options.reference,
        shared=shared,
        load=load,
        note=note,
    )


def _execute(
    cells: "Sequence[Cell]", options: RunOptions, execution: Execution
) -> "tuple[list[CellSummary], list[str]]":
    """Run everything with live progress. Returns a summary per cell that has a finished run, and what failed."""
    from ocil.cli.progress import RunBars
    from ocil.experiments.plan import Plan

    job = execution.job(options.out, options.data_dir)
    plan = Plan(tuple(cells), options.out, options.reference)
    wanted = {config for cell in cells for config in cell.configs}
    references = {run.key for run in plan.runs if run.config not in wanted}
    outcomes, failed = execute(plan.runs, job, RunBars(plan.runs, references), execution)
    found = [plan.summary(cell, outcomes) for cell in cells]
    return [cell for cell in found if cell is not None], failed


def _print_table(cells: "Sequence[CellSummary]") -> None:
    from ocil.report.result_tables import legend, summary_table
    from ocil.report.terminal_table import terminal

    summaries = [cell.summary for cell in cells]
    console.stdout().print(terminal(summary_table(summaries)))
    for line in legend(summaries):
        console.print_line(line)
