"""Figures of what runs recorded: accuracy over time, per class, confusion, calibration, cost; each against numbers that
are computed by hand."""

import io
import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ocil.evaluation.measures import MEASURES, Estimate, Measure, expected_calibration_error
from ocil.evaluation.record_types import AnytimePoint, AnytimeRecord, CalibrationRecord
from ocil.report import record_figures, record_plots, records
from ocil.report.cells import FinishedRun, MeasuredCell, title_of
from ocil.report.collect import collect
from ocil.report.cost import bytes_kept, images_per_batch, run_images
from ocil.report.drawings import draw
from ocil.report.entries import entries
from ocil.report.figures import draw_all
from ocil.report.formatting import duration
from ocil.report.headline import headline
from ocil.report.measure_tables import measures_document
from ocil.report.papers import load
from ocil.report.quantities import recorded as recorded_quantities
from ocil.report.standings import Standings
from ocil.report.style import PALETTE, REPORT_STYLE, Look, looks, render, shared_looks
from ocil.report.table import csv, latex_table
from ocil.report.write import write
from ocil.runs.config import resolve
from ocil.runs.folder import RunFolder
from ocil.runs.results import Result, summarise
from ocil.text import kilo
from tests.conftest import Call
from tests.test_report_page import HOSTILE, Page, blank_figures, made_up, rows_of

__all__ = ["blank_figures"]

DATA = "/data/birds.npz"
TESTED = [10, 20, 10, 10]


def bins(count: int, correct: int, confidence: float) -> CalibrationRecord:
    """All images in the twelfth bin."""
    found: CalibrationRecord = {"count": [0] * 15, "correct": [0] * 15, "confidence": [0.0] * 15}
    found["count"][11], found["correct"][11], found["confidence"][11] = count, correct, confidence
    return found


def recorded(name: str, seed: int, level: float = 0.5, memory: int = 100, **settings: Any) -> Result:
    """A run of 4 classes in 2 tasks over 40 batches. In the second seed the classes come in another order."""
    config = resolve(name, DATA, memory=memory, seed=seed, settings={"tasks": 2, "evaluate_every": 10} | settings)
    groups = [[0, 1], [2, 3]] if seed == 0 else [[3, 2], [1, 0]]
    arrived = [0] * 4
    for task, classes in enumerate(groups):
        for place, c in enumerate(classes):
            arrived[c] = 1 + 20 * task + place
    points: list[AnytimePoint] = []
    for batch in (10, 20, 30, 40):
        correct = [round(level * TESTED[c]) if arrived[c] <= batch else 0 for c in range(4)]
        correct[groups[0][0]] = batch // 10  # the first class to arrive: 1, 2, 3, 4 of its images
        points.append({"batch": batch, "accuracy": level + 0.01 * seed + 0.001 * batch, "correct": correct})
    wrong = [[TESTED[c] if k == groups[1][1] else 0 for k in range(4)] for c in range(4)]  # all are taken for the last
    return replace(
        made_up(config, level),
        anytime={
            "every": 10,
            "tested": TESTED,
            "arrived": arrived,
            "points": points,
            "reviews": [20],
            "tasks": [20, 40],
        },
        tested=TESTED,
        groups=groups,
        confusion=wrong,
        calibration=bins(50, 20, 38.0),
        cost={"images": 8000, "forward": 3000, "memory_bytes": 1_000_000, "state_bytes": 500_000},
    )


def cell(name: str = "er", level: float = 0.5, **settings: Any) -> MeasuredCell:
    results = [recorded(name, seed, level, **settings) for seed in (0, 1)]
    runs = tuple(FinishedRun(Path(str(number)), result) for number, result in enumerate(results))
    return MeasuredCell(runs, summarise(results))


