"""Measures of accuracy over time, calibration and the rest: worked by hand, against slow versions, and as a table."""

import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ocil.errors import OcilError
from ocil.evaluation import measures
from ocil.evaluation.measures import MEASURES, Measure
from ocil.evaluation.record_types import AnytimePoint, AnytimeRecord, CalibrationRecord
from ocil.report.result_tables import CELL_RECORD

quick = settings(max_examples=60, deadline=None, derandomize=True, database=None)

PAGE = (Path(__file__).parents[1] / "docs/measures.md").read_text()
GROUPS = [[0, 1], [2]]
# Two tasks that end after 4 and 8 batches. Class 1 arrives with batch 3, class 2 with batch 5. Ten test images each.
WORKED: AnytimeRecord = {
    "every": 2,
    "tested": [10, 10, 10],
    "arrived": [1, 3, 5],
    "tasks": [4, 8],
    "reviews": [4, 8],
    "points": [
        {"batch": 2, "samples": 20, "accuracy": 0.8, "correct": [8, 0, 0]},
        {"batch": 4, "samples": 40, "accuracy": 0.7, "correct": [6, 8, 0]},
        {"batch": 6, "samples": 60, "accuracy": 0.4, "correct": [2, 2, 8]},
        {"batch": 8, "samples": 70, "accuracy": 0.6, "correct": [4, 5, 9]},
    ],
}


def test_worked_area_under_accuracy() -> None:
    """Each accuracy counts for the samples since the point before: 20, 20, 20 and 10 of 70."""
    expected = (20 * 0.8 + 20 * 0.7 + 20 * 0.4 + 10 * 0.6) / 70
    assert measures.area_under_accuracy(WORKED) == pytest.approx(expected)
    evenly: Any = {**WORKED, "points": [{**point, "samples": 5 * point["batch"]} for point in WORKED["points"]]}
    assert measures.area_under_accuracy(evenly) == pytest.approx((0.8 + 0.7 + 0.4 + 0.6) / 4)


def test_worked_average_anytime_accuracy() -> None:
    """By task: (0.8), (0.7), (0.2 and 0.8), (0.45 and 0.9)."""
    expected = (0.8 + 0.7 + (0.2 + 0.8) / 2 + (0.45 + 0.9) / 2) / 4
    assert measures.average_anytime_accuracy(WORKED, GROUPS) == pytest.approx(expected)
    assert measures.average_anytime_accuracy(WORKED) == pytest.approx((0.8 + 0.7 + 0.4 + 0.6) / 4)


def test_worked_worst_case() -> None:
    """The first task falls to 4 of 20 after its end; the last task ends with 9 of 10."""
    assert measures.lowest_anytime_accuracy(WORKED) == 0.4
    assert measures.minimum_accuracy(WORKED, GROUPS) == pytest.approx(0.2)
    assert measures.worst_case_accuracy(WORKED, GROUPS) == pytest.approx(0.9 / 2 + 0.2 / 2)


def test_worked_stability_gap() -> None:
    """On the classes 0 and 1, which are known after batch 4: 14 of 20, then 4 of 20."""
    assert measures.stability_gap(WORKED) == pytest.approx(0.7 - 0.2)


def test_worked_domains() -> None:
    """Two classes in two domains; the second domain begins with batch 3. Domains are the tasks."""
    record: AnytimeRecord = {
        "tested": [4, 4],
        "tested_by_domain": [[2, 2], [2, 2]],
        "arrived": [1, 1],
        "domains_arrived": [1, 3],
        "tasks": [2, 4],
        "points": [
            {"batch": 2, "accuracy": 0.75, "correct": [1, 2], "correct_by_domain": [[1, 2], [0, 0]]},
            {"batch": 3, "accuracy": 0.5, "correct": [2, 2], "correct_by_domain": [[1, 0], [1, 2]]},
            {"batch": 4, "accuracy": 0.75, "correct": [3, 3], "correct_by_domain": [[2, 1], [1, 2]]},
        ],
    }
    assert measures.average_anytime_accuracy(record) == pytest.approx((0.75 + (0.25 + 0.75) / 2 + 0.75) / 3)
    assert measures.minimum_accuracy(record) == 0.25
    assert measures.worst_case_accuracy(record) == pytest.approx(0.75 / 2 + 0.25 / 2)
    assert measures.stability_gap(record) == pytest.approx(0.75 - 0.25)
    by_class = measures.average_anytime_accuracy(record, [[0], [1]])
    assert by_class == pytest.approx(((0.5 + 1) / 2 + 0.5 + 0.75) / 3)


