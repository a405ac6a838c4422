"""Results of long-tailed runs: ``ROOT/CELL/seed-0/result.json`` as of a stream, distinguished by ``kind``."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from ocil.errors import OcilError
from ocil.evaluation.measures import Estimate, estimate, mean_of
from ocil.longtail.config import VARIANTS, LongTailConfig, command
from ocil.longtail.metrics import LATER, MEASURES
from ocil.runs.config import for_seeds
from ocil.runs.result_checks import is_number
from ocil.runs.results import UNREADABLE, check_sealed, if_there, read_json, reason_of, sealed

KIND = "longtail"
SCHEMA = 2
"""The version of the format; since 2 a result has a checksum."""
MOST_SECONDS = 1e12


@dataclass(frozen=True)
class LongTailResult:
    """The result of one finished run. Measures are shares, 0 to 1; None where there is nothing to measure."""

    config: LongTailConfig
    measures: dict[str, float | None]
    class_accuracy: list[float | None]
    """Accuracy on each known class, closed set."""
    split: dict[str, Any]
    """The classes and images that it was trained on, see ``LongTailed.summary``."""
    best_epoch: int
    """The epoch that was tested, counted from 1: the best on the validation images."""
    validation: float
    """Accuracy on the validation images after that epoch."""
    history: list[dict[str, float]]
    """Mean loss and validation accuracy of each epoch."""
    mu: list[float] | None
    """The mu of each class that the best epoch was trained with, for the dynamic loss."""
    wall_seconds: float
    """Time of the run's own stage; stage 1 is shared."""
    stage1: dict[str, Any]
    """Digest, best epoch, validation accuracy and seconds of the stage 1 that it started from; empty if none."""
    digest: str
    """SHA-256 of the tested network."""
    environment: dict[str, Any]

    @property
    def images(self) -> str:
        """Fingerprint of the dataset; empty in results from before it was kept."""
        return str(self.environment.get("images", self.config.fingerprint))

    @property
    def headline(self) -> str:
        return f"overall {100 * (self.measures['overall'] or 0):.1f} %"

    @property
    def curves(self) -> Iterator[tuple[str, int, float]]:
        before = self.config.epochs1 if self.config.has_stage2 else 0
        yield from history_curves(self.history, before)
        for name, value in self.measures.items():
            if value is not None:
                yield f"test/{name}", before + self.best_epoch, value

    def to_json(self) -> dict[str, Any]:
        content = {f.name: getattr(self, f.name) for f in fields(self)} | {"config": self.config.to_json()}
        return sealed({"kind": KIND, "schema": SCHEMA, **content})

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "LongTailResult":
        """Raises if the content is not a result: a file may come from anywhere."""
        if content.get("kind") != KIND:
            raise ValueError("it is not a long-tailed result")
        check_sealed(content, SCHEMA)
        values = {f.name: content[f.name] for f in fields(cls)}
        result = cls(**values | {"config": LongTailConfig.from_json(content["config"])})
        _check(result)
        return result


@dataclass(frozen=True)
class Stage1Result:
    """The result of a finished stage 1. Its weights stay in its folder."""

    validation: float
    wall_seconds: float
    history: list[dict[str, float]]

    @property
    def headline(self) -> str:
        return f"validation {100 * self.validation:.1f} %"

    @property
    def curves(self) -> Iterator[tuple[str, int, float]]:
        return history_curves(self.history)


def history_curves(history: Sequence[Mapping[str, float]], before: int = 0) -> Iterator[tuple[str, int, float]]:
    """Name, step and value of each number in a history. ``before``: epochs that came before it."""
    for epoch, row in enumerate(history, before + 1):
        yield "progress/loss", epoch, row["loss"]
        yield "progress/accuracy", epoch, row["validation"]


@dataclass(frozen=True)
class LongTailCell:
    """Runs that differ only by their seed, in the order of their seeds."""

    results: tuple[LongTailResult, ...]

    @property
    def config(self) -> LongTailConfig:
        return self.results[0].config

    @property
    def command(self) -> str:
        """The command that runs all its seeds."""
        return for_seeds(command(self.config), [result.config.seed for result in self.results])

    @property
    def wall_seconds(self) -> float:
        return mean_of(result.wall_seconds for result in self.results)

    @property
    def device(self) -> str:
        return " + ".join(dict.fromkeys(str(r.environment.get("device", "unknown")) for r in self.results))

    def value(self, measure: str) -> Estimate | None:
        values = [value for result in self.results if (value := result.measures.get(measure)) is not None]
        return estimate(values) if values and len(values) == len(self.results) else None


def is_longtail(content: Any) -> bool:
    """Whether a file with this content holds a long-tailed result."""
    return isinstance(content, dict) and content.get("kind") == KIND


def from_content(path: Path, content: Any) -> LongTailResult:
    """The result in a file of this content. Raises ``OcilError`` if it is broken."""
    try:
        return LongTailResult.from_json(content)
    except (*UNREADABLE, OcilError) as error:
        raise OcilError(_not_longtail(path, error)) from error


def read_result(path: Path) -> LongTailResult | None:
    """The result in a file; None if there is no file. Raises ``OcilError`` if it cannot be read."""
    return if_there(path, lambda: LongTailResult.from_json(read_json(path)), _not_longtail)


def _not_longtail(path: Path, error: Exception) -> str:
    return f"{path} is not a long-tailed result of ocil, or it is broken: {reason_of(error)}"


def cells(results: Sequence[LongTailResult]) -> tuple[LongTailCell, ...]:
    """Results grouped by all but the seed, sorted by dataset and in the order of the paper's table. A run that is
    there twice counts once."""
    groups: dict[str, dict[int, LongTailResult]] = {}
    for result in results:
        groups.setdefault(result.config.cell, {}).setdefault(result.config.seed, result)
    found = [LongTailCell(tuple(runs[seed] for seed in sorted(runs))) for runs in groups.values()]
    names = list(VARIANTS)
    return tuple(sorted(found, key=lambda c: (c.config.dataset_label, names.index(c.config.variant), c.config.cell)))


def _check_config(config: LongTailConfig) -> None:
    if not isinstance(config.dataset, str) or not config.dataset or not isinstance(config.seed, int):
        raise ValueError("dataset or seed is not what it should be")
    for name, value in config.to_json().items():
        may_be_number = name not in ("precision", "fingerprint")
        if not isinstance(value, str) and not (may_be_number and (isinstance(value, bool) or is_number(value))):
            raise ValueError(f"{name} is not what it should be")


def _check(result: LongTailResult) -> None:
    _check_config(result.config)
    if not isinstance(result.measures, dict) or set(result.measures) | set(LATER) != set(MEASURES):
        raise ValueError("the measures are not those of a long-tailed test")
    for name, value in result.measures.items():
        if value is not None and not (is_number(value) and 0 <= value <= 1):
            raise ValueError(f"{name} = {str(value)[:40]} is not a share")
    timed = is_number(result.wall_seconds) and 0 <= result.wall_seconds <= MOST_SECONDS
    if not timed or not isinstance(result.digest, str):
        raise ValueError("wall_seconds or digest is not what it should be")
    if not isinstance(result.environment, dict) or not isinstance(result.split, dict):
        raise ValueError("environment or split is not an object")
