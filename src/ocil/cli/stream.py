"""``ocil stream``: the kinds of streams, and what arrives when in one of them. Nothing is learned."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Parameter
from rich.cells import cell_len, set_cell_size

from ocil.cli import console
from ocil.cli.options import DataDir, Json, Settings, Whole, check_picture, read_settings
from ocil.errors import OcilError

if TYPE_CHECKING:
    from ocil.streams import Stream
    from ocil.streams.timeline import Timeline

SHADES = " ░▒▓█"
SPANS, MOST_ROWS = 60, 40

app = App(
    name="stream",
    version_flags=(),
    help="""Streams: what arrives when, before anything is learned.

`ocil stream kinds` lists the kinds; each is a value of the setting `boundary` of `ocil run`. `ocil stream show` prints
and draws a stream with the same settings.
""",
)


@app.command
def kinds(*, as_json: Json = False) -> None:
    """List the kinds of streams with their settings.

    Example: `ocil stream kinds`
    """
    from ocil.streams import KINDS, StreamConfig

    rows = [
        (name, kind.summary, ", ".join(kind.settings), kind.paper, StreamConfig(boundary=name).announces_tasks)
        for name, kind in KINDS.items()
    ]
    if as_json:
        names = ("boundary", "summary", "settings", "paper", "announces_tasks")
        console.print_json({"kinds": [dict(zip(names, row, strict=True)) for row in rows]})
        return
    told = [(*row[:4], "announced" if row[4] else "hidden") for row in rows]
    console.print_table(("boundary", "what arrives", "settings", "paper", "task ends"), told)


@app.command
def show(
    kind: str | None = None,
    /,
    *,
    dataset: Annotated[str | None, Parameter(alias="-d")] = None,
    seed: Whole = 0,
    settings: Settings = (),
    figure: Path | None = None,
    save_order: Path | None = None,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Print what arrives when in a stream: tasks, classes, and a map of time. Nothing is learned.

    The settings are those of `ocil run`, so what is shown is what a run with them will see.

    Examples:

    * `ocil stream show` shows the default, two kinds of clothing at a time.
    * `ocil stream show i-blurry --set disjoint_share=0.5 blurry_share=0.1` shows i-Blurry-50-10.
    * `ocil stream show none --set fade=1 --figure fading.svg` draws it too.
    * `ocil stream show --set task_sizes=4,2,2,2 class_order=seeded --seed 3`
    * `ocil stream show --dataset cifar100:noise --set scenario=domain` shows ten domains, each with more noise.
    * `ocil stream show --dataset cifar10+cifar100` shows one dataset after the other.

    Parameters
    ----------
    kind
        A name from `ocil stream kinds`, in place of `--set boundary=KIND`.
    dataset
        A name from `ocil datasets`, or a prepared .npz. Default: the embedded fashion-mini.
    seed
        The seed of the run.
    settings
        Settings of the stream as FIELD=VALUE; docs/streams.md explains them.
    figure
        Where a picture goes: .png, .svg, or .pdf for LaTeX.
    save_order
        Where the order goes, an .npz file that `--set order=FILE` replays.
    """
    if figure is not None:
        check_picture(figure)
    if save_order is not None and save_order.suffix.lower() != ".npz":
        raise OcilError(f"--save-order {save_order}: the name must end in .npz.")
    given = read_settings(settings, boundary=kind) | ({} if kind is None else {"boundary": kind})
    from ocil.experiments.streams import stream_of
    from ocil.streams.timeline import timeline

    stream = stream_of(dataset, given, seed, data_dir)
    found = timeline(stream, SPANS)
    if figure is not None:
        from ocil.report.stream_figure import arrivals
        from ocil.report.style import save

        if boxes := save(arrivals(found, f"{stream.config.boundary}, {stream.data.name}, seed {seed}"), figure):
            console.warning(boxes)
    if save_order is not None:
        stream.save_order(save_order)
    if as_json:
        console.print_json(_facts(stream, found) | found.to_json())
        return
    _print(stream, found)
    for what, path in (("Picture", figure), ("Order", save_order)):
        if path is not None:
            console.info(f"{what}: {path}")