def test_accuracy_over_time() -> None:
    found = records.over_time(cell())
    assert found is not None
    assert (found.batches, found.reviews, found.tasks, found.subset) == ((10, 20, 30, 40), (20,), (20, 40), 0)
    assert [point.mean for point in found.accuracy] == pytest.approx([0.515, 0.525, 0.535, 0.545])
    assert found.accuracy[0].values == pytest.approx((0.51, 0.52))
    assert found.accuracy[0].interval == pytest.approx(12.7062 * 0.005, rel=1e-5)
    other = records.over_time(cell(level=0.2))
    assert other is not None
    (axes,) = record_plots.over_time({"low": other, "high": found}).axes
    curves = {str(line.get_label()): line for line in axes.lines if len(line.get_xydata()) == 4}  # type: ignore[arg-type]
    assert list(curves) == ["high  54.5", "low  24.5"]  # the best first
    assert np.asarray(curves["high  54.5"].get_ydata()) == pytest.approx([51.5, 52.5, 53.5, 54.5])
    points = [np.asarray(line.get_xdata()).tolist() for line in axes.lines]
    assert [20, 20] in points  # task ends
    assert [40, 40] in points
    marks = [line for line in axes.lines if line.get_marker() == "^"]
    assert [np.asarray(line.get_xydata()).tolist()[0] for line in marks] == [
        [20, pytest.approx(52.5)],
        [20, pytest.approx(22.5)],
    ]
    assert len(axes.collections) == 2  # a band each
    band = axes.collections[0].get_paths()[0].vertices
    assert np.asarray(band)[:, 1].max() == pytest.approx(55)  # of two seeds their range


def legend_title(axes: Axes) -> str:
    legend = axes.get_legend()
    return "" if legend is None else legend.get_title().get_text()


def test_over_time_says_where_it_stops_and_what_has_arrived() -> None:
    """The last point may be before the end of the stream, and tasks may end elsewhere in another seed."""
    one, two = recorded("er", 0), recorded("er", 1)
    for tasks, lines in (([20, 43], (20, 43)), ([15, 43], ())):
        results = [
            replace(one, anytime={**one.anytime, "tasks": [20, 43]}),
            replace(two, anytime={**two.anytime, "tasks": tasks}),
        ]
        runs = tuple(FinishedRun(Path("x"), result) for result in results)
        found = records.over_time(MeasuredCell(runs, summarise(results)))
        assert found is not None
        assert found.tasks == lines
        (axes,) = record_plots.over_time({"er": found}, "domains").axes
        assert legend_title(axes) == "% at the last point"
        assert axes.get_ylabel() == "accuracy on all domains so far, %"
    complete = records.over_time(cell())
    assert complete is not None
    (axes,) = record_plots.over_time({"er": complete}).axes
    assert legend_title(axes) == "% at the end"


