"""``ocil data``: list, import, download and check datasets. The work is done in ocil.data."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import App

from ocil.cli import console
from ocil.cli.names import DATASET
from ocil.cli.options import FLAG, DataDir, Json, MaybeWhole

if TYPE_CHECKING:
    from ocil.data import ListedDataset

app = App(
    name="data",
    version_flags=(),
    help="""Datasets: list, import, download and check them.

To begin, nothing is needed: fashion-mini comes with ocil. For the benchmarks of the literature try
`ocil data download cifar100`, for your own images `ocil data import my-birds PATH`.
""",
)


@app.command(name="list")
def list_datasets(*, data_dir: DataDir = None, as_json: Json = False) -> None:
    """Show every dataset, whether it is ready, and how to get it if not.

    Example: `ocil data list`
    """
    from ocil.data import available
    from ocil.data.lookup import in_former_folder
    from ocil.data.places import data_dir as folder_of

    entries = available(data_dir)
    folder = str(folder_of(data_dir))
    if as_json:
        console.print_json({"data_dir": folder, "datasets": [_entry_json(entry) for entry in entries]})
    else:
        _print_table(entries, f"Datasets in {folder}")
        if (former := in_former_folder(entries, data_dir)) is not None:
            console.print_line(f"note: {former}")


@app.command(name="import")
def import_(
    name: str,
    source: Path,
    *,
    data_dir: DataDir = None,
    size: MaybeWhole = None,
    test_share: float | None = None,
    random_split: MaybeWhole = None,
    strict: Annotated[bool, FLAG] = False,
    form: Literal["auto", "npz", "folder"] = "auto",
    as_json: Json = False,
) -> None:
    """Import a dataset from files you have.

    SOURCE is one of:

    * an image folder, SOURCE/CLASS/IMAGE.png or .jpg. A sixth of each class is held out to test with, always the same
      images. With a split of your own: SOURCE/train/CLASS/ and SOURCE/test/CLASS/ (or val).
    * an image folder as it is published: Tiny-ImageNet, CUB-200.
    * a label file, SOURCE.csv, with the columns path and label, and split if you have one.
    * vectors, SOURCE.csv, with one column per number and a column label.
    * an .npz file with train_x and train_y, or x and y, and, if you have them, test_x, test_y and classes.
    * a folder with train_x.npy, train_y.npy and, if you have them, test_x.npy, test_y.npy and classes.txt. Arrays are
      images or vectors.
    * for cifar10 and cifar100: the published `*-python.tar.gz` or its unpacked folder.
    * for mini_imagenet: the folder with the three `mini-imagenet-cache-*.pkl`, or with train.csv, val.csv, test.csv and
      images/. A prepared .npz keeps its split; the protocol's is random, `--random-split 0`.

    Example: `ocil data import my-birds photos/birds --size 64`

    Parameters
    ----------
    name:
        The name to use it by: small letters, digits, - and _.
    source:
        The archive, folder, label file or .npz file.
    size:
        Resize the images of a folder to squares of this side.
    test_share:
        Share of each class that is held out to test with where there are no test images. Default: a sixth.
    random_split:
        A seed: the training and test samples of a prepared .npz are joined and split again at random, with as many test
        samples of each class as before.
    strict:
        Refuse a folder with images that cannot be read, instead of leaving them out.
    form:
        npz: one file. folder: raw arrays that are not loaded as a whole. auto: a folder if images take more than 1 GiB.
    """
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

    from ocil.data.importers import import_dataset

    notes: list[str] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with console.bars(*columns) as bar:
        task = bar.add_task(name, total=None)
        path = import_dataset(
            name,
            source,
            data_dir,
            size,
            test_share=test_share,
            random_split=random_split,
            strict=strict,
            form=form,
            note=notes.append,
            progress=lambda done, total: bar.update(task, completed=done, total=total),
        )
    _print_stored(path, notes, as_json)


@app.command
def download(
    name: Annotated[str, DATASET], *, data_dir: DataDir = None, url: str | None = None, as_json: Json = False
) -> None:
    """Fetch a published dataset, check its md5 sum and prepare it.

    A download that was interrupted goes on where it stopped: run the same command again.

    Example: `ocil data download cifar100`

    Parameters
    ----------
    name:
        cifar10 or cifar100.
    url:
        Another address of the same file, in place of the known ones; its md5 sum is checked as well.
    """
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    from ocil.data import CATALOG
    from ocil.data.catalog import find
    from ocil.data.download import addresses_of
    from ocil.data.download import download as fetch_dataset
    from ocil.errors import OcilError, suggest

    info = find(name)
    if info is None:
        known = [entry.name for entry in CATALOG.values() if entry.urls]
        raise OcilError(f"there is no dataset '{name}' to download.{suggest(name, known)}")
    addresses_of(info, url)  # what is refused is refused without a bar
    name_column, state = TextColumn("{task.description}"), (DownloadColumn(), TransferSpeedColumn())
    with console.bars(name_column, BarColumn(), *state, TimeRemainingColumn(), transient=False) as bar:
        task = bar.add_task(info.name, total=None)
        path = fetch_dataset(info, data_dir, lambda done, total: bar.update(task, completed=done, total=total), url=url)
    _print_stored(path, [], as_json)


@app.command
def check(name: Annotated[str, DATASET], *, data_dir: DataDir = None, as_json: Json = False) -> None:
    """Read a dataset in full and compare it with what its name stands for.

    Example: `ocil data check cifar100`

    Parameters
    ----------
    name:
        The name of a dataset, or the path of an .npz file or of the folder of a large dataset.
    """
    from dataclasses import asdict

    from ocil.data.check import check as check_dataset
    from ocil.data.dataset import shape_text
    from ocil.errors import OcilError

    report = check_dataset(name, data_dir)
    if as_json:
        console.print_json(asdict(report) | {"ok": report.ok})
    if not report.ok:
        raise OcilError(f"{report.name} is not what it should be: {'; '.join(report.problems)}. Get it again.")
    if not as_json:
        images = "the published images" if report.known_md5 else "well formed"
        console.print_line(
            f"{report.name}: ok, {images}; {report.classes} classes, {shape_text(report.image_shape)}, "
            f"{report.train} train, {report.test} test"
        )


@app.command
def features(
    name: str,
    network: str,
    *,
    pretrained: str = "",
    device: str = "auto",
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Turn all images of a dataset into vectors, and keep them for runs with `--set features=NETWORK`.

    A run computes them itself if they are missing. If the command is stopped, the same command goes on.

    Example: `ocil data features cifar100 timm:tf_efficientnet_lite0 --pretrained efficientnet-lite0.pth`

    Parameters
    ----------
    name:
        The name of a dataset of images, or the path of an .npz file.
    network:
        A network as the setting `network` names it, for example timm:tf_efficientnet_lite0.
    pretrained:
        Its weights: a .safetensors or .pth file, or `own` for those that timm offers.
    device:
        cpu, cuda, cuda:1, ...; auto takes a GPU if there is one.
    """
    import time

    from ocil.cli.execute import STOPPED, stop_when_asked
    from ocil.cli.features import features_of
    from ocil.data import load
    from ocil.devices import pick_device
    from ocil.runs.features import Encoder, missing
    from ocil.runs.protocol import Interrupted

    dataset, encoder = load(name, data_dir), Encoder(network, pretrained)
    folder, computed = encoder.folder(dataset, data_dir), missing(dataset, encoder, data_dir)
    started = time.monotonic()
    with stop_when_asked() as stopped:
        try:
            found = features_of(dataset, encoder, data_dir, str(pick_device(device)), stopped)
        except Interrupted:
            console.info(STOPPED)
            raise KeyboardInterrupt from None
    seconds, (length,) = time.monotonic() - started, found.input_shape
    if as_json:
        content = {"path": str(folder), "length": length, "computed": computed, "seconds": round(seconds, 3)}
        console.print_json({"name": dataset.name, "network": network, **content})
        return
    console.print_line(f"{dataset.name}: vectors of {length} by {network}, in {folder}")
    if computed:
        console.print_line(f"{computed} images in {seconds:.0f} s, {1000 * seconds / computed:.1f} ms per image")


