"""An experiment: a table or figure as a TOML file, expanded to the configurations of its runs.

    title = "Table I"
    seeds = 10
    first_seed = 0              # the default: seeds 0 to 9

    [settings]                  # for all cells
    dataset = ["cifar10", "cifar100"]
    memory = { cifar10 = [200, 500, 1000], cifar100 = [1000, 2000, 5000] }

    [[cells]]
    method = ["er", "mir"]
    review = [false, true]      # a list is an axis; cells are the cross product of all axes

A value may be a table with one value per dataset. ``label`` names a cell in what a sweep prints; ``{alpha}`` in it
stands for the value of alpha. Results do not keep it: a report names its rows by method and settings. Settings of the
whole file go to the methods that have them: a memory does not concern fine-tuning.
"""

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, fields, replace
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from ocil.data import DEFAULT
from ocil.data.catalog import find, same_name
from ocil.errors import OcilError, suggest
from ocil.experiments.named import find_file, shipped
from ocil.files import read_toml
from ocil.limits import whole
from ocil.methods import MethodInfo, method
from ocil.networks.registry import REDUCED
from ocil.networks.spec import Spec
from ocil.rng import MAX_SEED
from ocil.runs.config import DatasetFacts, RunConfig, concerns, memory_settings, resolve
from ocil.runs.settings import refuse_unknown
from ocil.streams import KINDS, StreamConfig
from ocil.streams.kinds import settings_of_others

MAX_SEEDS = 10_000
KEYS = {"title", "about", "paper", "seeds", "first_seed", "settings", "cells"}  # of a file
NAMES = ("method", "dataset", "label")  # keys of a cell that are not settings
ABOVE = {"seeds": "seeds = 3", "first_seed": "first_seed = 10", "seed": "first_seed = 10"}  # how to give seeds
SEEDS = 3  # if neither a file nor the user says how many
PLACEHOLDER = r"\{(\w+)\}"  # of a setting's value, in a label
COLUMNS = ("dataset", "memory")  # a cell is known by these and by its label, which names all other axes


@dataclass(frozen=True)
class Cell:
    """One entry of a table: the runs that differ by their seed alone."""

    label: str
    """How a sweep names the row."""
    configs: tuple[RunConfig, ...]

    @property
    def config(self) -> RunConfig:
        return self.configs[0]

    def value(self, name: str) -> Any:
        """The value of any setting by its name; None if the method has no such setting."""
        own = {"method": self.config.method, "dataset": self.config.dataset, "label": self.label}
        return own.get(name, getattr(self.config.stream, name, getattr(self.config.learner, name, None)))


@dataclass(frozen=True)
class Experiment:
    """The cells of a table or figure, as its file describes them."""

    name: str
    title: str
    about: str
    paper: str
    """Which table or figure of a paper it is."""
    cells: tuple[Cell, ...]
    left_out: tuple[Cell, ...] = ()
    """The cells of the file that ``only`` leaves out."""
    names_precision: bool = False
    """Whether the file or the user names a precision, which otherwise depends on the machine."""

    @property
    def configs(self) -> list[RunConfig]:
        return [config for cell in self.cells for config in cell.configs]


class KnownDataset(NamedTuple):
    """A dataset by the name that configurations have for it and, if it is not in the catalog, what identifies its
    images, and its facts."""

    name: str
    fingerprint: str = ""
    facts: DatasetFacts = DatasetFacts()


def by_name(dataset: str) -> KnownDataset:
    entry = find(dataset)
    return KnownDataset(entry.name if entry else dataset)


def read(
    path: Path | str,
    *,
    seeds: int | None = None,
    settings: Mapping[str, Any] | None = None,
    only: str = "",
    source: Callable[[str], KnownDataset] = by_name,
) -> Experiment:
    """Read and expand a file, or the experiment of that name that comes with ocil (``Path("table1")``). Raises
    ``OcilError`` for any mistake in it.

    ``seeds`` and ``settings`` win over the file's. ``only`` keeps some cells, see ``select``. ``source`` looks datasets
    up: give that of ``ocil.experiments.datasets.Datasets`` for datasets outside the catalog.
    """
    path = find_file(Path(path))
    content, settings = _content(path), dict(settings or {})
    seeds = seed_count(content.get("seeds", SEEDS), f"{path}: seeds") if seeds is None else seed_count(seeds)
    first = whole(f"{path}: first_seed", content.get("first_seed", 0), 0, MAX_SEED - seeds)
    cells = _expanded(path, content, settings, source, range(first, first + seeds))
    kept = select(cells, only)
    chosen = {cell.config for cell in kept}
    left_out = [cell for cell in cells if cell.config not in chosen]
    _refuse_without_effect(settings, kept, only)
    title = _text_of(path, content, "title") or path.stem
    about, paper = _text_of(path, content, "about"), _text_of(path, content, "paper")
    names_precision = any(
        "precision" in some for some in (settings, content.get("settings", {}), *_cells(path, content))
    )
    return Experiment(path.stem, title, about, paper, tuple(kept), tuple(left_out), names_precision)


