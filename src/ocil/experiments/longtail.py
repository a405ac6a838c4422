"""The long-tailed runs of some variants, from names and settings."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ocil import data
from ocil.data import CATALOG, DEFAULT, Dataset
from ocil.errors import OcilError
from ocil.experiments.datasets import dataset_name
from ocil.experiments.files import seed_count
from ocil.longtail import data as tailed
from ocil.longtail.config import CUTTING, LongTailConfig, resolve
from ocil.longtail.runs import LongTailRun
from ocil.longtail.training import check
from ocil.runs.folder import refuse_begun_elsewhere
from ocil.runs.results import other_images


def configure(
    variants: Sequence[str],
    dataset: str | None,
    *,
    seeds: int,
    seed: int,
    settings: Mapping[str, Any],
    data_dir: Path | None,
    root: Path,
) -> list[LongTailConfig]:
    """The configurations of all variants and seeds, checked against the data before anything runs.

    ``settings`` are those of ``ocil.longtail.config.resolve``. ``root`` is the folder of the runs: finished ones in it
    must be of the same images. Unless a precision is given, none of them may have been begun in the default of another
    machine.
    """
    numbers, given, name = range(seed, seed + seed_count(seeds)), dict(settings), dataset or DEFAULT
    whole: Dataset | None = None
    if tailed.is_prepared(name, data_dir):
        if given.keys() & CUTTING:
            raise OcilError(f"{name} is long-tailed by itself: leave out --imbalance, --open and --set validation.")
        given |= dict.fromkeys(CUTTING, 0)
        prepared = tailed.load_prepared(name, data_dir)
        fingerprint, image_shape = prepared.summary()["digest"], prepared.image_shape
    else:
        whole = data.load(name, data_dir)
        name, image_shape = dataset_name(name, whole), whole.image_shape
        fingerprint = "" if name in CATALOG else whole.fingerprint
    side = max(image_shape[:2])
    configs = [
        resolve(variant, name, seed=number, image_side=side, fingerprint=fingerprint, settings=given)
        for variant in variants
        for number in numbers
    ]
    if "precision" not in given:
        refuse_begun_elsewhere(configs, root)
    if whole is not None:
        if not configs[0].imbalance:
            raise OcilError("imbalance = 0 is for a dataset that is long-tailed by itself: give at least 1.")
        split = tailed.load(configs[0], data_dir, whole)
        check(configs[0], len(split.train_y))
        _refuse_other_images(configs, root, split.fingerprint)
    return configs


def _refuse_other_images(configs: Sequence[LongTailConfig], root: Path, fingerprint: str) -> None:
    """Raise if a finished run was trained on other images of that name."""
    for config in configs:
        run = LongTailRun(config)
        try:
            found = run.result(root)
        except OcilError:  # reported when the result is used
            continue
        if found is not None and found.images not in ("", fingerprint):
            raise OcilError(other_images(run.folder(root).path))
