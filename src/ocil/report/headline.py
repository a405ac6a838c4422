"""The first words of a report: who is ahead, by how much, at what cost."""

from dataclasses import replace

from ocil.evaluation.measures import Estimate
from ocil.report.entries import Entry
from ocil.report.formatting import count
from ocil.report.quantities import Quantity
from ocil.report.standing_tables import images_text
from ocil.report.standings import Standings


def headline(standings: Standings) -> list[str]:
    """A few sentences; none where there is nothing to compare."""
    leader = standings.leader
    if leader is None:
        return []
    others = [row for row in standings.rows if not row.bound and row != leader and _is_ranked(standings, row)]
    second = others[0] if others else None
    return [*_lead(standings, leader, second), *_wins(standings, leader), *_cost(standings, leader, second)]


def _is_ranked(standings: Standings, row: Entry) -> bool:
    return any(each.name == row.name and each.mean_rank is not None for each in standings.ranking.rows)


def _lead(standings: Standings, leader: Entry, second: Entry | None) -> list[str]:
    over, quantity = standings.ranking.columns, standings.quantity
    title = quantity.title.removesuffix(" %")
    if len(over) == 1:
        number = standings.numbers[leader.name][over[0]]
        unit = " %" if quantity.form == "percent" else ""
        words = [f"{leader.name} is ahead on {over[0].title}: {title} {quantity.text(number.value)}{unit}."]
    else:
        rank = next(row.mean_rank for row in standings.ranking.rows if row.name == leader.name)
        words = [f"{leader.name} is ahead: by {title} its mean rank is {rank:.3g} over {len(over)} columns."]
    if second is None:
        return words
    behind = Standings(standings.entries, quantity, leader.name).mean_difference(second)
    if behind is None:
        return [*words, f"{second.name} follows; they share no seed, so no difference is known."]
    points = " points" if quantity.form == "percent" else ""
    words.append(f"{second.name} follows, {_size(quantity, behind)}{points} behind over {_seeds(len(behind.values))}.")
    if behind.interval is None:
        words.append("One seed has no interval, so the order is not settled.")
    elif abs(behind.mean) <= behind.interval:
        words.append("That interval holds zero, so the order of the two is not settled.")
    return words


def _size(quantity: Quantity, difference: Estimate) -> str:
    """A difference without its sign. The plus or minus does not stand at the end of a line."""
    text = quantity.difference(replace(difference, mean=abs(difference.mean))).removeprefix("+")
    return text.replace(" ± ", "\u00a0±\u00a0")


def _seeds(number: int) -> str:
    return "one shared seed" if number == 1 else f"{number} shared seeds"


def _wins(standings: Standings, leader: Entry) -> list[str]:
    leads = [lead for lead in standings.leads if lead.second]
    if len(leads) < 2:
        return []
    wins: dict[str, int] = {}
    for lead in leads:
        wins[lead.best.name] = wins.get(lead.best.name, 0) + 1
    mine = wins.pop(leader.name, 0)
    rest = ", ".join(f"{name} in {number}" for name, number in sorted(wins.items(), key=lambda each: -each[1])[:4])
    of = f"of {count(len(leads), 'column')} with two methods or more"
    return [f"{leader.name} is best in {mine} {of}" + (f"; {rest}." if rest else ".")]


def _cost(standings: Standings, leader: Entry, second: Entry | None) -> list[str]:
    found = [(row.name, images_text(standings, row)) for row in (leader, second) if row]
    words = [f"{name} {text}" for name, text in found if text != "-"]
    return [f"Images passed per stream batch: {', '.join(words)}."] if words else []
