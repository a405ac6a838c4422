"""Who is ahead, by how much and at what cost: numbers of all entries, ranks, and differences to one of them."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ocil.evaluation.measures import Estimate, estimate, estimate_json, mean_of
from ocil.report.cells import MeasuredCell, MeasuredColumn
from ocil.report.cost import images_per_batch
from ocil.report.entries import Entries, Entry
from ocil.report.quantities import ACCURACY_QUANTITY, Quantity
from ocil.report.ranking import Ranking, paired_difference, ranking, top_two
from ocil.text import number_text


@dataclass(frozen=True)
class Number:
    """One number of a table, and how far it is from the entry that it is compared with."""

    value: Estimate
    seeds: tuple[int, ...]
    rank: int = 0
    """1 for the best of its column, 2 for the second, else 0; 0 for a bound and for a single number."""
    difference: Estimate | None = None
    """Over the seeds that both have; None for the reference itself, or where they share no seed."""


@dataclass(frozen=True)
class Lead:
    """The best of a column, and its paired difference to the second."""

    column: MeasuredColumn
    best: Entry
    second: Entry | None
    by: Estimate | None


@dataclass(frozen=True)
class Standings:
    """Entries compared by one quantity: in each column, over all columns, and with one of them.

    The ``ranking``, and with it the ``leader``, is over the columns that enough entries have in full. In each column
    the others are compared with its ``reference``. All is computed when it is first asked for.
    """

    entries: Entries
    quantity: Quantity = ACCURACY_QUANTITY
    chosen: str = ""
    """The name of the entry that the others are compared with; empty: the leader."""

    @cached_property
    def by_seed(self) -> dict[str, dict[MeasuredColumn, dict[int, float]]]:
        """The values of each entry, by column and seed."""
        return {
            entry.name: {
                column: found for column, cell in entry.cells.items() if (found := self.quantity.by_seed(cell))
            }
            for entry in self.entries.all
        }

    @cached_property
    def ranking(self) -> Ranking[MeasuredColumn]:
        """Of all entries but the bounds."""
        means = {
            entry.name: {column: mean_of(values.values()) for column, values in self.by_seed[entry.name].items()}
            for entry in self.entries.ranked
        }
        return ranking(means, self.entries.columns, self.quantity.higher_is_better)

    @cached_property
    def leader(self) -> Entry | None:
        """The entry of the best mean rank; None where nothing can be ranked."""
        best = next((standing.name for standing in self.ranking.standings if standing.mean_rank is not None), None)
        return next((entry for entry in self.entries.ranked if entry.name == best), None)

    @cached_property
    def rival(self) -> Entry | None:
        """What the leader is measured against: the first of its rivals with whose runs its own can be paired, else the
        first one."""
        shared = (entry for entry in self.rivals if self.behind_leader(entry) is not None)
        return next(shared, next(iter(self.rivals), None))

    def behind_leader(self, entry: Entry) -> Estimate | None:
        """The mean difference of an entry to the leader; None where there is none, or no seed that both have."""
        return self._to_leader.mean_difference(entry) if self._to_leader else None

    @cached_property
    def _to_leader(self) -> "Standings | None":
        """The same, compared with the leader in all columns."""
        return Standings(self.entries, self.quantity, self.leader.name) if self.leader else None

    @cached_property
    def rivals(self) -> tuple[Entry, ...]:
        """Ranked entries but the leader, best first: those of other methods, then its own variants."""
        ranked = {standing.name for standing in self.ranking.standings if standing.mean_rank is not None}
        others = [entry for entry in self.ordered if entry.name in ranked and entry != self.leader]
        return tuple(sorted(others, key=lambda entry: self.leader is not None and entry.method == self.leader.method))

    @cached_property
    def ordered(self) -> tuple[Entry, ...]:
        """Bounds first, then the others by their rank."""
        order = {standing.name: number for number, standing in enumerate(self.ranking.standings)}
        bounds = [entry for entry in self.entries.all if entry.bound]
        return (*bounds, *sorted(self.entries.ranked, key=lambda entry: order[entry.name]))

    def reference(self, column: MeasuredColumn) -> Entry | None:
        """What the entries of a column are compared with: the chosen one; else the leader, or the best without it."""
        if self.chosen:
            chosen = self.entries.named(self.chosen)  # raises if there is none
            return chosen if column in self.by_seed[chosen.name] else None
        if self.leader and column in self.by_seed[self.leader.name]:
            return self.leader
        best = self._orders[column]
        return best[0] if len(best) > 1 else None

    @cached_property
    def _orders(self) -> dict[MeasuredColumn, list[Entry]]:
        return {column: self._order(column) for column in self.entries.columns}

    def _order(self, column: MeasuredColumn) -> list[Entry]:
        """The ranked entries of a column, best first."""
        here = [entry for entry in self.entries.ranked if column in self.by_seed[entry.name]]
        sign = -1 if self.quantity.higher_is_better else 1
        return sorted(here, key=lambda entry: sign * mean_of(self.by_seed[entry.name][column].values()))

    @cached_property
    def numbers(self) -> dict[str, dict[MeasuredColumn, Number]]:
        """Every number, by entry and column."""
        found: dict[str, dict[MeasuredColumn, Number]] = {entry.name: {} for entry in self.entries.all}
        for column in self.entries.columns:
            reference, ranks = self.reference(column), self._top_two(column)
            for entry in self.entries.all:
                if values := self.by_seed[entry.name].get(column):
                    other = self.by_seed[reference.name][column] if reference and reference != entry else {}
                    found[entry.name][column] = Number(
                        estimate(list(values.values())),
                        tuple(sorted(values)),
                        ranks.get(entry.name, 0),
                        paired_difference(values, other),
                    )
        return found

    def _top_two(self, column: MeasuredColumn) -> dict[str, int]:
        means = ((entry.name, mean_of(self.by_seed[entry.name][column].values())) for entry in self._orders[column])
        if self.quantity.form == "percent":
            return top_two({name: number_text(mean, "percent") for name, mean in means})
        return top_two({name: round(mean, 6) for name, mean in means})

    @cached_property
    def leads(self) -> list[Lead]:
        """The best of each column."""
        found = []
        for column in self.entries.columns:
            if ordered := self._orders[column]:
                best, second = ordered[0], ordered[1] if len(ordered) > 1 else None
                mine = self.by_seed[best.name][column]
                by = paired_difference(mine, self.by_seed[second.name][column]) if second else None
                found.append(Lead(column, best, second, by))
        return found

    def mean_difference(self, entry: Entry) -> Estimate | None:
        """The difference to the reference, averaged over the columns of the ranking: a value per seed that all have."""
        per_seed: list[Mapping[int, float]] = []
        for column in self.ranking.columns:
            reference = self.reference(column)
            mine = self.by_seed[entry.name].get(column)
            if reference is None or reference == entry or mine is None:
                return None
            other = self.by_seed[reference.name][column]
            per_seed.append({seed: mine[seed] - other[seed] for seed in mine.keys() & other.keys()})
        shared = sorted(set.intersection(*(set(found) for found in per_seed))) if per_seed else []
        return estimate([mean_of(found[seed] for found in per_seed) for seed in shared]) if shared else None

    def mean_value(self, entry: Entry) -> float | None:
        """The mean over the columns of the ranking."""
        found = self.numbers[entry.name]
        if not self.ranking.columns or any(column not in found for column in self.ranking.columns):
            return None
        return mean_of(found[column].value.mean for column in self.ranking.columns)

    def cells_of(self, entry: Entry) -> list[MeasuredCell]:
        """Its cells in the columns of the ranking; in all columns, if it has none of those."""
        found = [cell for column, cell in entry.cells.items() if column in self.ranking.columns]
        return found or list(entry.cells.values())

    def images(self, entry: Entry) -> tuple[float, float] | None:
        """The fewest and the most images per stream batch of these cells."""
        found = [value for cell in self.cells_of(entry) if (value := images_per_batch(cell)) is not None]
        return (min(found), max(found)) if found else None

    def to_json(self) -> dict[str, Any]:
        """All numbers, as commands print them with ``--json``."""
        standings = {standing.name: standing for standing in self.ranking.standings}
        return {
            "measure": self.quantity.name,
            "against": self.chosen or (self.leader.name if self.leader else None),
            "columns": [_column_json(column) for column in self.entries.columns],
            "ranked_columns": [_column_json(column) for column in self.ranking.columns],
            "rows": [
                {
                    "name": entry.name,
                    "method": entry.label,
                    "bound": entry.bound,
                    "mean_rank": None if entry.bound else standings[entry.name].mean_rank,
                    "missing": []
                    if entry.bound
                    else [_column_json(column) for column in standings[entry.name].missing],
                    "mean_difference": estimate_json(self.mean_difference(entry)),
                    "numbers": [
                        _column_json(column)
                        | {
                            "seeds": number.seeds,
                            "cell": entry.cells[column].name,
                            **(estimate_json(number.value) or {}),
                        }
                        | {"difference": estimate_json(number.difference)}
                        | {"images_per_batch": images_per_batch(entry.cells[column])}
                        for column, number in self.numbers[entry.name].items()
                    ],
                }
                for entry in self.ordered
            ],
        }


def _column_json(column: MeasuredColumn) -> dict[str, Any]:
    return {"dataset": column.dataset, "stream": column.stream, "memory": column.memory}
