"""``ocil run``, ``ocil compare`` and ``ocil methods``."""

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from ocil.cli.common import (
    Out,
    Settings,
    Where,
    carry_out,
    dataset_of_a_run,
    must_be_a_folder,
    plain,
    read_settings,
    references_of,
    refuse_other_images,
    refuse_place,
    refuse_seeds,
    refuse_twice,
    say,
    summary_json,
    summary_of,
    whole_number,
)
from ocil.cli.data import DataDir, Json
from ocil.errors import OcilError
from ocil.files import read_toml

if TYPE_CHECKING:
    from ocil.config import RunConfig
    from ocil.data import Dataset
    from ocil.results import Summary


@Parameter(name="*")
@dataclass(frozen=True)
class Options:
    """What a run is made of. Everything left out has the published or default value."""

    dataset: Annotated[str | None, Parameter(alias="-d")] = None
    """A name from `ocil datasets`, or a prepared .npz. Default: the embedded fashion-mini."""
    memory: Annotated[int | None, Parameter(converter=whole_number, alias="-m")] = None
    """Images kept for replay. Default: 200 for fashion-mini, 1000 for CIFAR-10, 5000 for CIFAR-100 and Mini-ImageNet;
    for your own data a tenth of the training images, at least one per class and at most 5000."""
    seeds: Annotated[int | None, Parameter(converter=whole_number, alias="-n")] = None
    """How many seeds to run: 0, 1, 2, ... Default: 3."""
    seed: Annotated[int | None, Parameter(converter=whole_number)] = None
    """The first seed. Default: 0."""
    review: bool | None = None
    """The review trick: after each task one pass over memory at a tenth of the learning rate. Default: the paper's."""
    set: Settings = ()
    """Any other setting as FIELD=VALUE, for example `--set beta=0.2 tasks=10 boundary=blurry`."""
    config: Annotated[Path | None, Parameter(alias="-c")] = None
    """A TOML file (method, dataset, memory, seeds, seed, review, and any field). The command line wins."""
    reference: bool = True
    """Also run fine-tuning once a seed, to measure intransigence against. It is kept and used again."""
    out: Out = Path("runs")
    """Folder of the runs. A finished run in it is not run again, an unfinished one goes on."""
    data_dir: DataDir = None


def run(
    method: str | None = None,
    /,
    *,
    options: Options | None = None,
    where: Where | None = None,
    as_json: Json = False,
) -> int:
    """Run one method on a stream, with several seeds, and report accuracy, forgetting and intransigence.

    Stop it with Ctrl-C, or kill it: the same command goes on where it stopped.

    Example: `ocil run afs --dataset cifar100 --memory 5000 --seeds 10`

    Parameters
    ----------
    method
        A name from `ocil methods`.
    """
    options = options or Options()
    plan = _plan(*_with_review(method, options))
    summaries, folders, failed = _execute([plan], options, where or Where())
    if not summaries:
        return _nothing(failed, as_json)
    if as_json:
        print(json.dumps(summary_json(summaries[0], folders[0]) | {"failed": failed}))
    else:
        _print_table(summaries)
        say(f"Runs: {folders[0][0].parent}")
    return 1 if failed else 0


def compare(
    *methods: str,
    options: Options | None = None,
    where: Where | None = None,
    figure: Annotated[Path | None, Parameter()] = None,
    as_json: Json = False,
) -> int:
    """Run several methods under one protocol; one table and a picture of accuracy after each task.

    A method with `-rv` or `-no-rv` behind its name, as tables write it, is run with or without the review trick.

    Example: `ocil compare fine-tune er er-rv afs --seeds 3`

    Parameters
    ----------
    methods
        Names from `ocil methods`.
    figure
        Where the picture goes, .png or .svg. Default: accuracy.png in the folder of the runs.
    """
    options = options or Options()
    if not methods:
        raise OcilError("name the methods to compare, for example: ocil compare fine-tune er afs")
    path = figure or options.out / "accuracy.png"
    if path.suffix not in (".png", ".svg"):
        raise OcilError(f"--figure {path}: the name must end in .png or .svg.")
    from ocil import data

    load = lru_cache(maxsize=1)(data.load)  # once, not for each method
    plans = [_plan(*_with_review(name, options), shared=True, load=load) for name in dict.fromkeys(methods)]
    must_be_a_folder(path.parent)
    summaries, folders, failed = _execute(plans, options, where or Where())
    if not summaries:
        return _nothing(failed, as_json)
    from ocil.files import write_bytes
    from ocil.report import figures, tables

    figures.save(figures.accuracy_after_each_task(summaries), path)
    write_bytes(options.out / "table.md", tables.markdown(summaries).encode())
    if as_json:
        cells = [summary_json(s, f) for s, f in zip(summaries, folders, strict=True)]
        print(json.dumps({"cells": cells, "figure": str(path), "failed": failed}))
    else:
        _print_table(summaries)
        say(f"Picture: {path}")
        say(f"Table:   {options.out / 'table.md'}")
        say(f"Runs:    {options.out}")
    return 1 if failed else 0


