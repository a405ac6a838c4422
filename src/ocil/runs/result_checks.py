"""Checks of what a result holds. A file may come from anywhere: whatever passes can be shown and averaged."""

import operator
import sys
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ocil.evaluation.calibration import BINS
from ocil.methods.config import hints_of
from ocil.runs.config import RunConfig
from ocil.streams import StreamConfig

if TYPE_CHECKING:
    from ocil.runs.results import Result

LONGEST_PATH = 4096  # characters of a dataset's path
LARGEST = 1 << 53  # of a count: what a float holds exactly
TOO_LARGE = 1 << 63  # for a setting that is a whole number: no run has one
MOST_CLASSES, MOST_DOMAINS, MOST_POINTS = 1_000_000, 10_000, 1_000_000
COSTS = ("images", "forward", "memory_bytes", "state_bytes")


def check_result(result: "Result") -> None:
    """Raise ``ValueError`` if a result is not what a run writes."""
    _check_config(result.config)
    _check_matrix(result.matrix, result.config.stream)
    _check_record(result)
    if not is_number(result.wall_seconds) or not isinstance(result.digest, str):
        raise ValueError("wall_seconds or digest is not what it should be")
    if not isinstance(result.environment, dict) or not isinstance(result.peak_memory, dict):
        raise ValueError("environment or peak_memory is not an object")


def _check_config(config: RunConfig) -> None:
    if not isinstance(config.dataset, str) or not config.dataset or not _is_seed(config.seed):
        raise ValueError("dataset or seed is not what it should be")
    for name in ("fingerprint", "weights", "code"):
        if not isinstance(getattr(config, name), str):
            raise ValueError(f"{name} is not what it should be")
    if len(config.dataset) > LONGEST_PATH:
        raise ValueError("the name of its dataset is too long")
    for part in (config.stream, config.learner):
        whole: Any = type(part)
        for name, kinds in _plain_fields(whole):
            value = getattr(part, name)
            fits = isinstance(value, kinds) or (float in kinds and is_number(value))
            if not fits or (float not in kinds and isinstance(value, int) and abs(value) >= TOO_LARGE):
                raise ValueError(f"{name} = {str(value)[:40]} is not what it should be")


@cache
def _plain_fields(kind: Any) -> list[tuple[str, tuple[type, ...]]]:
    """Name and types of a config class's fields that hold one number or one text: the type that it is given, and that
    of its default, which may be another in a user's own method (``float = 1``). That may also have fields of other
    types, such as ``int | None = 5``, which hold whatever they allow.
    """
    plain, hints = (bool, int, float, str), hints_of(kind)
    return [(f.name, (hints[f.name], type(f.default))) for f in fields(kind) if hints[f.name] in plain]


def _check_matrix(matrix: Any, stream: StreamConfig) -> None:
    rows = 1 if stream.boundary == "iid" else stream.tasks
    if not isinstance(matrix, list) or len(matrix) != rows:
        raise ValueError(f"the accuracy matrix does not have {rows} rows")
    for row in matrix:
        if len(row) != stream.tasks or not all(is_number(a) and 0 <= a <= 1 for a in row):
            raise ValueError(f"a row of the accuracy matrix is not {stream.tasks} shares")


def _check_record(result: "Result") -> None:
    tested, groups = result.tested, result.groups
    _counts("tested", tested, None)
    classes = len(tested)
    _table("tested_by_domain", result.tested_by_domain, classes, MOST_DOMAINS)
    _groups("groups", groups, classes)
    for evaluation in result.evaluations:
        _check_evaluation(evaluation, tested, result.tested_by_domain)
    _table("confusion", result.confusion, classes, classes)
    if result.confusion and [sum(row) for row in result.confusion] != tested:
        raise ValueError("confusion does not have the test images of each class")
    _check_anytime(_mapping("anytime", result.anytime), classes or None)
    if found := _mapping("calibration", result.calibration):
        _counts("calibration: count", found["count"], BINS)
        _up_to("calibration: correct", found["correct"], found["count"])
        _up_to("calibration: confidence", found["confidence"], found["count"], whole=False)
    if found := _mapping("prequential", result.prequential):
        if not _is_count(found["every"]) or not found["every"]:
            raise ValueError("prequential: every is not a number of batches")
        _counts("prequential: seen", found["seen"], None)
        _up_to("prequential: correct", found["correct"], found["seen"])
    if found := _mapping("probe", result.probe):
        _share("probe: accuracy", found["accuracy"])
        _up_to("probe: correct", found["correct"], tested)
    if (found := _mapping("cost", result.cost)) and not all(_is_count(found[name]) for name in COSTS):
        raise ValueError("cost: a value is not a whole number, 0 or more")


def _check_evaluation(evaluation: Mapping[str, Any], tested: list[int], by_domain: list[list[int]]) -> None:
    for name, value in evaluation.items():
        if name == "correct":
            _up_to("correct of an evaluation", value, tested)
        elif name == "correct_by_domain":
            _table_up_to("correct_by_domain of an evaluation", value, by_domain)
        elif name != "accuracy" and value is not None and not is_number(value):
            raise ValueError(f"{name} of an evaluation is not a number")


