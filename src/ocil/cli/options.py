"""Options that several commands have: types of single options, and groups of them as dataclasses."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter, Token

from ocil.cli.names import DATASET, DEVICE, METHOD, TRACKER
from ocil.engines.names import Engine
from ocil.errors import OcilError
from ocil.files import PICTURES, first_existing
from ocil.limits import MAX_SIDE, MAX_THREADS, check_threads

if TYPE_CHECKING:
    from ocil.engines.job import Job
    from ocil.online.folder import ModelRequest

LONGEST_SECONDS = 86_400.0
OPTIONS_ALONE = {"config", "data_dir", "dataset", "device", "out", "seed", "seeds", "threads", "workers"}
"""Options of a run that are no settings, so that --set does not take them."""
MAX_BATCH = 10_000


def whole_number(_: Any, tokens: Sequence[Token]) -> int:
    """Reads a whole number. Cyclopts alone would round 2.5 to 2."""
    try:
        return int(tokens[0].value)
    except ValueError:
        raise ValueError(f"'{tokens[0].value}' is not a whole number.") from None


def number_of_seeds(kind: Any, tokens: Sequence[Token]) -> int:
    """Reads how many seeds to run. Other commands take ranges, so one may be given here too."""
    found = re.fullmatch(r"(\d{1,9})-(\d{1,9})", tokens[0].value.strip())
    if found is None or int(found[1]) > int(found[2]):
        return whole_number(kind, tokens)
    low, count = int(found[1]), int(found[2]) - int(found[1]) + 1
    first = f" The first is that of --seed {low}, or first_seed in the file of a sweep." if low else ""
    raise ValueError(f"'{found[0]}' is a range. Give how many seeds to run: --seeds {count}.{first}")


def _usable_folder(_: Any, place: Path | None) -> None:
    if place is not None:
        nearest_folder(place)


def _usable_threads(_: Any, threads: int | None) -> None:
    check_threads(threads)


WHOLE = Parameter(converter=whole_number)
Whole = Annotated[int, WHOLE]
MaybeWhole = Annotated[int | None, WHOLE]
Seeds = Annotated[int | None, Parameter(converter=number_of_seeds, alias="-n")]
MemorySize = Annotated[int | None, WHOLE, Parameter(alias="-m")]
FOLDER = Parameter(validator=_usable_folder)
"""For an option that names a folder, there or not. What cannot be a folder is refused before anything else is done."""
Out = Annotated[Path, Parameter(alias="-o"), FOLDER]
WORDS = Parameter(consume_multiple=1, negative=(), show_default=False)
"""For an option that takes one or more words."""
FLAG = Parameter(negative=(), show_default=False)
"""For an option that is either given or not, and has no --no-NAME."""
Settings = Annotated[tuple[str, ...], Parameter(name="--set", alias="-s"), WORDS]
DataDir = Annotated[
    Path | None, Parameter(help="Folder of the datasets. Default: $OCIL_DATA, else the user's data folder."), FOLDER
]
Json = Annotated[bool, Parameter(name="--json", help="Print one JSON object and nothing else."), FLAG]
ModelDir = Annotated[Path, Parameter(name="--model", help="Folder of the model."), FOLDER]
Trust = Annotated[
    bool,
    Parameter(help="The model file may name Python code as its network (`module:...`), and that code is run."),
    FLAG,
]
Threads = Annotated[
    int | None,
    Parameter(
        name="--threads",
        converter=whole_number,
        validator=_usable_threads,
        help="CPU threads. Default: one for a small network, else all cores but one, up to 4. Results depend on it in "
        "the last digits.",
    ),
]


@Parameter(name="*")
@dataclass(frozen=True)
class Execution:
    """Where runs are run, and where their progress is logged."""

    device: Annotated[str, DEVICE] = "auto"
    """auto, cpu, cuda or mps."""
    workers: Annotated[Whole, Parameter(show_default=False)] = 0
    """Runs side by side. Default: as many as keep the cores busy on a CPU; on a GPU ten, of long tails six."""
    threads: Whole = 1
    """CPU threads of each run. One is best for many seeds; results depend on it in the last digits."""
    engine: Engine = "local"
    """local: this machine. ray: the nodes of a Ray cluster, which must share the folder of the runs."""
    address: str | None = None
    """HOST:PORT of the Ray cluster. Default: the one this machine belongs to."""
    gpu_share: float = 1.0
    """With `--engine ray`: how much of a GPU a worker takes. Below 1, several workers share it."""
    track: Annotated[tuple[str, ...], WORDS, TRACKER] = ()
    """Log loss and accuracy as runs go on: tensorboard, wandb, mlflow or trackio, each an extra to install. NAME=WHERE
    also names a folder (tensorboard), project or experiment. See docs/scale.md."""
    tensorboard: Annotated[Path | None, FOLDER] = None
    """Folder for TensorBoard: short for `--track tensorboard=FOLDER`."""

    def __post_init__(self) -> None:
        check_number("workers", self.workers, 0, MAX_THREADS)
        check_number("threads", self.threads, 1, MAX_THREADS)
        if not 0 < self.gpu_share <= 1:
            raise OcilError(f"--gpu-share {self.gpu_share:g} must be more than 0 and at most 1.")
        if self.address is not None and self.engine != "ray":
            raise OcilError("--address is for a Ray cluster: add --engine ray.")
        if self.gpu_share != 1 and self.engine != "ray":
            raise OcilError("--gpu-share is for a Ray cluster: add --engine ray.")

    @property
    def trackers(self) -> tuple[str, ...]:
        """All trackers that were asked for, as ``ocil.runs.trackers.tracking`` takes them."""
        return (*self.track, *(() if self.tensorboard is None else (f"tensorboard={self.tensorboard}",)))

    def job(self, out: Path, data_dir: Path | None) -> "Job":
        from ocil.devices import pick_device
        from ocil.engines.job import Job

        # The device is looked up on this machine, but not for a cluster, whose head may have no GPU.
        device = self.device if self.engine == "ray" else str(pick_device(self.device))
        job = Job(out, device, data_dir, self.workers, self.threads)
        return replace(job, engine=self.engine, address=self.address, gpu_share=self.gpu_share)


@Parameter(name="*")
@dataclass(frozen=True)
class RunOptions:
    """The settings of a run. Everything left out has the published or default value."""

    dataset: Annotated[str | None, Parameter(alias="-d"), DATASET] = None
    """A name from `ocil datasets`, or a prepared .npz; also `cifar100:noise` for domains and `cifar10+cifar100` for one
    after the other. Default: the embedded fashion-mini."""
    memory: MemorySize = None
    """Images kept for replay. Default: 200 for fashion-mini, 1000 for CIFAR-10, 5000 for CIFAR-100 and Mini-ImageNet;
    for your own data a tenth of the training images, at least one per class and at most 5000."""
    seeds: Seeds = None
    """How many seeds to run: 0, 1, 2, ... Default: 3."""
    seed: MaybeWhole = None
    """The first seed. Default: 0."""
    review: bool | None = None
    """The review trick: after each task one pass over the memory at a tenth of the learning rate. Default: as published
    for the method."""
    set: Settings = ()
    """Any other setting as FIELD=VALUE, for example `--set beta=0.2 tasks=10 boundary=blurry`. `ocil methods METHOD`
    lists them."""
    config: Annotated[Path | None, Parameter(alias="-c")] = None
    """A TOML file (method, dataset, memory, seeds, seed, review, and any other setting). The command line wins."""
    reference: bool = True
    """Also run fine-tuning once per seed, which intransigence is measured against. It is kept and used again."""
    out: Out = Path("runs")
    """Folder of the runs. A finished run in it is not run again, an unfinished one goes on."""
    data_dir: DataDir = None

    def settings(self, method: str, review: bool | None) -> dict[str, Any]:
        """Every setting that was given. ``review``: that of the method's label, which wins."""
        own = {"memory": self.memory, "review": self.review if review is None else review}
        given = read_settings(self.set, **own)
        for name in (name for name in given if name in OPTIONS_ALONE):
            if method and name in _settings_of(method):
                continue
            option = f"--{name.replace('_', '-')}"
            raise OcilError(f"--set {name}={given[name]}: {name} is an option of its own, {option} {given[name]}.")
        return given | {name: value for name, value in own.items() if value is not None}


