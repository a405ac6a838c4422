"""Measured cells, that is runs that differ only by their seed, and how tables and figures name them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ocil.data import CATALOG
from ocil.data.derived import short_name
from ocil.evaluation.record_types import AnytimeRecord
from ocil.longtail.results import LongTailCell
from ocil.methods import method
from ocil.runs.config import RunConfig, changed_settings, code_of, command, concerns, for_seeds
from ocil.runs.naming import short_digest
from ocil.runs.results import Result, Summary
from ocil.runs.settings import as_argument
from ocil.streams import StreamConfig
from ocil.text import escaped

MEASURING = frozenset(concerns(StreamConfig, "evaluation"))
"""Settings that say what is recorded of a run and leave what it learns as it is."""
UNNAMED = MEASURING | {"precision"}
"""Settings that no paper names: they do not decide which row of a table a cell belongs to."""
LONGEST = 100  # characters of what distinguishes a stream, where it stands in headings
LONGEST_LIST = 24  # characters of a list in it, such as the sizes of all classes
INPUT = frozenset(field.name for field in fields(StreamConfig)) | {"features", "pretrained"}
"""Settings that say what a method gets: runs that differ in them are in other columns, not in other rows."""


@dataclass(frozen=True)
class FinishedRun:
    """A result and the file it was read from."""

    path: Path
    result: Result

    @property
    def device(self) -> str:
        return str(self.result.environment.get("device", "unknown"))


@dataclass(frozen=True)
class MeasuredCell:
    """Runs that differ only by their seed, in the order of their seeds."""

    runs: tuple[FinishedRun, ...]
    summary: Summary
    common_precision: bool = False
    """Whether most cells of its dataset have its precision."""
    common_tasks: bool = False
    """Whether all cells of its dataset have its number of tasks, though the catalog knows none."""
    common_reviews: bool = False
    """Whether all cells of its dataset and stream are reviewed as often, where no task ends are announced and the
    catalog does not know the length of the stream, from which ``review_every`` was chosen."""
    other_images: bool = False
    """Whether other cells of its dataset's name had other images, or the same ones in another stream of one's own."""

    @property
    def config(self) -> RunConfig:
        return self.summary.config

    @cached_property
    def name(self) -> str:
        return self.config.cell

    @cached_property
    def label(self) -> str:
        """How tables name its method: ``er-rv`` is ER with the review trick."""
        return self.config.label

    @cached_property
    def column(self) -> "MeasuredColumn":
        return MeasuredColumn(self.config.dataset, memory_of(self.config), self.stream)

    @cached_property
    def stream(self) -> str:
        """The changed settings of the stream and of pretrained weights, as text.

        An order of arrival is named by its file and its digest. With ``other_images`` the digest of the cell's images
        is added.
        """
        ignored = MEASURING | ({"tasks"} if self.common_tasks else set())
        found = {name: value for name, value in self.changed.items() if name in INPUT - ignored}
        if digest := found.pop("order_digest", ""):
            found["order"] = f"{Path(str(found.get('order', ''))).stem}@{str(digest)[:8]}"
        if self.other_images and self.config.fingerprint:
            found["images"] = self.config.fingerprint
        text = settings_text({name: _shortened(value) for name, value in found.items()})
        return text if len(text) <= LONGEST else f"{text[:LONGEST]}… ({short_digest(text)})"

    @cached_property
    def learner_settings(self) -> dict[str, Any]:
        """The changed settings that are not the stream's.

        A precision counts if it is not the common one of its dataset. The period of reviews counts if the memory is
        reviewed, and not as often as in all other cells of the stream.
        """
        ignored = INPUT | MEASURING | ({"precision"} if self.common_precision else set())
        if self.common_reviews or not self.config.learner.review:
            ignored |= {"review_every"}
        return {name: value for name, value in self.changed.items() if name not in ignored}

    @cached_property
    def changed(self) -> dict[str, Any]:
        """The settings that differ from what ``ocil run METHOD`` would choose, except ``review``, which the label
        shows. ``code`` is among them if the plugin file of the run has changed since.
        """
        changed = changed_settings(self.config, self.is_of_vectors)
        found = {name: value for name, value in changed.items() if name != "review"}
        return found | ({"code": self.config.code or "unknown"} if self.is_of_other_code else {})

    @property
    def is_of_vectors(self) -> bool:
        """Whether its runs have recorded that the dataset holds vectors."""
        return all(run.result.environment.get("inputs") == "vectors" for run in self.runs)

    @cached_property
    def is_of_other_code(self) -> bool:
        """Whether the plugin file of its method or network has changed since."""
        return self.config.code != code_of(self.config.method, self.config.learner)

    @cached_property
    def row_settings(self) -> dict[str, Any]:
        """The changed settings that decide which row of a table the cell belongs to."""
        return {name: value for name, value in self.changed.items() if name not in UNNAMED}

    @property
    def devices(self) -> str:
        return " + ".join(dict.fromkeys(run.device for run in self.runs))

    @property
    def anytime(self) -> list[AnytimeRecord]:
        """What each run recorded between task ends; empty without ``evaluate_every``."""
        return [run.result.anytime for run in self.runs]

    def over_seeds(self, name: str) -> NDArray[np.float64]:
        """Mean over seeds of a number of the evaluations, after each task; NaN where a run does not have it."""
        rows = [[each.get(name) for each in run.result.evaluations] for run in self.runs]
        shortest = min(map(len, rows))
        return np.asarray(np.array([row[:shortest] for row in rows], dtype=float).mean(axis=0))

    @cached_property
    def command(self) -> str:
        """The command that gives all its seeds."""
        return for_seeds(command(self.config, self.is_of_vectors), [run.result.config.seed for run in self.runs])


@dataclass(frozen=True)
class MeasuredColumn:
    """A dataset, a memory size and a stream: a column of tables, and what a figure is about. The size is 0 for methods
    without a memory, or for all sizes."""

    dataset: str
    memory: int
    stream: str = ""
    """What differs from the usual stream of the dataset, as text."""

    @property
    def title(self) -> str:
        return self.title_without_memory + (f", memory {self.memory}" if self.memory else "")

    @property
    def title_without_memory(self) -> str:
        return ", ".join(filter(None, (title_of(self.dataset), escaped(self.stream))))

    @property
    def slug(self) -> str:
        return "-".join(filter(None, (short_name(self.dataset), self.stream, f"m{self.memory}" if self.memory else "")))


@dataclass(frozen=True)
class Collection:
    """All results that were found."""

    cells: tuple[MeasuredCell, ...]
    warnings: tuple[str, ...]
    """One per file that could not be used, and per dataset whose runs should not be compared."""
    longtail: tuple[LongTailCell, ...] = ()
    """Cells of long-tailed runs, which have a table of their own."""

    def at(self, column: MeasuredColumn) -> list[MeasuredCell]:
        """The cells of a dataset, stream and memory size, and those of methods that keep no memory."""
        return [
            cell
            for cell in self.cells
            if (cell.config.dataset, cell.stream) == (column.dataset, column.stream)
            and cell.column.memory in (column.memory, 0)
        ]

    @property
    def columns(self) -> list[MeasuredColumn]:
        """Every dataset, stream and memory size with runs, in the order of tables."""
        return list(dict.fromkeys(cell.column for cell in self.cells if cell.column.memory))


def _shortened(value: Any) -> Any:
    """A long list by its beginning and a digest, so that headings have room for the settings behind it."""
    text = as_argument(value)
    if not isinstance(value, list | tuple) or len(text) <= LONGEST_LIST:
        return value
    return f"{','.join(map(as_argument, value[:3]))},…@{short_digest(text)}"


def memory_of(config: RunConfig) -> int:
    return config.learner.memory if method(config.method).memory else 0


def title_of(dataset: str) -> str:
    """The name of a dataset on pages and in tables and figures: ``CIFAR-10 + CIFAR-100 (noise)``."""
    parts = [part.split(":", 1) for part in dataset.split("+")]
    if not all(name in CATALOG for name, *_ in parts):
        return escaped(short_name(dataset))
    return " + ".join(
        escaped(" ".join([CATALOG[name].title, *(f"({word})" for word in more)])) for name, *more in parts
    )


def settings_text(settings: Mapping[str, Any]) -> str:
    """``loss=ce regulariser=none``, as ``--set`` takes it."""
    return " ".join(f"{name}={as_argument(value)}" for name, value in settings.items())


def names_apart(configs: Sequence[RunConfig], without: str = "") -> list[str]:
    """The label of each configuration; behind those of one label, the settings in which they differ.

    ``without``: a setting that stands elsewhere.
    """
    labels, values = [config.label for config in configs], [_settings_of(config) for config in configs]
    differing: dict[str, set[str]] = {label: set() for label in labels}
    first = dict(zip(reversed(labels), reversed(values), strict=True))
    for label, mine in zip(labels, values, strict=True):
        differing[label] |= {key for key in first[label] | mine if first[label].get(key) != mine.get(key)} - {without}
    return [
        f"{label} {settings_text({key: mine[key] for key in mine if key in differing[label]})}".strip()
        for label, mine in zip(labels, values, strict=True)
    ]


def _settings_of(config: RunConfig) -> dict[str, Any]:
    """Whatever makes another cell of the same method and dataset, by the names that tables have for it."""
    parts = (config.learner, config.stream)
    found = {field.name: getattr(part, field.name) for part in parts for field in fields(part)}
    return found | {"images": config.fingerprint, "weights": config.weights, "code": config.code}


def pick(cells: Iterable[MeasuredCell]) -> MeasuredCell | None:
    """The cell to show where several fit one column: the one with most seeds, then the one in the precision that most
    of the table has, then the one with most evaluations.
    """

    def order(cell: MeasuredCell) -> tuple[Any, ...]:
        points = len(cell.runs[0].result.anytime.get("points", ()))
        return -len(cell.runs), not cell.common_precision, "precision" in cell.changed, -points, cell.name

    return min(cells, key=order, default=None)
