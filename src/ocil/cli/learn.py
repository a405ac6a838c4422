"""``ocil learn``, ``ocil predict`` and ``ocil export``: a model of your own images. The work is done in ocil.online."""

import json
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from ocil.cli.common import (
    FOLDER,
    Settings,
    plain,
    print_line,
    read_settings,
    refuse_seconds,
    say,
    stop_when_asked,
    whole_number,
)
from ocil.cli.data import Json
from ocil.errors import OcilError
from ocil.files import must_be_free
from ocil.text import escaped

if TYPE_CHECKING:
    import torch

    from ocil.online.feed import Feed
    from ocil.online.images import ImageFormat
    from ocil.online.model import Model, Recipe

SHOWN = 10  # broken images that are named one by one
LINE_SECONDS = 30.0
MAX_SIDE = 1024  # of an image, in pixels
MAX_BATCH = 10_000

MaybeWhole = Annotated[int | None, Parameter(converter=whole_number)]
ThreadCount = Annotated[
    int | None,
    Parameter(
        name="--threads",
        converter=whole_number,
        help="CPU threads. Default: one for a small network, else all cores but one, up to 4. Results depend on it in "
        "the last digits.",
    ),
]
ModelDir = Annotated[Path, Parameter(name="--model", help="Folder of the model."), FOLDER]


@Parameter(name="*")
@dataclass(frozen=True)
class Asked:
    """What a command says about its model. A model keeps what it was made with; the command may repeat it."""

    method: str | None = None
    """A name from `ocil methods`. Default of `ocil learn`: afs; `ocil serve` needs one to begin a model."""
    memory: Annotated[int | None, Parameter(converter=whole_number, alias="-m")] = None
    """Images kept for replay. Default: 1000."""
    batch_size: MaybeWhole = None
    """Images learned together. Default: 10."""
    width: MaybeWhole = None
    """Channels of the network's first stage. Default: 20."""
    review_every: MaybeWhole = None
    """Batches between two reviews, 0 for none. Default: 500 for methods that have reviews."""
    size: MaybeWhole = None
    """Images are resized to squares of this side. Default: 32."""
    gray: Annotated[bool, Parameter(negative=())] = False
    """Learn from gray images instead of coloured ones."""
    seed: MaybeWhole = None
    """Of all random numbers. Default: 0."""
    set: Settings = ()
    """Any other setting of the method as FIELD=VALUE, for example `--set lr=0.05`."""

    def __post_init__(self) -> None:
        for name, most in (("batch_size", MAX_BATCH), ("width", None), ("size", MAX_SIDE)):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise OcilError(f"--{name.replace('_', '-')} {value} must be at least 1.")
            if value is not None and most is not None and value > most:
                raise OcilError(f"--{name.replace('_', '-')} {value} must be at most {most:,}.")
        if self.review_every is not None and self.review_every < 0:
            raise OcilError(f"--review-every {self.review_every} must be at least 0.")

    @property
    def given(self) -> dict[str, Any]:
        """The fields of a recipe that were said."""
        names = ("method", "memory", "batch_size", "width", "review_every", "seed")
        return {name: value for name in names if (value := getattr(self, name)) is not None}

    @property
    def settings(self) -> dict[str, Any]:
        return read_settings(self.set)

    def check(self, folder: Path) -> None:
        """Find a mistake in the settings of a new model before anything is written."""
        import torch

        from ocil.memory import refuse_what_cannot_fit
        from ocil.online.feed import has_model

        if has_model(folder):
            return
        refuse_what_cannot_fit(self._recipe().config().memory, self._format().shape, [torch.device("cpu")])

    def model(self, folder: Path, place: "torch.device") -> "Model":
        """The folder's, or a new one."""
        from ocil.online.feed import has_model
        from ocil.online.model import Model
        from ocil.runner import out_of_memory

        if has_model(folder):
            found = Model.load(folder, place)
            self._refuse_other(found, folder)
            return found
        try:
            return Model(self._recipe(), self._format(), place)
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory(error):
                raise
            raise OcilError(
                "this model does not fit on the device: give a smaller --width, --size or --memory."
            ) from None

    def _format(self) -> "ImageFormat":
        from ocil.online.images import ImageFormat

        side = self.size or 32
        return ImageFormat((side, side, 1 if self.gray else 3))

    def _recipe(self) -> "Recipe":
        from ocil.online.model import Recipe

        return Recipe(**self.given, settings=self.settings)

    def _refuse_other(self, found: "Model", folder: Path) -> None:
        from ocil.methods import method

        given, settings = self.given, self.settings
        if "method" in given:
            given = given | {"method": method(given["method"]).name}
        asked = {name: (value, getattr(found.recipe, name)) for name, value in given.items()}
        if settings:
            config = replace(found.recipe, settings=settings).config()
            asked |= {name: (getattr(config, name), getattr(found.config, name)) for name in settings}
        asked["size"] = (self.size or found.images.shape[0], found.images.shape[0])
        asked["gray"] = (self.gray or found.images.shape[2] == 1, found.images.shape[2] == 1)
        for name, (wanted, has) in asked.items():
            if wanted != has:
                raise OcilError(
                    f"the model in {folder} was made with {name} = {has}, not {wanted}: leave that out, "
                    "or choose another folder with --model."
                )


