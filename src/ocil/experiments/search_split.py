"""The data of a search: the first tasks of a stream, with training images held out to score on."""

from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ocil.data import Dataset
from ocil.data.dataset import load_npz
from ocil.errors import OcilError
from ocil.limits import check
from ocil.rng import derive
from ocil.runs.config import RunConfig
from ocil.streams import Stream
from ocil.streams.config import StreamConfig
from ocil.streams.long_tail import counts_of, is_long_tailed, sizes_by_rank
from ocil.streams.material import Material


class SearchSplit(NamedTuple):
    """The data of a search: a dataset of its own, whose test images are the ones held out."""

    data: Dataset
    tasks: tuple[tuple[str, ...], ...]
    """The classes of each task, by name."""


def search_split(dataset: Dataset, config: RunConfig, tasks: int, share: float) -> SearchSplit:
    """The first tasks of a configuration's stream; ``share`` of each class's training images is held out.

    The same images are held out for every seed and every point of a search space.
    """
    _check(config.stream, tasks, share)
    groups = Stream(dataset, config.stream, config.seed).groups[:tasks]
    learned, held = [], []
    for label in chain(*groups):
        rng = np.random.default_rng(derive(label, "held-out"))
        order = rng.permutation(np.flatnonzero(dataset.train_y == label))
        count = max(1, round(share * len(order)))
        if count >= len(order):
            name = dataset.classes[label]
            raise OcilError(f"validation = {share} leaves no image of {name} to learn from: it has {len(order)}.")
        held.append(np.sort(order[:count]))
        learned.append(np.sort(order[count:]))
    new_label = np.full(dataset.num_classes, -1, dtype=np.int64)
    old_labels = list(chain(*groups))
    new_label[old_labels] = np.arange(len(old_labels))
    train, test = np.concatenate(learned), np.concatenate(held)
    cut = Dataset(
        f"{Path(dataset.name).stem}-first-{tasks}-tasks-{round(100 * share)}-percent-held-out",
        dataset.train_x[train],
        new_label[dataset.train_y[train]],
        dataset.train_x[test],
        new_label[dataset.train_y[test]],
        tuple(dataset.classes[label] for label in old_labels),
        unseen=dataset.num_classes - len(old_labels),  # beta acts through the number of outputs, so keep all of them
    )
    return SearchSplit(cut, tuple(tuple(dataset.classes[label] for label in group) for group in groups))


def _check(stream: StreamConfig, tasks: int, share: float) -> None:
    """Raise if these tasks of a stream cannot be searched on."""
    if stream.class_order != "fixed":
        raise OcilError("class_order = 'seeded' gives each seed other first tasks: search with the fixed order.")
    if stream.scenario != "class":
        raise OcilError("scenario = 'domain': a search needs tasks of new classes, and these are tasks of new domains.")
    if stream.order:
        raise OcilError("order is about the whole stream: leave it out of a search, which has the first tasks.")
    if not 1 <= tasks < stream.tasks:
        raise OcilError(f"tasks = {tasks}: search on 1 to {stream.tasks - 1} of the {stream.tasks} tasks, not on all.")
    check(0 < share < 1, "validation", share, "more than 0 and less than 1")


def stream_of_split(split: SearchSplit, whole: Dataset, config: RunConfig, share: float) -> StreamConfig:
    """The stream of a configuration on the data of a search. ``whole`` and ``share``: what the split was made of."""
    stream = _of_first_tasks(config.stream, len(split.tasks))
    if not is_long_tailed(stream):
        return stream
    if stream.imbalance_order == "seeded":
        counts = _shared_sizes(whole, config, share)
    else:
        counts = _first_counts(whole, config, split)
    return replace(stream, class_counts=counts, imbalance_factor=1.0)


def config_of_split(split: SearchSplit, whole: Dataset, config: RunConfig, share: float, path: Path) -> RunConfig:
    """The configuration of a run of the search: all settings of the real run, on the search's own data, which lies at
    ``path``. ``whole`` and ``share``: see ``stream_of_split``."""
    stream = stream_of_split(split, whole, config, share)
    config = replace(config, dataset=str(path), fingerprint=split.data.fingerprint, stream=stream)
    if not config.learner.features:
        return config
    return replace(config, learner=replace(config.learner, features="", pretrained=""), weights="")


def _of_first_tasks(stream: StreamConfig, tasks: int) -> StreamConfig:
    """The settings of a stream for the classes of its first tasks, whose labels are in the order of their arrival.
    What is measured besides the accuracy after each task has no say in a search."""
    first_task = stream.first_task if tasks > 1 else 0
    sizes = stream.task_sizes[:tasks]
    return replace(stream.unmeasured, tasks=tasks, task_sizes=sizes, first_task=first_task, arrival_order=())


def _first_counts(dataset: Dataset, config: RunConfig, split: SearchSplit) -> tuple[int, ...]:
    """How many samples each class of a search has where the stream is long-tailed and all seeds have the same sizes: as
    many as in the whole stream, less the share of the class that is held out.
    """
    arrival = Material.of(dataset, config.stream, config.seed).arrival
    wanted = counts_of(dataset, config.stream, arrival, config.seed)
    counts = []
    for name, learned in zip(split.data.classes, np.bincount(split.data.train_y).tolist(), strict=True):
        label = dataset.classes.index(name)
        there = int(np.count_nonzero(dataset.train_y == label))
        counts.append(max(1, min(learned, round(wanted[label] * learned / there))))
    return tuple(counts)


def _shared_sizes(dataset: Dataset, config: RunConfig, share: float) -> tuple[int, ...]:
    """The sizes that each seed shuffles among all classes of the whole stream, less the share that is held out.

    The classes of a search get the ranks that they have in the whole stream of the same seed. They share these numbers,
    so that the runs of all seeds have the same settings.
    """
    return tuple(max(1, round((1 - share) * size)) for size in sizes_by_rank(dataset, config.stream))


def write_data(dataset: Dataset, path: Path) -> None:
    """Write the dataset, unless it is there already and whole."""
    try:
        if load_npz(path, dataset.name).fingerprint == dataset.fingerprint:
            return
    except OcilError:  # not there, or not whole
        pass
    dataset.save(path)
