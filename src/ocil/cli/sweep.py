"""``ocil sweep``: the runs of a table or figure."""

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from ocil.cli.common import (
    WORDS,
    Out,
    Settings,
    Where,
    carry_out,
    dataset_of_a_run,
    fold,
    must_be_a_folder,
    nearest_folder,
    plain,
    print_line,
    read_settings,
    references_of,
    refuse_other_images,
    say,
    summary_json,
    summary_of,
    whole_number,
)
from ocil.cli.data import DataDir, Json
from ocil.errors import OcilError

if TYPE_CHECKING:
    from ocil.cli.estimate import Estimator, Size
    from ocil.config import RunConfig
    from ocil.data import Dataset
    from ocil.engine.local import Job
    from ocil.experiments import Cell, Experiment, Source


def sweep(
    file: Path,
    /,
    *,
    only: Annotated[tuple[str, ...], WORDS] = (),
    seeds: Annotated[int | None, Parameter(converter=whole_number, alias="-n")] = None,
    set: Settings = (),  # noqa: A002
    where: Where | None = None,
    reference: bool = True,
    skip_missing: Annotated[bool, Parameter(negative=())] = False,
    dry_run: Annotated[bool, Parameter(negative=())] = False,
    out: Out = Path("runs"),
    data_dir: DataDir = None,
    as_json: Json = False,
) -> int:
    """Run a whole table or figure from its TOML file. Finished runs are skipped, unfinished ones go on.

    One run that fails does not stop the others; the exit code is 1 then. Stop it with Ctrl-C, or kill it: the same
    command goes on where it stopped. See docs/experiments.md for the files and their format.

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
        Also run fine-tuning for each stream and seed, to measure intransigence against.
    skip_missing
        Go on without the cells whose dataset is not there.
    dry_run
        Say what would run and about how long, and run nothing.
    out
        Folder of the runs.
    """
    where = where or Where()
    ground = nearest_folder(out)
    from ocil.experiments import read

    datasets = Datasets(data_dir)
    experiment = read(file, seeds=seeds, settings=read_settings(set), only=" ".join(only), source=datasets.source)
    missing = datasets.missing_of(experiment.cells)
    if missing and skip_missing:
        kept = tuple(cell for cell in experiment.cells if cell.config.dataset not in missing)
        if not kept:
            raise OcilError(f"nothing is left: {_missing_text(missing)}")
        say(f"Left out, {len(experiment.cells) - len(kept)} cells: {_missing_text(missing)}")
        experiment = replace(experiment, cells=kept)
    elif missing and not dry_run:
        there = sorted({Path(cell.config.dataset).stem for cell in experiment.cells} - {Path(n).stem for n in missing})
        others = f" To go on without: --skip-missing, or --only dataset={','.join(there)}." if there else ""
        raise OcilError(_missing_text(missing) + others)
    check_cells(experiment.cells, datasets, out, reference)
    job = where.job(out, data_dir)
    plan = Plan.of(experiment.cells, out, reference)
    if plan.to_run and not os.access(ground, os.W_OK | os.X_OK):
        raise OcilError(f"cannot write to {out}: {ground} is not yours to write to. Choose another place.")
    from ocil.cli.estimate import Estimator

    estimator = Estimator.of(job, where.workers, datasets.sizes)
    if dry_run:
        elsewhere = where.engine == "ray"
        _tell(experiment, plan, estimator, datasets, {} if skip_missing else missing, out, elsewhere, as_json)
        return 0
    must_be_a_folder(out)
    return _carry_out(experiment, plan, estimator, datasets, where, job, as_json)


REVIEW = ("review", "review_every", "review_batch", "review_keep_last")


class Datasets:
    """The datasets of a sweep, looked up once: what is missing is known before anything runs."""

    def __init__(self, data_dir: Path | None) -> None:
        self.data_dir = data_dir
        self.missing: dict[str, str] = {}
        self.sizes: dict[str, Size] = {}
        self.found: dict[str, Source] = {}

    def source(self, name: str) -> "Source":
        if name not in self.found:
            self.found[name] = self._look(name)
        return self.found[name]

    def _look(self, name: str) -> "Source":
        from ocil import data
        from ocil.cli.estimate import Size
        from ocil.data.catalog import find
        from ocil.data.store import locate
        from ocil.experiments import Source

        entry = find(name)
        try:
            if entry is not None:
                self.sizes[entry.name] = Size.of(entry)
                if entry.name != data.DEFAULT:
                    locate(entry.name, self.data_dir)
                return Source(entry.name)
            loaded = data.load(name, self.data_dir)
        except OcilError as error:
            known = entry.name if entry else name
            self.missing[known] = str(error)
            return Source(known)
        known = dataset_of_a_run(name, loaded)
        self.sizes[known] = Size.of(loaded)
        return Source(known, loaded.num_classes, loaded.fingerprint, len(loaded.train_y))

    def missing_of(self, cells: "Sequence[Cell]") -> dict[str, str]:
        used = {cell.config.dataset for cell in cells}
        return {name: text for name, text in self.missing.items() if name in used}

    def load(self, name: str) -> "Dataset":
        from ocil import data

        return data.load(name, self.data_dir)