def test_worked_calibration_prequential_and_classes() -> None:
    """Two bins: 4 images at 0.5 on average of which 1 is right, 6 at 0.9 of which all are."""
    bins: CalibrationRecord = {"count": [4, 6], "correct": [1, 6], "confidence": [2.0, 5.4]}
    assert measures.expected_calibration_error(bins) == pytest.approx(0.4 * 0.25 + 0.6 * 0.1)
    assert measures.expected_calibration_error({}) is None
    assert measures.prequential_accuracy({"every": 2, "seen": [20, 10], "correct": [5, 4]}) == 0.3
    assert measures.prequential_accuracy({}) is None
    assert measures.accuracy_per_class([1, 0, 3], [2, 0, 4]) == [0.5, None, 0.75]


def test_what_was_not_recorded_has_no_value() -> None:
    names = ("area_under_accuracy", "average_anytime_accuracy", "lowest_anytime_accuracy", "stability_gap")
    for name in (*names, "minimum_accuracy", "worst_case_accuracy"):
        assert getattr(measures, name)({}) is None, name
        assert getattr(measures, name)({"points": []}) is None, name
    points: list[AnytimePoint] = [{"batch": 1, "accuracy": 0.5, "correct": [1]}]
    before_it_was_kept: AnytimeRecord = {"points": points, "tested": [2], "arrived": [1]}
    assert measures.area_under_accuracy(before_it_was_kept) == 0.5
    assert measures.stability_gap(before_it_was_kept) is None
    assert measures.worst_case_accuracy(before_it_was_kept, [[0]]) is None
    late: Any = {**WORKED, "points": WORKED["points"][:2]}
    assert measures.worst_case_accuracy(late, GROUPS) is None  # no point after the first task


@st.composite
def records(draw: st.DrawFn) -> tuple[AnytimeRecord, list[list[int]]]:
    """A record of random counts, as a run would write it: classes arrive at any time, tasks have any length."""
    classes, tasks = draw(st.integers(2, 6)), draw(st.integers(1, 4))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    ends = np.cumsum(rng.integers(1, 6, tasks)).tolist()
    tested, arrived = rng.integers(1, 9, classes), rng.integers(1, ends[-1] + 2, classes)
    arrived[0] = 1
    group_of = rng.permutation(np.arange(classes) % tasks)
    groups = [np.flatnonzero(group_of == group).tolist() for group in range(tasks)]
    points: list[AnytimePoint] = []
    for batch in sorted(set(rng.integers(1, ends[-1] + 1, 12).tolist())):
        here = arrived <= batch
        correct = rng.integers(0, tested + 1) * here
        accuracy = correct.sum() / (tested * here).sum()
        points.append(
            {"batch": batch, "samples": 3 * batch + batch % 2, "accuracy": accuracy, "correct": correct.tolist()}
        )
    record = AnytimeRecord(tested=tested.tolist(), arrived=arrived.tolist(), tasks=ends, points=points)
    return record, [group for group in groups if group]


@given(records())
@quick
def test_over_time_by_loops(drawn: tuple[AnytimeRecord, list[list[int]]]) -> None:
    """The definitions, spelled out class by class and point by point."""
    record, groups = drawn
    points, tested, arrived, ends = record["points"], record["tested"], record["arrived"], record["tasks"]

    def accuracy(point: AnytimePoint, names: list[int]) -> float | None:
        known = [name for name in names if arrived[name] <= point["batch"]]
        return sum(point["correct"][name] for name in known) / sum(tested[name] for name in known) if known else None

    area, before = 0.0, 0
    for point in points:
        area += (point["samples"] - before) * point["accuracy"]
        before = point["samples"]
    assert measures.area_under_accuracy(record) == pytest.approx(area / before)

    rows = [[a for group in groups if (a := accuracy(point, group)) is not None] for point in points]
    assert measures.average_anytime_accuracy(record, groups) == pytest.approx(np.mean([np.mean(row) for row in rows]))

    lows: list[float | None] = []
    for group, end in zip(groups[:-1], ends[:-1], strict=False):
        later = [accuracy(point, group) for point in points if point["batch"] > end]
        lows.append(min((a for a in later if a is not None), default=None))
    last = accuracy(points[-1], groups[-1])
    low = measures.minimum_accuracy(record, groups)
    if len(groups) != len(ends) or len(ends) < 2 or None in lows:
        assert low is None
    else:
        mean = sum(a for a in lows if a is not None) / len(lows)
        assert low == pytest.approx(mean)
        worst = measures.worst_case_accuracy(record, groups)
        assert worst == (None if last is None else pytest.approx(last / len(ends) + (1 - 1 / len(ends)) * mean))

    drops = []
    for number in range(len(ends) - 1):
        before_end = [point for point in points if point["batch"] <= ends[number]]
        during = [point for point in points if ends[number] < point["batch"] <= ends[number + 1]]
        if before_end and during:
            known = [name for name, batch in enumerate(arrived) if batch <= before_end[-1]["batch"]]
            share = [
                sum(p["correct"][c] for c in known) / sum(tested[c] for c in known) for p in (before_end[-1], *during)
            ]
            drops.append(share[0] - min(share[1:]))
    assert measures.stability_gap(record) == (pytest.approx(np.mean(drops)) if drops else None)


