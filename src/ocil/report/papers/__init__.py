"""A paper as data: its tables, the runs that belong to each row and column, and what was published for them.

``afs.toml`` in this folder is the embedded paper. ``load`` reads any file of the same format, which docs/report.md
explains, and raises an ``OcilError`` that names the place of a mistake.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any, NamedTuple

from ocil.errors import OcilError, suggest
from ocil.files import read_toml
from ocil.longtail.config import VARIANTS
from ocil.longtail.metrics import LATER
from ocil.longtail.metrics import MEASURES as LONGTAIL_MEASURES

DEFAULT = "afs"
WHAT_IS_ONE = f" A paper is auto, none, {DEFAULT} or a TOML file."
ACCURACY = "average_accuracy"
MEASURE_HEADINGS = {
    ACCURACY: "accuracy",
    "average_forgetting": "forgetting",
    "average_forgetting_common": "forgetting",
    "average_intransigence": "intransigence",
}
"""What a table can compare, and the heading of such a column. The names are fields of ``ocil.runs.results.Summary``."""
OTHER_FILES = {"cells", "longtail", "measures", "methods", "standings"}
"""Names of tables that every report may have."""
FORMULAS = ("losses", "label-distribution")


class Published(NamedTuple):
    """A number of a paper, in percent."""

    mean: float
    interval: float | None = None
    """Half of the 95 % confidence interval; None where the paper gives none."""


class ColumnKey(NamedTuple):
    """What identifies a column of a table: which runs, and what is measured of them."""

    dataset: str
    memory: int
    """0 for methods that keep none."""
    measure: str = ACCURACY


@dataclass(frozen=True)
class PaperRow:
    """A row of a table: the runs of one method with some settings changed."""

    name: str
    label: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    """What differs from the method's defaults, and nothing else."""
    bound: bool = False
    """A method without a memory that frames the comparison: it has one number per dataset and is not ranked."""
    optional: bool = False
    """The row is shown only where it was measured."""
    published: Mapping[ColumnKey, Published] = field(default_factory=dict)


@dataclass(frozen=True)
class PaperTable:
    """A table of a paper: which runs belong to its rows and columns, and the published numbers."""

    name: str
    """The name of its files: ``NAME.md``, ``NAME.csv`` and ``NAME.tex``."""
    title: str
    caption: str
    heading: str
    """The heading of the column of row names."""
    memory: Mapping[str, tuple[int, ...]]
    """Datasets, and the memory sizes of each."""
    measures: tuple[str, ...]
    rows: tuple[PaperRow, ...]
    label: str = ""
    """The method of rows that name none."""
    all_methods: bool = False
    """Rows and columns are added for every method and memory size that was measured with the method's own settings."""
    all_values: str = ""
    """Rows are added for every measured value of this setting."""

    @property
    def by_memory(self) -> bool:
        """Whether columns are memory sizes; else they are measures at one memory size per dataset."""
        return self.all_methods or (len(self.measures) == 1 and any(len(sizes) > 1 for sizes in self.memory.values()))

    def columns(self, dataset: str) -> tuple[ColumnKey, ...]:
        sizes = self.memory[dataset]
        return tuple(ColumnKey(dataset, size, measure) for size in sizes for measure in self.measures)


class Claim(NamedTuple):
    """A difference in a paper's long-tailed table: ``variant`` measures higher (1) or lower (-1) ``than`` another."""

    text: str
    variant: str
    than: str
    measure: str
    direction: int


@dataclass(frozen=True)
class PaperLongTail:
    """A paper's long-tailed table. Its dataset is not one of those measured here."""

    title: str = ""
    dataset: str = ""
    rows: tuple[tuple[str, Mapping[str, float]], ...] = ()
    """The name of each row, and its numbers in percent by measure."""
    claims: tuple[Claim, ...] = ()


