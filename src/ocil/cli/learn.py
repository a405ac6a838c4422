"""``ocil learn``: a model of your own images or vectors. The work is done in ocil.online."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from ocil.cli import console
from ocil.cli.execute import STOPPED, stop_when_asked
from ocil.cli.options import FLAG, WORDS, Json, MaybeWhole, ModelDir, ModelOptions, Threads, check_seconds
from ocil.text import escaped

if TYPE_CHECKING:
    from ocil.online.feed import Feed

SHOWN = 10  # samples left out that are named one by one
LINE_SECONDS = 30.0


def learn(
    source: Path,
    /,
    *,
    model: ModelDir,
    options: ModelOptions | None = None,
    x: Annotated[tuple[str, ...], WORDS] = (),
    y: str = "",
    labels: Path | None = None,
    shuffle: MaybeWhole = None,
    append: Annotated[bool, FLAG] = False,
    device: str = "auto",
    threads: Threads = None,
    save_seconds: float = 30.0,
    as_json: Json = False,
) -> int:
    """Learn from labelled images or vectors on disk, in the order given, each one once. New labels become new classes.

    Images: SOURCE is a .csv with columns path and label (paths are relative to it), or a folder CLASS/IMAGE.png, read
    class by class and sorted by name. Of a folder with train/ and test/, the images of train/CLASS are learned.

    Vectors, such as embeddings: SOURCE is a .npy with rows of numbers and `--labels`, an .npz with arrays x and y, a
    .parquet (extra `parquet`) with a column of lists, or one column per number, and a column label, or a .csv with one
    column per number and a column label. All but a .csv are read in parts. NaN is refused.

    Each sample is predicted before it is learned; the accuracy shown is that of these predictions. At the end of the
    list comes a review, a pass over the memory, if the method has reviews, or a task end if it needs these.

    Stop it with Ctrl-C, or kill it: the same command goes on where the model was last saved. It also goes on there
    after rows were added to the list. An image that cannot be read is named and left out.

    Example: `ocil learn photos --model birds --shuffle 0` and then `ocil predict new/*.jpg --model birds`

    Example: `ocil learn embeddings.npy --labels labels.npy --model texts --method er`

    Parameters
    ----------
    source
        The folder, .csv, .npy, .npz or .parquet file.
    x
        The array of an .npz, or the columns of a .parquet or .csv (`'f*'` is all that begin with f). Default: x; of a
        .parquet the one column of lists, else all columns but the label.
    y
        The array or column of the labels. Default: y; of a .parquet or .csv label, else y.
    labels
        A file of labels for the rows: a .npy, or a .txt with one per line.
    shuffle
        Learn in a random order, drawn from this seed.
    append
        The model has learned another list: learn this one too, from its beginning.
    device
        auto, cpu, cuda or mps.
    save_seconds
        Seconds between two saves.
    """
    check_seconds("save-seconds", save_seconds, zero=True)
    from ocil.devices import pick_device
    from ocil.methods.recorded_losses import warning_of_no_loss
    from ocil.online.arrays import Names
    from ocil.online.feed import Feed
    from ocil.online.model import has_model, locked
    from ocil.online.sources import class_after_class, left_out_of, open_source

    request, new = (options or ModelOptions()).request, not has_model(model)
    samples = open_source(source, Names(x, y, labels), shuffle)
    if left_out := left_out_of(source):
        console.info(f"left out: {left_out}")
    request = request.of(samples)
    request.check(model)
    chosen_device = pick_device(device)
    if new:  # a mistake is reported before the folder of a new model is made
        samples.check(request.open(model, chosen_device).input_format)
    with locked(model):
        found = request.open(model, chosen_device)
        found.threads = threads
        if not new:
            samples.check(found.input_format, new=False)
            console.info(f"{model} goes on: {found.recipe.method}, {found.samples} samples so far.")
        feed = Feed(found, samples, append)
        if shuffle is None and feed.position == 0 and class_after_class(samples.labels):
            console.info(
                f"{source} comes class after class, which is the hardest order to learn: --shuffle 0 mixes it."
            )
        before, started = feed.scored, time.monotonic()
        with stop_when_asked() as stopped, _progress(feed, model.name) as show:
            finished = feed.run(model, save_seconds, show, stopped)
        if feed.scored > before and (warning := warning_of_no_loss(found.learner)):
            console.warning(warning)
    learned, seconds = feed.scored - before, time.monotonic() - started
    if as_json:
        console.print_json(_result(feed, model, learned, seconds))
    else:
        from ocil.report.formatting import count

        console.print_line(f"{model}: {found.recipe.method}, {count(learned, 'sample')} learned now, {_state(feed)}")
    if not finished:
        console.info(STOPPED)
        raise KeyboardInterrupt
    return 1 if feed.problems else 0


def _result(feed: "Feed", folder: Path, learned: int, seconds: float) -> dict[str, Any]:
    return {
        "model": str(folder),
        "method": feed.model.recipe.method,
        "learned": learned,
        "samples": feed.model.samples,
        "classes": len(feed.model.labels),
        "accuracy": feed.accuracy,
        "position": feed.position,
        "of": len(feed.source),
        "skipped": feed.skipped,
        "seconds": round(seconds, 3),
    }


def _state(feed: "Feed") -> str:
    accuracy = "" if feed.accuracy is None else f", accuracy before learning {100 * feed.accuracy:.1f} %"
    skipped = f", {feed.skipped} left out" if feed.skipped else ""
    classes = "1 class" if len(feed.model.labels) == 1 else f"{len(feed.model.labels)} classes"
    return f"{feed.model.samples} in all, {classes}{accuracy}{skipped}"


@contextmanager
def _progress(feed: "Feed", name: str) -> "Iterator[Callable[[Feed], None]]":
    """Shows progress on standard error: a bar on a terminal, else a line now and then. Names broken images."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

    from ocil.report.terminal_table import literal

    columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=12), MofNCompleteColumn())
    state = TextColumn("{task.fields[state]}")
    bar = console.bars(*columns, state, TimeRemainingColumn(compact=True))
    screen = bar.console
    task = bar.add_task(escaped(name), total=len(feed.source), completed=feed.position, state="")
    named, line = 0, time.monotonic()

    def show(feed: "Feed") -> None:
        nonlocal named, line
        for problem in feed.problems[named:]:
            named += 1
            if named <= SHOWN:
                screen.print(literal(f"left out: {problem}"), highlight=False, soft_wrap=True)
        if screen.is_terminal:
            accuracy = "" if feed.accuracy is None else f"acc {100 * feed.accuracy:.1f} %"
            bar.update(task, completed=feed.position, state=f"{len(feed.model.labels)} classes  {accuracy}")
        elif time.monotonic() - line >= LINE_SECONDS:
            line = time.monotonic()
            console.info(f"{feed.position}/{len(feed.source)}: {_state(feed)}")

    bar.start()
    try:
        yield show
    finally:
        bar.stop()
        if named > SHOWN:
            console.info(f"left out: {named - SHOWN} more")
