"""The points of a search: every combination of the values to try. Nothing is read or written here."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import product
from typing import Any

from ocil.data import Dataset
from ocil.errors import OcilError
from ocil.limits import python_value
from ocil.methods import method as method_info
from ocil.networks.registry import spec_of
from ocil.runs.config import RunConfig, facts_of, resolve
from ocil.runs.settings import as_argument, refuse_no_dictionary
from ocil.streams.config import EVALUATION, StreamConfig

SEARCHED_OF_STREAM = {"batch_size", "epochs", "drop_last"}
EVALUATIONS = {each.name for each in fields(StreamConfig) if each.metadata == EVALUATION}
NOT_SEARCHED = {each.name for each in fields(StreamConfig)} - EVALUATIONS - SEARCHED_OF_STREAM
"""Settings that decide what is to be learned: the point with the easiest stream would win."""
DEFAULTS: dict[str, dict[str, list[Any]]] = {
    "afs": {"beta": [0.01, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5]}  # the paper's
}
"""The search spaces of methods for which no values are given."""

Point = dict[str, Any]
"""A point of a search space: the value of each searched setting, as it was given."""


@dataclass(frozen=True)
class SearchSpace:
    """The values to try of each setting, and what all points share. Both are given as ``ocil.resolve`` takes settings.

    Several settings make a cross product. Without ``values`` they are those of ``DEFAULTS``. Raises if a setting cannot
    be searched, or is given twice.
    """

    method: str
    values: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    memory: int | None = None
    review: bool | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "method", method_info(self.method).name)
        object.__setattr__(self, "values", self._checked())

    def _checked(self) -> dict[str, list[Any]]:
        refuse_no_dictionary("settings", self.settings, "{'lr': 0.05}")
        refuse_no_dictionary("space", self.values, "{'lr': [0.03, 0.1]}")
        given = [*self.settings.items(), ("memory", self.memory), ("review", self.review)]
        fixed = {name for name, value in given if value is not None}
        chosen = {name: _listed(name, values) for name, values in self.values.items()}
        for name, values in chosen.items():
            if name in fixed:
                raise OcilError(
                    f"{name} is given twice, to search ({_joined(values)}) and as a setting: leave one out."
                )
            if name in NOT_SEARCHED:
                raise OcilError(f"{name}={_joined(values)}: {name} changes the problem; it cannot be searched.")
            if name in EVALUATIONS:
                raise OcilError(f"{name}={_joined(values)}: {name} changes nothing that is learned: leave it out.")
        chosen = chosen or DEFAULTS.get(self.method, {})
        if not chosen:
            raise OcilError(
                f"{self.method} has no search space of its own: name the settings to search, for example lr at 0.03, "
                "0.1 and 0.3 (--grid lr=0.03,0.1,0.3)."
            )
        if twice := fixed & chosen.keys():
            raise OcilError(f"{min(twice)} is what would be searched: leave it out, or name others to search (--grid).")
        return chosen

    def resolve(self, name: str, dataset: Dataset) -> dict[RunConfig, Point]:
        """The points by their configurations on the whole dataset, which has this name. Points that resolve to the same
        settings are there once."""
        found: dict[RunConfig, Point] = {}
        for values in product(*self.values.values()):
            point = dict(zip(self.values, values, strict=True))
            chosen = {**self.settings, **point}
            config = resolve(
                self.method, name, memory=self.memory, review=self.review, settings=chosen, **facts_of(dataset)
            )
            found.setdefault(config, point)
        return found


def text_of(point: Point) -> str:
    return " ".join(f"{name}={text}" for name, text in as_texts(point).items())


def as_texts(settings: Mapping[str, Any]) -> dict[str, str]:
    """Settings as messages and records write them."""
    return {name: text_of_value(value) for name, value in settings.items()}


def text_of_value(value: Any) -> str:
    if value is None:
        return "default"
    return as_argument(spec_of(value) if callable(value) else value)


def _joined(values: Sequence[Any]) -> str:
    return ",".join(map(text_of_value, values))


def _listed(name: str, values: Any) -> list[Any]:
    """The values to try of a setting. Raises if they are no list, or none at all."""
    if isinstance(values, str | Mapping) or not isinstance(values, Iterable):
        raise OcilError(f"{name} = {values!r} is not a list of values to try: give [{values!r}].")
    if not (found := [python_value(value) for value in values]):
        raise OcilError(f"{name} = [] has no value to try: give some, or leave {name} out.")
    return found
