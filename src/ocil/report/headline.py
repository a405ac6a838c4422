"""The first words of a report: who is ahead, by how much, at what cost."""

from dataclasses import dataclass, replace

from ocil.evaluation.measures import Estimate
from ocil.report.entries import Entry
from ocil.report.formatting import count
from ocil.report.quantities import Quantity
from ocil.report.standing_tables import images_text
from ocil.report.standings import Standings

NAMED = 4  # methods that are best somewhere, beside the leader


@dataclass(frozen=True)
class Answer:
    """The answer to one question: a name or a number, and what it is about."""

    question: str
    short: str
    words: str


@dataclass(frozen=True)
class Headline:
    """The first words of a report."""

    answers: tuple[Answer, ...]
    """Who is ahead; by how much over the next method, if there is one; at what cost, if it is known."""
    elsewhere: str = ""
    """Who is best in how many columns."""


def headline(standings: Standings) -> Headline | None:
    """The answers; None where there is nothing to compare."""
    leader = standings.leader
    if leader is None:
        return None
    rival = standings.rival
    found = (
        _who(standings, leader),
        _by(standings, leader, rival) if rival else None,
        _cost(standings, leader, rival),
    )
    return Headline(tuple(answer for answer in found if answer), _elsewhere(standings, leader))


def _who(standings: Standings, leader: Entry) -> Answer:
    over, quantity = standings.ranking.columns, standings.quantity
    title = quantity.title.removesuffix(" %")
    ranked = [standing for standing in standings.ranking.standings if standing.mean_rank is not None]
    if len(over) == 1:
        number = standings.numbers[leader.name][over[0]]
        unit = " %" if quantity.form == "percent" else ""
        words = (
            f"First of {count(len(ranked), 'method')} on {over[0].title}: {title} {quantity.text(number.value)}{unit}."
        )
    else:
        rank = f"mean rank {ranked[0].mean_rank:.3g} by {title} over {len(over)} columns"
        words = f"First of {count(len(ranked), 'method')}: {rank}."
    return Answer("Who", leader.name, words)


def _by(standings: Standings, leader: Entry, rival: Entry) -> Answer:
    quantity, question = standings.quantity, "By how much"
    behind = standings.behind_leader(rival)
    second = standings.ranking.standings[1].name == rival.name
    if behind is None:
        place = "is second" if second else "is the next method"
        return Answer(question, "Not known", f"{rival.name} {place}, and the two share no seed.")
    points = " points" if quantity.form == "percent" else ""
    if rival == standings.rivals[0]:
        place = "which is second" if second else "the next method"
    else:
        place = "the next method with the same seeds"
    words = f"Over {rival.name}, {place}, on {_seeds(len(behind.values))}."
    if behind.shown_interval is None:
        few = "One seed has" if len(behind.values) == 1 else "Two seeds have"
        words += f" {few} no interval, so the order is not settled."
    elif abs(behind.mean) <= behind.shown_interval:
        words += " That interval holds zero, so the order of the two is not settled."
    return Answer(question, f"{_size(quantity, behind)}{points}", words)


def _size(quantity: Quantity, difference: Estimate) -> str:
    """A difference without its sign. The interval stays in one line with its number."""
    if difference.mean < 0:
        difference = replace(difference, mean=-difference.mean, values=tuple(-value for value in difference.values))
    return quantity.difference(difference, plus="").replace(" ± ", "\u00a0±\u00a0")


def _seeds(number: int) -> str:
    return "one shared seed" if number == 1 else f"{number} shared seeds"


def _cost(standings: Standings, leader: Entry, rival: Entry | None) -> Answer | None:
    mine, other = (images_text(standings, entry) if entry else "-" for entry in (leader, rival))
    if mine == "-":
        return None
    words = "Passed per stream batch" + (f"; {rival.name} passes {other}." if rival and other != "-" else ".")
    return Answer("At what cost", f"{mine} images", words)


def _elsewhere(standings: Standings, leader: Entry) -> str:
    leads = [lead for lead in standings.leads if lead.second]
    if len(leads) < 2:
        return ""
    wins: dict[str, int] = {}
    for lead in leads:
        wins[lead.best.name] = wins.get(lead.best.name, 0) + 1
    mine, ran = wins.pop(leader.name, 0), sum(lead.column in standings.by_seed[leader.name] for lead in leads)
    ordered = sorted(wins.items(), key=lambda each: -each[1])
    named = [f"{name} in {number}" for name, number in ordered[:NAMED]]
    others = sum(number for _, number in ordered[NAMED:])
    rest = ", ".join(named + ([f"others in {others}"] if others else []))
    columns = f"Of {count(len(leads), 'column')} with two methods or more"
    words = f"{columns}, {leader.name} was run on {ran} and is best in {mine}"
    return f"{words}; {rest}." if rest else f"{words}."