def _missing_text(missing: dict[str, str]) -> str:
    return " ".join(text if text.endswith(".") else f"{text}." for text in missing.values())


def check_cells(cells: "Sequence[Cell]", datasets: Datasets, out: Path, reference: bool) -> None:
    """Raise now what a run would raise later, one dataset in memory at a time, each kind of stream once."""
    from ocil.runner import check

    for name in dict.fromkeys(cell.config.dataset for cell in cells):
        if name in datasets.missing:
            continue
        loaded = datasets.load(name)
        seen = set()
        for cell in cells:
            config, learner = cell.config, cell.config.learner
            kind = (config.stream, learner.memory, learner.memory_batch, *(getattr(learner, name) for name in REVIEW))
            if config.dataset == name and kind not in seen:
                seen.add(kind)
                try:
                    check(config, loaded)
                except OcilError as error:
                    raise OcilError(f"{cell.label}: {error}") from None
        runs = [config for cell in cells if cell.config.dataset == name for config in cell.configs]
        refuse_other_images(runs, out, loaded, reference)


@dataclass(frozen=True)
class Plan:
    """All runs of some cells: what is finished, what was begun, what is broken."""

    order: "list[RunConfig]"
    """References first, then the cells' runs, each once."""
    references: "dict[RunConfig, RunConfig]"
    finished: "frozenset[RunConfig]"
    begun: "frozenset[RunConfig]"
    broken: "dict[RunConfig, OcilError]"
    """Runs whose result cannot be read: a sweep fails them."""

    @classmethod
    def of(cls, cells: "Sequence[Cell]", out: Path, reference: bool) -> "Plan":
        from ocil.results import RunFolder

        wanted = [config for cell in cells for config in cell.configs]
        references = references_of(wanted, reference)
        order = list(dict.fromkeys([*references.values(), *wanted]))
        finished, begun, broken = set(), set(), {}
        for config in order:
            folder = RunFolder.of(out, config)
            try:
                if folder.result() is not None:
                    finished.add(config)
                elif folder.checkpoint.exists():
                    begun.add(config)
            except OcilError as error:
                broken[config] = error
        return cls(order, references, frozenset(finished), frozenset(begun), broken)

    @property
    def to_run(self) -> "list[RunConfig]":
        return self.left(self.order)

    def left(self, configs: "Sequence[RunConfig]") -> "list[RunConfig]":
        """Those that a sweep would run."""
        return [config for config in configs if config not in self.finished and config not in self.broken]


def describer(cells: "Sequence[Cell]") -> "Callable[[RunConfig, Exception], str]":
    """What is said of a run that failed."""
    label_of = {config: cell.label for cell in cells for config in cell.configs}

    def describe(config: "RunConfig", error: Exception) -> str:
        memory = f", memory {config.learner.memory}" if config.learner.memory else ""
        name = label_of.get(config, "reference")
        return f"{name}, {Path(config.dataset).stem}{memory}, seed {config.seed}: {error}"

    return describe


def _carry_out(
    experiment: "Experiment",
    plan: Plan,
    estimator: "Estimator",
    datasets: Datasets,
    where: Where,
    job: "Job",
    as_json: bool,
) -> int:
    from ocil.cli.progress import CellBoard
    from ocil.results import RunFolder

    seconds = [estimator.seconds(config, datasets.sizes[config.dataset]) for config in plan.order]
    left = set(plan.to_run)
    to_come = [s for config, s in zip(plan.order, seconds, strict=True) if config in left]
    board = CellBoard(experiment.cells, plan.order, seconds, estimator.together(to_come), plan.finished)
    outcomes, failed = carry_out(plan.order, where, job, board, describer(experiment.cells))
    found = [(cell, summary_of(cell.configs, outcomes, plan.references)) for cell in experiment.cells]
    if as_json:
        cells = []
        for cell, known in found:
            entry: dict[str, Any] = {"label": cell.label, "wanted": len(cell.configs)}
            if known is not None:
                entry |= summary_json(known[0], [RunFolder.of(job.root, r.config).path for r in known[1]])
            else:
                entry |= _names(cell) | {"seeds": 0, "runs": []}
            cells.append(entry)
        head = {"experiment": experiment.name, "title": experiment.title}
        print(json.dumps(head | {"cells": cells, "failed": failed}))
    else:
        _print_results(experiment, found)
        say(f"Runs: {job.root}")
    return 1 if failed else 0


def _names(cell: "Cell") -> dict[str, Any]:
    config = cell.config
    return {"method": config.label, "dataset": config.dataset, "memory": config.learner.memory}


