"""Choosing settings on the first tasks alone, after the online continual learning survey (Mai et al., 2021).

The survey's code tries every point of a grid on the first two tasks, with three runs each, and keeps the point with the
best mean accuracy after them. It scores on the test images of those two tasks and then reports on the others. Here no
test image has an influence: scores are computed on training images of the two tasks, the same share of each class, that
are held out.

    search = Search.prepare("er", "cifar100", {"lr": ["0.03", "0.1"]}, memory=5000)
    plan = search.plan()
    search.write_data()
    outcomes = execute(plan.runs, job)
    choice = search.choose(search.scores(outcomes))
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ocil import data
from ocil.data import DEFAULT, Dataset
from ocil.engines.job import Outcomes
from ocil.errors import OcilError
from ocil.evaluation.measures import Estimate, average_accuracy, estimate
from ocil.experiments.datasets import dataset_name
from ocil.experiments.files import Cell, seed_count
from ocil.experiments.plan import Plan, results_of
from ocil.experiments.search_space import Point, SearchSpace, text_of
from ocil.experiments.search_split import SearchSplit, config_of_split, search_split, write_data
from ocil.methods import method as method_info
from ocil.runs.build import Checks, refuse_wrong_inputs
from ocil.runs.config import RunConfig
from ocil.runs.features import Encoder, features_of
from ocil.runs.folder import is_folder
from ocil.runs.naming import readable, short_digest
from ocil.runs.results import Result
from ocil.runs.settings import read_as
from ocil.runs.stream_run import StreamRun
from ocil.streams.long_tail import counts_of, is_long_tailed


class Choice(NamedTuple):
    """The best point of a search."""

    number: int
    """Its place among ``Search.points``."""
    point: Point
    config: RunConfig
    """The configuration with these settings on the whole dataset."""
    close: list[Point]
    """The other points whose interval overlaps that of the best, in the order of the space."""
    note: str
    """A warning if the choice is not certain, else empty."""


@dataclass(frozen=True)
class Search:
    """Tries every point of a search space on the first tasks of a stream, with several seeds each.

    ``prepare`` makes one.
    """

    space: SearchSpace
    dataset: str
    """The name of the whole dataset."""
    configs: list[RunConfig]
    """The configuration of each point on the whole dataset."""
    points: list[Point]
    split: SearchSplit
    """The first tasks, on which the points are tried."""
    cells: tuple[Cell, ...]
    """The runs of each point on the first tasks."""
    validation: float
    """The share of each class's training images that is held out to score on."""
    out: Path
    """The folder of the search."""

    @classmethod
    def prepare(
        cls,
        method: str,
        dataset: str | None = None,
        space: Mapping[str, Sequence[Any]] | None = None,
        *,
        memory: int | None = None,
        review: bool | None = None,
        settings: Mapping[str, Any] | None = None,
        tasks: int = 2,
        seeds: int = 3,
        validation: float = 0.1,
        out: Path | None = None,
        data_dir: Path | None = None,
        features: Callable[[Dataset, Encoder], Dataset] | None = None,
    ) -> "Search":
        """Load the dataset, compute the features of its images if the settings ask for that, and cut the first tasks.

        ``space``, ``memory``, ``review`` and ``settings``: see ``SearchSpace``. ``tasks`` is the number of tasks to
        search on, from the first; ``validation`` is the share of each class's training images that is held out to score
        on. ``out`` is the folder of the search, by default one of its own below tuning/. ``features`` turns images into
        vectors; by default they are computed on the CPU, or read from the data folder.
        """
        name, seeds = method_info(method).name, seed_count(seeds)
        tasks, validation = read_as("tasks", tasks, int), read_as("validation", validation, float)
        space, settings = {} if space is None else space, {} if settings is None else settings
        searched = SearchSpace(name, space, memory, review, settings)
        dataset = DEFAULT if dataset is None else dataset
        loaded = data.load(dataset, data_dir)
        dataset = dataset_name(dataset, loaded)
        points = searched.resolve(dataset, loaded)
        configs = list(points)
        inputs = _inputs(configs, loaded, features or partial(features_of, data_dir=data_dir))
        split = search_split(inputs, configs[0], tasks, validation)
        out = out or _usual_folder(searched, dataset, configs, split)
        path = _data_path(out, split)

        def on_split(config: RunConfig, seed: int) -> RunConfig:
            return config_of_split(split, inputs, replace(config, seed=seed), validation, path)

        cells = tuple(
            Cell(text_of(point), tuple(on_split(config, seed) for seed in range(seeds)))
            for config, point in points.items()
        )
        return cls(searched, dataset, configs, list(points.values()), split, cells, validation, out)

    @property
    def tasks(self) -> int:
        """The number of tasks to search on."""
        return len(self.split.tasks)

    @property
    def seeds(self) -> int:
        """Runs of each point."""
        return len(self.cells[0].configs)

    @property
    def digest(self) -> str:
        return digest(self.configs, self.split.data.fingerprint, self.tasks)

    @property
    def former_digest(self) -> str:
        return former_digest(self.configs, self.split.data.fingerprint, self.tasks)

    @property
    def data_path(self) -> Path:
        """Where the data of the search is written, so that workers anywhere can read it."""
        return _data_path(self.out, self.split)

    @cached_property
    def samples(self) -> list[int]:
        """How many samples a run of the first point learns from, by seed: a long tail may have other sizes for each."""
        cut = self.split.data
        if not is_long_tailed(self.cells[0].config.stream):
            return [len(cut.train_y)] * self.seeds
        classes = np.arange(cut.num_classes)
        return [sum(counts_of(cut, config.stream, classes, config.seed)) for config in self.cells[0].configs]

    def plan(self) -> Plan:
        """The runs of all points. Raises if one of them could not run. Before they run, call ``write_data``."""
        checks = Checks(self.split.data)
        for cell in self.cells:
            checks.check(cell.configs)
        return Plan(self.cells, self.out, with_references=False)

    def write_data(self) -> None:
        """Write the data that the runs read, unless it is there already and whole."""
        write_data(self.split.data, self.data_path)

    def describe(self, run: StreamRun, error: Exception) -> str:
        """The message for a run that failed."""
        label = next(cell.label for cell in self.cells if run.config in cell.configs)
        return f"{label}, seed {run.seed}: {error}"

    def scores(self, outcomes: Outcomes) -> list[Estimate | None]:
        """The accuracy of each point on the images held out; None for a point with a run that has not finished."""
        return [
            estimate([average_accuracy(r.matrix) for r in results]) if len(results) == self.seeds else None
            for results in self.results(outcomes)
        ]

    def results(self, outcomes: Outcomes) -> list[list[Result]]:
        """The finished runs of each point."""
        return [results_of(cell, outcomes) for cell in self.cells]

    def choose(self, scores: Sequence[Estimate | None]) -> Choice | None:
        """The best point; None if no point has finished all its runs."""
        winner = best(scores)
        if winner is None:
            return None
        point, close = self.points[winner], [self.points[number] for number in rivals(scores, winner)]
        note = ""
        if self.seeds < 3 and len(self.points) > 1:
            seeds = "one seed" if self.seeds == 1 else "two seeds"
            note = f"There is no interval with {seeds} per point: with more seeds another point may win."
        elif close:
            *others, last = map(text_of, [point, *close])
            note = f"{', '.join(others)} and {last} are within their intervals: more seeds may separate them."
        return Choice(winner, point, self.configs[winner], close, note)


