"""What the page's script filters and compares by: datasets, memory sizes, methods, and the values of each seed."""

import json
from typing import Any

from ocil.evaluation.estimates import t_quantile
from ocil.report.cells import Collection, title_of
from ocil.report.standings import Standings
from ocil.report.table import MINUS


def choices(collection: Collection, standings: Standings) -> dict[str, Any]:
    """What a reader may filter by: datasets with their titles, memory sizes, labels of methods."""
    return {
        "datasets": {cell.config.dataset: title_of(cell.config.dataset) for cell in collection.cells},
        "sizes": sorted({cell.column.memory for cell in collection.cells} - {0}),
        "labels": list(dict.fromkeys(entry.label for entry in standings.ordered)),
    }


def numbers(standings: Standings) -> str:
    """The value of every seed by entry and column, as JSON, for paired differences between any two of them.

    ``t`` holds the quantiles of Student's t for one degree of freedom and more: the script has no such function.
    ``values`` of an entry: the number of a column, then the seed. They are not rounded, and are to be multiplied by
    ``factor``, so that the script rounds the same means as the tables. ``texts``: the mean as the tables write it.
    """
    columns = list(standings.entries.columns)
    rows = []
    for entry in standings.ordered:
        found = standings.by_seed[entry.name].items()
        means = standings.numbers[entry.name].items()
        texts = {columns.index(column): standings.quantity.text(number.value) for column, number in means}
        rows.append(
            {
                "name": entry.name,
                "values": {columns.index(column): by_seed for column, by_seed in found},
                "texts": {number: text.replace("-", MINUS) for number, text in texts.items()},
            }
        )
    most = max((len(found) for each in standings.by_seed.values() for found in each.values()), default=1)
    return json.dumps(
        {
            "title": standings.quantity.title,
            "factor": 100 if standings.quantity.form == "percent" else 1,
            "higher": standings.quantity.higher_is_better,
            "t": [round(t_quantile(degrees), 6) for degrees in range(1, most)],
            "columns": [
                {"title": column.title, "dataset": column.dataset, "memory": str(column.memory)} for column in columns
            ],
            "rows": rows,
        },
        separators=(",", ":"),
    )


def first_pair(standings: Standings) -> tuple[str, str] | None:
    """The entries to compare at first: the leader and the next method, else the two that stand first and share a
    column. None where no two do."""
    if standings.leader and standings.rival:
        return standings.leader.name, standings.rival.name
    bounds_last = sorted(standings.ordered, key=lambda entry: entry.bound)
    for number, one in enumerate(bounds_last):
        for other in bounds_last[number + 1 :]:
            if standings.by_seed[one.name].keys() & standings.by_seed[other.name].keys():
                return one.name, other.name
    return None
