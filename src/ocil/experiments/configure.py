"""The runs of one method, from names, settings and a TOML file."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from ocil import data
from ocil.data import CATALOG, DEFAULT, Dataset
from ocil.errors import OcilError
from ocil.experiments.datasets import dataset_name
from ocil.experiments.files import SEEDS, Cell, meant_for, seed_count, settings_of
from ocil.experiments.plan import check_images, check_names
from ocil.files import read_toml
from ocil.limits import whole
from ocil.methods import MethodInfo
from ocil.methods import method as method_info
from ocil.runs.build import Checks, StreamLength
from ocil.runs.config import RunConfig, facts_of, resolve
from ocil.runs.folder import refuse_begun_elsewhere
from ocil.runs.settings import refuse_unknown

NOT_SETTINGS = ("method", "dataset", "seeds", "seed")
"""Keys of a TOML file that are not settings of a run."""
WORTH_A_NOTE = 0.01
"""The share of samples in incomplete batches from which on a user hears of them."""


def configure(
    method: str | None = None,
    dataset: str | None = None,
    *,
    seeds: int | None = None,
    seed: int | None = None,
    settings: Mapping[str, Any] | None = None,
    file: Path | None = None,
    data_dir: Path | None = None,
    root: Path | None = None,
    with_references: bool = True,
    shared: bool = False,
    load: Callable[[str, Path | None], Dataset] = data.load,
    note: Callable[[str], None] = lambda text: None,
) -> Cell:
    """The runs of one method, one per seed, with every setting filled in and checked.

    ``settings`` are those of ``ocil.runs.config.resolve``. ``file`` is a TOML file with method, dataset, seeds, seed
    and any setting; what is given directly wins over it. ``root`` is the folder of the runs: finished ones in it, and
    with ``with_references`` those they are compared with, must be of the same images. Unless a precision is given, none
    of them may have been begun in the default of another machine. ``shared``: the settings are for several methods, so
    those that do not concern this one (a memory where it keeps none) are left out. ``load`` reads the dataset. ``note``
    is called with what the user should know about a default.
    """
    chosen = _chosen(method, dataset, seeds, seed, settings or {}, file, shared)
    loaded = load(chosen.dataset, data_dir)  # raises before anything runs if it is missing or damaged
    config = _resolved(chosen, loaded, note)
    configs = tuple(replace(config, seed=number) for number in chosen.seeds)
    checks = Checks(loaded)
    checks.check(configs)
    if (length := checks.length(config)).dropped > WORTH_A_NOTE * length.samples:
        note(_drop_note(length))
    if root is not None:
        check_names(configs, root)
        if "precision" not in chosen.settings:
            refuse_begun_elsewhere(configs, root)
        check_images(configs, root, loaded, with_references)
    return Cell(config.label, configs)


class _Chosen(NamedTuple):
    """What a user and a TOML file ask for."""

    method: MethodInfo
    dataset: str
    seeds: range
    settings: dict[str, Any]


def _chosen(
    method: str | None,
    dataset: str | None,
    seeds: int | None,
    seed: int | None,
    settings: Mapping[str, Any],
    file: Path | None,
    shared: bool,
) -> _Chosen:
    """What is given directly, else what the file has. See ``configure``."""
    names, in_file = _read(file) if file else ({}, {})
    method = method or names.get("method")
    if method is None:
        raise OcilError("name a method, for example: ocil run afs. `ocil methods` lists them.")
    count = seed_count(names.get("seeds", SEEDS) if seeds is None else seeds)
    first = whole("seed", names.get("seed", 0) if seed is None else seed, least=0)
    info = method_info(method)
    in_file = {key: value for key, value in in_file.items() if meant_for(info, key, own=True)}
    given = {key: value for key, value in settings.items() if not shared or meant_for(info, key)}
    dataset = names.get("dataset", DEFAULT) if dataset is None else dataset
    return _Chosen(info, dataset, range(first, first + count), in_file | given)


def _resolved(chosen: _Chosen, dataset: Dataset, note: Callable[[str], None]) -> RunConfig:
    """The configuration, of seed 0, with every setting filled in. ``note``: see ``configure``."""
    info, name = chosen.method, dataset_name(chosen.dataset, dataset)
    config = resolve(info.name, name, settings=chosen.settings, **facts_of(dataset)).identified(dataset)
    if config.dataset not in CATALOG and info.memory and "memory" not in chosen.settings:
        note(_memory_note(config, dataset))
    return config


def settings_by_method(names: Sequence[str], given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The given settings that each method has. Raises if no method has one of them."""
    infos = [method_info(name) for name in names]
    known = {info.name: settings_of(info) for info in infos}
    refuse_unknown(" or ".join(known), given, set().union(*known.values()))
    return {
        info.name: {key: value for key, value in given.items() if key in known[info.name] and meant_for(info, key)}
        for info in infos
    }


def _memory_note(config: RunConfig, dataset: Dataset) -> str:
    kind = "images" if dataset.is_images else "vectors"
    size = f"{config.learner.memory} {kind}, chosen for {len(dataset.train_y)} training {kind}"
    return f"{config.label}: a memory of {size}. --memory N sets another."


def _drop_note(length: StreamLength) -> str:
    lost = f"{length.dropped} of {length.dropped + length.samples} samples never arrive"
    return f"{lost}: an incomplete last batch is dropped. --set drop_last=false keeps it."


def _read(file: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """The names in a TOML file (``NOT_SETTINGS``), and its settings."""
    settings = read_toml(file)
    names = {key: settings.pop(key) for key in NOT_SETTINGS if key in settings}
    for key in ("method", "dataset"):
        if not isinstance(names.get(key, ""), str):
            raise OcilError(f"{key} = {names[key]!r} in {file} is not a name.")
    return names, settings