def _check_anytime(record: Mapping[str, Any], classes: int | None) -> None:
    """Raise if it is not what ``AnytimeEvaluator.record`` makes."""
    if not record:
        return
    tested = record["tested"]
    _counts("anytime: tested", tested, classes)
    _counts("anytime: arrived", record["arrived"], len(tested))
    by_domain = record.get("tested_by_domain", [])
    _table("anytime: tested_by_domain", by_domain, len(tested), MOST_DOMAINS)
    if by_domain:
        _counts("anytime: domains_arrived", record["domains_arrived"], len(by_domain))
    _groups("anytime: domain_groups", record.get("domain_groups", []), len(by_domain))
    for name in ("every", "subset"):
        if name in record and (not _is_count(record[name]) or not record[name]):
            raise ValueError(f"anytime: {name} is not a whole number above 0")
    for name in ("reviews", "tasks"):
        _counts(f"anytime: {name}", record.get(name, []), None)
        if any(a >= b for a, b in pairwise(record.get(name, []))):
            raise ValueError(f"anytime: {name} does not ascend")
    _check_points(record["points"], tested, by_domain)


def _check_points(points: Any, tested: list[int], by_domain: list[list[int]]) -> None:
    if not isinstance(points, list) or len(points) > MOST_POINTS:
        raise ValueError("anytime: points is not a list")
    last = {"batch": 0, "samples": 0}
    for point in points:
        for name, before in last.items():
            if name in point and (not _is_count(point[name]) or point[name] <= before):
                raise ValueError(f"anytime: {name} does not ascend")
            last[name] = point.get(name, before)
        if "batch" not in point or ("samples" in point) != ("samples" in points[0]):
            raise ValueError("anytime: a point does not say when it was")
        _share("anytime: accuracy", point["accuracy"])
        _up_to("anytime: correct", point["correct"], tested)
        if by_domain:
            _table_up_to("anytime: correct_by_domain", point["correct_by_domain"], by_domain)


def is_number(value: Any) -> bool:
    """Whether it is a number that a float can hold: an integer in JSON may be larger."""
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _is_seed(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= LARGEST


def _are_counts(values: list[Any]) -> bool:
    """Whether all are counts; a report checks millions of them, so without a call for each."""
    return not values or (set(map(type, values)) == {int} and min(values) >= 0 and max(values) <= LARGEST)


def _share(name: str, value: Any) -> None:
    if not is_number(value) or not 0 <= value <= 1:
        raise ValueError(f"{name} is not a share")


def _mapping(name: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{name} is not an object")
    return value


def _counts(name: str, values: Any, length: int | None) -> None:
    """Raise unless it is a list of so many whole numbers that are not negative."""
    if not isinstance(values, list) or len(values) > MOST_CLASSES or not _are_counts(values):
        raise ValueError(f"{name} is not a list of whole numbers, 0 or more")
    if length is not None and len(values) != length:
        raise ValueError(f"{name} has {len(values)} numbers, not {length}")


def _up_to(name: str, values: Any, most: Sequence[int], whole: bool = True) -> None:
    """Raise unless it is a list of numbers from 0 to those of ``most``."""
    limits: Sequence[float] = most
    if whole:
        _counts(name, values, len(most))
    elif not isinstance(values, list) or len(values) != len(most) or not all(map(is_number, values)):
        raise ValueError(f"{name} is not a list of {len(most)} numbers")
    else:
        limits = [limit + 1e-3 * (1 + limit) for limit in most]  # a sum of rounded confidences may be too large
    if values and (min(values) < 0 or any(map(operator.gt, values, limits))):
        raise ValueError(f"{name} has a number that is negative or too large")


def _table(name: str, rows: Any, columns: int, most: int) -> None:
    if not isinstance(rows, list) or len(rows) > most:
        raise ValueError(f"{name} is not a list of at most {most} lists")
    for row in rows:
        _counts(name, row, columns)


def _table_up_to(name: str, rows: Any, most: list[list[int]]) -> None:
    if not isinstance(rows, list) or len(rows) != len(most):
        raise ValueError(f"{name} is not a list of {len(most)} lists")
    for row, limits in zip(rows, most, strict=True):
        _up_to(name, row, limits)


def _groups(name: str, groups: Any, count: int) -> None:
    """Raise unless it is a list of lists of different numbers below ``count``."""
    if not isinstance(groups, list) or len(groups) > count:
        raise ValueError(f"{name} is not a list of at most {count} lists")
    named: list[int] = []
    for group in groups:
        _counts(name, group, None)
        if not group or max(group) >= count:
            raise ValueError(f"{name}: a group is empty, or has a number that does not exist")
        named += group
    if len(named) != len(set(named)):
        raise ValueError(f"{name}: something is in two groups")
