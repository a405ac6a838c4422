"""``ocil report`` and ``ocil show``: what was measured, as a page and on the terminal."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ocil.cli.data import DataDir, Json
from ocil.errors import OcilError

if TYPE_CHECKING:
    from ocil.config import RunConfig
    from ocil.data import Dataset
    from ocil.report.collect import Cell
    from ocil.report.drawings import Example
    from ocil.report.gallery import Drawing
    from ocil.results import RunFolder

SCORED = 500  # training images of which examples are chosen
ACROSS = 8


def report(
    *runs: Path,
    out: Annotated[Path, Parameter(alias="-o")] = Path("report"),
    examples: Annotated[tuple[Path, ...], Parameter(name="--examples", negative=())] = (),
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Put runs into one offline page, tables (Markdown, CSV, LaTeX) and figures (SVG), beside the published numbers.

    Finished runs are found at any depth. Runs that differ only by their seed become one cell with mean and interval.
    Open `report/index.html` in a browser: it needs no network.

    Example: `ocil report runs results --out report`

    Parameters
    ----------
    runs
        Folders of runs, as `ocil run --out` names them, or single result.json files.
    out
        Folder for the report.
    examples
        A run folder with its checkpoint: also draw training images of its last task, hard, ambiguous and easy, with
        the score of their true class. May be given several times.
    """
    if not runs:
        raise OcilError("name the folders of the runs, for example: ocil report runs --out report")
    if out.exists() and not out.is_dir():
        raise OcilError(f"--out {out} is a file: name a folder.")
    from ocil.report.collect import collect
    from ocil.report.write import write

    collection = collect(runs)
    warnings = list(collection.warnings)
    more = []
    for run in examples:
        drawing = _examples(run, data_dir)
        if isinstance(drawing, str):
            warnings.append(drawing)
        else:
            more.append(drawing)
    for warning in warnings:
        _warn(warning)
    written = write(collection, out, more)
    if as_json:
        print(json.dumps({
            "page": str(written.page),
            "tables": [str(path) for path in written.tables],
            "figures": [str(path) for path in written.figures],
            "cells": [_brief(cell) for cell in collection.cells],
            "longtail": [cell.config.cell for cell in collection.longtail],
            "warnings": warnings,
        }))  # fmt: skip
        return
    runs_found = sum(len(cell.runs) for cell in collection.cells)
    print(f"{len(collection.cells)} cells, {runs_found} runs", file=sys.stderr)
    if collection.longtail:
        tailed = sum(len(cell.results) for cell in collection.longtail)
        print(f"{len(collection.longtail)} long-tailed cells, {tailed} runs", file=sys.stderr)
    print(f"Page:    {written.page}")
    print(f"Tables:  {out / 'tables'} ({len(written.tables)} files)")
    print(f"Figures: {out / 'figures'} ({len(written.figures)} files)")


def show(run: Path, /, *, as_json: Json = False) -> None:
    """Print one run, or all seeds of a cell: accuracy by task, forgetting, bias, time, settings, command.

    Example: `ocil show runs/fashion-mini-afs-m200-1a2b3c4d/seed-0`

    Parameters
    ----------
    run
        A run's folder, its result.json, or the folder of a cell, which holds a folder for each seed.
    """
    cell, warnings = _one_cell(run)
    for warning in warnings:
        _warn(warning)
    from ocil.report import terminal

    if as_json:
        print(json.dumps(terminal.summary_json(cell) | {"warnings": list(warnings)}))
        return
    from rich.console import Console

    console = Console(width=None if sys.stdout.isatty() else 100, highlight=False)
    for part in terminal.renderables(cell):
        console.print(part)
    print(cell.command)  # in one line, to be copied


def _one_cell(path: Path) -> tuple["Cell", Sequence[str]]:
    """The only cell at a path, compared with the fine-tuned runs that lie beside it."""
    from ocil.report.collect import collect

    _must_be_finished(path)
    found = collect([path])
    if len(found.cells) > 1:
        names = ", ".join(cell.name for cell in found.cells[:5])
        more = ", ..." if len(found.cells) > 5 else ""
        raise OcilError(
            f"{path} holds {len(found.cells)} cells ({names}{more}): name one of them, "
            "or see all of them with ocil report."
        )
    if not found.cells:
        raise OcilError(f"{path} holds long-tailed runs: see them with ocil longtail table {path}")
    (cell,) = found.cells
    references = []
    for run in cell.runs:
        folder = run.path.resolve().parent
        beside = folder.parent.parent / run.result.config.reference().cell / folder.name
        if (beside / "result.json").is_file():
            references.append(beside)
    together = collect([path, *references])
    return next(other for other in together.cells if other.name == cell.name), found.warnings


