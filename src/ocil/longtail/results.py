"""What long-tailed runs leave: ``ROOT/CELL/seed-0/result.json`` beside those of streams, told apart by ``kind``."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ocil.config import for_seeds
from ocil.errors import OcilError
from ocil.longtail.config import VARIANTS, LongTailConfig, command
from ocil.longtail.metrics import MEASURES
from ocil.metrics import Estimate, estimate
from ocil.results import UNREADABLE, check_sealed, is_nowhere, is_number, read_json, reason_of, sealed

KIND = "longtail"
SCHEMA = 2
"""Of results; since 2 they have a checksum."""
MOST_SECONDS = 1e12


@dataclass(frozen=True)
class LongTailResult:
    """What one finished run found. Measures are shares, 0 to 1; None where there is nothing to measure."""

    config: LongTailConfig
    measures: dict[str, float | None]
    class_accuracy: list[float | None]
    """Closed set, of each known class."""
    split: dict[str, Any]
    """Known and open classes, training images of each, sizes, digest: see ``LongTailed.summary``."""
    best_epoch: int
    """The epoch that was tested, counted from 1: the best on the validation images."""
    validation: float
    """Overall accuracy on the validation images then."""
    history: list[dict[str, float]]
    """Each epoch's mean loss and validation accuracy."""
    mu: list[float] | None
    """RFL^d: what the best epoch was trained with."""
    wall_seconds: float
    """Of this run's own stage; stage 1 is shared."""
    stage1: dict[str, Any]
    """Digest, best epoch, validation accuracy and seconds of the stage 1 it starts from."""
    digest: str
    """SHA-256 of the tested network."""
    environment: dict[str, Any]

    @property
    def images(self) -> str:
        """Fingerprint of the dataset; empty in results from before it was kept."""
        return str(self.environment.get("images", self.config.fingerprint))

    def to_json(self) -> dict[str, Any]:
        names = ("measures", "class_accuracy", "split", "best_epoch", "validation", "history", "mu", "wall_seconds",
                 "stage1", "digest", "environment")  # fmt: skip
        content = {name: getattr(self, name) for name in names}
        return sealed({"kind": KIND, "schema": SCHEMA, "config": self.config.to_json(), **content})

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> "LongTailResult":
        """Checked: a file may come from anywhere."""
        if content.get("kind") != KIND:
            raise ValueError("it is not a long-tailed result")
        check_sealed(content, SCHEMA)
        result = cls(
            LongTailConfig.from_json(content["config"]),
            *(content[name] for name in (
                "measures", "class_accuracy", "split", "best_epoch", "validation", "history", "mu", "wall_seconds",
                "stage1", "digest", "environment",
            )),
        )  # fmt: skip
        _check(result)
        return result


@dataclass(frozen=True)
class LongTailCell:
    """Runs that differ only by their seed, in the order of their seeds."""

    results: tuple[LongTailResult, ...]

    @property
    def config(self) -> LongTailConfig:
        return self.results[0].config

    @property
    def command(self) -> str:
        """What to type to get all its seeds."""
        return for_seeds(command(self.config), [result.config.seed for result in self.results])

    @property
    def wall_seconds(self) -> float:
        return sum(result.wall_seconds for result in self.results) / len(self.results)

    @property
    def device(self) -> str:
        return " + ".join(dict.fromkeys(str(r.environment.get("device", "unknown")) for r in self.results))

    def value(self, measure: str) -> Estimate | None:
        values = [value for result in self.results if (value := result.measures[measure]) is not None]
        return estimate(values) if values and len(values) == len(self.results) else None


def read_if_longtail(path: Path) -> LongTailResult | None:
    """The long-tailed result in a file; None if it is a file of another kind, whatever that is."""
    try:
        content = read_json(path)
    except (OSError, ValueError, RecursionError):
        return None
    return read_result(path) if isinstance(content, dict) and content.get("kind") == KIND else None


def read_result(path: Path) -> LongTailResult | None:
    """A finished run's result; None if there is none."""
    try:
        return LongTailResult.from_json(read_json(path))
    except (*UNREADABLE, OcilError) as error:
        if is_nowhere(error):
            return None
        raise OcilError(f"{path} is not a long-tailed result of ocil, or it is broken: {reason_of(error)}") from None


def cells(results: Sequence[LongTailResult]) -> tuple[LongTailCell, ...]:
    """Grouped by all but the seed; datasets together, variants in the order of the paper's table. A run that is there
    twice counts once."""
    groups: dict[str, dict[int, LongTailResult]] = {}
    for result in results:
        groups.setdefault(result.config.cell, {}).setdefault(result.config.seed, result)
    found = [LongTailCell(tuple(runs[seed] for seed in sorted(runs))) for runs in groups.values()]
    names = list(VARIANTS)
    return tuple(sorted(found, key=lambda c: (c.config.place, names.index(c.config.variant), c.config.cell)))


def _check(result: LongTailResult) -> None:
    config = result.config
    if not isinstance(config.dataset, str) or not config.dataset or not isinstance(config.seed, int):
        raise ValueError("dataset or seed is not what it should be")
    for name, value in config.to_json().items():
        if name in ("precision", "fingerprint"):
            good = isinstance(value, str)
        else:
            good = isinstance(value, str | bool) or is_number(value)
        if not good:
            raise ValueError(f"{name} is not what it should be")
    if not isinstance(result.measures, dict) or set(result.measures) != set(MEASURES):
        raise ValueError("the measures are not those of a long-tailed test")
    for name, value in result.measures.items():
        if value is not None and not (is_number(value) and 0 <= value <= 1):
            raise ValueError(f"{name} = {str(value)[:40]} is not a share")
    if (
        not is_number(result.wall_seconds)
        or not 0 <= result.wall_seconds <= MOST_SECONDS
        or not isinstance(result.digest, str)
    ):
        raise ValueError("wall_seconds or digest is not what it should be")
    if not isinstance(result.environment, dict) or not isinstance(result.split, dict):
        raise ValueError("environment or split is not an object")
