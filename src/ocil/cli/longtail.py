"""``ocil longtail``: open long-tailed recognition, the last table of the paper."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App, Parameter

from ocil.cli import console
from ocil.cli.execute import execute
from ocil.cli.options import DataDir, Execution, Json, Out, Settings, Whole, read_settings
from ocil.errors import OcilError

if TYPE_CHECKING:
    from ocil.longtail.results import LongTailCell

NARROW = 120  # columns; on a narrower terminal a table has one row per measure

app = App(
    name="longtail",
    version_flags=(),
    help="""Open long-tailed recognition: few images of most classes, and test images of classes never shown.

Variants: ce (stage 1 alone), bs (balanced softmax), oltr, oltr-fl (focal loss), oltr-rfl (revised focal), oltr-rfld
(its mu by class).
Quick try on a CPU: `ocil longtail run oltr-rfld --seeds 1 --set epochs1=2 epochs2=2 width=4 batch_size=64`
""",
)


@Parameter(name="*")
@dataclass(frozen=True)
class Options:
    """The settings of a long-tailed run. Everything left out has the published or default value."""

    dataset: Annotated[str | None, Parameter(alias="-d")] = None
    """A name from `ocil datasets`, a prepared .npz, or what `ocil longtail prepare` made. Default: fashion-mini."""
    imbalance: float | None = None
    """Images of the largest class for each one of the smallest. Default: 100."""
    open: float | None = None
    """Share of the classes that training never shows: the open set. Default: 0.2."""
    seeds: Annotated[Whole, Parameter(alias="-n")] = 3
    """How many seeds to run: 0, 1, 2, ..."""
    seed: Whole = 0
    """The first seed."""
    set: Settings = ()
    """Any other setting as FIELD=VALUE, for example `--set epochs2=30`. `ocil longtail settings` lists them."""
    out: Out = Path("runs")
    """Folder of the runs. A finished run in it is not run again, an unfinished one goes on from its last epoch."""
    data_dir: DataDir = None


@app.command
def run(
    variant: str, /, *, options: Options | None = None, execution: Execution | None = None, as_json: Json = False
) -> int:
    """Train one variant with several seeds and test it on known and unknown classes.

    Stage 1 is trained once per seed and shared by all variants. Stop it with Ctrl-C, or kill it: the same command goes
    on from the last finished epoch.

    Example: `ocil longtail run oltr-rfld --dataset cifar100 --imbalance 100 --open 0.2 --seeds 3`

    Parameters
    ----------
    variant
        ce, bs, oltr, oltr-fl, oltr-rfl or oltr-rfld.
    """
    return _execute([variant], options or Options(), execution or Execution(), as_json)


@app.command
def compare(
    *variants: str, options: Options | None = None, execution: Execution | None = None, as_json: Json = False
) -> int:
    """Train several variants, all six if none is named; one table next to the published rows.

    Example: `ocil longtail compare --dataset cifar100 --imbalance 100`

    Parameters
    ----------
    variants
        ce, bs, oltr, oltr-fl, oltr-rfl, oltr-rfld.
    """
    from ocil.longtail.config import VARIANTS

    chosen = list(dict.fromkeys(variants or VARIANTS))
    return _execute(chosen, options or Options(), execution or Execution(), as_json)


@app.command
def table(
    *runs: Path,
    form: Annotated[Literal["terminal", "markdown", "csv"], Parameter(name="--format")] = "terminal",
    as_json: Json = False,
) -> None:
    """Print finished long-tailed runs as one table, next to the paper's rows, which are of another dataset.

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
    from ocil.report import longtail, papers
    from ocil.report.collect import collect
    from ocil.report.table import csv, markdown

    found = collect(runs)
    if not found.longtail:
        raise OcilError(f"no finished long-tailed run under {', '.join(map(str, runs))}: ocil longtail run oltr-rfld")
    for warning in found.warnings:
        console.warning(warning)
    if as_json:
        console.print_json({"cells": [_cell_json(cell) for cell in found.longtail], "warnings": list(found.warnings)})
    elif form == "terminal":
        _print(found.longtail)
    else:
        document = longtail.document(found.longtail, papers.load())
        print(markdown(document) if form == "markdown" else csv(document.records), end="")


@app.command
def settings(*, as_json: Json = False) -> None:
    """List every setting with its default and meaning.

    Example: `ocil longtail settings`
    """
    from dataclasses import fields

    from ocil.longtail.config import LongTailConfig
    from ocil.runs.settings import meanings

    texts = meanings(LongTailConfig)
    rows: list[dict[str, Any]] = [
        {"name": f.name, "default": f.default, "meaning": texts[f.name]}
        for f in fields(LongTailConfig)
        if f.name in texts
    ]
    if as_json:
        console.print_json({"settings": rows})
        return
    console.print_table(("setting", "default", "meaning"), [tuple(map(str, row.values())) for row in rows])


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
        console.print_json({"path": str(path), "classes": len(split.classes), **summary})
    else:
        counted = ", ".join(f"{count} {part}" for part, count in summary.items())
        console.print_line(f"{name}: {len(split.classes)} classes, images: {counted}")
        console.print_line(str(path))


def _execute(variants: Sequence[str], options: Options, execution: Execution, as_json: bool) -> int:
    from ocil.cli.progress import RunBars
    from ocil.experiments.longtail import configure
    from ocil.longtail.results import LongTailResult, cells
    from ocil.longtail.runs import LongTailRun

    own = {"imbalance": options.imbalance, "open_share": options.open}
    configs = configure(
        variants,
        options.dataset,
        seeds=options.seeds,
        seed=options.seed,
        settings=read_settings(options.set, **own) | {name: value for name, value in own.items() if value is not None},
        data_dir=options.data_dir,
        root=options.out,
    )
    runs = [LongTailRun(config) for config in configs]
    job = execution.job(options.out, options.data_dir)
    outcomes, failed = execute(runs, job, RunBars(runs), execution)
    found = cells([outcome for outcome in outcomes.values() if isinstance(outcome, LongTailResult)])
    if as_json:
        folders = {run.key: str(run.folder(options.out).path) for run in runs}
        shown = [
            _cell_json(cell) | {"runs": [folders[LongTailRun(result.config).key] for result in cell.results]}
            for cell in found
        ]
        console.print_json({"cells": shown, "failed": failed})
    elif found:
        _print(found)
        console.info(f"Runs: {options.out}")
    return 0 if not failed else 1 if found else 2


def _cell_json(cell: "LongTailCell") -> dict[str, Any]:
    from ocil.evaluation.measures import estimate_json
    from ocil.longtail.metrics import MEASURES

    return {
        "cell": cell.config.cell,
        "variant": cell.config.variant,
        "dataset": cell.config.dataset,
        "imbalance": cell.config.imbalance,
        "open_share": cell.config.open_share,
        "seeds": len(cell.results),
        **{measure: estimate_json(cell.value(measure)) for measure in MEASURES},
        "wall_seconds": cell.wall_seconds,
    }


def _print(cells: "Sequence[LongTailCell]") -> None:
    from ocil.report import longtail, papers
    from ocil.report.terminal_table import literal, terminal

    screen = console.stdout(140)
    narrow = screen.width < NARROW
    document = longtail.document(cells, papers.load())
    screen.print(literal(document.caption))
    for table in document.tables:
        screen.print(terminal(table.transposed() if narrow else table, narrow))
        for text in (table.note, *table.remarks):
            if text:
                screen.print(literal(text))
