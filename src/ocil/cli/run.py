"""``ocil run``, ``ocil compare`` and ``ocil methods``."""

from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ocil.cli import console
from ocil.cli.execute import execute
from ocil.cli.names import METHOD
from ocil.cli.options import Execution, Json, RunOptions
from ocil.errors import OcilError
from ocil.methods.review_label import Label

if TYPE_CHECKING:
    from ocil.data import Dataset
    from ocil.experiments.files import Cell
    from ocil.experiments.plan import CellSummary


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

    Example: `ocil run afs --dataset cifar100 --memory 5000 --seeds 10`

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

    Example: `ocil compare fine-tune er er-rv afs --seeds 3`

    Parameters
    ----------
    methods
        Names from `ocil methods`.
    figure
        Where the picture goes, .png or .svg. Default: accuracy.png in the folder of the runs.
    """
    options = options or RunOptions()
    if not methods:
        raise OcilError("name the methods to compare, for example: ocil compare fine-tune er afs")
    path = figure or options.out / "accuracy.png"
    if path.suffix not in (".png", ".svg"):
        raise OcilError(f"--figure {path}: the name must end in .png or .svg.")
    from ocil import data
    from ocil.runs.folder import make_folder

    cells = [_cell(name, options, data.load_once, shared=True) for name in dict.fromkeys(methods)]
    make_folder(path.parent)
    found, failed = _execute(cells, options, execution or Execution())
    if not found:
        return _nothing(failed, as_json)
    from ocil.files import write_bytes
    from ocil.report.plots import accuracy_after_each_task
    from ocil.report.result_tables import summary_table
    from ocil.report.style import save
    from ocil.report.table import markdown_table

    summaries = [cell.summary for cell in found]
    save(accuracy_after_each_task(summaries), path)
    write_bytes(options.out / "table.md", f"{markdown_table(summary_table(summaries), level=0)}\n".encode())
    if as_json:
        cells_json = [cell.to_json() for cell in found]
        console.print_json({"cells": cells_json, "figure": str(path), "failed": failed})
    else:
        _print_table(found)
        console.info(f"Picture: {path}")
        console.info(f"Table:   {options.out / 'table.md'}")
        console.info(f"Runs:    {options.out}")
    return 1 if failed else 0


def methods(name: Annotated[str | None, METHOD] = None, /, *, as_json: Json = False) -> None:
    """List the methods, or every setting of one with its default and meaning.

    Every method has the settings `network`, `pretrained`, `freeze` and `optimizer`: see `ocil networks`.

    Examples: `ocil methods`, `ocil methods afs`

    Parameters
    ----------
    name
        A method whose settings to show.
    """
    if name is not None:
        _print_settings(_settings_of(name), as_json)
        return
    from ocil.methods import METHODS

    if as_json:
        names = ("name", "summary", "paper", "memory", "needs_task_ends", "offline", "capturable")
        console.print_json({"methods": [{n: getattr(info, n) for n in names} for info in METHODS.values()]})
        return
    rows = []
    for info in METHODS.values():
        yes_no = ["yes" if flag else "no" for flag in (info.needs_task_ends, info.capturable)]
        rows.append((info.name, info.summary, info.paper, *yes_no))
    console.print_table(("name", "what it does", "paper", "needs task ends", "capturable"), rows)


def _print_settings(settings: Sequence[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        console.print_json({"settings": settings})
        return
    rows = []
    for setting in settings:
        values = setting.get("by_dataset", {"": setting["default"]})
        shown = {dataset: "" if value == () else value for dataset, value in values.items()}
        default = "\n".join(f"{value}  {dataset}".rstrip() for dataset, value in shown.items())
        rows.append((setting["name"], default, setting["meaning"].replace("``", "")))
    console.print_table(("setting", "default", "meaning"), rows)


def _settings_of(name: str) -> list[dict[str, Any]]:
    """Name, default and meaning of every field, a method's own first, then the stream's. If the default depends on the
    dataset, ``by_dataset`` has it for each.
    """
    from ocil.data import CATALOG
    from ocil.methods import method
    from ocil.runs.config import resolve
    from ocil.runs.settings import meanings
    from ocil.streams import StreamConfig

    runs = {dataset: resolve(name, dataset) for dataset in CATALOG}
    found: list[dict[str, Any]] = []
    for part, config in (("learner", method(name).load().Config), ("stream", StreamConfig)):
        texts = meanings(config)
        for f in fields(config):
            values = {dataset: getattr(getattr(run, part), f.name) for dataset, run in runs.items()}
            differ = {"by_dataset": values} if len(set(values.values())) > 1 else {}
            found.append({"name": f.name, "default": f.default, "meaning": texts.get(f.name, "")} | differ)
    return found


def _nothing(failed: list[str], as_json: bool) -> int:
    """Returns the exit code if no run succeeded. The errors have been printed."""
    if as_json:
        console.print_json({"runs": [], "failed": failed})
    return 2


def _cell(method: str | None, options: RunOptions, load: "Callable[..., Dataset]", shared: bool = False) -> "Cell":
    """The runs of one method, checked before anything runs. ``shared``: the options are those of several methods."""
    label = Label.parse(method or "")
    settings = options.settings(label.review)
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
        reference=options.reference,
        shared=shared,
        load=load,
        note=console.info,
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
    from ocil.report.result_tables import summary_table
    from ocil.report.table import terminal

    console.stdout().print(terminal(summary_table([cell.summary for cell in cells])))
