"""Methods side by side, whatever paper they are from: a row per method with its settings, a column per dataset, stream
and memory size."""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from ocil.errors import OcilError, suggest
from ocil.methods import method
from ocil.networks.registry import REDUCED
from ocil.networks.spec import Spec
from ocil.report.cells import MeasuredCell, MeasuredColumn, pick, settings_text
from ocil.text import escaped


@dataclass(frozen=True)
class Entry:
    """A method with its settings: what is compared with others."""

    name: str
    """The label, and in what the settings differ from those of other entries."""
    label: str
    cells: Mapping[MeasuredColumn, MeasuredCell]
    """What was measured, by column. A method that keeps no memory is in the columns of every memory size."""
    bound: bool = False
    """Whether it frames the comparison, as fine-tuning and offline training do, and is not ranked."""

    @property
    def method(self) -> str:
        return next(iter(self.cells.values())).config.method


@dataclass(frozen=True)
class Entries:
    """All entries and columns, in the order of tables."""

    all: tuple[Entry, ...]
    columns: tuple[MeasuredColumn, ...]
    shared: str = ""
    """Changed settings that no name has, as text, because all entries agree on them: ``network=tiny``."""

    @cached_property
    def ranked(self) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.all if not entry.bound)

    def at(self, column: MeasuredColumn) -> dict[str, MeasuredCell]:
        """What was measured in a column, by the names of the entries; bounds first."""
        found = {entry.name: entry.cells[column] for entry in self.all if column in entry.cells}
        bounds = [entry.name for entry in self.all if entry.bound and column in entry.cells]
        return {name: found[name] for name in dict.fromkeys([*bounds, *found])}

    def named(self, text: str) -> Entry:
        """The entry of that name, or of that method if it has one entry alone. Else an ``OcilError`` that helps."""
        exact = [entry for entry in self.all if text == entry.name]
        found = exact or [entry for entry in self.all if entry.label == text]
        if len(found) == 1:
            return found[0]
        if found:
            several = ", ".join(f"'{escaped(entry.name)}'" for entry in found[:5])
            raise OcilError(f"'{escaped(text)}' is {len(found)} rows: name one of {several}.")
        labels = list(dict.fromkeys(entry.label for entry in self.all))
        raise OcilError(f"no run of '{escaped(text)}' is among the results.{suggest(text, labels)}")

    def only(self, names: Sequence[str]) -> "Entries":
        """The entries of these names or methods, in this order, and the columns that they have. All without names."""
        if not names:
            return self
        in_order = tuple(dict.fromkeys(self.named(name).name for name in names))
        chosen = tuple(entry for name in in_order for entry in self.all if entry.name == name)
        columns = tuple(column for column in self.columns if any(column in entry.cells for entry in chosen))
        return replace(self, all=chosen, columns=columns)


def entries(cells: Sequence[MeasuredCell]) -> Entries:
    """The entries and columns of measured cells. Where two cells fit one column, the one with more seeds is taken."""
    by_kind: dict[bool, list[MeasuredCell]] = {True: [], False: []}
    for cell in cells:
        by_kind[_is_bound(cell)].append(cell)
    differing = {bound: _differing(found) for bound, found in by_kind.items()}
    groups: dict[tuple[str, str], list[MeasuredCell]] = {}
    for cell in cells:
        own = {name: value for name, value in cell.learner_settings.items() if name in differing[_is_bound(cell)]}
        groups.setdefault((cell.label, settings_text(own)), []).append(cell)
    columns = _columns(cell for group in groups.values() for cell in group)
    found = []
    for (label, settings), group in groups.items():
        cells_by_column = {column: picked for column in columns if (picked := pick(_fitting(column, group)))}
        name = escaped(f"{label} {settings}".strip())
        found.append(Entry(name, label, cells_by_column, _is_bound(group[0])))
    return Entries(tuple(found), columns, _shared(by_kind[False], differing[False]))


def _is_bound(cell: MeasuredCell) -> bool:
    info = method(cell.config.method)
    return info.offline or info.name == "fine-tune"


def _columns(cells: Iterable[MeasuredCell]) -> tuple[MeasuredColumn, ...]:
    """The memory sizes of each dataset and stream; a column without memory only where no method keeps one."""
    sizes: dict[tuple[str, str], set[int]] = {}
    for cell in cells:
        sizes.setdefault((cell.config.dataset, cell.stream), set()).add(cell.column.memory)
    return tuple(
        MeasuredColumn(dataset, size, stream)
        for (dataset, stream), found in sizes.items()
        for size in sorted(found - {0}) or [0]
    )


def _fitting(column: MeasuredColumn, cells: Iterable[MeasuredCell]) -> list[MeasuredCell]:
    here = [cell for cell in cells if (cell.config.dataset, cell.stream) == (column.dataset, column.stream)]
    return [cell for cell in here if cell.column.memory in (column.memory, 0)]


def _shared(cells: Sequence[MeasuredCell], differing: Container[str]) -> str:
    """The settings that names leave out, because they have one value in all entries. A method may have it by itself.

    So do the numbers of tasks of a dataset outside the catalog, if that is the only one.
    """
    tasks = {cell.changed.get("tasks") if cell.common_tasks else None for cell in cells}
    one = {"tasks": tasks.pop()} if len(tasks) == 1 and None not in tasks else {}
    changed = {name: value for cell in cells for name, value in cell.learner_settings.items()}
    left_out = {name: value for name, value in changed.items() if name not in differing}
    return escaped(settings_text(one | left_out))


def _differing(cells: Sequence[MeasuredCell]) -> set[str]:
    """The changed settings that do not have one value in all cells. A cell without such a setting does not count.

    ``code``, which is no setting of a method, tells a former plugin file from the present one, which has none.
    """
    found = set()
    for name in {name for cell in cells for name in cell.learner_settings}:
        if name == "code":
            values = [cell.learner_settings.get(name) for cell in cells]
        else:
            values = [getattr(cell.config.learner, name) for cell in cells if _has(cell, name)]
        if any(value != values[0] for value in values):
            found.add(name)
    return found


def _has(cell: MeasuredCell, name: str) -> bool:
    """Whether a cell has a setting: that of another method is none, nor the width of another network."""
    config = cell.config.learner
    return hasattr(config, name) and (name != "width" or Spec.parse(config.network, "network").name == REDUCED)
