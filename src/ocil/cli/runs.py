"""``ocil run``, ``ocil compare`` and ``ocil methods``."""

import json
import signal
import sys
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from ocil.cli.data import DataDir, Json
from ocil.errors import OcilError, WriteError

if TYPE_CHECKING:
    from ocil.config import RunConfig
    from ocil.metrics import Estimate
    from ocil.results import Summary

MEASURES = (
    "average_accuracy",
    "average_forgetting",
    "average_forgetting_common",
    "average_intransigence",
    "wall_seconds",
)


@Parameter(name="*")
@dataclass(frozen=True)
class Options:
    """What a run is made of. Everything left out has the published or default value."""

    dataset: Annotated[str | None, Parameter(alias="-d")] = None
    """A name from `ocil datasets`, or a prepared .npz. Default: the embedded fashion-mini."""
    memory: Annotated[int | None, Parameter(alias="-m")] = None
    """Images kept for replay. Default: 200 for fashion-mini, 1000 for CIFAR-10, else 5000."""
    seeds: Annotated[int | None, Parameter(alias="-n")] = None
    """How many seeds to run: 0, 1, 2, ... Default: 3."""
    seed: Annotated[int | None, Parameter()] = None
    """The first seed. Default: 0."""
    review: bool | None = None
    """The review trick: after each task one pass over memory at a tenth of the learning rate. Default: the paper's."""
    set: Annotated[tuple[str, ...], Parameter(name="--set", alias="-s", consume_multiple=True, negative=())] = ()
    """Any other setting as FIELD=VALUE, for example `--set beta=0.2 tasks=10 boundary=blurry`."""
    config: Annotated[Path | None, Parameter(alias="-c")] = None
    """A TOML file of the same names (method, dataset, memory, seeds, review, and any field). The command line wins."""
    device: str = "auto"
    """auto, cpu or cuda."""
    workers: int = 0
    """Runs side by side. Default: as many as keep the cores busy on a CPU, one on a GPU."""
    threads: int = 1
    """CPU threads a run uses. One is best for many seeds; results depend on it in the last digits."""
    reference: bool = True
    """Also run fine-tuning once a seed, to measure intransigence against. It is kept and used again."""
    out: Annotated[Path, Parameter(alias="-o")] = Path("runs")
    """Folder of the runs. A finished run in it is not run again, an unfinished one goes on."""
    data_dir: DataDir = None


def run(method: str | None = None, /, *, options: Options | None = None, as_json: Json = False) -> int:
    """Run one method on a stream, with several seeds, and report accuracy, forgetting and intransigence.

    Stop it with Ctrl-C, or kill it: the same command goes on where it stopped.

    Example: `ocil run afs --dataset cifar100 --memory 5000 --seeds 10`

    Parameters
    ----------
    method
        A name from `ocil methods`.
    """
    options = options or Options()
    plan = _plan(method, options)
    summaries, folders, failed = _execute([plan], options)
    if as_json:
        print(json.dumps(_summary_json(summaries[0], folders[0]) | {"failed": failed}))
    else:
        _print_table(summaries)
        _say(f"Runs: {folders[0][0].parent}")
    return 1 if failed else 0


