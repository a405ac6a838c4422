"""What the kinds of streams are made from: the samples that take part, their classes or domains, and a generator."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from ocil.data import Dataset
from ocil.errors import OcilError, close_to
from ocil.seeds import derive
from ocil.streams import long_tail
from ocil.streams.config import StreamConfig
from ocil.streams.order import Indices, Order

Groups = list[list[int]]


@dataclass(frozen=True, eq=False)
class Material:
    """The samples of a stream before they have an order.

    A *unit* is what is new in a task: a class or, with the scenario ``domain``, a domain. Kinds of streams need not
    know which of the two.
    """

    data: Dataset
    config: StreamConfig
    samples: Indices
    """Numbers of the training samples that take part, ascending."""
    units: Indices
    """The unit of each of these samples."""
    arrival: Indices
    """All units, in the order of their arrival."""
    rng: np.random.Generator

    @classmethod
    def of(cls, data: Dataset, config: StreamConfig, seed: int) -> "Material":
        """The material of a configuration and a seed. ``OcilError`` if they do not fit the dataset."""
        arrival = _arrival(data, config, seed)
        if config.tasks > len(arrival):
            what = "domains" if config.scenario == "domain" else "classes"
            most = f"give at most {len(arrival)} (--set tasks={len(arrival)})"
            raise OcilError(f"tasks = {config.tasks} is more than the {len(arrival)} {what} of {data.name}: {most}.")
        classes = arrival if config.scenario == "class" else np.arange(data.num_classes)
        samples = long_tail.select(data, config, classes, seed)
        domain = data.train_domain if config.scenario == "domain" else None
        units = (data.train_y if domain is None else domain)[samples]
        rng = np.random.default_rng(derive(seed, "stream-order"))
        return cls(data, config, samples, units, arrival, rng)

    def groups(self, sizes: Sequence[int] | None = None) -> Groups:
        """The units of each task: as many as ``sizes`` says, else as the settings say."""
        ends = np.cumsum(sizes or task_sizes(self.config, len(self.arrival), self.data.name))
        return [group.tolist() for group in np.split(self.arrival, ends[:-1])]

    def of_group(self, group: Sequence[int] | Indices) -> Indices:
        """The samples of some units, shuffled."""
        return self.rng.permutation(self.samples[np.isin(self.units, group)])

    def order(self, segments: Sequence[Indices], groups: Groups, points: Sequence[int] | None = None) -> Order:
        """The order of samples in segments: tasks, or epochs.

        The learner is evaluated at the end of each segment, or after the batches in ``points``. No batch crosses from
        one segment to the next, except where task ends are hidden: an incomplete batch would give them away.
        """
        config, lengths = self.config, [len(segment) for segment in segments]
        if points is None and not config.announces_tasks:
            bounds, _ = batch_bounds([sum(lengths)], config.batch_size, config.drop_last)
            points = [min(math.ceil(end / config.batch_size), len(bounds)) - 1 for end in accumulate(lengths)]
        else:
            bounds, ends = batch_bounds(lengths, config.batch_size, config.drop_last)
            points = ends if points is None else points
        rows = 1 if config.boundary == "iid" else len(groups)
        if len(set(points)) < rows or min(points) < 0:
            raise _too_few(config, self.data.name, len(bounds), rows, min(map(len, segments)))
        kinds = config.boundary, config.scenario, config.task_ends
        return Order(np.concatenate(segments), bounds, points, groups, *kinds)


def task_sizes(config: StreamConfig, count: int, name: str = "the dataset") -> list[int]:
    """How many of ``count`` classes or domains each task has."""
    if config.task_sizes:
        if sum(config.task_sizes) != count:
            what = "domains" if config.scenario == "domain" else "classes"
            given = ",".join(map(str, config.task_sizes))
            raise OcilError(f"task_sizes = {given} is {sum(config.task_sizes)} {what}, and {name} has {count}.")
        return list(config.task_sizes)
    if not config.first_task:
        return _equal(count, config.tasks)
    rest, others = count - config.first_task, config.tasks - 1
    if rest < others or (rest and not others):
        raise OcilError(f"first_task = {config.first_task} leaves {max(rest, 0)} of {count} for the {others} others.")
    return [config.first_task, *(_equal(rest, others) if others else ())]


def batch_bounds(lengths: Sequence[int], size: int, drop_last: bool) -> tuple[list[tuple[int, int]], list[int]]:
    """Where each batch begins and ends, in segments of these lengths; and the number of each segment's last batch."""
    bounds: list[tuple[int, int]] = []
    last_batches: list[int] = []
    offset = 0
    for length in lengths:
        end = length - length % size if drop_last else length
        bounds += [(offset + b, offset + min(b + size, end)) for b in range(0, end, size)]
        last_batches.append(len(bounds) - 1)
        offset += length
    return bounds, last_batches


def _too_few(config: StreamConfig, name: str, batches: int, rows: int, samples: int) -> OcilError:
    """The error for a task without a batch, or for fewer batches than evaluations. ``samples``: what the smallest task
    holds, or a stream that has none."""
    given, remedy = f"batch_size = {config.batch_size}", "give smaller batches or fewer tasks"
    if config.imbalance_factor != 1:
        remedy = f"give smaller batches, fewer tasks or less than imbalance_factor = {config.imbalance_factor:g}"
    if config.boundary in ("none", "iid"):
        found = f"makes {batches} batches of the {samples} samples of {name}"
        return OcilError(f"{given} {found}, which are too few to evaluate {rows} times: {remedy}.")
    if samples >= config.batch_size:  # where task ends are hidden, batches go on from task to task
        return OcilError(f"{given} lets two tasks of {name} end in the same batch: {remedy}.")
    remedy += ", or drop_last = false" if samples and config.drop_last else ""
    return OcilError(f"{given} is more than a task of {name} holds, {samples} samples: {remedy}.")


def _equal(count: int, parts: int) -> list[int]:
    """``count`` in equal parts; the first ones have one more where that cannot be."""
    return [count // parts + (number < count % parts) for number in range(parts)]


def _arrival(data: Dataset, config: StreamConfig, seed: int) -> Indices:
    """All classes or domains, in the order of their arrival."""
    if config.scenario == "domain" and not data.domains:
        raise OcilError(
            f"scenario = 'domain' needs a dataset with domains, which {data.name} lacks: give it train_domain and "
            f"test_domain, or take one that has them, such as {data.name}:noise."
        )
    names = data.domains if config.scenario == "domain" else data.classes
    units = np.arange(len(names))
    if config.arrival_order:
        return _given(config.arrival_order, names, config.scenario)
    if config.class_order == "seeded":
        return np.random.default_rng(derive(seed, "class-order")).permutation(units)
    return units


def _given(order: Sequence[str], names: Sequence[str], what: str) -> Indices:
    """The numbers of classes or domains that were given by name or number, each of them once."""
    known = {str(number): number for number in range(len(names))} | {name: n for n, name in enumerate(names)}
    for given in order:
        if given not in known:
            hint = close_to(given, names)
            raise OcilError(f"arrival_order has {given!r}, which is neither the name nor the number of a {what}.{hint}")
    found = [known[given] for given in order]
    counts = np.bincount(found, minlength=len(names))
    for wrong, why in ((counts > 1, "twice"), (counts < 1, "not at all")):
        if wrong.any():
            raise OcilError(f"arrival_order has the {what} {names[int(wrong.argmax())]!r} {why}: name each one once.")
    return np.array(found, dtype=np.int64)
