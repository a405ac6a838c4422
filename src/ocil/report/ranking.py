"""Ranks over several columns, and differences of runs that share a seed: pure functions of numbers."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from ocil.errors import OcilError
from ocil.evaluation.measures import Estimate, estimate
from ocil.text import escaped

Column = TypeVar("Column", bound=Hashable)
Name = TypeVar("Name", bound=Hashable)
MOST_SEEDS, MOST_DIGITS = 100_000, 40
MOST_PAIRS = 100_000  # of rows whose columns are intersected: more would take long


@dataclass(frozen=True)
class Standing(Generic[Column]):
    """Where a row stands among those that have all columns of the ranking."""

    name: str
    mean_rank: float | None
    """None where a column is missing, since ranks among fewer columns do not compare."""
    ranks: Mapping[Column, float]
    missing: tuple[Column, ...]
    """Columns of the ranking that the row does not have."""


@dataclass(frozen=True)
class Ranking(Generic[Column]):
    """Where all rows stand."""

    columns: tuple[Column, ...]
    """The columns that ranks are over."""
    standings: tuple[Standing[Column], ...]
    """Best first; those without a rank last, in the order given."""


def ranking(
    values: Mapping[str, Mapping[Column, float]], columns: Sequence[Column], higher: bool = True
) -> Ranking[Column]:
    """Rank rows by their mean rank, 1 for the best, over the largest set of columns that enough rows have in full.

    Of all sets of columns that some row has, or two rows have in common, it is the one with most numbers: rows that
    have all of it, times columns. Rows with equal values share the mean of their ranks.
    """
    chosen = _shared_columns(values, columns)
    complete = [name for name, row in values.items() if chosen and all(column in row for column in chosen)]
    ranks: dict[str, dict[Column, float]] = {name: {} for name in complete}
    for column in chosen:
        found = {name: values[name][column] for name in complete}
        for name, rank in average_ranks(found, higher).items():
            ranks[name][column] = rank
    means = {name: sum(ranks[name].values()) / len(chosen) for name in complete}
    standings = [
        Standing(name, means.get(name), ranks.get(name, {}), tuple(c for c in chosen if c not in row))
        for name, row in values.items()
    ]
    standings.sort(key=lambda standing: (standing.mean_rank is None, standing.mean_rank or 0.0))
    return Ranking(chosen, tuple(standings))


def top_two(printed: Mapping[Name, Hashable]) -> dict[Name, int]:
    """1 and 2 for the first and the second of numbers as they are printed, best first. Those that print alike share a
    rank; a single number has none."""
    best = list(dict.fromkeys(printed.values()))[:2] if len(printed) > 1 else []
    return {name: best.index(value) + 1 for name, value in printed.items() if value in best}


def average_ranks(values: Mapping[str, float], higher: bool = True) -> dict[str, float]:
    """The rank of each value, 1 for the best. Equal values share the mean of the places that they take."""
    ordered = sorted(values, key=lambda name: values[name], reverse=higher)
    places: dict[float, list[int]] = {}
    for place, name in enumerate(ordered, 1):
        places.setdefault(values[name], []).append(place)
    return {name: sum(places[value]) / len(places[value]) for name, value in values.items()}


def _shared_columns(values: Mapping[str, Mapping[Column, float]], columns: Sequence[Column]) -> tuple[Column, ...]:
    """The columns to rank by; none where no column has two rows."""
    bits = [sum(1 << place for place, column in enumerate(columns) if column in row) for row in values.values()]
    distinct = list(dict.fromkeys(bits))
    candidates = dict.fromkeys(distinct)
    if len(distinct) ** 2 <= MOST_PAIRS:
        candidates |= dict.fromkeys(one & other for one in distinct for other in distinct)
    best, size = 0, (0, 0)
    for candidate in candidates:
        having = sum(row & candidate == candidate for row in bits)
        count = candidate.bit_count()
        if having > 1 and count and (having * count, count) > size:
            best, size = candidate, (having * count, count)
    return tuple(column for place, column in enumerate(columns) if best >> place & 1)


def paired_difference(mine: Mapping[int, float], others: Mapping[int, float]) -> Estimate | None:
    """Mine less the other's over the seeds that both have, with the 95 % interval of the mean; None if they share none.

    Runs of one seed see the same stream, so their difference varies less than either of them.
    """
    differences = [mine[seed] - others[seed] for seed in sorted(mine.keys() & others.keys())]
    return estimate(differences) if differences else None


def seeds_text(seeds: Iterable[int]) -> str:
    """``0-9, 12``: the seeds with runs of three and more as ranges."""
    parts: list[list[int]] = []
    for seed in sorted(set(seeds)):
        if parts and seed == parts[-1][-1] + 1:
            parts[-1].append(seed)
        else:
            parts.append([seed])
    words = (f"{part[0]}-{part[-1]}" if len(part) > 2 else ", ".join(map(str, part)) for part in parts)
    return ", ".join(words)


def read_seeds(text: str) -> frozenset[int]:
    """The seeds of ``10-19`` or ``0,2,5-7``; an ``OcilError`` if it is none of that."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdecimal() or not (last.isdecimal() if dash else True) or len(part) > MOST_DIGITS:
            raise OcilError(f"--seeds {escaped(text)}: give seeds such as 10-19 or 0,2,5-7.")
        low, high = int(first), int(last or first)
        if low > high:
            raise OcilError(f"--seeds {escaped(text)}: write the lower seed first: {high}-{low}.")
        if high - low >= MOST_SEEDS:
            raise OcilError(f"--seeds {escaped(text)}: {low}-{high} is no range of at most {MOST_SEEDS:,} seeds.")
        found.update(range(low, high + 1))
    return frozenset(found)