def learn(
    source: Path,
    /,
    *,
    model: ModelDir,
    asked: Asked | None = None,
    shuffle: MaybeWhole = None,
    append: Annotated[bool, Parameter(negative=())] = False,
    device: str = "auto",
    threads: ThreadCount = None,
    save_seconds: float = 30.0,
    as_json: Json = False,
) -> int:
    """Learn from labelled images on disk, in the order given, each one once. New labels become new classes.

    SOURCE is a .csv with columns path and label (paths are relative to it), or a folder CLASS/IMAGE.png, read class by
    class and sorted by name. Of a folder with train/ and test/, the images of train/CLASS are learned. Each image is
    predicted before it is learned; the accuracy shown is that of these predictions. The end of the list is followed by
    a review, if the method has reviews.

    Stop it with Ctrl-C, or kill it: the same command goes on where the model was last saved. So it does when rows were
    added to the list. An image that cannot be read is named and left out.

    Example: `ocil learn photos --model birds --shuffle 0` and then `ocil predict new/*.jpg --model birds`

    Parameters
    ----------
    source
        The .csv file or folder.
    shuffle
        Learn in a random order, drawn from this seed.
    append
        The model has learned another list: learn this one too, from its beginning.
    device
        auto, cpu or cuda.
    save_seconds
        Time between two saves.
    """
    from ocil.online.feed import Feed, has_model, must_be_readable, read_list
    from ocil.online.model import locked
    from ocil.runner import pick_device
    from ocil.threads import check_threads

    check_threads(threads)
    asked = asked or Asked()
    refuse_seconds("save-seconds", save_seconds, zero=True)
    asked.check(model)
    samples = read_list(source, shuffle)
    place = pick_device(device)
    if not has_model(model):  # whatever can go wrong with a new one does so before its folder is made
        must_be_readable(samples, asked.model(model, place).images)
    with locked(model):
        found = asked.model(model, place)
        found.threads = threads
        feed = Feed(found, samples, append)
        before, started = feed.scored, time.monotonic()
        with stop_when_asked() as stopped, _shown(feed, model.name) as show:
            finished = feed.run(model, save_seconds, show, stopped)
    content = {
        "model": str(model),
        "method": found.recipe.method,
        "learned": feed.scored - before,
        "samples": found.samples,
        "classes": len(found.labels),
        "accuracy": feed.accuracy,
        "position": feed.position,
        "of": len(samples),
        "skipped": feed.skipped,
        "seconds": round(time.monotonic() - started, 3),
    }
    if as_json:
        print(json.dumps(content))
    else:
        print_line(f"{model}: {found.recipe.method}, {content['learned']} images learned now, {_state(feed)}")
    if not finished:
        say("Stopped. What was learned is saved; the same command goes on from there.")
        raise KeyboardInterrupt
    return 1 if feed.problems else 0


def predict(
    *images: Path,
    model: ModelDir,
    top: Annotated[int, Parameter(converter=whole_number)] = 3,
    device: str = "auto",
    threads: ThreadCount = None,
    as_json: Annotated[bool, Parameter(name="--json", negative=())] = False,
) -> int:
    """Classify images with a model made by `ocil learn` or by `OnlineClassifier.save`.

    An image that cannot be read is named, the others are classified; the exit code is then 1.

    Example: `ocil predict new/*.jpg --model birds`

    Parameters
    ----------
    images
        Files, or folders of them.
    top
        Classes shown for each image.
    device
        auto, cpu or cuda.
    as_json
        Print one JSON object a line and image.
    """
    if not images:
        raise OcilError("name the images to classify, for example: ocil predict new/*.jpg --model birds")
    if top < 1:
        raise OcilError(f"--top {top} must be at least 1.")
    from ocil.online.model import Model
    from ocil.threads import check_threads

    check_threads(threads)
    loaded = Model.load(model, device)
    loaded.threads = threads
    if not loaded.labels:
        raise OcilError(f"the model in {model} has learned nothing yet.")
    failed = 0
    rows: list[dict[str, Any]] = []
    for row in _predictions(loaded, _files(images), top):
        failed += "error" in row
        if as_json:
            print(json.dumps(row), flush=True)
        elif "error" in row:
            say(f"ocil: {row['error']}")
        else:
            rows.append(row)
    if rows:
        _print_predictions(rows)
    return 1 if failed else 0


