"""The runs of some cells: which there are, which are finished, and their results."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from ocil.data import Dataset
from ocil.data.derived import short_name
from ocil.engines.job import Outcomes
from ocil.errors import OcilError
from ocil.evaluation.measures import estimate_json
from ocil.experiments.datasets import Datasets
from ocil.experiments.files import Cell
from ocil.files import first_existing, is_there
from ocil.runs.build import Checks
from ocil.runs.config import RunConfig
from ocil.runs.features import Encoder, missing
from ocil.runs.folder import RunFolder
from ocil.runs.results import Result, Summary, measures_json, summarise
from ocil.runs.stream_run import StreamRun


@dataclass(frozen=True)
class Plan:
    """All runs of some cells, and the fine-tuned runs that intransigence compares them with."""

    cells: tuple[Cell, ...]
    root: Path
    """Folder of the runs. It is read once, when the state of the runs is needed."""
    with_references: bool = True
    """Whether there are runs to compare with."""

    @cached_property
    def references(self) -> dict[RunConfig, RunConfig]:
        """The reference of each run."""
        return references([config for cell in self.cells for config in cell.configs]) if self.with_references else {}

    @cached_property
    def configs(self) -> list[RunConfig]:
        """All runs: references first, then those of the cells, each one once."""
        wanted = [config for cell in self.cells for config in cell.configs]
        return list(dict.fromkeys([*self.references.values(), *wanted]))

    @cached_property
    def runs(self) -> list[StreamRun]:
        """All runs, for ``ocil.engines.execute``."""
        return [StreamRun(config) for config in self.configs]

    @cached_property
    def state(self) -> "PlanState":
        """Which runs are finished or begun, read from their folders."""
        state = PlanState(set(), set(), {})
        for config in self.configs:
            folder = RunFolder.of(self.root, config)
            try:
                if folder.result() is not None:
                    state.finished.add(config)
                elif folder.checkpoint.exists():
                    state.begun.add(config)
            except OcilError as error:
                state.broken[config] = error
        return state

    def unfinished(self, configs: Sequence[RunConfig] | None = None) -> list[RunConfig]:
        """The given runs, by default all, that executing the plan would train."""
        settled = self.state.finished | self.state.broken.keys()
        return [config for config in (self.configs if configs is None else configs) if config not in settled]

    def counts(self, configs: Sequence[RunConfig]) -> dict[str, int]:
        finished, begun = (sum(config in some for config in configs) for some in self.state[:2])
        return {"runs": len(configs), "finished": finished, "begun": begun, "to_run": len(self.unfinished(configs))}

    def check(self, datasets: Datasets) -> None:
        """Raise what a run would raise later, whatever its seed, for all datasets that are there.

        Only one dataset is in memory at a time, and the stream of a seed is drawn once for all cells that share it.
        """
        for name in dict.fromkeys(cell.config.dataset for cell in self.cells):
            if name in datasets.missing:
                continue
            loaded = datasets.load(name)
            cells, checks = [cell for cell in self.cells if cell.config.dataset == name], Checks(loaded)
            for cell in cells:
                with _of(cell):
                    checks.check(cell.configs)
            configs = [config for cell in cells for config in cell.configs]
            check_images(configs, self.root, loaded, self.with_references)

    def features(self, datasets: Datasets) -> "list[FeaturesToCompute]":
        """The features that unfinished runs learn from and that are not in the data folder yet."""
        wanted: dict[tuple[str, Encoder], None] = {}
        for config in self.unfinished():
            if (encoder := Encoder.of(config.learner)) is not None and config.dataset not in datasets.missing:
                wanted[config.dataset, encoder] = None
        found = [
            FeaturesToCompute(name, encoder, missing(datasets.load(name), encoder, datasets.data_dir))
            for name, encoder in wanted
        ]
        return [each for each in found if each.images]

    def describe(self, run: StreamRun, error: Exception) -> str:
        """The message for a run that failed."""
        config = run.config
        memory = f", memory {config.learner.memory}" if config.learner.memory else ""
        name = next((cell.label for cell in self.cells if config in cell.configs), "reference")
        return f"{name}, {short_name(config.dataset)}{memory}, seed {config.seed}: {error}"

    def summary(self, cell: Cell, outcomes: Outcomes) -> "CellSummary | None":
        """Means over the finished runs of a cell, compared with their references; None if no run is finished."""
        results = results_of(cell, outcomes)
        if not results:
            return None
        if len({result.images for result in results if result.images}) > 1:
            name = results[0].config.cell
            raise OcilError(f"{name}: the images changed while its runs went on. Delete that folder and run it again.")
        summary = summarise(results, [self._reference(result.config, outcomes) for result in results])
        return CellSummary(summary, [RunFolder.of(self.root, result.config).path for result in results])

    def _reference(self, config: RunConfig, outcomes: Outcomes) -> Result | None:
        """The finished run that a run is compared with, if it has one."""
        found = outcomes[StreamRun(self.references[config]).key] if config in self.references else None
        return found if isinstance(found, Result) else None


class FeaturesToCompute(NamedTuple):
    """Features of a dataset that some images lack."""

    dataset: str
    encoder: Encoder
    images: int
    """How many images have no features yet."""


@contextmanager
def _of(cell: Cell) -> Iterator[None]:
    """Errors inside the block name the cell."""
    try:
        yield
    except OcilError as error:
        raise OcilError(f"{cell.label}: {error}") from error


class PlanState(NamedTuple):
    """What has become of the runs of a plan."""

    finished: set[RunConfig]
    begun: set[RunConfig]
    """Runs that have a checkpoint and no result yet."""
    broken: dict[RunConfig, OcilError]
    """Runs whose result cannot be read. They fail when the plan is executed."""


def results_of(cell: Cell, outcomes: Outcomes) -> list[Result]:
    """The results of a cell's finished runs."""
    found = (outcomes[StreamRun(config).key] for config in cell.configs)
    return [result for result in found if isinstance(result, Result)]


