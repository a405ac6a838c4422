"""Metrics against a worked example, tables of Student's t, and properties."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from ocil.evaluation import measures
from ocil.evaluation.measures import estimate, t_quantile

quick = settings(max_examples=60, deadline=None, derandomize=True, database=None)

# Group 1 is best before the end, group 2 gets better at the end, group 0 is forgotten and partly comes back.
WORKED = [
    [0.9, 0.0, 0.1, 0.0],
    [0.5, 0.8, 0.0, 0.0],
    [0.3, 0.6, 0.7, 0.0],
    [0.4, 0.2, 0.8, 0.6],
]
REFERENCE = [
    [0.95, 0.0, 0.0, 0.0],
    [0.0, 0.9, 0.0, 0.0],
    [0.0, 0.0, 0.85, 0.0],
    [0.0, 0.0, 0.0, 0.5],
]


def squares(least: int = 1, most: int = 6) -> st.SearchStrategy[np.ndarray]:
    shares = st.floats(0, 1, allow_subnormal=False)
    return st.integers(least, most).flatmap(lambda n: arrays(np.float64, (n, n), elements=shares))


def test_worked_average_accuracy() -> None:
    assert measures.average_accuracy(WORKED) == pytest.approx((0.4 + 0.2 + 0.8 + 0.6) / 4)


def test_worked_forgetting_of_the_paper() -> None:
    """Best of the rows before the last, first T-1 groups: 0.9-0.4, 0.8-0.2, 0.7-0.8."""
    assert measures.average_forgetting(WORKED) == pytest.approx((0.5 + 0.6 - 0.1) / 3)


def test_worked_forgetting_as_commonly_coded() -> None:
    """The last row counts among the best, and all T groups: 0.5, 0.6, 0, 0."""
    assert measures.average_forgetting_common(WORKED) == pytest.approx(1.1 / 4)


def test_worked_intransigence() -> None:
    """0.95-0.9, 0.9-0.8, 0.85-0.7, 0.5-0.6."""
    assert measures.average_intransigence(WORKED, REFERENCE) == pytest.approx((0.05 + 0.1 + 0.15 - 0.1) / 4)
    assert measures.average_intransigence(WORKED, WORKED) == 0


def test_worked_curve() -> None:
    assert measures.accuracy_curve(WORKED) == pytest.approx([0.9, 1.3 / 2, 1.6 / 3, 2.0 / 4])


def test_worked_incremental_accuracy() -> None:
    assert measures.average_incremental_accuracy(WORKED) == pytest.approx((0.9 + 1.3 / 2 + 1.6 / 3 + 0.5) / 4)


def test_worked_transfer() -> None:
    """Backward: 0.4-0.9, 0.2-0.8, 0.8-0.7. Forward, with eight classes: 0, 0, 0 before each group, less 1/8."""
    assert measures.backward_transfer(WORKED) == pytest.approx((-0.5 - 0.6 + 0.1) / 3)
    assert measures.forward_transfer(WORKED, 1 / 8) == pytest.approx(-1 / 8)
    known = [[0.9, 0.3, 0.1], [0.5, 0.8, 0.2], [0.3, 0.6, 0.7]]
    assert measures.forward_transfer(known, 0.1) == pytest.approx((0.3 + 0.2) / 2 - 0.1)


def test_best_accuracy_may_come_before_a_group_was_learned() -> None:
    """The paper takes the best of all earlier rows, also of those before the group arrived."""
    matrix = [[0.2, 0.9, 0.0], [0.5, 0.1, 0.0], [0.5, 0.1, 0.3]]
    assert measures.average_forgetting(matrix) == pytest.approx((0.0 + 0.8) / 2)


def test_forgetting_may_be_negative() -> None:
    assert measures.average_forgetting([[0.1, 0.0], [0.6, 0.5]]) == pytest.approx(-0.5)
    assert measures.average_forgetting_common([[0.1, 0.0], [0.6, 0.5]]) == 0


def test_one_group() -> None:
    assert measures.average_accuracy([[0.7]]) == 0.7
    assert measures.average_forgetting([[0.7]]) is None
    assert measures.average_forgetting_common([[0.7]]) == 0
    assert measures.backward_transfer([[0.7]]) is measures.forward_transfer([[0.7]], 0.5) is None
    assert measures.average_incremental_accuracy([[0.7]]) == 0.7
    assert measures.accuracy_curve([[0.7]]) == [0.7]


def test_one_row_for_many_groups() -> None:
    """An iid run is evaluated once: nothing was learned before anything else."""
    once = [[0.4, 0.6, 0.8]]
    assert measures.average_accuracy(once) == pytest.approx(0.6)
    assert measures.average_forgetting(once) is None
    assert measures.average_forgetting_common(once) is None
    assert measures.backward_transfer(once) is measures.forward_transfer(once, 0.1) is None
    assert measures.average_incremental_accuracy(once) is None
    assert measures.average_intransigence(once, REFERENCE) is None
    assert measures.average_intransigence(REFERENCE, once) is None
    assert measures.accuracy_curve(once) == pytest.approx([0.6])


@given(squares(least=2))
@quick
def test_definitions_by_loops(matrix: np.ndarray) -> None:
    size = len(matrix)
    rows = matrix.tolist()
    paper = [max(rows[i][j] for i in range(size - 1)) - rows[-1][j] for j in range(size - 1)]
    common = [max(rows[i][j] for i in range(size)) - rows[-1][j] for j in range(size)]
    assert measures.average_forgetting(rows) == pytest.approx(sum(paper) / (size - 1))
    assert measures.average_forgetting_common(rows) == pytest.approx(sum(common) / size)
    assert measures.accuracy_curve(rows) == pytest.approx([sum(rows[i][: i + 1]) / (i + 1) for i in range(size)])
    assert measures.average_accuracy(rows) == pytest.approx(measures.accuracy_curve(rows)[-1])
    curve = [sum(rows[i][: i + 1]) / (i + 1) for i in range(size)]
    assert measures.average_incremental_accuracy(rows) == pytest.approx(sum(curve) / size)
    back = [rows[-1][j] - rows[j][j] for j in range(size - 1)]
    ahead = [rows[j - 1][j] - 0.25 for j in range(1, size)]
    assert measures.backward_transfer(rows) == pytest.approx(sum(back) / (size - 1))
    assert measures.forward_transfer(rows, 0.25) == pytest.approx(sum(ahead) / (size - 1))


@given(squares(least=2))
@quick
def test_bounds(matrix: np.ndarray) -> None:
    common, paper = measures.average_forgetting_common(matrix), measures.average_forgetting(matrix)
    assert common is not None
    assert paper is not None
    assert 0 <= measures.average_accuracy(matrix) <= 1
    assert 0 <= common <= 1
    assert -1 <= paper <= 1
    size = len(matrix)
    assert common * size >= paper * (size - 1) - 1e-12  # clipping at zero can only add


@given(st.integers(2, 6), st.floats(0, 1))
@quick
def test_a_constant_matrix_forgets_nothing(size: int, value: float) -> None:
    matrix = np.full((size, size), value)
    assert measures.average_forgetting(matrix) == 0
    assert measures.average_forgetting_common(matrix) == 0
    assert measures.average_accuracy(matrix) == pytest.approx(value)


@given(squares(least=2), st.floats(-1, 1))
@quick
def test_a_shift_moves_accuracy_and_nothing_else(matrix: np.ndarray, shift: float) -> None:
    moved = matrix + shift
    assert measures.average_accuracy(moved) == pytest.approx(measures.average_accuracy(matrix) + shift)
    assert measures.average_forgetting(moved) == pytest.approx(measures.average_forgetting(matrix), abs=1e-12)
    assert measures.average_forgetting_common(moved) == pytest.approx(
        measures.average_forgetting_common(matrix), abs=1e-12
    )
    assert measures.average_intransigence(moved, matrix) == pytest.approx(-shift, abs=1e-12)


# Student's t

TABLE = {1: 12.7062, 2: 4.3027, 3: 3.1824, 4: 2.7764, 5: 2.5706, 9: 2.2622, 10: 2.2281, 29: 2.0452, 99: 1.9842}


@pytest.mark.parametrize(("degrees", "expected"), TABLE.items())
def test_t_quantiles_of_the_tables(degrees: int, expected: float) -> None:
    assert t_quantile(degrees) == pytest.approx(expected, abs=6e-5)


def test_t_quantiles_in_closed_form() -> None:
    for probability in (0.6, 0.75, 0.9, 0.975, 0.995):
        assert t_quantile(1, probability) == pytest.approx(math.tan(math.pi * (probability - 0.5)), rel=1e-9)
        spread = 2 * probability - 1
        assert t_quantile(2, probability) == pytest.approx(spread * math.sqrt(2 / (1 - spread**2)), rel=1e-9)
    assert t_quantile(7, 0.5) == pytest.approx(0, abs=1e-9)


def test_t_quantiles_fall_to_the_normal_one() -> None:
    values = [t_quantile(degrees) for degrees in range(1, 60)]
    assert all(earlier > later for earlier, later in itertools.pairwise(values))
    assert t_quantile(20_000) == pytest.approx(1.959964, abs=2e-4)


# Estimates over seeds


def test_worked_estimate() -> None:
    """Values 1, 2, 3, 6: mean 3, variance 14/3, standard error sqrt(14/12)."""
    found = estimate([1.0, 2.0, 3.0, 6.0])
    assert found.mean == 3
    assert found.interval == pytest.approx(3.182446 * math.sqrt(14 / 12), rel=1e-6)
    assert found.values == (1.0, 2.0, 3.0, 6.0)


def test_one_seed_has_no_interval() -> None:
    found = estimate([0.4])
    assert (found.mean, found.interval) == (0.4, None)


@given(st.lists(st.floats(0, 1), min_size=2, max_size=8), st.randoms(use_true_random=False))
@quick
def test_the_order_of_seeds_does_not_matter(values: list[float], random: object) -> None:
    shuffled = list(values)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    here, there = estimate(values), estimate(shuffled)
    assert here.mean == pytest.approx(there.mean)
    assert here.interval == pytest.approx(there.interval, abs=1e-12)
    assert min(values) - 1e-12 <= here.mean <= max(values) + 1e-12


@given(st.floats(0, 1), st.integers(2, 8))
@quick
def test_equal_seeds_have_an_interval_of_nothing(value: float, count: int) -> None:
    assert estimate([value] * count).interval == pytest.approx(0, abs=1e-12)


def test_the_interval_holds_the_truth_95_times_in_100() -> None:
    rng = np.random.default_rng(0)
    hits = 0
    for sample in rng.normal(0.5, 0.1, (1000, 4)):
        found = estimate(sample.tolist())
        assert found.interval is not None
        hits += abs(found.mean - 0.5) <= found.interval
    assert abs(hits - 950) < 4 * math.sqrt(1000 * 0.95 * 0.05)