def compare(
    *methods: str,
    options: Options | None = None,
    figure: Annotated[Path | None, Parameter()] = None,
    as_json: Json = False,
) -> int:
    """Run several methods under one protocol; one table and a picture of accuracy after each task.

    A method with `+rv` or `-rv` behind its name is run with or without the review trick.

    Example: `ocil compare fine-tune er er+rv afs --seeds 3`

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
    plans = [_plan(*_with_review(name, options)) for name in methods]
    summaries, folders, failed = _execute(plans, options)
    from ocil.files import write_bytes
    from ocil.report import figures, tables

    figures.save(figures.accuracy_after_each_task(summaries), path)
    write_bytes(options.out / "table.md", tables.markdown(summaries).encode())
    if as_json:
        cells = [_summary_json(s, f) for s, f in zip(summaries, folders, strict=True)]
        print(json.dumps({"cells": cells, "figure": str(path), "failed": failed}))
    else:
        _print_table(summaries)
        _say(f"Picture: {path}\nTable:   {options.out / 'table.md'}\nRuns:    {options.out}")
    return 1 if failed else 0


def methods(*, as_json: Json = False) -> None:
    """List the methods: what each does, its paper, whether it needs task ends, whether its step can be captured."""
    from ocil.methods import METHODS

    if as_json:
        names = ("name", "summary", "paper", "memory", "needs_task_ends", "offline", "capturable")
        print(json.dumps({"methods": [{n: getattr(info, n) for n in names} for info in METHODS.values()]}))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table("name", "what it does", "paper", "needs task ends", "capturable")
    for info in METHODS.values():
        yes_no = ["yes" if flag else "no" for flag in (info.needs_task_ends, info.capturable)]
        table.add_row(info.name, info.summary, info.paper, *yes_no)
    Console().print(table)


def _with_review(name: str, options: Options) -> tuple[str, Options]:
    for ending, review in (("+rv", True), ("-rv", False)):
        if name.endswith(ending):
            return name.removesuffix(ending), replace(options, review=review)
    return name, options


def _plan(method: str | None, options: Options) -> list["RunConfig"]:
    """The configurations of all seeds, complete and checked, before anything runs."""
    file = _read_toml(options.config) if options.config else {}
    name = method or file.pop("method", None)
    file.pop("method", None)
    if name is None:
        raise OcilError("name a method, for example: ocil run afs. `ocil methods` lists them.")
    dataset, memory, review, seeds, first = (
        file.pop(key, None) if (given := getattr(options, key)) is None else (file.pop(key, None), given)[1]
        for key in ("dataset", "memory", "review", "seeds", "seed")
    )
    seeds, first = 3 if seeds is None else seeds, first or 0
    if not isinstance(seeds, int) or seeds < 1:
        raise OcilError(f"seeds = {seeds} must be a whole number of at least 1.")
    if not isinstance(first, int) or first < 0:
        raise OcilError(f"seed = {first} must be a whole number of at least 0.")
    for key in ("workers", "threads"):
        if getattr(options, key) < (key == "threads"):
            raise OcilError(f"--{key} {getattr(options, key)} is too small.")
    settings = file | _read_settings(options.set)

    from ocil import data
    from ocil.config import resolve

    loaded = data.load(dataset or data.DEFAULT, options.data_dir)  # before anything runs: is it there, is it whole?
    dataset = str(Path(dataset).resolve()) if dataset and Path(dataset).is_file() else loaded.name
    return [
        resolve(name, dataset, memory=memory, review=review, seed=seed, settings=settings, classes=loaded.num_classes)
        for seed in range(first, first + seeds)
    ]


def _read_settings(words: Sequence[str]) -> dict[str, str]:
    settings = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise OcilError(f"--set {word}: write FIELD=VALUE, for example --set beta=0.2.")
        settings[name.strip()] = value.strip()
    return settings


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise OcilError(f"cannot read {path}: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OcilError(f"{path} is not a TOML file: {error}.") from None


def _execute(
    plans: Sequence[list["RunConfig"]], options: Options
) -> tuple[list["Summary"], list[list[Path]], list[str]]:
    """Run everything with live progress. Returns a summary a plan, its run folders, and what failed."""
    from ocil.cli.progress import Board
    from ocil.engine.local import Job, run_all
    from ocil.results import Result, RunFolder, summarise
    from ocil.runner import Interrupted, pick_device

    device = pick_device(options.device)
    wanted = {config: None for plan in plans for config in plan}
    references = {c: c.reference() for c in wanted if options.reference and c.stream.boundary != "iid"}
    order = list(dict.fromkeys([*references.values(), *wanted]))
    job = Job(options.out, str(device), options.data_dir, threads=options.threads)
    with _first_ctrl_c() as stopped, Board(order, set(wanted)) as board:
        outcomes = dict(zip(order, run_all(order, job, options.workers, board.hear, stopped), strict=True))
    for outcome in outcomes.values():
        if isinstance(outcome, WriteError):
            raise outcome
    failed = [str(outcome) for outcome in outcomes.values() if isinstance(outcome, OcilError)]
    for message in failed:
        _say(f"ocil: error: {message}")
    if any(isinstance(outcome, Interrupted) for outcome in outcomes.values()):
        _say("Stopped. What was learned is saved; the same command goes on from there.")
        raise KeyboardInterrupt
    summaries, folders = [], []
    for plan in plans:
        pairs = [(r, outcomes.get(references.get(c, c))) for c in plan if isinstance(r := outcomes[c], Result)]
        if pairs:
            known = [r if isinstance(r, Result) else None for _, r in pairs]
            summaries.append(summarise([result for result, _ in pairs], known))
            folders.append([RunFolder.of(options.out, result.config).path for result, _ in pairs])
    if not summaries:
        sys.exit(2)
    return summaries, folders, failed


@contextmanager
def _first_ctrl_c() -> Iterator[Any]:
    """The first Ctrl-C asks the runs to save and stop; a second one stops at once."""
    asked = False

    def ask(*_: Any) -> None:
        nonlocal asked
        asked = True
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _say("Saving; once more stops at once.")

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield lambda: asked
    finally:
        signal.signal(signal.SIGINT, before)


def _summary_json(summary: "Summary", folders: list[Path]) -> dict[str, Any]:
    def numbers(value: "Estimate | None") -> dict[str, Any] | None:
        return None if value is None else {"mean": value.mean, "interval": value.interval, "values": list(value.values)}

    config = summary.config
    note = {} if len(folders) > 1 else {"note": "one seed: no interval"}
    return {
        "method": config.label,
        "dataset": config.dataset,
        "memory": config.learner.memory,
        "seeds": len(folders),
        **{name: numbers(getattr(summary, name)) for name in MEASURES},
        "accuracy_curve": [numbers(point) for point in summary.accuracy_curve],
        "runs": [str(folder) for folder in folders],
        **note,
    }  # fmt: skip


def _print_table(summaries: Sequence["Summary"]) -> None:
    from rich.console import Console
    from rich.table import Table

    from ocil.report.tables import COLUMNS, heading, row

    table = Table(*COLUMNS, title=heading(summaries))
    for summary in summaries:
        table.add_row(*row(summary))
    console = Console()
    console.print(table, width=None if console.is_terminal else 100)


def _say(message: str) -> None:
    print(message, file=sys.stderr, flush=True)