class CellSummary(NamedTuple):
    """Means over the finished runs of a cell, and their folders."""

    summary: Summary
    folders: list[Path]

    def to_json(self) -> dict[str, Any]:
        config = self.summary.config
        measures = [f.name for f in fields(Summary) if f.name not in ("config", "accuracy_curve", "measures")]
        note = {} if len(self.folders) > 1 else {"note": "one seed: no interval"}
        return {
            "method": config.label,
            "dataset": config.dataset,
            "memory": config.learner.memory,
            "seeds": len(self.folders),
            **{name: estimate_json(getattr(self.summary, name)) for name in measures},
            "accuracy_curve": [estimate_json(point) for point in self.summary.accuracy_curve],
            **measures_json(self.summary),
            "runs": [str(folder) for folder in self.folders],
            **note,
        }


def references(configs: Sequence[RunConfig]) -> dict[RunConfig, RunConfig]:
    """The fine-tuned run that intransigence compares each run with: one of these runs if it is among them, with however
    many evaluations. A stream that mixes all classes has none.
    """
    among = {config.unmeasured: config for config in configs if config.method == "fine-tune"}
    known: dict[tuple[object, ...], RunConfig] = {}  # of the first seed of each cell: a table has thousands of runs
    found = {}
    for config in configs:
        if config.stream.boundary == "iid":
            continue
        facts = (config.fingerprint, config.weights, config.code)
        key = (config.method, config.dataset, config.stream, config.learner, *facts)
        if key not in known:
            known[key] = config.reference()
        reference = replace(known[key], seed=config.seed)
        found[config] = among.get(reference, reference)
    return found


def check_names(configs: Iterable[RunConfig], root: Path) -> None:
    """Raise if the folders of these runs cannot be made because their names are too long."""
    try:
        is_there(first_existing(root) / max((config.cell for config in configs), key=len))
    except OSError as error:
        raise OcilError(f"cannot write to {root}: {error.strerror}. Give the dataset a shorter name.") from None


def check_images(configs: Sequence[RunConfig], root: Path, dataset: Dataset, with_references: bool) -> None:
    """Raise if a finished run, or one that it would be compared with, was trained on other images of that name."""
    compared = references(configs).values() if with_references else ()
    for config in dict.fromkeys([*configs, *compared]):
        folder = RunFolder.of(root, config)
        try:
            result = folder.result()
        except OcilError:  # reported when the result is used
            continue
        if result is not None:
            result.require_same_images(dataset, folder.path)