def _inputs(configs: Sequence[RunConfig], loaded: Dataset, features: Callable[[Dataset, Encoder], Dataset]) -> Dataset:
    """What all points learn from: the dataset, or the features of its images, of all tasks, as a run keeps them."""
    encoders = {Encoder.of(config.learner) for config in configs}
    if len(encoders) > 1:
        raise OcilError(
            "features and pretrained are the same for all points: give them as settings (--set), not to search."
        )
    (encoder,) = encoders
    if encoder is None:
        return loaded
    refuse_wrong_inputs(configs[0], loaded)
    return features(loaded, encoder)


def _data_path(out: Path, split: SearchSplit) -> Path:
    return (out / "data" / f"{split.data.name}.npz").resolve()


def _usual_folder(space: SearchSpace, dataset: str, configs: Sequence[RunConfig], split: SearchSplit) -> Path:
    """The folder of a search for which none is given."""
    first, stem = configs[0], Path(dataset).stem
    words = f"{f'-m{first.learner.memory}' if first.learner.memory else ''}-{'-'.join(space.values)}"
    searched = configs, split.data.fingerprint, len(split.tasks)
    usual = Path("tuning") / f"{first.label}-{readable(stem)}{words}-{digest(*searched)}"
    former = Path("tuning") / f"{first.label}-{stem}{words}-{former_digest(*searched)}"
    return former if is_folder(former) and not is_folder(usual) else usual


def digest(configs: Iterable[RunConfig], fingerprint: str, tasks: int) -> str:
    """Identifies a search: by its points, in whatever order, and the images they are tried on.

    It does not depend on the number of seeds, so that a search can go on with more of them, nor on the dataset's path.
    """
    contents = sorted(json.dumps(config.settings, sort_keys=True) for config in configs)
    return short_digest([contents, fingerprint, tasks])


def former_digest(configs: Iterable[RunConfig], fingerprint: str, tasks: int) -> str:
    """The digest that ``digest`` gave when it covered every setting and the dataset's path."""
    contents = sorted(json.dumps(config.as_formerly(), sort_keys=True) for config in configs)
    return short_digest([contents, fingerprint, tasks])


def best(scores: Sequence[Estimate | None]) -> int | None:
    """The point with the highest mean accuracy; the first of equals. Points with a failed run do not count."""
    means = {number: score.mean for number, score in enumerate(scores) if score is not None}
    return max(means, key=means.__getitem__, default=None)


def rivals(scores: Sequence[Estimate | None], winner: int) -> list[int]:
    """The other points whose interval overlaps that of the best, in the order of the space.

    With one seed or two there is none, and nothing is concluded: see ``Estimate.shown_interval``.
    """
    found, top = [], scores[winner]
    for number, score in enumerate(scores):
        if score is None or top is None or score.shown_interval is None or top.shown_interval is None:
            continue
        if number != winner and score.mean + score.shown_interval >= top.mean - top.shown_interval:
            found.append(number)
    return found