def _must_be_finished(path: Path) -> None:
    """A run that has begun and not ended has a configuration and no result."""
    from ocil.config import RunConfig, command

    if not (path / "config.json").is_file() or (path / "result.json").exists():
        return
    try:
        config = RunConfig.from_json(json.loads((path / "config.json").read_bytes()))
    except (OSError, ValueError, KeyError, TypeError, OcilError):
        return
    raise OcilError(f"{path} is not finished. To go on: {command(config)} --seed {config.seed} --seeds 1")


def _brief(cell: "Cell") -> dict[str, object]:
    from ocil.report.terminal import summary_json

    names = ("cell", "method", "dataset", "memory", "command", "published", "overlap", "average_accuracy")
    content = summary_json(cell)
    return {name: content[name] for name in names} | {"runs": [str(run.path) for run in cell.runs]}


def _examples(path: Path, data_dir: Path | None) -> "Drawing | str":
    """Images of a run's last task by the score that its final learner gives them, or why there are none."""
    from ocil.report.collect import memory_of, read, title_of
    from ocil.report.gallery import examples
    from ocil.results import RunFolder

    folder = RunFolder(path.parent if path.name == "result.json" else path)
    if not (folder.path / "result.json").is_file():
        raise OcilError(f"--examples {path}: there is no finished run (result.json) in that folder.")
    result = read(folder.path / "result.json")
    config = result.config
    if not folder.checkpoint.is_file():
        return f"{folder.path} has no checkpoint.safetensors: no example images of it."
    from ocil import data

    dataset = data.load(config.dataset, data_dir)
    trained_on = config.fingerprint or result.environment.get("images", dataset.fingerprint)
    if dataset.fingerprint != trained_on:
        return f"{config.dataset} has changed since {folder.path} was run: no example images of it."
    memory = f", memory {memory_of(config)}" if memory_of(config) else ""
    place = f"{config.label}, {title_of(config.dataset)}{memory}, seed {config.seed}"
    return examples(f"{config.cell}-{config.seed}", place, _by_score(config, folder, dataset))


def _by_score(config: "RunConfig", folder: "RunFolder", dataset: "Dataset") -> "dict[str, list[Example]]":
    import numpy as np
    import torch

    from ocil.evaluate import EASY, HARD, scores_of
    from ocil.precision import numerics
    from ocil.report.drawings import Example
    from ocil.results import unreadable
    from ocil.runner import build
    from ocil.streams import Stream

    stream = Stream(dataset, config.stream, config.seed)
    new = np.flatnonzero(np.isin(dataset.train_y, stream.new_classes(stream.checkpoints - 1)))
    new = new[np.linspace(0, len(new) - 1, min(SCORED, len(new))).astype(int)]
    state = folder.load_checkpoint()
    if state is None:
        raise OcilError(f"{folder.checkpoint} has gone.")
    with numerics(config.learner.precision), torch.no_grad():
        learner = build(config, dataset)
        try:
            learner.load_state(state[0], generators=False)  # they may be another device's, and scores need none
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise OcilError(unreadable(folder.checkpoint, error)) from error
        x, y = torch.from_numpy(dataset.train_x[new]), torch.from_numpy(dataset.train_y[new])
        scores = scores_of(learner.scorer(), x).softmax(1).gather(1, y[:, None])[:, 0].numpy()
    kinds = {
        f"hard\n(below {HARD:g})": scores < HARD,
        "ambiguous": (scores >= HARD) & (scores <= EASY),
        f"easy\n(above {EASY:g})": scores > EASY,
    }
    groups = {}
    for kind, chosen in kinds.items():
        order = np.flatnonzero(chosen)[np.argsort(scores[chosen], kind="stable")]
        few = order[np.linspace(0, len(order) - 1, min(ACROSS, len(order))).astype(int)]
        groups[kind] = [
            Example(dataset.train_x[new[i]], float(scores[i]), dataset.classes[dataset.train_y[new[i]]]) for i in few
        ]
    return groups


def _warn(message: str) -> None:
    print(f"ocil: warning: {' '.join(message.split())}", file=sys.stderr)