@pytest.mark.parametrize(
    ("settings", "words", "figure"),
    [
        ({}, "Vertical lines are ends of tasks", ("tasks learned", "accuracy on all classes so far, %")),
        ({"boundary": "none"}, "lines are evaluations of", ("evaluations", "accuracy on all classes so far, %")),
        (
            {"scenario": "domain"},
            "Mean accuracy on the domains",
            ("tasks learned", "accuracy on all domains so far, %"),
        ),
    ],
    ids=["tasks", "none", "domains"],
)
def test_figures_name_what_the_stream_has(
    settings: dict[str, Any], words: str, figure: tuple[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    axes: list[tuple[str, str]] = []

    def rendered(paint: Callable[..., Figure], *args: Any) -> str:
        first = paint(*args).axes[0]
        axes.append((first.get_xlabel(), first.get_ylabel()))
        return "<svg/>"

    monkeypatch.setattr("ocil.report.rendering.render", rendered)
    save(tmp_path, "er", 0.3, **settings)
    save(tmp_path, "mir", 0.5, **settings)
    found = collect([tmp_path])
    drawings = draw_all(found, Standings(entries(found.cells)), load("none"))
    captions = {drawing.name.split("-birds")[0]: drawing.caption for drawing in drawings}
    assert words in captions["over-time"]
    assert figure in axes


def test_points_that_not_all_seeds_have_are_left_out() -> None:
    one, two = recorded("er", 0), recorded("er", 1)
    two = replace(two, anytime=two.anytime | {"points": two.anytime["points"][1:]})
    both = MeasuredCell((FinishedRun(Path("a"), one), FinishedRun(Path("b"), two)), summarise([one, two]))
    found = records.over_time(both)
    assert found is not None
    assert found.batches == (20, 30, 40)
    assert list(records.shared_points(both.anytime)) == [20, 30, 40]
    bare = replace(two, anytime={})
    assert records.over_time(replace(both, runs=(both.runs[0], FinishedRun(Path("b"), bare)))) is None


def test_seeds_with_streams_of_different_lengths_are_shown(ocil_command: Call, tmp_path: Path) -> None:
    """As those of i-Blurry are, where incomplete last batches of tasks are dropped."""
    one, two = recorded("er", 0), recorded("er", 1)
    shorter: AnytimeRecord = {**two.anytime, "points": two.anytime["points"][:3], "tasks": [20, 39]}
    for result in (one, replace(two, anytime=shorter)):
        RunFolder.of(tmp_path, result.config).save_result(result)
    said = ocil_command("show", tmp_path)
    assert said.code == 0, said.err
    assert "every 10 batches" in said.out
    assert "51.5 → 53.5 %" in said.out  # at 10 and at 30 batches, which both have


def test_accuracy_per_class_in_the_order_of_arrival() -> None:
    """Row 0 is class 0 in one seed and class 3 in the other: 10 test images each, 1 to 4 of them correct."""
    found = records.heat_map(cell())
    assert found is not None
    assert (found.times, found.rows, found.unit) == ((10, 20, 30, 40), "classes", "stream batches")
    expected = [[0.1, 0.2, 0.3, 0.4], [0.5] * 4, [np.nan, np.nan, 0.5, 0.5], [np.nan, np.nan, 0.5, 0.5]]
    np.testing.assert_allclose(found.accuracy, expected)
    axes, *_ = record_plots.heat_maps({"er": found}).axes
    (image,) = axes.images
    shown = np.ma.filled(np.ma.asarray(image.get_array()).astype(float), np.nan)
    assert shown.shape[0] == 4
    assert shown[0, [0, -1]] == pytest.approx([10, 40])
    assert np.isnan(shown[2:, 0]).all()
    assert (axes.get_title(), axes.get_ylabel()) == ("er", "class, by arrival")


def test_accuracy_per_class_after_each_task_and_per_task() -> None:
    results = []
    for seed in (0, 1):
        result = recorded("er", seed)
        first = result.groups[0]
        correct = [[5 if c in first else 0 for c in range(4)], [1, 1, 1, 1]]
        evaluations = [each | {"correct": row} for each, row in zip(result.evaluations, correct, strict=True)]
        results.append(replace(result, anytime={}, evaluations=evaluations))
    both = MeasuredCell(tuple(FinishedRun(Path("x"), result) for result in results), summarise(results))
    found = records.heat_map(both)
    assert found is not None
    assert (found.times, found.rows) == ((1, 2), "classes")
    np.testing.assert_allclose(
        found.accuracy,
        [[0.5, 0.1], [(0.25 + 0.5) / 2, (0.05 + 0.1) / 2], [np.nan, 0.1], [np.nan, (0.1 + 0.05) / 2]],
    )  # class 1 has 20 test images; within a task classes are by number
    bare = [replace(result, evaluations=[], tested=[], groups=[], confusion=[]) for result in results]
    tasks = records.heat_map(MeasuredCell(tuple(FinishedRun(Path("x"), r) for r in bare), summarise(bare)))
    assert tasks is not None
    assert (tasks.rows, tasks.unit) == ("tasks", "tasks learned")
    matrix = np.mean([result.matrix for result in bare], axis=0)
    np.testing.assert_allclose(tasks.accuracy, [[matrix[0, 0], matrix[1, 0]], [np.nan, matrix[1, 1]]])


def test_accuracy_per_domain() -> None:
    """Two domains of two classes; the second domain arrives after 15 batches."""
    config = resolve("er", DATA, memory=100, settings={"tasks": 2, "scenario": "domain", "evaluate_every": 10})
    points: list[AnytimePoint] = [
        {"batch": 10, "accuracy": 0.5, "correct": [1, 2], "correct_by_domain": [[1, 2], [0, 0]]},
        {"batch": 20, "accuracy": 0.5, "correct": [2, 5], "correct_by_domain": [[1, 1], [1, 4]]},
    ]
    anytime: AnytimeRecord = {"every": 10, "tested": [10, 10], "arrived": [1, 1], "points": points}
    anytime |= {"tested_by_domain": [[4, 4], [6, 6]], "domains_arrived": [1, 15]}
    result = replace(made_up(config), anytime=anytime)
    found = records.heat_map(MeasuredCell((FinishedRun(Path("x"), result),), summarise([result])))
    assert found is not None
    assert found.rows == "domains"
    np.testing.assert_allclose(found.accuracy, [[3 / 8, 2 / 8], [np.nan, 5 / 12]])


def test_titles_of_datasets_that_are_made_of_others() -> None:
    assert title_of("cifar100") == "CIFAR-100"
    assert title_of("cifar10+cifar100:noise") == "CIFAR-10 + CIFAR-100 (noise)"
    assert title_of("/data/a+b.npz") == "a+b"


def test_a_long_list_of_settings_is_cut_and_stays_distinct() -> None:
    names = {}
    for last in (5, 6):
        counts = (*[10] * 99, last)
        config = resolve("er", DATA, memory=100, settings={"class_counts": counts, "label_noise": 0.25})
        result = made_up(config)
        found = MeasuredCell((FinishedRun(Path("x"), result),), summarise([result])).column
        names[found.title] = len(found.stream)
    assert len(names) == 2
    assert max(names.values()) < 130
    assert all("class_counts=10,10,10,…@" in title for title in names)
    assert all("label_noise=0.25" in title for title in names), "a list leaves room for what is behind it"


def test_confusion_is_by_arrival_over_seeds() -> None:
    found = records.confusion(cell())
    assert found is not None
    assert found.by_arrival
    np.testing.assert_allclose(found.shares, [[0, 0, 0, 1]] * 4)  # the last class to arrive, in both orders
    axes, *_ = record_plots.confusions({"er": found}).axes
    assert [text.get_text() for text in axes.texts] == ["0", "0", "0", "100"] * 4
    assert np.asarray(axes.images[0].get_array()).tolist() == [[0, 0, 0, 100]] * 4
    alone = replace(recorded("er", 0), anytime={}, groups=[])
    bare = records.confusion(MeasuredCell((FinishedRun(Path("x"), alone),), summarise([alone])))
    assert bare is not None
    assert not bare.by_arrival


def test_calibration_is_that_of_the_measure() -> None:
    found = records.calibration(cell())
    assert found is not None
    assert [found.confidence.tolist(), found.accuracy.tolist()] == [[0.76], [0.4]]
    assert found.error == pytest.approx(expected_calibration_error(bins(50, 20, 38.0)))
    sure, unsure = (replace(recorded("er", seed), calibration=bins(50, 36, sum_)) for seed, sum_ in ((0, 40), (1, 34)))
    runs = tuple(FinishedRun(Path("x"), result) for result in (sure, unsure))
    apart = records.calibration(MeasuredCell(runs, summarise([sure, unsure])))
    assert apart is not None
    assert apart.error == pytest.approx((4 / 50 + 2 / 50) / 2), "the mean over seeds, as in tables"
    (axes,) = record_plots.reliability({"er": found}).axes
    (line,) = (line for line in axes.lines if str(line.get_label()).startswith("er"))
    assert line.get_label() == "er  36.0"
    assert np.asarray(line.get_xydata()) == pytest.approx(np.array([[76, 40]]))


def test_costs() -> None:
    one = cell()
    assert run_images(one.runs[0]) == 9000  # forward alone counts a third
    assert bytes_kept(one.runs[0]) == 1_500_000
    assert images_per_batch(one) == 225  # of 40 batches
    bare = [replace(run.result, cost={}) for run in one.runs]
    stated = MeasuredCell(tuple(FinishedRun(Path("x"), r) for r in bare), one.summary)
    assert images_per_batch(stated) == 20  # ten of the stream, ten of the memory
    curves = {
        "a": [(300.0, Estimate(0.5, 0.01, ())), (30.0, Estimate(0.4, None, ()))],
        "b": [(20.0, Estimate(0.3, 0.0, ()))],
    }
    with mpl.rc_context(REPORT_STYLE):
        (axes,) = record_plots.against_cost(curves, "images").axes
    assert axes.get_xscale() == "log"
    assert np.asarray(axes.lines[0].get_xydata()) == pytest.approx(np.array([[30, 40], [300, 50]]))
    names = {text.get_text(): text.xy for text in axes.texts}  # type: ignore[attr-defined]
    assert names == {"a": (300.0, 50.0), "b": (20.0, pytest.approx(30.0))}
    close = {"a": [(22_860.0, Estimate(0.5, None, ()))], "b": [(22_872.0, Estimate(0.3, None, ()))]}
    with mpl.rc_context(REPORT_STYLE):
        figure = record_plots.against_cost(close, "bytes")
        figure.draw_without_rendering()
        ticks = [tick.get_text() for tick in figure.axes[0].get_xticklabels()]
    assert "22.86 k" in ticks
    assert len(ticks) == len(set(ticks)), "each tick has its own number"
    assert not re.search(r"\$", render(record_plots.against_cost, curves, "images"))  # ticks are numbers, no formulas


def without_cost(name: str, **settings: Any) -> MeasuredCell:
    """A cell from before costs were recorded: its images are those that the method states."""
    one = cell(name, **settings)
    bare = [replace(run.result, cost={}) for run in one.runs]
    return MeasuredCell(tuple(FinishedRun(Path("x"), result) for result in bare), summarise(bare))


def test_a_curve_of_compute_joins_the_settings_that_change_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Older runs, which have no record of their cost, are among them, and a method keeps all of its points."""
    rates = [without_cost("er", lr=0.01 * number) for number in range(1, 7)]
    batches = [without_cost("er", memory_batch=size) for size in (20, 40)]
    cells = [without_cost("er"), *rates, *batches, without_cost("er-ace"), cell("mir"), cell("scr")]
    by_name = {f"{each.label} {each.learner_settings}": each for each in cells}
    drawn: dict[str, tuple[dict[str, list[tuple[float, Estimate]]], str]] = {}
    monkeypatch.setattr(record_figures, "sketch_of", lambda _, kind, *rest, **__: drawn.update({kind: rest[-2:]}))
    list(record_figures._costs(cells[0].column, by_name))
    curves, label = drawn["accuracy-against-compute"]
    assert label == "images passed per stream batch"
    assert {name: [images for images, _ in points] for name, points in curves.items()} == {
        "er": [20, 30, 50],
        "er-ace {}": [20],
        "mir {}": [225],
        "scr {}": [225],
    }
    monkeypatch.setattr(record_figures, "MOST_POINTS", 4)
    list(record_figures._costs(cells[0].column, by_name))
    assert list(drawn["accuracy-against-compute"][0]) == ["er", "er-ace {}"]


@pytest.mark.parametrize(
    ("name", "images"),
    [
        ("gdumb", 496 * 30 * 5 / 300),  # 30 passes at each task end over 500 stored images in batches of 16
        ("aaer", 10 + 20 + 10 / 3 + (500 + 2 * 10) / 3 * 5 / 300),  # the memory and the anchors twice, forward alone
    ],
)
def test_costs_that_are_stated_have_the_steps_at_task_ends(name: str, images: float) -> None:
    """300 batches of fashion-mini in five tasks, of a run from before costs were recorded."""
    config = resolve(name, "fashion-mini", memory=500)
    found = MeasuredCell((FinishedRun(Path("x"), result := made_up(config)),), summarise([result]))
    assert not result.cost
    assert images_per_batch(found) == pytest.approx(images)


@pytest.mark.parametrize(
    ("settings", "images"),
    [({}, 30.0), ({"class_counts": (40,) * 10}, 225.0), ({"imbalance_factor": 9.0}, 20.0)],
    ids=["whole", "counts", "long tail"],
)
def test_costs_per_batch_of_a_stream_that_is_shorter_than_its_dataset(settings: dict[str, Any], images: float) -> None:
    """300 batches of fashion-mini, 40 of these counts, and for a long tail what the method states."""
    config = resolve("er", "fashion-mini", memory=100, settings=settings)
    result = replace(made_up(config), cost={"images": 8000, "forward": 3000, "memory_bytes": 0, "state_bytes": 0})
    found = MeasuredCell((FinishedRun(Path("x"), result),), summarise([result]))
    assert images_per_batch(found) == images


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0"), (20.2, "20.2"), (999.6, "1 k"), (2794, "2.79 k"), (5e6, "5 M"), (1e300, "1e+288 T")]
)
def test_counts_are_short(number: float, text: str) -> None:
    assert kilo(number) == text


def save(root: Path, name: str, level: float, **settings: Any) -> None:
    for seed in (0, 1):
        result = recorded(name, seed, level, **settings)
        RunFolder.of(root, result.config).save_result(result)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    save(root, "er", 0.3)
    save(root, "mir", 0.5)
    save(root, "mir", 0.4, memory=200)
    return root


@pytest.mark.usefixtures("blank_figures")
def test_a_report_of_own_runs(root: Path, tmp_path: Path) -> None:
    found = collect([root])
    assert not found.warnings
    written = write(found, tmp_path)
    names = {path.stem for path in written.figures}
    kinds = ("accuracy", "over-time", "accuracy-per-class", "confusion", "calibration", "paired-differences")
    for kind in kinds:
        assert f"{kind}-birds-m100" in names  # not with the number of tasks, which all have
    tables = {path.name for path in written.tables}
    assert tables == {
        *("standings.md", "standings.csv", "methods.md", "methods.csv", "methods.tex", "cells.md", "cells.csv"),
        *("measures.md", "measures.csv", "measures.tex"),
    }
    page = Page(written.page.read_text())
    for text in (page.text, *(path.read_text() for path in written.tables)):
        assert "not measured" not in text.lower()
    assert "published" not in page.text
    ids = {attributes.get("id") for _, attributes in page.tags}
    assert {"standings", "methods", "measures", "figures", "cells"} <= ids
    assert "table1" not in ids
    assert page.text.index("First of 2 methods") < page.text.index("mean rank")
    rows = rows_of((tmp_path / "tables/measures.csv").read_text())
    (ece,) = {row["mean"] for row in rows if row["measure"] == "expected_calibration_error"}
    assert float(ece) == pytest.approx(0.36)
    (area,) = (
        row["mean"]
        for row in rows
        if (row["measure"], row["method"], row["memory"]) == ("area_under_accuracy", "er", "100")
    )
    assert float(area) == pytest.approx(0.3 + 0.005 + 0.025)


def test_figures_hold_the_names_and_are_svg(root: Path) -> None:
    standings = Standings(entries(collect([root]).cells))
    (drawing,) = draw([next(record_figures.sketches_of_records(standings.entries.columns[0], standings))])
    assert drawing.name.startswith("over-time-birds")
    text = " ".join(ElementTree.fromstring(drawing.svg.encode()).itertext())
    assert "mir  54.5" in text
    assert "er  34.5" in text
    assert "Triangles are reviews." in drawing.caption
    assert "ends of tasks" in drawing.caption


def test_words_on_who_is_ahead(root: Path) -> None:
    found = headline(Standings(entries(collect([root]).cells)))
    assert found is not None
    who, by, cost = found.answers
    assert (who.short, who.words.split(":")[0]) == ("mir", "First of 2 methods on birds, memory 100")
    unsettled = "Two seeds have no interval, so the order is not settled."
    assert by.words == f"Over er, which is second, on 2 shared seeds. {unsettled}"
    assert (cost.short, cost.words) == ("225 images", "Passed per stream batch; er passes 225.")
    assert headline(Standings(entries([]))) is None


def test_measures_of_one_table(root: Path) -> None:
    document = measures_document(Standings(entries(collect([root]).cells)))
    assert document is not None
    first, second = document.tables
    titles = [column.title for column in first.columns]
    for title in ("accuracy %", "A_AUC %", "WC-ACC %", "ECE %", "images passed", "samples kept", "time / run"):
        assert title in titles
    assert [row.values[0].text for row in first.rows] == ["mir", "er"]
    best = first.rows[0].values[titles.index("accuracy %")]
    assert best.rank == 1
    assert first.rows[0].values[titles.index("samples kept")].text == "1 MB"
    assert len(second.rows) == 1
    assert csv(document.records).startswith("dataset,stream,memory,method,measure,seeds,mean,interval\n")
    caption = latex_table(first, document).partition("\\begin{adjustbox}")[0]
    assert caption.count("Best in bold") == 1
    assert "brackets" not in caption  # a range stands in them, and there are no paired differences


def test_a_measure_of_a_summary_is_not_computed_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tables and ranks take it from there; the runs of a cell are asked only where some of them have no value."""
    standings = Standings(entries(collect([root]).cells))
    cells = [cell for entry in standings.ordered for cell in entry.cells.values()]
    asked: list[str] = []
    compute = Measure.of
    monkeypatch.setattr(
        Measure, "of", lambda measure, result: (asked.append(measure.name), compute(measure, result))[1]
    )
    assert measures_document(standings)
    everywhere = {name for name in MEASURES if all(cell.summary.measures[name] for cell in cells)}
    assert {"average_accuracy", "area_under_accuracy", "worst_case_accuracy"} <= everywhere
    assert not everywhere & set(asked)
    for quantity in recorded_quantities(cells):
        for cell in cells:
            values = {run.result.config.seed: quantity.of(run) for run in cell.runs}
            assert quantity.by_seed(cell) == {seed: value for seed, value in values.items() if value is not None}


@pytest.mark.usefixtures("blank_figures")
def test_hostile_records_stay_harmless(tmp_path: Path) -> None:
    """A name of a file that is markup, times beyond all bounds: text on the page, and short."""
    config = replace(resolve("er", DATA, memory=100), dataset=f"/data/{HOSTILE.replace('/', '')}.npz")
    for seed in (0, 1):
        one = replace(config, seed=seed)
        result = replace(made_up(one), wall_seconds=1e300, cost=dict.fromkeys(recorded("er", 0).cost, 1 << 53))
        RunFolder.of(tmp_path / "runs", one).save_result(result)
    written = write(collect([tmp_path / "runs"]), tmp_path / "out")
    page = Page(written.page.read_text())
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert "1.0e+300 s" in page.text
    assert max(map(len, re.findall(r"\d+", page.text))) < 20
    assert duration(-1e300) == "-1.0e+300 s"
    assert duration(float("inf")) == "inf s"


def test_a_figure_is_drawn_once_and_as_matplotlib_saves_it(monkeypatch: pytest.MonkeyPatch) -> None:
    points = {"er": [(20.0, Estimate(0.3, 0.1, ()))], "a much longer name": [(900.0, Estimate(0.4, 0.1, ()))]}
    with mpl.rc_context(REPORT_STYLE):
        file = io.StringIO()
        record_plots.against_cost(points, "images").savefig(file, format="svg", metadata={"Date": None})
    drawn, draw = [], Figure.draw
    monkeypatch.setattr(Figure, "draw", lambda figure, renderer: (drawn.append(figure), draw(figure, renderer)))
    assert render(record_plots.against_cost, points, "images") == file.getvalue()
    assert len(drawn) == 1


def test_a_method_has_one_look_in_all_figures() -> None:
    one, other = looks(["afs", "er", "scr"]), looks(["scr", "afs", "er"])
    assert one == other
    assert len(set(one.values())) == 3


def test_figures_that_share_methods_share_looks() -> None:
    """Ranks are served first, and what no figure shows together has one colour only if there are too few."""
    order = ["a", "b", "c", "d", "never drawn"]
    found = shared_looks(order, [["b", "a"], ["d", "c"], ["memory"], []])
    assert found == {name: Look.number(number) for number, name in enumerate(["a", "b", "c", "d", "memory"])}
    assert shared_looks(order, [["d", "c"], ["b"], ["a"]]) == shared_looks(order, [["a"], ["c", "d"], ["b"]])
    many = [f"m{number:03}" for number in range(150)]
    crowd = shared_looks(many, [many])
    assert [crowd[name] for name in many[:147]] == [Look.number(number) for number in range(147)]
    small = [many[start:149:29] for start in range(4)]  # among all, many of them would have one colour
    found = shared_looks(many, [many, *small])
    for figure in small:
        assert len({found[name].colour for name in figure}) == len(figure) <= len(PALETTE)


def test_a_method_has_one_colour_on_a_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In every figure that tells methods apart, whichever methods it has, as SVG and as PDF."""
    for name, memory in (("er", 200), ("mir", 200), ("scr", 200), ("scr", 300), ("aser", 300), ("er", 300)):
        save(tmp_path / "runs", name, 0.3 if name == "er" else 0.5, memory=memory)
    looks_of: dict[str, Look] = {}
    drawn: dict[str, list[dict[str, Any]]] = {"svg": [], "pdf": []}

    def rendered(form: str, paint: Callable[..., Figure], *args: Any) -> Any:
        if isinstance(args[-1], dict) and all(isinstance(look, Look) for look in args[-1].values()):
            with mpl.rc_context(REPORT_STYLE):
                lines = [line for axes in paint(*args).axes for line in axes.get_lines()]
            assert all(looks_of.setdefault(name, look) == look for name, look in args[-1].items()), paint.__name__
            assert {look.colour for look in args[-1].values()} <= {line.get_color() for line in lines}
            labels = {re.split(",|  ", str(line.get_label()))[0]: line.get_color() for line in lines}
            drawn[form].append(
                {name: colour for name, colour in labels.items() if name in args[-1]} | {"": paint.__name__}
            )
        return "<svg/>" if form == "svg" else b"%PDF"

    monkeypatch.setattr("ocil.report.rendering.render", partial(rendered, "svg"))
    monkeypatch.setattr("ocil.report.rendering.render_pdf", partial(rendered, "pdf"))
    write(collect([tmp_path / "runs"]), tmp_path / "out", paper=load("none"), pdf=True)
    assert drawn["svg"] == drawn["pdf"]
    assert {"accuracy", "over_time", "old_and_new", "reliability", "sample_types"} <= {
        each[""] for each in drawn["svg"]
    }
    for colours in drawn["svg"]:
        assert all(looks_of[name].colour == colour for name, colour in colours.items() if name)
    assert len({look.colour for look in looks_of.values()}) == len(looks_of) == 4
