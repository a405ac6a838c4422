"""Choosing settings on the first tasks alone, after the online continual learning survey (Mai et al., 2021).

The survey's code tries every point of a grid on the first two tasks, with three runs each, and keeps the point with the
best mean accuracy after them. It scores on the test images of those two tasks and then reports on the others. Here no
test image has an influence: scores are computed on training images of the two tasks, the same share of each class, that
are held out.

    search = Search("er", "cifar100", {"lr": ["0.03", "0.1"]}, memory=5000)
    outcomes = execute(search.plan().runs, job)
    choice = search.choose(search.scores(outcomes))
"""

import hashlib
import json
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from functools import cached_property, partial
from itertools import chain, product
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ocil import data
from ocil.data import DEFAULT, Dataset
from ocil.engines.job import Outcomes
from ocil.errors import OcilError
from ocil.evaluation.measures import Estimate, average_accuracy, estimate, estimate_json
from ocil.experiments.datasets import dataset_name
from ocil.experiments.files import Cell, seed_count
from ocil.experiments.plan import Plan, results_of
from ocil.experiments.search_split import search_split, stream_of_split, write_data
from ocil.methods import method as method_info
from ocil.runs.build import Checks, refuse_wrong_inputs
from ocil.runs.config import RunConfig, command, facts_of, plugin_words, resolve
from ocil.runs.features import Encoder, features_of
from ocil.runs.folder import RunFolder, is_folder
from ocil.runs.naming import readable, short_digest
from ocil.runs.results import Result, write_json
from ocil.runs.stream_run import StreamRun
from ocil.streams.config import EVALUATION, StreamConfig
from ocil.streams.long_tail import counts_of, is_long_tailed

SCHEMA = 1
RECORD = "tuning.json"
SEARCHED_OF_STREAM = {"batch_size", "epochs", "drop_last"}
NOT_SEARCHED = {
    each.name for each in fields(StreamConfig) if each.metadata != EVALUATION and each.name not in SEARCHED_OF_STREAM
}
"""Settings that decide what is to be learned: the point with the easiest stream would win."""
SPACES: dict[str, dict[str, list[str]]] = {
    "afs": {"beta": ["0.01", "0.05", "0.1", "0.15", "0.2", "0.25", "0.3", "0.4", "0.5"]}  # the paper's
}
"""The default search space of a method."""

Point = dict[str, str]
"""A point of a search space: the value of each searched setting, as it was written."""


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