def _facts(stream: "Stream", found: "Timeline") -> dict[str, Any]:
    sizes = sorted({last - first for first, last in stream.bounds})
    return {
        "boundary": stream.config.boundary,
        "scenario": stream.arrivals.scenario,
        "dataset": stream.data.name,
        "samples": found.ends[-1],
        "dropped": stream.arrivals.dropped,
        "batches": len(stream),
        "batch_sizes": sizes,
        "fingerprint": stream.fingerprint,
    }


def _print(stream: "Stream", found: "Timeline") -> None:
    from ocil.streams import KINDS

    facts = _facts(stream, found)
    what = "domains" if facts["scenario"] == "domain" else "classes"
    ends = "task ends are announced" if found.announced else "no task ends are announced"
    console.print_line(f"{facts['boundary']}: {KINDS[stream.config.boundary].summary}; {ends}.")
    batches = f"{facts['batches']} {'batch' if facts['batches'] == 1 else 'batches'} of {_sizes(facts['batch_sizes'])}"
    console.print_line(f"{facts['dataset']}: {facts['samples']} samples of {len(found.names)} {what} in {batches}.")
    if facts["dropped"]:
        console.print_line(
            f"{facts['dropped']} more never arrive: an incomplete last batch is dropped, unless drop_last=false."
        )
    if found.wrong_labels:
        console.print_line(f"{found.wrong_labels} of them have a wrong label.")
    console.print_line("")
    if facts["boundary"] != "iid":
        console.print_table(("task", f"new {what}", "samples", "of them new", "of earlier", "of later"), _rows(found))
    for line in _map(found):
        console.print_line(line)


def _sizes(sizes: list[int]) -> str:
    """The sizes of batches in words: one, two, or from the smallest to the largest."""
    return f"{sizes[0]} to {sizes[-1]}" if len(sizes) > 2 else " or ".join(map(str, sizes))


def _rows(found: "Timeline") -> list[tuple[str, ...]]:
    """Per task: its new classes, and how many of its samples are of these, of earlier and of later tasks."""
    rows, first = [], 0
    for number, (size, counts) in enumerate(zip(found.group_sizes, found.by_task, strict=True), 1):
        last = first + size
        names = ", ".join(found.names[first : min(last, first + 4)]) + (", ..." if size > 4 else "")
        parts = counts.sum(), counts[first:last].sum(), counts[:first].sum(), counts[last:].sum()
        rows.append((str(number), f"{size}: {names}", *map(str, parts)))
        first = last
    return rows


def _map(found: "Timeline") -> list[str]:
    """Rows of shades, time from left to right; classes that are too many for a terminal share a row."""
    together = -(-len(found.names) // MOST_ROWS)
    starts = range(0, len(found.names), together)
    counts = [found.counts[first : first + together].sum(0) for first in starts]
    names = [found.names[first] + ("" if together == 1 else ", ...") for first in starts]
    most, width = max(row.max() for row in counts), min(24, max(map(cell_len, names)))
    lines = ["what arrives when: the denser, the more samples", ""]
    for name, row in zip(names, counts, strict=True):
        # The thinnest shade is for a single sample, the densest for the most in one span.
        shades = "".join(SHADES[0 if not n else max(1, round(4 * n / most))] for n in row.tolist())
        shown = set_cell_size(name, min(width, cell_len(name)))
        lines.append(f"{' ' * (width - cell_len(shown))}{shown} {shades}")
    marks = [" "] * len(found.ends)
    for point in found.points:
        marks[min(range(len(found.ends)), key=lambda span: abs(found.ends[span] - point))] = "|"
    lines.append(f"{'evaluated':>{width}} {''.join(marks)}")
    return lines