def _print_stored(path: Path, notes: list[str], as_json: bool) -> None:
    from ocil.data.dataset import shape_text
    from ocil.data.lookup import peek

    classes, image_shape, train, test = peek(path)
    if as_json:
        sizes = {"classes": classes, "image_shape": image_shape, "train": train, "test": test}
        console.print_json({"name": path.stem, "path": str(path), **sizes, "notes": notes})
        return
    for note in notes:
        console.print_line(f"note: {note}")
    console.print_line(
        f"{path.stem}: {classes} classes, {shape_text(image_shape)}, {train} train, {test} test, in {path}"
    )


def _entry_json(entry: "ListedDataset") -> dict[str, Any]:
    from dataclasses import asdict

    return asdict(entry) | {"path": str(entry.path) if entry.path else None}


def _print_table(entries: "list[ListedDataset]", title: str) -> None:
    from ocil.data.dataset import shape_text

    rows = [
        (
            entry.name,
            _or_dash(entry.classes),
            shape_text(entry.image_shape) if entry.image_shape else "-",
            _or_dash(entry.tasks),
            f"{_or_dash(entry.train)}/{_or_dash(entry.test)}",
            entry.state,
            entry.how,
        )
        for entry in entries
    ]
    columns = ("name", "classes", "image", "tasks", "train/test", "state", "how to get it")
    console.print_table(columns, rows, title, lines="none", wrap="last")


def _or_dash(number: int | None) -> str:
    return "-" if number is None else str(number)