class Search:
    """Tries every point of a search space on the first tasks of a stream, with several seeds each.

    ``space`` holds the values to try of each setting; several settings make a cross product. The default is that of
    ``SPACES``. ``memory``, ``review`` and ``settings`` are the same for all points. ``tasks`` is the number of tasks to
    search on, from the first; ``validation`` is the share of each class's training images that is held out to score
    on. ``out`` is the folder of the search, by default one of its own below tuning/. ``features`` turns images into
    vectors where the settings ask for that; by default they are computed on the CPU, or read from the data folder.
    """

    def __init__(
        self,
        method: str,
        dataset: str | None = None,
        space: Mapping[str, Sequence[str]] | None = None,
        *,
        memory: int | None = None,
        review: bool | None = None,
        settings: Mapping[str, str] | None = None,
        tasks: int = 2,
        seeds: int = 3,
        validation: float = 0.1,
        out: Path | None = None,
        data_dir: Path | None = None,
        features: Callable[[Dataset, Encoder], Dataset] | None = None,
    ) -> None:
        self.method = method_info(method).name
        self.memory, self.review, self.settings = memory, review, dict(settings or {})
        self.tasks, self.seeds, self.validation = tasks, seed_count(seeds), validation
        self.space = self._checked(space or {})
        dataset = DEFAULT if dataset is None else dataset
        loaded = data.load(dataset, data_dir)
        self.dataset = dataset_name(dataset, loaded)
        facts = facts_of(loaded)
        configs: dict[RunConfig, Point] = {}  # points that resolve to the same settings are tried once
        for values in product(*self.space.values()):
            point = dict(zip(self.space, values, strict=True))
            chosen = self.settings | point
            config = resolve(self.method, self.dataset, memory=memory, review=review, settings=chosen, **facts)
            configs.setdefault(config, point)
        self.configs, self.points = list(configs), list(configs.values())
        inputs = self._inputs(loaded, features or partial(features_of, data_dir=data_dir))
        self.split = search_split(inputs, self.configs[0], tasks, validation)
        self.out = out or self._folder()
        self.cells = tuple(
            Cell(_text(point), tuple(self._on_split(replace(config, seed=seed), inputs) for seed in range(seeds)))
            for config, point in configs.items()
        )

    def _checked(self, space: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
        own = {"memory": self.memory, "review": self.review}
        fixed = {*self.settings, *(name for name, value in own.items() if value is not None)}
        for name, values in space.items():
            if name in fixed:
                raise OcilError(
                    f"{name} is given twice, to search ({','.join(values)}) and as a setting: leave one out."
                )
            if name in NOT_SEARCHED:
                raise OcilError(f"{name}={','.join(values)}: {name} changes the problem; it cannot be searched.")
        chosen = {name: list(values) for name, values in space.items()} or SPACES.get(self.method)
        if not chosen:
            raise OcilError(
                f"{self.method} has no search space of its own: name the settings to search, for example lr at 0.03, "
                "0.1 and 0.3 (--grid lr=0.03,0.1,0.3)."
            )
        if twice := fixed & chosen.keys():
            raise OcilError(f"{min(twice)} is what would be searched: leave it out, or name others to search (--grid).")
        return chosen

    def _inputs(self, loaded: Dataset, features: Callable[[Dataset, Encoder], Dataset]) -> Dataset:
        """What all points learn from: the dataset, or the features of its images, of all tasks, as a run keeps them."""
        encoders = {Encoder.of(config.learner) for config in self.configs}
        if len(encoders) > 1:
            raise OcilError(
                "features and pretrained are the same for all points: give them as settings (--set), not to search."
            )
        (encoder,) = encoders
        if encoder is None:
            return loaded
        refuse_wrong_inputs(self.configs[0], loaded)
        return features(loaded, encoder)

    @property
    def digest(self) -> str:
        return digest(self.configs, self.split.data.fingerprint, self.tasks)

    @property
    def former_digest(self) -> str:
        return former_digest(self.configs, self.split.data.fingerprint, self.tasks)

    @property
    def data_path(self) -> Path:
        """Where the data of the search is written, so that workers anywhere can read it."""
        return (self.out / "data" / f"{self.split.data.name}.npz").resolve()

    def _folder(self) -> Path:
        first, stem = self.configs[0], Path(self.dataset).stem
        words = f"{f'-m{first.learner.memory}' if first.learner.memory else ''}-{'-'.join(self.space)}"
        usual = Path("tuning") / f"{first.label}-{readable(stem)}{words}-{self.digest}"
        former = Path("tuning") / f"{first.label}-{stem}{words}-{self.former_digest}"
        return former if is_folder(former) and not is_folder(usual) else usual

    @cached_property
    def samples(self) -> list[int]:
        """How many samples a run of the first point learns from, by seed: a long tail may have other sizes for each."""
        cut = self.split.data
        if not is_long_tailed(self.cells[0].config.stream):
            return [len(cut.train_y)] * self.seeds
        classes = np.arange(cut.num_classes)
        return [sum(counts_of(cut, config.stream, classes, config.seed)) for config in self.cells[0].configs]

    def _on_split(self, config: RunConfig, whole: Dataset) -> RunConfig:
        """The configuration of a run of the search: all settings of the real run, on the search's own data."""
        stream = stream_of_split(self.split, whole, config, self.validation)
        fingerprint = self.split.data.fingerprint
        config = replace(config, dataset=str(self.data_path), fingerprint=fingerprint, stream=stream)
        if not config.learner.features:
            return config
        return replace(config, learner=replace(config.learner, features="", pretrained=""), weights="")

    def plan(self) -> Plan:
        """The runs of all points. Raises if one of them could not run, else writes the data that they read."""
        checks = Checks(self.split.data)
        for cell in self.cells:
            checks.check(cell.configs)
        write_data(self.split.data, self.data_path)
        return Plan(self.cells, self.out, with_references=False)

    def describe(self, run: StreamRun, error: Exception) -> str:
        """The message for a run that failed."""
        label = next(cell.label for cell in self.cells if run.config in cell.configs)
        return f"{label}, seed {run.seed}: {error}"

    def scores(self, outcomes: Outcomes) -> list[Estimate | None]:
        """The accuracy of each point on the images held out; None for a point with a run that has not finished."""
        return [
            estimate([average_accuracy(r.matrix) for r in results]) if len(results) == self.seeds else None
            for results in self._results(outcomes)
        ]

    def _results(self, outcomes: Outcomes) -> list[list[Result]]:
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
            *others, last = map(_text, [point, *close])
            note = f"{', '.join(others)} and {last} are within their intervals: more seeds may separate them."
        return Choice(winner, point, self.configs[winner], close, note)

    def record(
        self, outcomes: Outcomes, choice: Choice, failed: Sequence[str] = (), repeat: str = ""
    ) -> dict[str, Any]:
        """The search and its results, as JSON. ``repeat``: the command that repeats it, see ``command``."""
        return {
            "schema": SCHEMA,
            "search": self.digest,
            "method": choice.config.label,
            "dataset": self.dataset,
            "memory": choice.config.learner.memory,
            "settings": self.settings,
            "grid": self.space,
            "tasks": [list(classes) for classes in self.split.tasks],
            "train_images": self.samples[0] if len(set(self.samples)) == 1 else self.samples,
            "validation_images": len(self.split.data.test_y),
            "validation_share": self.validation,
            "data": {"path": str(self.data_path), "fingerprint": self.split.data.fingerprint},
            "seeds": self.seeds,
            "scores": [
                {
                    "values": point,
                    "accuracy": estimate_json(score),
                    "runs": [str(RunFolder.of(self.out, config).path) for config in cell.configs],
                }
                for point, score, cell in zip(self.points, self.scores(outcomes), self.cells, strict=True)
            ],
            "chosen": choice.point,
            "close": choice.close,
            "note": choice.note,
            "failed": list(failed),
            "command": f"{command(choice.config)} --seeds 10",
            "repeat": repeat,
            "environment": environment_of(list(chain(*self._results(outcomes)))),
        }

    def save(self, record: Mapping[str, Any]) -> Path:
        """Write the record. A record of another search, or of other seeds, in its place is renamed first."""
        path = self.out / RECORD
        set_aside(path, record, self.former_digest)
        write_json(path, record)
        return path

    def command(self, options: Mapping[str, Any]) -> str:
        """The command that repeats the search. ``options`` are further ones, None where they were not given."""
        own = {
            "memory": self.memory,
            "grid": [f"{name}={','.join(values)}" for name, values in self.space.items()],
            "tasks": self.tasks,
            "seeds": self.seeds,
            "validation": self.validation,
            "set": [f"{name}={value}" for name, value in self.settings.items()],
        }
        words = ["ocil", "tune", self.method, "--dataset", self.dataset]
        for name, value in {**own, **options}.items():
            if value not in (None, []):
                words += [f"--{name}", *map(str, value if isinstance(value, list) else [value])]
        review = {None: [], True: ["--review"], False: ["--no-review"]}[self.review]
        return " ".join([shlex.join([*words, *review]), *plugin_words(self.configs[0])])


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


def set_aside(path: Path, record: Mapping[str, Any], former: str) -> None:
    """Rename a record of another search, or of other seeds, that is in the place of the new one.

    ``former``: the digest of the same search in records from when digests covered the defaults.
    """
    if not path.is_file():
        return
    old = path.read_bytes()
    try:
        known = json.loads(old)
        if known["search"] in (record["search"], former) and known["seeds"] == record["seeds"]:
            return
    except (ValueError, KeyError, TypeError):  # perhaps a record of an earlier version
        pass
    path.rename(path.with_name(f"tuning-{hashlib.sha256(old).hexdigest()[:8]}.json"))


def environment_of(results: Sequence[Result]) -> dict[str, str]:
    """The environment of the runs, values joined by + where they differ, and when the last one finished."""
    found = [result.environment for result in results]
    names = ("ocil", "python", "torch", "device", "threads")
    content = {name: " + ".join(dict.fromkeys(str(one.get(name, "unknown")) for one in found)) for name in names}
    return content | {"finished": max(str(one.get("finished", "")) for one in found)}


def _text(point: Point) -> str:
    return " ".join(f"{name}={value}" for name, value in point.items())