def export(
    *,
    model: ModelDir,
    out: Annotated[Path, Parameter(alias="-o")],
    threads: ThreadCount = None,
    as_json: Json = False,
) -> None:
    """Write a model as one file for serving elsewhere: ONNX, or a program of `torch.export`.

    Input `images`: uint8 [N, height, width, channels], any N. Output `probabilities`: float32 [N, classes]. The labels
    of the columns are in the file too, as JSON.

    Example: `ocil export --model birds --out birds.onnx`

    Parameters
    ----------
    out
        A name that ends in .onnx (needs the extra `onnx`) or .pt2.
    """
    if out.suffix not in (".onnx", ".pt2"):
        raise OcilError(f"{out}: the name must end in .onnx or .pt2.")
    must_be_free(out)
    from ocil.online.export import export as write
    from ocil.online.model import Model, encoded
    from ocil.threads import check_threads

    check_threads(threads)
    loaded = Model.load(model, "cpu")
    loaded.threads = threads
    with loaded.computing():
        write(loaded, out)
    shape, labels = loaded.images.shape, [encoded(label) for label in loaded.labels]
    if as_json:
        print(json.dumps({"path": str(out), "image_shape": shape, "labels": labels}))
    else:
        size = "x".join(map(str, shape))
        print_line(f"{out}: uint8 images [N, {size.replace('x', ', ')}] to the probabilities of {len(labels)} classes")


def _state(feed: "Feed") -> str:
    accuracy = "" if feed.accuracy is None else f", accuracy before learning {100 * feed.accuracy:.1f} %"
    skipped = f", {feed.skipped} left out" if feed.skipped else ""
    return f"{feed.model.samples} in all, {len(feed.model.labels)} classes{accuracy}{skipped}"


@contextmanager
def _shown(feed: "Feed", name: str) -> Iterator[Any]:
    """A bar on a terminal, a line now and then elsewhere, both on standard error; broken images by name."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=12), MofNCompleteColumn())
    state = TextColumn("{task.fields[state]}")
    bar = Progress(*columns, state, TimeRemainingColumn(compact=True), console=console, transient=True)
    task = bar.add_task(escaped(name), total=len(feed.samples), completed=feed.position, state="")
    told, line = 0, time.monotonic()

    def show(feed: "Feed") -> None:
        nonlocal told, line
        for problem in feed.problems[told:]:
            told += 1
            if told <= SHOWN:
                console.print(plain(f"left out: {problem}"), highlight=False, soft_wrap=True)
        if console.is_terminal:
            accuracy = "" if feed.accuracy is None else f"acc {100 * feed.accuracy:.1f} %"
            bar.update(task, completed=feed.position, state=f"{len(feed.model.labels)} classes  {accuracy}")
        elif time.monotonic() - line >= LINE_SECONDS:
            line = time.monotonic()
            say(f"{feed.position}/{len(feed.samples)}: {_state(feed)}")

    if console.is_terminal:
        bar.start()
    try:
        yield show
    finally:
        bar.stop()
        if told > SHOWN:
            say(f"left out: {told - SHOWN} more")


def _files(images: Sequence[Path]) -> list[Path]:
    """Folders stand for the images in them, sorted."""
    from ocil.data.images import SUFFIXES

    found: list[Path] = []
    for path in images:
        inside = sorted(p for p in path.rglob("*") if p.suffix.lower() in SUFFIXES) if path.is_dir() else [path]
        if not inside:
            raise OcilError(f"there are no images in {path}.")
        found += inside
    return found


def _predictions(model: "Model", paths: Sequence[Path], top: int) -> Iterator[dict[str, Any]]:
    """One row an image, in order; read and classified some at a time."""
    import numpy as np

    from ocil.online.images import InputError
    from ocil.online.model import CHUNK, encoded

    for first in range(0, len(paths), CHUNK):
        read: list[Any] = []
        for path in paths[first : first + CHUNK]:
            try:
                read.append(model.images.read([path])[0])
            except InputError as error:
                read.append(error)
        whole = [image for image in read if not isinstance(image, InputError)]
        found = iter(list(model.probabilities(np.stack(whole))) if whole else [])
        for path, image in zip(paths[first : first + CHUNK], read, strict=True):
            if isinstance(image, InputError):
                yield {"path": str(path), "error": str(image)}
                continue
            p = next(found)
            best = [
                {"label": encoded(model.labels[n]), "probability": round(float(p[n]), 6)}
                for n in np.argsort(-p, kind="stable")[:top]
            ]
            yield {"path": str(path)} | best[0] | {"top": best}


def _print_predictions(rows: Sequence[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("image", "class", "%", "then", box=None, padding=(0, 2, 0, 0))
    for row in rows:
        then = ", ".join(f"{one['label']} {100 * one['probability']:.1f}" for one in row["top"][1:])
        table.add_row(plain(row["path"]), plain(str(row["label"])), f"{100 * row['probability']:.1f}", plain(then))
    Console(width=None if sys.stdout.isatty() else 120).print(table)