@Parameter(name="*")
@dataclass(frozen=True)
class ModelOptions:
    """The settings of a model. A model keeps them; a later command may repeat them or leave them out."""

    method: Annotated[str | None, METHOD] = None
    """A name from `ocil methods`. Default of `ocil learn`: afs; `ocil serve` needs one to begin a model."""
    memory: MemorySize = None
    """Images or vectors kept for replay. Default: 1000."""
    batch_size: MaybeWhole = None
    """Samples learned together. Default: 10."""
    width: MaybeWhole = None
    """Channels of the default network's first stage. Default: 20."""
    review_every: MaybeWhole = None
    """Batches between two reviews, 0 for none. Default: 500 for methods that have reviews or need task ends. For these
    each review is a task end."""
    size: MaybeWhole = None
    """Images are resized to squares of this side. Default: 32."""
    gray: Annotated[bool, FLAG] = False
    """Learn from gray images instead of coloured ones."""
    vectors: MaybeWhole = None
    """Learn from vectors of so many numbers instead of images. `ocil learn` knows it from the file."""
    seed: MaybeWhole = None
    """The seed of all random numbers. Default: 0."""
    set: Settings = ()
    """Any other setting of the method as FIELD=VALUE, for example `--set lr=0.05` or
    `--set network=timm:tf_efficientnet_lite0 pretrained=weights.pth freeze=backbone`."""
    trust: Trust = False

    def __post_init__(self) -> None:
        check_number("batch-size", self.batch_size, 1, MAX_BATCH)
        check_number("width", self.width, 1)
        check_number("review-every", self.review_every, 0)
        check_number("size", self.size, 1, MAX_SIDE)
        check_number("vectors", self.vectors, 1)

    @property
    def request(self) -> "ModelRequest":
        from ocil.online.folder import ModelRequest
        from ocil.online.vectors import VectorFormat

        vectors = None if self.vectors is None else VectorFormat(self.vectors)
        names = ("method", "memory", "batch_size", "width", "review_every", "seed")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        return ModelRequest(given, read_settings(self.set), self.size, self.gray, vectors, self.trust)


