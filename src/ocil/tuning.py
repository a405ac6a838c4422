"""Choosing settings on the first tasks alone, after the online continual learning survey (Mai et al., 2021).

The survey's code tries every point of a grid on the first two tasks, three runs each, and keeps the point with the best
mean accuracy after them. It scores on the test images of those two tasks and then reports on the others. Here no test
image has a say: a share of the two tasks' training images, the same of each class, is held out to score on.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product
from pathlib import Path

import numpy as np

from ocil.config import RunConfig
from ocil.data import Dataset
from ocil.data.dataset import load_npz
from ocil.errors import OcilError
from ocil.metrics import Estimate
from ocil.naming import short_digest
from ocil.rng import derive
from ocil.streams import Stream

TASKS, SEEDS, VALIDATION = 2, 3, 0.1
GRIDS: dict[str, dict[str, list[str]]] = {
    "afs": {"beta": ["0.01", "0.05", "0.1", "0.15", "0.2", "0.25", "0.3", "0.4", "0.5"]},  # the paper's
}


@dataclass(frozen=True)
class Ground:
    """What a search may look at: a dataset of its own, whose test images are the ones held out."""

    data: Dataset
    tasks: tuple[tuple[str, ...], ...]
    """The classes of each task, by name."""


def ground(dataset: Dataset, config: RunConfig, tasks: int, share: float) -> Ground:
    """The first tasks of a configuration's stream; ``share`` of each class's training images held out.

    The same images are held out for every seed and every point of a grid.
    """
    stream = config.stream
    if stream.class_order != "fixed":
        raise OcilError("class_order = 'seeded' gives each seed other first tasks: search with the fixed order.")
    if not 1 <= tasks < stream.tasks:
        raise OcilError(f"--tasks {tasks}: search on 1 to {stream.tasks - 1} of the {stream.tasks} tasks, not on all.")
    if not 0 < share < 1:
        raise OcilError(f"--validation {share} must lie between 0 and 1.")
    groups = Stream(dataset, stream, config.seed).groups[:tasks]
    learned, held = [], []
    for label in chain(*groups):
        rng = np.random.default_rng(derive(label, "held-out"))
        order = rng.permutation(np.flatnonzero(dataset.train_y == label))
        count = max(1, round(share * len(order)))
        if count >= len(order):
            name = dataset.classes[label]
            raise OcilError(f"--validation {share} leaves no image of {name} to learn from: it has {len(order)}.")
        held.append(np.sort(order[:count]))
        learned.append(np.sort(order[count:]))
    new_label = np.full(dataset.num_classes, -1, dtype=np.int64)
    old_labels = list(chain(*groups))
    new_label[old_labels] = np.arange(len(old_labels))
    train, test = np.concatenate(learned), np.concatenate(held)
    data = Dataset(
        f"{Path(dataset.name).stem}-first-{tasks}-tasks-{round(100 * share)}-percent-held-out",
        dataset.train_x[train],
        new_label[dataset.train_y[train]],
        dataset.train_x[test],
        new_label[dataset.train_y[test]],
        tuple(dataset.classes[label] for label in old_labels),
        unseen=dataset.num_classes - len(old_labels),  # beta acts through the number of outputs, so keep all of them
    )
    return Ground(data, tuple(tuple(dataset.classes[label] for label in group) for group in groups))


def keep(data: Dataset, folder: Path) -> Path:
    """Write the dataset below ``folder``, unless it is there already, so that workers anywhere can read it."""
    path = (folder / f"{data.name}.npz").resolve()
    try:
        if load_npz(path, data.name).fingerprint == data.fingerprint:
            return path
    except OcilError:  # not there, or not whole
        pass
    data.save(path)
    return path


def on_ground(config: RunConfig, path: Path, fingerprint: str, tasks: int) -> RunConfig:
    """A run of the search: all settings of the real run, on the search's own data."""
    return replace(config, dataset=str(path), fingerprint=fingerprint, stream=replace(config.stream, tasks=tasks))


def digest(configs: Iterable[RunConfig], fingerprint: str, tasks: int) -> str:
    """Names a search: its points, in whatever order, and what they are tried on. The number of seeds is not in it,
    so that a search goes on with more of them; nor is the dataset's path, as ``fingerprint`` tells the images.
    """
    contents = sorted(json.dumps(config.settings, sort_keys=True) for config in configs)
    return short_digest([contents, fingerprint, tasks])


def former_digest(configs: Iterable[RunConfig], fingerprint: str, tasks: int) -> str:
    """What ``digest`` was when it covered every setting and the dataset's path."""
    contents = sorted(json.dumps(config.as_formerly(), sort_keys=True) for config in configs)
    return short_digest([contents, fingerprint, tasks])


def points(grid: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
    return [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]


def best(scores: Sequence[Estimate | None]) -> int | None:
    """The point with the highest mean accuracy; the first of equals. Points with a failed run do not count."""
    known = [number for number, score in enumerate(scores) if score is not None]
    return max(known, key=lambda number: scores[number].mean, default=None)  # type: ignore[union-attr]


def rivals(scores: Sequence[Estimate | None], winner: int) -> list[int]:
    """The other points whose interval overlaps that of the best, in the order of the grid. One seed has no interval."""
    found, top = [], scores[winner]
    for number, score in enumerate(scores):
        if score is None or top is None or score.interval is None or top.interval is None:
            continue
        if number != winner and score.mean + score.interval >= top.mean - top.interval:
            found.append(number)
    return found
