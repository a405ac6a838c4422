"""``ocil report`` and ``ocil show``: what was measured, as a page and on the terminal."""

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ocil.cli import console
from ocil.cli.options import FLAG, WORDS, DataDir, Json, Out
from ocil.errors import OcilError

if TYPE_CHECKING:
    from ocil.report.cells import Collection, MeasuredCell
    from ocil.report.drawings import Drawing
    from ocil.report.papers import Paper


USUAL = "accuracy"
"""The measure that ``ocil show`` compares. Of one cell it prints all."""


def _are_there(_: object, paths: tuple[Path, ...]) -> None:
    for path in paths:
        if not path.exists():
            raise OcilError(f"--examples {path}: there is no such run.")


def report(
    *runs: Path,
    out: Out = Path("report"),
    examples: Annotated[
        tuple[Path, ...], Parameter(name="--examples", negative=(), show_default=False, validator=_are_there)
    ] = (),
    paper: Annotated[str, Parameter(name="--paper")] = "auto",
    against: Annotated[str, Parameter(name="--against", show_default=False)] = "",
    seeds: Annotated[str, Parameter(name="--seeds", show_default=False)] = "",
    pdf: Annotated[bool, Parameter(name="--pdf"), FLAG] = False,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Put runs into one offline page, tables (Markdown, CSV, LaTeX) and figures (SVG): who is ahead, by how much, why.

    Finished runs are found at any depth. Runs that differ only by their seed become one cell with mean and interval.
    Methods are compared by mean rank and by paired differences over the seeds that they share. Runs that belong to the
    tables of the AFS paper also stand beside its published numbers. Open `report/index.html` in a browser: it needs no
    network.

    Examples: `ocil report runs results --out report`, `ocil report runs --against er-rv --seeds 10-19`

    Parameters
    ----------
    runs
        Folders of runs, as `ocil run --out` names them, or single result.json files.
    out
        Folder for the report.
    examples
        A run folder with its checkpoint: also draw training images of the task before the last, hard, ambiguous and
        easy, with the score of their true class. May be given several times: runs of one stream share the images.
    paper
        The paper to compare with: a TOML file with its tables and numbers, `none`, or `afs`, which comes with ocil.
        `auto` is `afs` if some of the runs belong to its tables, else `none`.
    against
        The method that the others are compared with, as tables name it. Default: the one with the best mean rank.
    seeds
        Only runs of these seeds: `10-19`, or `0,2,5-7`. Default: all.
    pdf
        Also write each figure as a PDF file, which LaTeX can include.
    """
    if not runs:
        raise OcilError("name the folders of the runs, for example: ocil report runs --out report")
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn

    from ocil.report import papers
    from ocil.report.collect import collect
    from ocil.report.comparison import concerned
    from ocil.report.ranking import read_seeds
    from ocil.report.write import write
    from ocil.threads import cores

    chosen = None if paper == "auto" else papers.load(paper)
    collection = collect(runs, read_seeds(seeds) if seeds else None)
    compared = concerned(papers.load(), collection) if chosen is None else chosen
    warnings = list(collection.warnings)
    more: list[Drawing] = []
    if examples:
        from ocil.report.examples import example_images

        more, without = example_images(examples, data_dir)
        warnings += without
    for warning in warnings:
        console.warning(warning)
    with console.bars(TextColumn("figures"), BarColumn(), MofNCompleteColumn()) as bar:
        task = bar.add_task("figures", total=None)

        def progress(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        written = write(collection, out, more, compared, against, workers=cores(), pdf=pdf, progress=progress)
    if as_json:
        content = {
            "page": str(written.page),
            "tables": [str(path) for path in written.tables],
            "figures": [str(path) for path in written.figures],
            "cells": [_brief(cell, compared) for cell in collection.cells],
            "longtail": [cell.config.cell for cell in collection.longtail],
            "warnings": warnings,
        }
        console.print_json(content)
        return
    _print_counts(collection)
    console.print_line(f"Page:    {written.page}")
    console.print_line(f"Tables:  {out / 'tables'} ({len(written.tables)} files)")
    console.print_line(f"Figures: {out / 'figures'} ({len(written.figures)} files)")


def _print_counts(collection: "Collection") -> None:
    from ocil.report.formatting import count

    runs = sum(len(cell.runs) for cell in collection.cells)
    console.info(f"{count(len(collection.cells), 'cell')}, {count(runs, 'run')}")
    if collection.longtail:
        runs = sum(len(cell.results) for cell in collection.longtail)
        console.info(f"{count(len(collection.longtail), 'long-tailed cell')}, {count(runs, 'run')}")


def show(
    *runs: Path,
    against: Annotated[str, Parameter(name="--against", show_default=False)] = "",
    methods: Annotated[tuple[str, ...], Parameter(name="--methods"), WORDS] = (),
    seeds: Annotated[str, Parameter(name="--seeds", show_default=False)] = "",
    measure: Annotated[str, Parameter(name="--measure")] = USUAL,
    markdown: Annotated[bool, Parameter(name="--markdown"), FLAG] = False,
    as_json: Json = False,
) -> None:
    """Print one cell with all that is known of it; or, of a folder with several cells, who is ahead and by how much.

    One cell: accuracy by task, forgetting, bias, time, settings, command. Several: a number for each method, dataset
    and memory size, and in brackets the difference to one method over the seeds that both have, with its 95 % interval.
    Runs of one seed see the same stream, so such differences vary less than the numbers themselves.

    Examples: `ocil show runs/fashion-mini-afs-m200-1a2b3c4d/seed-0`, `ocil show runs`,
    `ocil show results --methods stride afs scr er-rv --against afs --seeds 10-19 --markdown`

    Parameters
    ----------
    runs
        A run's folder, its result.json, the folder of a cell, which holds a folder for each seed, or folders of many.
    against
        The method that the others are compared with, as tables name it. Default: the one with the best mean rank.
    methods
        Rows to compare, as tables name them: `er`, `er-rv`, `"afs alpha=0.5"`. Default: all.
    seeds
        Only runs of these seeds: `10-19`, or `0,2,5-7`. Default: all.
    measure
        What to compare: `accuracy`, or another measure by its name or its head in tables, such as `forgetting`.
    markdown
        Print tables as Markdown, for a page or a message.
    """
    if not runs:
        raise OcilError("name a run, a cell or a folder of them, for example: ocil show runs")
    from ocil.report.collect import collect
    from ocil.report.ranking import read_seeds

    for run in runs:
        _must_be_finished(run)
    found = collect(runs, read_seeds(seeds) if seeds else None)
    if not found.cells:
        raise OcilError(f"{runs[0]} holds long-tailed runs: see them with ocil longtail table {runs[0]}")
    if len(found.cells) > 1 or against or methods or markdown or measure != USUAL:
        _show_several(found, against, methods, measure, markdown, as_json)
        return
    cell, warnings = _with_references(found, runs)
    for warning in warnings:
        console.warning(warning)
    from ocil.report import papers
    from ocil.report.show import renderables, summary_json

    paper = papers.load()
    if as_json:
        console.print_json(summary_json(cell, paper) | {"warnings": list(warnings)})
        return
    screen = console.stdout(100)
    for part in renderables(cell, paper):
        screen.print(part)
    console.print_line(cell.command)  # in one line, to be copied


def _show_several(
    found: "Collection", against: str, methods: Sequence[str], measure: str, markdown: bool, as_json: bool
) -> None:
    """Who is ahead, and the numbers of all methods side by side."""
    from ocil.report import quantities, standing_tables
    from ocil.report.entries import entries
    from ocil.report.standings import Standings
    from ocil.report.table import markdown_table
    from ocil.report.terminal_table import literal, terminal

    everything = entries(found.cells)
    chosen = everything.named(against).name if against else ""
    shown = everything.only([*methods, *([chosen] if chosen and methods else [])])
    quantity = quantities.find_quantity(measure)
    if not any(quantity.by_seed(cell) for entry in shown.all for cell in entry.cells.values()):
        raise OcilError(quantities.not_recorded(quantity))
    standings = Standings(shown, quantity, chosen)
    for warning in found.warnings:
        console.warning(warning)
    if as_json:
        console.print_json(standings.to_json() | {"warnings": list(found.warnings)})
        return
    tables = [standing_tables.standings_table(standings), *standing_tables.shown(standings)]
    if markdown:
        print("\n\n".join(markdown_table(table, level=0) for table in tables))  # the writer has escaped it
        return
    screen = console.stdout(140)
    for table in tables:
        for text in filter(None, (table.title, table.note)):
            screen.print(literal(text))
        screen.print(terminal(replace(table, title=""), lines="head"))
        for remark in table.remarks:
            screen.print(literal(f"- {remark}"))


def _with_references(found: "Collection", paths: Sequence[Path]) -> tuple["MeasuredCell", Sequence[str]]:
    """The only cell, compared with the fine-tuned runs in the same results folder."""
    from ocil.report.collect import collect
    from ocil.runs.folder import RunFolder

    (cell,) = found.cells
    references = []
    for run in cell.runs:
        root, config = run.path.resolve().parent.parent.parent, run.result.config
        for reference in (config.reference(), replace(config.reference(), stream=config.stream)):
            folder = RunFolder.of(root, reference).path
            if (folder / "result.json").is_file():
                references.append(folder)
    seeds = {run.result.config.seed for run in cell.runs}
    together = collect([*paths, *references], seeds)
    (shown,) = (other for other in together.cells if other.runs[0].path == cell.runs[0].path)
    return shown, list(dict.fromkeys([*found.warnings, *together.warnings]))


def _must_be_finished(path: Path) -> None:
    """A run that has begun and not ended has a configuration and no result."""
    from ocil.runs.config import RunConfig, command
    from ocil.runs.results import UNREADABLE, read_json

    try:
        if (path / "result.json").exists():
            return
        config = RunConfig.from_json(read_json(path / "config.json"))
    except (*UNREADABLE, OcilError):
        return
    root = path.absolute().parent.parent
    where = "" if root == Path("runs").absolute() else f" --out {shlex.quote(str(root))}"
    raise OcilError(f"{path} is not finished. To go on: {command(config)} --seed {config.seed} --seeds 1{where}")


def _brief(cell: "MeasuredCell", paper: "Paper") -> dict[str, object]:
    from ocil.report.show import summary_json

    names = ("cell", "method", "dataset", "memory", "command", "published", "overlap", "average_accuracy")
    content = summary_json(cell, paper)
    return {name: content[name] for name in names} | {"runs": [str(run.path) for run in cell.runs]}