def methods(name: str | None = None, /, *, as_json: Json = False) -> None:
    """List the methods, or every setting of one with its default and meaning.

    Examples: `ocil methods`, `ocil methods afs`

    Parameters
    ----------
    name
        A method whose settings to show.
    """
    from rich.console import Console
    from rich.table import Table

    from ocil.methods import METHODS

    console = Console(width=None if sys.stdout.isatty() else 120)
    if name is not None:
        rows = _settings_of(name)
        if as_json:
            print(json.dumps({"settings": rows}))
            return
        table = Table("setting", "default", "meaning")
        for row in rows:
            values = row.get("by_dataset", {"": row["default"]})
            default = "\n".join(f"{value}  {dataset}".rstrip() for dataset, value in values.items())
            table.add_row(row["name"], default, row["meaning"].replace("``", ""))
        console.print(table)
        return
    if as_json:
        names = ("name", "summary", "paper", "memory", "needs_task_ends", "offline", "capturable")
        print(json.dumps({"methods": [{n: getattr(info, n) for n in names} for info in METHODS.values()]}))
        return
    table = Table("name", "what it does", "paper", "needs task ends", "capturable")
    for info in METHODS.values():
        yes_no = ["yes" if flag else "no" for flag in (info.needs_task_ends, info.capturable)]
        table.add_row(info.name, info.summary, info.paper, *yes_no)
    console.print(table)


def _settings_of(name: str) -> list[dict[str, Any]]:
    """Name, default and meaning of every field, a method's own first, then the stream's. Where the default is another
    for some datasets, ``by_dataset`` has it for each.
    """
    from ocil.config import meanings, resolve
    from ocil.data import CATALOG
    from ocil.methods import method
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
    """No run succeeded: what went wrong has been said."""
    if as_json:
        print(json.dumps({"runs": [], "failed": failed}))
    return 2


def _with_review(name: str | None, options: Options) -> tuple[str | None, Options]:
    if name is None:
        return None, options
    for ending, review in (("-no-rv", False), ("-rv", True)):
        if name.endswith(ending):
            return name.removesuffix(ending), replace(options, review=review)
    return name, options


def _plan(
    method: str | None, options: Options, shared: bool = False, load: "Callable[..., Dataset] | None" = None
) -> list["RunConfig"]:
    """The configurations of all seeds, complete and checked, before anything runs.

    ``shared``: the command line is for several methods. What it says of the memory does not concern one that has none,
    nor does what a TOML file says of it. ``load`` gets the dataset.
    """
    file = read_toml(options.config) if options.config else {}
    in_file = {key: file.pop(key, None) for key in ("method", "dataset", "seeds", "seed")}
    for key in ("method", "dataset"):
        if not isinstance(in_file[key], str | None):
            raise OcilError(f"{key} = {in_file[key]!r} in {options.config} is not a name.")
    given: dict[str, Any] = read_settings(options.set)
    options_given = {key: value for key in ("memory", "review") if (value := getattr(options, key)) is not None}
    refuse_twice(given, options_given)
    given |= options_given
    name = method or in_file["method"]
    if name is None:
        raise OcilError("name a method, for example: ocil run afs. `ocil methods` lists them.")
    dataset = in_file["dataset"] if options.dataset is None else options.dataset
    seeds = _whole("seeds", options.seeds, in_file["seeds"], default=3, least=1)
    refuse_seeds(seeds)
    first = _whole("seed", options.seed, in_file["seed"], default=0, least=0)

    from ocil import data, methods
    from ocil.config import resolve
    from ocil.runner import check

    info = methods.method(name)
    if not info.memory:
        file = _without_memory(file)
        given = _without_memory(given) if shared else given
    if shared:  # how the stream is cut does not concern an offline method, nor how often it is seen the others
        foreign = ("boundary", "blurry_share", "fade") if info.offline else ("epochs",)
        given = {key: value for key, value in given.items() if key not in foreign}
    dataset = data.DEFAULT if dataset is None else dataset
    load = load or data.load
    loaded = load(dataset, options.data_dir)  # before anything runs: is it there, is it whole?
    named = dataset_of_a_run(dataset, loaded)
    settings = file | given
    config = resolve(name, named, settings=settings, classes=loaded.num_classes, train=len(loaded.train_y))
    if info.memory and "memory" not in settings and config.dataset not in data.CATALOG:
        images = f"{len(loaded.train_y)} training images"
        say(
            f"{config.label}: a memory of {config.learner.memory} images, chosen for {images}. --memory N sets another."
        )
    if config.dataset not in data.CATALOG:
        config = replace(config, fingerprint=loaded.fingerprint)
    plan = [replace(config, seed=seed) for seed in range(first, first + seeds)]
    for config in plan:
        check(config, loaded)
    refuse_place(options.out, plan)
    refuse_other_images(plan, options.out, loaded, options.reference)
    return plan


def _without_memory(settings: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if not key.startswith(("memory", "review"))}


def _whole(name: str, given: int | None, in_file: Any, default: int, least: int) -> int:
    value = next((value for value in (given, in_file) if value is not None), default)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise OcilError(f"{name} = {value} must be a whole number of at least {least}.")
    return value


def _execute(
    plans: Sequence[list["RunConfig"]], options: Options, where: Where
) -> tuple[list["Summary"], list[list[Path]], list[str]]:
    """Run everything with live progress. Returns a summary a plan, its run folders, and what failed."""
    from ocil.cli.progress import Board
    from ocil.results import RunFolder

    job = where.job(options.out, options.data_dir)
    wanted = {config: None for plan in plans for config in plan}
    references = references_of(list(wanted), options.reference)
    order = list(dict.fromkeys([*references.values(), *wanted]))
    outcomes, failed = carry_out(order, where, job, Board(order, set(wanted)))
    summaries, folders = [], []
    for plan in plans:
        if (found := summary_of(plan, outcomes, references)) is not None:
            summaries.append(found[0])
            folders.append([RunFolder.of(options.out, result.config).path for result in found[1]])
    return summaries, folders, failed


def _print_table(summaries: Sequence["Summary"]) -> None:
    from rich.console import Console
    from rich.table import Table

    from ocil.report.tables import COLUMNS, heading, row

    table = Table(*COLUMNS, title=plain(heading(summaries)))
    for summary in summaries:
        table.add_row(*map(plain, row(summary)))
    Console(width=None if sys.stdout.isatty() else 100).print(table)