@given(st.integers(0, 2**32))
@quick
def test_calibration_by_loops(seed: int) -> None:
    rng = np.random.default_rng(seed)
    images = [(confidence, bool(rng.integers(2))) for confidence in rng.uniform(0, 1, 40)]
    bins = [[image for image in images if b / 15 < image[0] <= (b + 1) / 15] for b in range(15)]
    slow = 0.0
    for members in filter(None, bins):
        right, sure = np.mean([hit for _, hit in members]), np.mean([confidence for confidence, _ in members])
        slow += len(members) / len(images) * abs(right - sure)
    record = CalibrationRecord(
        count=[len(members) for members in bins],
        correct=[sum(hit for _, hit in members) for members in bins],
        confidence=[sum(confidence for confidence, _ in members) for members in bins],
    )
    assert measures.expected_calibration_error(record) == pytest.approx(slow)


def test_every_measure_of_ours_is_described() -> None:
    """docs/measures.md has each of them, and none lacks its range."""
    for name, measure in MEASURES.items():
        assert f"| `{name}`" in PAGE, name
        assert not measure.needs or f"| `{measure.needs}` |" in next(
            line for line in PAGE.splitlines() if f"`{name}`" in line
        )
        assert measure.heading, name
        assert measure.bounds is not None, name
        assert measure.title.endswith(" %") == (measure.format == "percent")
        assert measure.paper or measure.bounds[1] == math.inf, name


def test_tables_show_what_was_recorded_and_what_plugins_bring() -> None:
    MEASURES.register(Measure("mine", lambda result: 1.0))
    assert [measure.name for measure in measures.shown([])] == ["mine"]
    known = {"area_under_accuracy": measures.estimate([0.5]), "average_accuracy": measures.estimate([0.5])}
    assert [measure.name for measure in measures.shown([{}, known])] == ["area_under_accuracy", "mine"]


def test_a_measure_of_a_plugin_changes_no_other_number() -> None:
    def median(result: Any) -> float:
        result.matrix[-1].sort()  # in place
        return float(result.matrix[-1][1])

    result: Any = SimpleNamespace(matrix=[[0.9, 0.1, 0.5]])
    assert Measure("median", median).of(result) == 0.5
    assert result.matrix == [[0.9, 0.1, 0.5]]


@pytest.mark.parametrize("name", sorted({*CELL_RECORD} - {"wall_seconds"}))
def test_a_column_of_every_table_is_no_name_of_a_measure(name: str) -> None:
    with pytest.raises(OcilError, match=f"^a measure cannot be called '{name}': tables have such a column."):
        Measure(name, lambda result: 1.0)


def test_the_example_of_the_page_is_a_measure() -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(code, {})
    result: Any = SimpleNamespace(evaluations=[{}, {"correct": [3, 1, 0]}], tested=[4, 2, 0])
    assert MEASURES["worst-class"].of(result) == 0.5
    result.evaluations = [{}]
    assert MEASURES["worst-class"].of(result) is None


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.randoms())
def test_an_estimate_does_not_depend_on_the_order_of_seeds(values: list[float], random: Any) -> None:
    mixed = values.copy()
    random.shuffle(mixed)
    one, other = measures.estimate(values), measures.estimate(mixed)
    assert (one.mean, one.interval) == (other.mean, other.interval)
    assert one.values == tuple(values)
    assert measures.mean_of(iter(mixed)) == one.mean