def _print_results(experiment: "Experiment", found: "Sequence[tuple[Cell, Any]]") -> None:
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    from ocil.report.tables import duration, percent

    columns = ("row", "dataset", "memory", "seeds", "accuracy %", "forgetting %", "intransigence %", "time / run")
    table = Table(*columns, title=plain(experiment.title), box=SIMPLE, padding=(0, 1, 0, 0))
    fold(table)
    for cell, known in found:
        place = (plain(cell.label), plain(Path(cell.config.dataset).stem), str(cell.config.learner.memory or "-"))
        if known is None:
            table.add_row(*place, f"0/{len(cell.configs)}", *["-"] * 4)
            continue
        summary, results = known
        measures = (summary.average_accuracy, summary.average_forgetting, summary.average_intransigence)
        seeds = str(len(results)) if len(results) == len(cell.configs) else f"{len(results)}/{len(cell.configs)}"
        table.add_row(*place, seeds, *map(percent, measures), duration(summary.wall_seconds.mean))
    Console(width=None if sys.stdout.isatty() else 120).print(table)


def _tell(
    experiment: "Experiment",
    plan: Plan,
    estimator: "Estimator",
    datasets: Datasets,
    missing: dict[str, str],
    out: Path,
    elsewhere: bool,
    as_json: bool,
) -> None:
    """What ``--dry-run`` says. ``elsewhere``: the runs would be on a cluster."""

    def seconds(configs: "Sequence[RunConfig]") -> float:
        return estimator.together(
            [estimator.seconds(c, size) for c in configs if (size := datasets.sizes.get(c.dataset)) is not None]
        )

    def count(configs: "Sequence[RunConfig]") -> dict[str, Any]:
        finished, begun = (sum(config in some for config in configs) for some in (plan.finished, plan.begun))
        return {"runs": len(configs), "finished": finished, "begun": begun, "to_run": len(plan.left(configs))}

    wanted = {config for cell in experiment.cells for config in cell.configs}
    references = [config for config in plan.order if config not in wanted]
    to_run = plan.to_run
    total = count(plan.order) | {"references": len(references), "seconds": round(seconds(to_run), 1)}
    source = estimator.source(to_run)
    if elsewhere:
        source += "; for this machine, the cluster was not asked"
    describe = describer(experiment.cells)
    broken = [describe(config, error) for config, error in plan.broken.items()]
    if as_json:
        from ocil.config import command

        cells = []
        for cell in experiment.cells:
            spent = round(seconds(plan.left(cell.configs)), 1)
            entry = {"label": cell.label, **_names(cell), **count(cell.configs), "seconds": spent}
            cells.append(entry | {"command": command(cell.config)})
        head = {"experiment": experiment.name, "title": experiment.title, "about": experiment.about}
        foot = {"estimate": source, "missing": [*missing.values()], "failed": broken}
        print(json.dumps(head | {"cells": cells} | total | foot))
        return
    from rich.box import SIMPLE
    from rich.console import Console
    from rich.table import Table

    from ocil.cli.estimate import roughly

    def about(configs: "Sequence[RunConfig]") -> str:
        left = plan.left(configs)
        return roughly(seconds(left)) if left else ""

    groups: dict[tuple[str, str], list[Cell]] = {}
    for dataset in dict.fromkeys(cell.config.dataset for cell in experiment.cells):
        for cell in experiment.cells:
            if cell.config.dataset == dataset:
                groups.setdefault((dataset, cell.label), []).append(cell)
    columns = ("dataset", "row", "memory", "runs", "finished", "to run", "about")
    table = Table(*columns, title=plain(experiment.title), box=SIMPLE, padding=(0, 1, 0, 0))
    fold(table)
    for (dataset, label), cells_of in groups.items():
        configs = [config for cell in cells_of for config in cell.configs]
        memories = ", ".join(str(cell.config.learner.memory or "-") for cell in cells_of)
        numbers = (str(count(configs)[key]) for key in ("runs", "finished", "to_run"))
        table.add_row(plain(Path(dataset).stem), plain(label), memories, *numbers, about(configs))
    if references:
        numbers = (str(count(references)[key]) for key in ("runs", "finished", "to_run"))
        table.add_row("", "references (fine-tune)", "", *numbers, about(references))
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    print(
        f"{len(experiment.cells)} cells, {total['runs']} runs ({total['references']} of them references): "
        f"{total['finished']} finished, {total['begun']} begun, {total['to_run']} to run."
    )
    if to_run:
        beside = f"{min(estimator.side_by_side, len(to_run))} side by side"
        print(f"About {roughly(total['seconds'])} on {estimator.device}, {beside}, {source}.")
    for message in broken:
        print_line(f"The sweep would fail: {' '.join(message.split())}")
    if missing:
        print_line(f"The sweep would not start: {_missing_text(missing)}")
    print_line(f"Nothing was run. Runs would be in {out}.")