@dataclass(frozen=True)
class Paper:
    """What results are compared with: the tables of a paper, and which figures go with it."""

    citation: str = ""
    tables: tuple[PaperTable, ...] = ()
    recency_bias: tuple[str, ...] = ()
    """Labels of the methods in the figures on old and new classes. Empty: the most accurate ones."""
    formulas: tuple[str, ...] = ()
    """Figures of ``FORMULAS``, which are computed and not measured."""
    longtail: PaperLongTail = PaperLongTail()

    def has_row(self, label: str, settings: Mapping[str, Any], dataset: str, memory: int) -> bool:
        """Whether a table has a row, not a bound, and a column for a method with these changed settings."""
        return any(
            memory in table.memory.get(dataset, ())
            and any(row.label == label and row.settings == settings and not row.bound for row in table.rows)
            for table in self.tables
        )

    def published(self, label: str, settings: Mapping[str, Any], column: ColumnKey) -> Published | None:
        """What the paper has for a method with these changed settings: the first table that has it decides."""
        found = self._published.get((label, column), [])
        return next((number for of, number in found if of == settings), None)

    @cached_property
    def _published(self) -> dict[tuple[str, ColumnKey], list[tuple[Mapping[str, Any], Published]]]:
        index: dict[tuple[str, ColumnKey], list[tuple[Mapping[str, Any], Published]]] = {}
        for row in (row for table in self.tables for row in table.rows):
            for column, number in row.published.items():
                index.setdefault((row.label, column), []).append((row.settings, number))
        return index


NO_PAPER = Paper()


def load(name: str = DEFAULT) -> Paper:
    """The embedded paper ``afs``, no paper (``none``), or that of a TOML file, checked."""
    if name == "none":
        return NO_PAPER
    if name == DEFAULT:
        with as_file(files(__name__) / f"{name}.toml") as path:
            return _Reader(path).paper()
    return _Reader(Path(name)).paper()


FIRST_MEASURES = [measure for measure in LONGTAIL_MEASURES if measure not in LATER]
"""What the numbers of a long-tailed row are, if a file does not say: measures that came later change no older file."""
KEYS: dict[str, dict[str, Any]] = {
    "file": {"citation": str, "figures": {}, "tables": [], "longtail": {}},
    "figures": {"recency_bias": [], "formulas": []},
    "table": dict.fromkeys(("name", "title", "caption", "heading"), str)
    | {"memory": dict, "measures": [ACCURACY], "label": "", "all_methods": False, "all_values": "", "rows": []},
    "row": {"name": "", "label": "", "settings": {}, "bound": False, "optional": False, "published": {}},
    "longtail": {"title": str, "dataset": str, "measures": FIRST_MEASURES, "rows": [], "claims": []},
    "longtail row": {"name": str, "numbers": list},
    "claim": {"text": str, "variant": str, "than": str, "measure": str, "direction": str},
}
"""What a file may hold: keys with their defaults, or a type where the key must be given."""
KINDS = {str: "a text", bool: "true or false", list: "a list", dict: "a table of keys and values"}