def _expanded(
    path: Path,
    content: Mapping[str, Any],
    settings: Mapping[str, Any],
    source: Callable[[str], KnownDataset],
    seeds: range,
) -> list[Cell]:
    """The cells of a file, each once and with a name of its own."""
    expansion = _Expansion(_table(path, "settings", content.get("settings", {})), settings, source)
    found: dict[RunConfig, Cell] = {}
    written_for: dict[RunConfig, list[str]] = {}
    for number, written in enumerate(_cells(path, content), 1):
        try:
            for label, config in expansion.expand(written):
                if config not in found:
                    configs = tuple(replace(config, seed=seed) for seed in seeds)
                    found[config], written_for[config] = Cell(label, configs), list(written)
        except OcilError as error:
            raise OcilError(f"{path}, cell {number}: {error}") from error
    expansion.refuse_unused(path)
    cells = list(found.values())
    for _ in range(2):  # a label that the first round makes may be one that another entry has already
        cells = _with_distinct_labels(cells, list(written_for.values()))
    return cells


def _refuse_without_effect(settings: Mapping[str, Any], cells: Sequence[Cell], only: str) -> None:
    """Raise if a given setting concerns none of these cells, which ``only`` leaves."""
    infos = [method(name) for name in dict.fromkeys(cell.config.method for cell in cells)]
    for key in sorted(settings.keys() - set(NAMES)):
        if not any(key in settings_of(info) and meant_for(info, key) for info in infos):
            raise OcilError(f"--set {key}: it concerns no cell that --only '{only}' leaves.")


def select(cells: Sequence[Cell], only: str) -> list[Cell]:
    """The cells that a filter such as ``dataset=cifar100 method=afs,er review=true`` describes.

    ``method=er`` is ER with and without review, ``method=er-rv`` with it. A label with spaces must be quoted:
    ``label="AFS, beta 0.1"``.
    """
    kept = list(cells)
    for word in _words(only):
        name, wanted = _condition(word, cells)
        kept = [cell for cell in kept if any(_matches(cell, name, value) for value in wanted)]
    if not kept:
        raise OcilError(f"--only '{only}' leaves no cell: each part has some, but no cell has them all.")
    return kept


def _condition(word: str, cells: Sequence[Cell]) -> tuple[str, list[str]]:
    """The field that a word such as ``method=afs,er`` names, and its values. Raises if no cell has one of these."""
    name, equals, values = word.partition("=")
    if not equals or not name or not values:
        raise OcilError(f"--only {word}: write FIELD=VALUE or FIELD=VALUE,VALUE, for example --only method=afs,er.")
    known = {f.name for cell in cells for part in (cell.config.stream, cell.config.learner) for f in fields(part)}
    if name not in known | set(NAMES):
        raise OcilError(f"--only {word}: no cell has a field '{name}'.{suggest(name, known | set(NAMES))}")
    whole = name == "label" and any(_matches(cell, name, values) for cell in cells)
    wanted = [values] if whole else values.split(",")
    for value in wanted:
        if not any(_matches(cell, name, value) for cell in cells):
            there = {_text(cell.value(name)) for cell in cells if cell.value(name) is not None}
            raise OcilError(f"--only {word}: no cell has {name}={value}.{suggest(value, there)}")
    return name, wanted


def _words(only: str) -> list[str]:
    try:
        return shlex.split(only)
    except ValueError as error:
        raise OcilError(f"--only {only}: {error}. Put the value in double quotes.") from None