def _settings_of(method: str) -> set[str]:
    """The names of a method's settings. One from elsewhere may have a setting with the name of an option."""
    from ocil import methods

    return {setting.name for setting in fields(methods.method(method).learner_class.Config)}


def setting_names(long_tails: bool) -> set[str]:
    """The names of the settings that runs have, of whatever method; or those of long-tailed runs."""
    if long_tails:
        from ocil.longtail import config

        return config.setting_names()
    from ocil.experiments.files import settings_of
    from ocil.methods import METHODS

    return set().union(*map(settings_of, METHODS.values()))


def refuse_settings(names: Sequence[str]) -> None:
    """Raise if a setting is among the names of methods."""
    if given := [name for name in names if "=" in name]:
        raise OcilError(f"'{given[0]}' is no method. A setting comes after --set: --set {' '.join(given)}")


def read_settings(words: Sequence[str], **options: object) -> dict[str, str]:
    """The settings of words such as ``lr=0.1``. ``options`` are settings that have an option of their own, None where
    it was not given: they must not be given in both ways.
    """
    settings = {}
    for word in words:
        name, equals, value = word.partition("=")
        name, value = name.strip(), value.strip()
        if not equals or not name or not value:
            raise OcilError(f"--set {word}: write FIELD=VALUE, for example --set beta=0.2.")
        if name in settings:
            raise OcilError(f"--set {word}: {name} is given twice.")
        settings[name] = value
    for name, option in options.items():
        if option is not None and name in settings:
            raise OcilError(f"{name} is given twice, by its own option and with --set.")
    return settings


def check_number(name: str, value: int | None, least: int, most: int | None = None) -> None:
    """Raise if the number of an option was given and is out of bounds."""
    if value is None or (value >= least and (most is None or value <= most)):
        return
    bounds = f"at least {least}" if most is None else f"from {least} to {most:,}"
    raise OcilError(f"--{name} {value} must be {bounds}.")


def check_seconds(name: str, value: float, zero: bool = False) -> None:
    """Raise if a number of seconds is out of bounds. ``zero``: it may be 0."""
    if not 0 <= value <= LONGEST_SECONDS or (value == 0 and not zero):
        least = "at least 0" if zero else "more than 0"
        raise OcilError(f"--{name} {value:g} must be {least} and at most {LONGEST_SECONDS:g}.")


def nearest_folder(place: Path) -> Path:
    """The folder, or the nearest existing one above it. Raises if that is not a folder. Nothing is created."""
    try:
        there = first_existing(place)
        inside = there.is_dir()
        way = place.absolute().relative_to(there).parts
        if way and (there / way[0]).is_symlink():
            raise OcilError(f"{place} cannot be used: {there / way[0]} is a link that leads nowhere. Name a folder.")
    except OSError as error:
        raise OcilError(f"{place} cannot be used: {error.strerror}. Name another folder.") from None
    if not inside:
        what = "it is a file" if there == place.absolute() else f"{there} is a file"
        raise OcilError(f"{place} cannot be used: {what}. Name a folder.")
    return there


def check_picture(path: Path) -> None:
    """Raise if no picture can have this name."""
    if path.suffix.lower() not in PICTURES:
        raise OcilError(f"--figure {path}: the name must end in .png, .svg or .pdf.")
