"""``ocil longtail``: open long-tailed recognition, the last table of the paper."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from ocil.cli.common import (
    Out,
    Settings,
    Whole,
    dataset_of_a_run,
    fold,
    numbers,
    plain,
    print_line,
    read_settings,
    refuse_seeds,
    refuse_small,
    refuse_twice,
    say,
    say_error,
    say_warning,
    stop_when_asked,
)
from ocil.cli.data import DataDir, Json
from ocil.errors import OcilError
from ocil.text import escaped

if TYPE_CHECKING:
    from ocil.longtail.config import LongTailConfig
    from ocil.longtail.results import LongTailCell, LongTailResult

NARROW = 120  # columns of a terminal below which a table has one row a measure
SAVE_SECONDS = 30.0  # on a GPU: an epoch takes less than to save it

app = App(
    name="longtail",
    version_flags=(),
    help="""Open long-tailed recognition: few images of most classes, and test images of classes never shown.

Variants: ce (stage 1 alone), oltr, oltr-fl (focal loss), oltr-rfl (revised focal), oltr-rfld (its mu by class).
A try of some seconds on a CPU: `ocil longtail run oltr-rfld --seeds 1 --set epochs1=2 epochs2=2 width=4 batch_size=64`
""",
)


@Parameter(name="*")
@dataclass(frozen=True)
class Options:
    """What a long-tailed run is made of. Everything left out has the published or default value."""

    dataset: Annotated[str | None, Parameter(alias="-d")] = None
    """A name from `ocil datasets`, a prepared .npz, or what `ocil longtail prepare` made. Default: fashion-mini."""
    imbalance: float | None = None
    """Images of the largest class for one of the smallest. Default: 100."""
    open: float | None = None
    """Share of the classes that training never shows: the open set. Default: 0.2."""
    seeds: Annotated[Whole, Parameter(alias="-n")] = 3
    """How many seeds to run: 0, 1, 2, ..."""
    seed: Whole = 0
    """The first seed."""
    set: Settings = ()
    """Any other setting as FIELD=VALUE, for example `--set epochs2=30`. `ocil longtail settings` lists them."""
    device: str = "auto"
    """auto, cpu or cuda."""
    workers: Whole = 0
    """Runs side by side on a GPU. Default: six. On a CPU they run one after the other."""
    threads: Whole = 1
    """CPU threads a run uses. Results depend on it in the last digits."""
    out: Out = Path("runs")
    """Folder of the runs. A finished run in it is not run again, an unfinished one goes on from its last epoch."""
    data_dir: DataDir = None


@app.command
def run(variant: str, /, *, options: Options | None = None, as_json: Json = False) -> int:
    """Train one variant with several seeds and test it on known and unknown classes.

    Stage 1 is trained once a seed and shared by all variants. Stop it with Ctrl-C, or kill it: the same command goes on
    from the last finished epoch.

    Example: `ocil longtail run oltr-rfld --dataset cifar100 --imbalance 100 --open 0.2 --seeds 3`

    Parameters
    ----------
    variant
        ce, oltr, oltr-fl, oltr-rfl or oltr-rfld.
    """
    return _carry_out([variant], options or Options(), as_json)


@app.command
def compare(*variants: str, options: Options | None = None, as_json: Json = False) -> int:
    """Train several variants, all five if none is named; one table beside the published rows.

    Example: `ocil longtail compare --dataset cifar100 --imbalance 100`

    Parameters
    ----------
    variants
        ce, oltr, oltr-fl, oltr-rfl, oltr-rfld.
    """
    from ocil.longtail.config import VARIANTS

    return _carry_out(list(dict.fromkeys(variants)) or list(VARIANTS), options or Options(), as_json)


@app.command
def table(
    *runs: Path,
    form: Annotated[Literal["terminal", "markdown", "csv"], Parameter(name="--format")] = "terminal",
    as_json: Json = False,
) -> None:
    """Print finished long-tailed runs as one table, beside the paper's rows, which are of another dataset.

    Example: `ocil longtail table runs --format markdown`

    Parameters
    ----------
    runs
        Folders of runs, at any depth, or single result.json files.
    form
        terminal, markdown or csv.
    """
    if not runs:
        raise OcilError("name the folders of the runs, for example: ocil longtail table runs")
    from ocil.report import longtail
    from ocil.report.collect import collect

    found = collect(runs)
    if not found.longtail:
        raise OcilError(f"no finished long-tailed run under {', '.join(map(str, runs))}: ocil longtail run oltr-rfld")
    for warning in found.warnings:
        say_warning(warning)
    if as_json:
        print(json.dumps({"cells": [_cell_json(cell) for cell in found.longtail], "warnings": list(found.warnings)}))
    elif form == "terminal":
        _print(found.longtail)
    else:
        print({"markdown": longtail.markdown, "csv": longtail.as_csv}[form](found.longtail), end="")


@app.command
def settings(*, as_json: Json = False) -> None:
    """List every setting with its default and meaning.

    Example: `ocil longtail settings`
    """
    from dataclasses import fields

    from ocil.config import meanings
    from ocil.longtail.config import LongTailConfig

    texts = meanings(LongTailConfig)
    rows: list[dict[str, Any]] = [
        {"name": f.name, "default": f.default, "meaning": texts[f.name]}
        for f in fields(LongTailConfig)
        if f.name in texts
    ]
    if as_json:
        print(json.dumps({"settings": rows}))
        return
    from rich.console import Console
    from rich.table import Table

    shown = Table("setting", "default", "meaning")
    for row in rows:
        shown.add_row(row["name"], str(row["default"]), row["meaning"])
    Console(width=None if sys.stdout.isatty() else 120).print(shown)


@app.command
def prepare(
    name: str, lists: Path, images: Path, *, size: Whole = 112, data_dir: DataDir = None, as_json: Json = False
) -> None:
    """Read a dataset that is long-tailed by itself, such as ImageNet-LT, from its file lists and your image folder.

    LISTS holds `*_train.txt`, `*_val.txt`, `*_test.txt` and `*_open.txt`, as published; each line is "PATH LABEL", the
    path relative to IMAGES. Of each image the middle square is kept, resized.

    Example: `ocil longtail prepare imagenet-lt ImageNet_LT imagenet --size 112`, then
    `ocil longtail run oltr --dataset imagenet-lt`

    Parameters
    ----------
    name
        The name to use it by: small letters, digits, - and _.
    lists
        Folder of the four lists.
    images
        Folder that the paths in the lists start from.
    size
        Side of the squares, in pixels.
    """
    from ocil.data import catalog
    from ocil.longtail.data import prepared_path, read_lists, save_prepared

    path = prepared_path(name, data_dir)
    if catalog.find(name) is not None:
        raise OcilError(f"'{name}' is a dataset of the catalog: choose another name.")
    split = read_lists(name, lists, images, size)
    save_prepared(split, path)
    summary = {key: value for key, value in split.summary().items() if key in ("train", "validation", "test", "open")}
    if as_json:
        print(json.dumps({"path": str(path), "classes": len(split.classes), **summary}))
    else:
        counted = ", ".join(f"{count} {part}" for part, count in summary.items())
        print_line(f"{name}: {len(split.classes)} classes, images: {counted}")
        print_line(str(path))


def plan(variants: Sequence[str], options: Options) -> list["LongTailConfig"]:
    """The configurations of all variants and seeds, complete and checked against the data, before anything runs."""
    from ocil import data
    from ocil.longtail import data as tailed
    from ocil.longtail.config import CUTTING, resolve
    from ocil.longtail.training import check

    refuse_seeds(options.seeds)
    refuse_small(options.workers, options.threads)
    given: dict[str, Any] = read_settings(options.set)
    own = {"imbalance": options.imbalance, "open_share": options.open}
    refuse_twice(given, (name for name, value in own.items() if value is not None))
    name = options.dataset or data.DEFAULT
    fingerprint, whole = "", None
    if tailed.is_prepared(name, options.data_dir):
        if options.imbalance is not None or options.open is not None or CUTTING & given.keys():
            raise OcilError(f"{name} is long-tailed by itself: leave out --imbalance, --open and --set validation.")
        prepared = tailed.load_prepared(name, options.data_dir)
        given |= dict.fromkeys(CUTTING, 0)
        fingerprint, side, dataset = prepared.summary()["digest"], max(prepared.image_shape[:2]), name
    else:
        whole = data.load(name, options.data_dir)
        given |= {name: value for name, value in own.items() if value is not None}
        dataset, side = dataset_of_a_run(name, whole), max(whole.image_shape[:2])
        fingerprint = "" if dataset in data.CATALOG else whole.fingerprint
    configs = [
        resolve(variant, dataset, seed=seed, image_side=side, fingerprint=fingerprint, settings=given)
        for variant in variants
        for seed in range(options.seed, options.seed + options.seeds)
    ]
    if whole is not None:
        if not configs[0].imbalance:
            raise OcilError("imbalance = 0 is for a dataset that is long-tailed by itself: give at least 1.")
        split = tailed.load(configs[0], options.data_dir, whole)
        check(configs[0], len(split.train_y))
        _refuse_other_images(configs, options.out, split.images)
    return configs


def _refuse_other_images(configs: "Sequence[LongTailConfig]", out: Path, images: str) -> None:
    """Raise if a finished run was trained on other images of that name."""
    from ocil.longtail.runs import finished_run, run_folder
    from ocil.results import other_images

    for config in configs:
        try:
            found = finished_run(out, config)
        except OcilError:  # said when it would be used
            continue
        if found is not None and found.images not in ("", images):
            raise OcilError(other_images(run_folder(out, config).path))


def _carry_out(variants: Sequence[str], options: Options, as_json: bool) -> int:
    from ocil.longtail.results import LongTailResult, cells
    from ocil.longtail.runs import Job, run_all, run_folder
    from ocil.runner import Interrupted, pick_device
    from ocil.threads import using

    configs = plan(variants, options)
    device = pick_device(options.device)
    on_gpu = device.type == "cuda"
    job = Job(options.out, device, options.data_dir, SAVE_SECONDS if on_gpu else 0, options.workers if on_gpu else 0)
    with using(options.threads), stop_when_asked() as stopped, Board(configs) as board:
        outcomes = run_all(configs, job, board.hear, stopped)
    failed = list(dict.fromkeys(str(outcome) for outcome in outcomes if isinstance(outcome, OcilError)))
    for message in failed:
        say_error(message)
    if any(isinstance(outcome, Interrupted) for outcome in outcomes):
        say("Stopped: the same command goes on from what was last saved.")
        raise KeyboardInterrupt
    found = cells([outcome for outcome in outcomes if isinstance(outcome, LongTailResult)])
    if as_json:
        folders = {c.config.cell: [str(run_folder(options.out, r.config).path) for r in c.results] for c in found}
        shown = [_cell_json(cell) | {"runs": folders[cell.config.cell]} for cell in found]
        print(json.dumps({"cells": shown, "failed": failed}))
    elif found:
        _print(found)
        say(f"Runs: {options.out}")
    return 0 if not failed else 1 if found else 2


def _cell_json(cell: "LongTailCell") -> dict[str, Any]:
    from ocil.longtail.metrics import MEASURES

    return {
        "cell": cell.config.cell, "variant": cell.config.variant, "dataset": cell.config.dataset,
        "imbalance": cell.config.imbalance, "open_share": cell.config.open_share, "seeds": len(cell.results),
        **{measure: numbers(cell.value(measure)) for measure in MEASURES}, "wall_seconds": cell.wall_seconds,
    }  # fmt: skip


def _print(cells: "Sequence[LongTailCell]") -> None:
    from rich.console import Console
    from rich.table import Table

    from ocil.report import longtail

    console = Console(width=None if sys.stdout.isatty() else 140, highlight=False)
    headings = list(longtail.HEADINGS.values())
    narrow = console.width < NARROW

    def show(title: str, head: list[str], rows: list[list[str]]) -> None:
        """One row a method, or on a narrow terminal one row a measure."""
        content = [head, *rows]
        if narrow:
            content = [[text.removesuffix(" (one seed)") for text in line] for line in zip(*content, strict=True)]
        shown = Table(
            *map(escaped, content[0]),
            title=plain(title),
            padding=(0, 1, 0, 0) if narrow else (0, 1),
            pad_edge=not narrow,
        )
        fold(shown)
        for line in content[1:]:
            shown.add_row(*map(plain, line))
        console.print(shown)

    for part in longtail.parts(cells):
        rows = [[row.name, str(row.seeds), *row.values, row.time] for row in part.rows]
        show(part.title, ["method", "seeds", *headings, "time / run"], rows)
        for claim in part.claims:
            console.print(f"{claim.text}: {claim.verdict} ({longtail.points(claim.difference)} points)", markup=False)
    rows = [[name, *(f"{value:.1f}" for value in values)] for name, values in longtail.PUBLISHED.items()]
    show(longtail.ELSEWHERE, ["method", *headings], rows)


class Board:
    """Hears of every run and shows it on standard error: a bar by epochs on a terminal, a line a finished run."""

    def __init__(self, configs: "Sequence[LongTailConfig]") -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        self.names = [f"{config.variant} seed {config.seed}" for config in configs]
        self.console = Console(stderr=True)
        self.bars = Progress(
            TextColumn("{task.description:<20}"),
            BarColumn(bar_width=12),
            TextColumn("epoch {task.completed}/{task.total}"),
            TextColumn("{task.fields[state]}"),
            TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            console=self.console,
        )
        self.tasks: dict[int, Any] = {}
        self.finished = 0

    def __enter__(self) -> "Board":
        if self.console.is_terminal:
            self.bars.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.console.is_terminal:
            self.bars.stop()

    def hear(self, number: int, event: Any) -> None:
        if hasattr(event, "done"):
            self.show(number, event)
            return
        self.finished += 1
        if number in self.tasks:
            self.bars.remove_task(self.tasks.pop(number))
        line = f"[{self.finished}/{len(self.names)}] {self.names[number]:<20} {_outcome(event)}"
        self.console.print(line, markup=False, highlight=False)

    def show(self, number: int, event: Any) -> None:
        if number not in self.tasks:
            self.tasks[number] = self.bars.add_task(self.names[number], total=event.total, state="")
        state = "" if event.loss is None else f"loss {event.loss:.2f}  validation {100 * event.accuracy:.1f} %"
        self.bars.update(self.tasks[number], completed=event.done, state=state)


def _outcome(event: "LongTailResult | Exception") -> str:
    if isinstance(event, Exception):
        return "stopped" if type(event).__name__ == "Interrupted" else "failed"
    return f"overall {100 * (event.measures['overall'] or 0):.1f} %   {event.wall_seconds:.1f} s"