class _Expansion:
    """Turns the cells of a file into configurations, and keeps track of which shared settings were used."""

    def __init__(
        self, shared: Mapping[str, Any], given: Mapping[str, Any], source: Callable[[str], KnownDataset]
    ) -> None:
        self.shared, self.given, self.source = shared, given, source
        if "method" in given:
            raise OcilError("--set method: choose methods with --only method=NAME.")
        self.unused: set[str] = {*shared, *given} - {*NAMES}
        self.known: set[str] = set()

    def expand(self, cell: Mapping[str, Any]) -> Iterator[tuple[str, RunConfig]]:
        written = {**self.shared, **cell, **self.given}
        if "method" not in written:
            raise OcilError('name a method, for example method = "er".')
        label = written.pop("label", None)
        if not isinstance(label, str | None):
            raise OcilError(f"label = {label!r} must be text.")
        own = set(cell) - set(self.given)
        for dataset in _as_list(written.pop("dataset", DEFAULT)):
            if not isinstance(dataset, str):
                raise OcilError(f"dataset = {dataset!r} is not a name.")
            known = self.source(dataset)
            axes = {key: _choices(key, value, known.name) for key, value in written.items()}
            varied = [key for key, values in axes.items() if len(values) > 1 and key not in COLUMNS]
            for values in product(*axes.values()):
                yield self._one(dict(zip(axes, values, strict=True)), own, varied, label, known)

    def _one(
        self, point: dict[str, Any], own: set[str], varied: list[str], label: str | None, dataset: KnownDataset
    ) -> tuple[str, RunConfig]:
        name = point.pop("method")
        if not isinstance(name, str):
            raise OcilError(f"method = {name!r} is not a name.")
        info = method(name)
        has = settings_of(info)
        self.known |= has
        _refuse_seeds(own - has)
        refuse_unknown(info.name, sorted(own & set(point)), has)
        idle = set() if info.offline else _settings_of_other_kinds(point)
        if "boundary" not in varied:
            idle -= own  # given for this kind alone: a mistake, which is refused
        mine = {key: value for key, value in point.items() if key in has and key not in idle}
        concerned = {key: value for key, value in mine.items() if meant_for(info, key, key in own)}
        if "width" in concerned.keys() - own and not _has_width(info, concerned, dataset):
            del concerned["width"]
        self.unused -= set(concerned)
        config = resolve(info.name, dataset.name, settings=concerned, **dataset.facts)
        if dataset.fingerprint:
            config = replace(config, fingerprint=dataset.fingerprint)
        return _label(label, config, [key for key in varied if key in concerned or key == "method"]), config

    def refuse_unused(self, path: Path) -> None:
        """Raise if a setting for all cells belongs to no method: it is misspelt."""
        _refuse_seeds(set(self.shared) - self.known, f"{path}, settings: ")
        for key in sorted(self.unused - self.known):
            where = "--set" if key in self.given else f"{path}, settings"
            raise OcilError(f"{where}: unknown setting '{key}'.{suggest(key, self.known)}")
        for key in sorted(self.unused & set(self.given)):
            raise OcilError(f"--set {key}: it concerns no cell of {path}.")


def _refuse_seeds(names: Set[str], where: str = "") -> None:
    """Raise if seeds are among the names of settings: they are keys of a file."""
    for key in sorted(names & ABOVE.keys()):
        raise OcilError(f"{where}{key} is for the whole file: write {ABOVE[key]} above [settings] and [[cells]].")


def settings_of(info: MethodInfo) -> set[str]:
    """The names of all settings of a method's runs: the method's own and the stream's."""
    return {f.name for f in (*fields(StreamConfig), *fields(info.learner_class.Config))}


def _settings_of_other_kinds(point: Mapping[str, Any]) -> set[str]:
    """The settings that do nothing in a cell with streams of this kind."""
    given = point.get("boundary", StreamConfig.boundary)
    return {name for kind in KINDS if kind == given for name in settings_of_others(kind)}  # an unknown one is refused


def _has_width(info: MethodInfo, settings: Mapping[str, Any], dataset: KnownDataset) -> bool:
    """Whether the network of a cell is the one whose width is a setting. A dataset of vectors has another one."""
    others = {key: value for key, value in settings.items() if key != "width"}
    network = resolve(info.name, dataset.name, settings=others, **dataset.facts).learner.network
    return Spec.parse(network, "network").name == REDUCED


def meant_for(info: MethodInfo, key: str, own: bool = False) -> bool:
    """Whether a setting that was given for several methods concerns this one.

    A memory and reviews do not concern a method without a memory. Task boundaries do not concern an offline method, and
    epochs concern only offline methods, unless the setting was given for this method alone (``own``).
    """
    if not info.memory and key in memory_settings():
        return False
    return own or key not in concerns(StreamConfig, "boundaries" if info.offline else "epochs")


