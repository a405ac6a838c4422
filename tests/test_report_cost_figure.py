"""The first figure of a report: accuracy against cost."""

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from ocil.evaluation.measures import Estimate
from ocil.report import cost_figure as module
from ocil.report.collect import collect
from ocil.report.cost_figure import OF_ONE_NETWORK, Canvas, MethodPoint, Scale, cost_figure, frontier
from ocil.report.entries import entries
from ocil.report.standings import Standings
from ocil.runs.config import resolve
from tests.test_report_page import HOSTILE, save

SVG = "{http://www.w3.org/2000/svg}"


def standings_of(root: Path) -> Standings:
    return Standings(entries(collect([root]).cells))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for memory in (1000, 5000):
        for name, level in (("er", 0.2), ("mir", 0.25), ("afs", 0.4), ("agem", 0.1)):
            save(tmp_path, resolve(name, "cifar100", memory=memory), level=level + memory / 1e5, seeds=3)
    return tmp_path


def parsed(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ', 1))


def titles(svg: str) -> dict[str, str]:
    """What stands in the title of each point, by name."""
    found = (title.text or "" for title in parsed(svg).iter(f"{SVG}title"))
    return dict(text.split(": ", 1) for text in found)


def test_points_hold_the_numbers_of_the_table(root: Path) -> None:
    standings = standings_of(root)
    figure = cost_figure(standings)
    assert figure is not None
    found = titles(figure.wide)
    assert set(found) == set(titles(figure.narrow)) == {"er", "mir", "afs", "agem"}
    for entry in standings.ordered:
        value = standings.mean_value(entry)
        low, high = standings.images(entry) or (0, 0)
        assert value is not None
        assert found[entry.name].startswith(f"{100 * value:.1f} ± ")
        costs = f"{low:.3g}" if low == high else f"{low:.3g} to {high:.3g}"
        assert found[entry.name].endswith(f"; {costs}")
    assert parsed(figure.wide).get("role") == "img"
    spoken = parsed(figure.wide).get("aria-label") or ""
    assert all(name in spoken for name in found)
    assert "2 columns" in figure.caption


def test_images_through_different_networks_are_not_one_cost(root: Path) -> None:
    same = cost_figure(standings_of(root))
    assert same is not None
    assert OF_ONE_NETWORK not in same.caption
    for memory in (1000, 5000):
        config = resolve("afs", "cifar100", memory=memory, settings={"network": "resnet18"})
        save(root, config, level=0.5, seeds=3)
    figure = cost_figure(standings_of(root))
    assert figure is not None
    assert OF_ONE_NETWORK in figure.caption


def test_the_interval_is_over_seeds_of_the_mean_of_columns(root: Path) -> None:
    standings = standings_of(root)
    (entry,) = (entry for entry in standings.ordered if entry.name == "afs")
    per_seed = np.array([[100 * values[seed] for seed in range(3)] for values in standings.by_seed["afs"].values()])
    means = per_seed.mean(axis=0)
    half = 4.302653 * means.std(ddof=1) / np.sqrt(3)
    figure = cost_figure(standings)
    assert figure is not None
    assert f"± {half:.1f};" in titles(figure.wide)[entry.name]


def test_the_bar_of_two_seeds_is_their_range_also_where_a_column_has_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, level in (("er", 0.2), ("afs", 0.4)):
        save(tmp_path, resolve(name, "cifar100", memory=1000), level=level, seeds=2)
        save(tmp_path, resolve(name, "cifar100", memory=5000), level=level, seeds=5)
    standings = standings_of(tmp_path)
    per_column = [list(values.values())[:2] for values in standings.by_seed["afs"].values()]
    low, high = sorted(50 * (one + two) for one, two in zip(*per_column, strict=True))
    drawn: list[MethodPoint] = []
    monkeypatch.setattr(module, "_mark", lambda point, *_: drawn.append(point) or "")
    assert cost_figure(standings) is not None
    point = next(point for point in drawn if point.name == "afs")
    assert point.value != pytest.approx((low + high) / 2)
    assert point.ends == pytest.approx((low, high))
    assert point.value == pytest.approx(100 * (standings.mean_value(standings.entries.named("afs")) or 0))


@pytest.mark.parametrize("higher", [True, False])
def test_the_line_has_what_no_other_beats(higher: bool) -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        drawn, none = enumerate(rng.integers(1, 6, (8, 2))), Estimate(0.0, None, ())
        points = [MethodPoint(str(n), float(v), none, (c, c, c)) for n, (v, c) in drawn]

        def beaten(one: MethodPoint, points: list[MethodPoint] = points) -> bool:
            sign = 1 if higher else -1
            gains = [(sign * (other.value - one.value), one.cost - other.cost) for other in points]
            return any(min(gain) >= 0 and max(gain) > 0 for gain in gains)

        kept = {(point.value, point.cost) for point in points if not beaten(point)}
        found = frontier(points, higher)
        assert {(point.value, point.cost) for point in found} == kept
        assert [point.cost for point in found] == sorted(point.cost for point in found)


def test_one_method_or_no_cost_has_no_figure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(tmp_path, resolve("er", "cifar100"), level=0.2, seeds=2)
    assert cost_figure(standings_of(tmp_path)) is None
    save(tmp_path, resolve("afs", "cifar100"), level=0.3, seeds=2)
    figure = cost_figure(standings_of(tmp_path))
    assert figure is not None
    assert "images passed" in figure.wide
    monkeypatch.setattr(module, "images_per_batch", lambda cell: None)
    by_time = cost_figure(standings_of(tmp_path))
    assert by_time is not None
    assert "time per run" in by_time.wide
    assert " s" in titles(by_time.wide)["er"]


def test_names_are_text_and_many_points_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    points = [
        MethodPoint(f"{HOSTILE}{n}", float(n), Estimate(float(n), 0.5, ()), (10, 10.0 + n, 20 + n)) for n in range(9)
    ]
    svg = module._svg(points, True, Canvas(358, 320, 12), "accuracy %", "images", str, HOSTILE)
    assert "<script" not in svg
    assert parsed(svg).get("aria-label") == HOSTILE
    assert HOSTILE + "3" in titles_text(svg)


def titles_text(svg: str) -> str:
    return " ".join(title.text or "" for title in parsed(svg).iter(f"{SVG}title"))


@pytest.mark.parametrize(
    ("scale", "most", "ticks"),
    [
        (Scale(16, 300, 0, 1, logarithmic=True), 8, [20, 50, 100, 200]),
        (Scale(3, 4000, 0, 1, logarithmic=True), 5, [10, 100, 1000]),
        (Scale(0, 242, 0, 1), 5, [0, 50, 100, 150, 200]),
        (Scale(8, 55, 0, 1), 7, [10, 20, 30, 40, 50]),
        (Scale(0.61, 0.68, 0, 1), 8, [0.61, 0.62, 0.63, 0.64, 0.65, 0.66, 0.67, 0.68]),
    ],
)
def test_ticks_are_round_numbers(scale: Scale, most: int, ticks: list[float]) -> None:
    assert scale.ticks(most) == pytest.approx(ticks)
    assert (scale(scale.low), scale(scale.high)) == (0, 1)