class _Reader:
    """Reads a paper's file; every mistake is an ``OcilError`` that names the file and the place in it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def paper(self) -> Paper:
        content = self._fields(read_toml(self.path, lambda: WHAT_IS_ONE), KEYS["file"], "the file")
        tables = tuple(self._table(table, place) for table, place in self._each(content["tables"], "tables"))
        names = [table.name for table in tables]
        if len(set(names)) < len(names) or sum(table.all_methods for table in tables) > 1:
            raise self._mistake("tables", "two of them have one name, or all_methods is set for two of them")
        figures = self._fields(content["figures"], KEYS["figures"], "figures")
        self._known(figures["formulas"], FORMULAS, "figures: formulas")
        bias, formulas = (tuple(map(str, figures[name])) for name in ("recency_bias", "formulas"))
        longtail = self._longtail(content["longtail"]) if content["longtail"] else PaperLongTail()
        return Paper(content["citation"], tables, bias, formulas, longtail)

    def _table(self, content: Any, place: str) -> PaperTable:
        found = self._fields(content, KEYS["table"], place)
        rows = found.pop("rows")
        if not re.fullmatch(r"[\w-]+", found["name"]) or found["name"] in OTHER_FILES:
            raise self._mistake(place, f"name = {found['name']!r} is that of another file, or no name of a file")
        self._known(found["measures"], MEASURE_HEADINGS, f"{place}: measures")
        if found["all_methods"] and found["measures"] != [ACCURACY]:
            raise self._mistake(place, f"a table of all_methods has one measure, {ACCURACY}")
        if found["all_values"] and not found["label"]:
            raise self._mistake(place, "all_values needs a label")
        for dataset, sizes in found["memory"].items():
            if not isinstance(sizes, list) or not sizes or not all(type(size) is int and size > 0 for size in sizes):
                raise self._mistake(place, f"memory: {dataset} = {sizes!r} is not a list of memory sizes")
        found |= {"measures": tuple(found["measures"]), "memory": {d: tuple(s) for d, s in found["memory"].items()}}
        table = PaperTable(rows=(), **found)
        return replace(table, rows=tuple(self._row(row, table, at) for row, at in self._each(rows, f"{place}, rows")))

    def _row(self, content: Any, table: PaperTable, place: str) -> PaperRow:
        found = self._fields(content, KEYS["row"], place)
        label = found["label"] or table.label
        if not label:
            raise self._mistake(place, "it has no label, and neither has its table")
        if table.all_methods and (found["settings"] or found["name"]):
            raise self._mistake(place, "a row of a table of all_methods has neither a name nor settings")
        if found["bound"] and not table.all_methods:
            raise self._mistake(place, "only a table of all_methods has bounds")
        published: dict[ColumnKey, Published] = {}
        self._known(found["published"], table.memory, f"{place}: published")
        for dataset, numbers in found["published"].items():
            columns = (ColumnKey(dataset, 0),) if found["bound"] else table.columns(dataset)
            at = f"{place}: published.{dataset}"
            if not isinstance(numbers, list) or len(numbers) != len(columns):
                raise self._mistake(at, f"it must be a list of {len(columns)} numbers, one per column")
            pairs = zip(columns, (self._number(number, at) for number in numbers), strict=True)
            published |= {column: number for column, number in pairs if number}
        named = {"name": found["name"] or label, "label": label, "settings": _as_held(found["settings"])}
        return PaperRow(**found | named | {"published": published})

    def _number(self, value: Any, place: str) -> Published | None:
        """``42.3``, ``[42.3]`` or ``[42.3, 0.4]``; ``[]`` where nothing was published."""
        numbers = value if isinstance(value, list) else [value]
        if len(numbers) > 2 or not all(map(_is_number, numbers)):
            raise self._mistake(place, f"{value!r} is not [mean, interval], a mean alone, or []")
        return Published(*numbers) if numbers else None

    def _longtail(self, content: Any) -> PaperLongTail:
        found = self._fields(content, KEYS["longtail"], "longtail")
        measures = found["measures"]
        self._known(measures, LONGTAIL_MEASURES, "longtail: measures")
        rows, claims = [], []
        for each, place in self._each(found["rows"], "longtail, rows"):
            row = self._fields(each, KEYS["longtail row"], place)
            if len(row["numbers"]) != len(measures) or not all(map(_is_number, row["numbers"])):
                raise self._mistake(place, f"numbers must be a list of {len(measures)} numbers, one per measure")
            rows.append((row["name"], dict(zip(measures, row["numbers"], strict=True))))
        for each, place in self._each(found["claims"], "longtail, claims"):
            claim = self._fields(each, KEYS["claim"], place)
            self._known([claim["variant"], claim["than"]], VARIANTS, place)
            self._known([claim["measure"]], LONGTAIL_MEASURES, place)
            self._known([claim["direction"]], ("higher", "lower"), place)
            claims.append(Claim(**claim | {"direction": 1 if claim["direction"] == "higher" else -1}))
        return PaperLongTail(found["title"], found["dataset"], tuple(rows), tuple(claims))

    def _fields(self, content: Any, keys: Mapping[str, Any], place: str) -> dict[str, Any]:
        """The values of all keys, those that are not given with their defaults."""
        if not isinstance(content, dict):
            raise self._mistake(place, f"{content!r} is not {KINDS[dict]}")
        self._known(content, keys, place)
        for key, default in keys.items():
            kind = default if isinstance(default, type) else type(default)
            if key not in content and kind is default:
                raise self._mistake(place, f"{key} is missing")
            if type(content.get(key, kind())) is not kind:
                raise self._mistake(place, f"{key} = {content[key]!r} is not {KINDS[kind]}")
        return {**keys, **content}

    def _each(self, content: list[Any], place: str) -> Iterator[tuple[Any, str]]:
        return ((each, f"{place} {number}") for number, each in enumerate(content, 1))

    def _known(self, values: Iterable[Any], known: Iterable[str], place: str) -> None:
        names = list(known)
        for value in values:
            if value not in names:
                raise OcilError(f"{self.path}: {place}: '{value}' is not known.{suggest(str(value), names)}")

    def _mistake(self, place: str, what: str) -> OcilError:
        return OcilError(f"{self.path}: {place}: {what}.")


def _as_held(value: Any) -> Any:
    """Settings of a file as runs have them: a list is a tuple there."""
    if isinstance(value, dict):
        return {name: _as_held(each) for name, each in value.items()}
    return tuple(map(_as_held, value)) if isinstance(value, list) else value


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