def seed_count(count: Any, name: str = "seeds") -> int:
    """How many seeds to run. Raises if it is no number of seeds; ``name``: what the message calls it."""
    return whole(name, count, 1, MAX_SEEDS)


def _label(template: str | None, config: RunConfig, varied: list[str]) -> str:
    """The name of a cell: the template with its values, or the method. What is varied and not named yet follows, so
    that no two cells have one name."""
    cell = Cell("", (config,))

    def value(match: re.Match[str]) -> str:
        found = cell.value(match[1])
        if found is None or match[1] == "label":
            known = {f.name for part in (config.stream, config.learner) for f in fields(part)} | {"method", "dataset"}
            raise OcilError(f"label names an unknown setting '{match[1]}'.{suggest(match[1], known)}")
        return _text(found)

    if template is None:
        text, named = config.label, {"method", "review"}
    else:
        text, named = re.sub(PLACEHOLDER, value, template), set(re.findall(PLACEHOLDER, template))
    unnamed = [key for key in varied if key not in named]
    more = [config.label if key in ("method", "review") else f"{key}={_text(cell.value(key))}" for key in unnamed]
    return ", ".join(dict.fromkeys([text, *more]))


def _with_distinct_labels(cells: Sequence[Cell], written: Sequence[Sequence[str]]) -> list[Cell]:
    """The cells with labels that differ: where several entries of a file have the same label, the settings in which
    they differ are added to it.

    ``written``: the settings in the entry of each cell.
    """
    alike: dict[tuple[Any, ...], list[Cell]] = {}
    for cell in cells:
        alike.setdefault((cell.label, *map(cell.value, COLUMNS)), []).append(cell)
    found = []
    for cell, keys in zip(cells, written, strict=True):
        others = alike[(cell.label, *map(cell.value, COLUMNS))]
        differing = [key for key in keys if key not in NAMES and any(cell.value(key) != o.value(key) for o in others)]
        more = [f"{key}={_text(cell.value(key))}" for key in differing]
        found.append(replace(cell, label=", ".join([cell.label, *more])))
    return found


def _choices(key: str, value: Any, dataset: str) -> list[Any]:
    if isinstance(value, Mapping):
        by_dataset = {same_name(name): choice for name, choice in value.items()}
        if same_name(dataset) not in by_dataset:
            raise OcilError(f"{key} has no value for {dataset}: add it there, or give --set {key}=VALUE.")
        value = by_dataset[same_name(dataset)]
    choices = _as_list(value)
    for choice in choices:
        if not isinstance(choice, str | int | float):
            raise OcilError(f"{key} = {choice!r} is not a value.")
    return choices


def _as_list(value: Any) -> list[Any]:
    if value == []:
        raise OcilError("an empty list leaves no cell: give at least one value.")
    return value if isinstance(value, list) else [value]


def _matches(cell: Cell, name: str, wanted: str) -> bool:
    if name == "method":
        return wanted.lower().replace("_", "-") in (cell.config.method, cell.config.label)
    value = cell.value(name)
    if name == "dataset":
        return same_name(wanted) in (same_name(value), same_name(Path(value).stem))
    if isinstance(value, int | float) and not isinstance(value, bool):
        try:
            return float(wanted) == value
        except ValueError:
            return False
    return _text(value) == wanted.lower() if isinstance(value, bool) else value == wanted


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _content(path: Path) -> dict[str, Any]:
    def others() -> str:
        there = sorted(str(other) for other in path.parent.glob("*.toml"))
        return suggest(str(path), [*there, *shipped()])

    content = read_toml(path, others)
    for key in content:
        if key not in KEYS:
            advice = f" Settings of a run go below [settings] or [[cells]].{suggest(key, KEYS)}"
            raise OcilError(f"{path}: unknown key '{key}'.{advice}")
    return content


def _cells(path: Path, content: Mapping[str, Any]) -> list[dict[str, Any]]:
    cells = content.get("cells")
    if not isinstance(cells, list) or not cells:
        raise OcilError(f'{path} has no cells: write [[cells]] and below it, for example, method = "er".')
    return [_table(path, "cells", cell) for cell in cells]


def _table(path: Path, key: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise OcilError(f"{path}: {key} must be a table of settings.")
    return value


def _text_of(path: Path, content: Mapping[str, Any], key: str) -> str:
    text = content.get(key, "")
    if not isinstance(text, str):
        raise OcilError(f"{path}: {key} = {text!r} must be text.")
    return text
