import re
import struct
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import matplotlib.pyplot as plt
import numpy as np
import pytest

from ocil.errors import WriteError
from ocil.evaluation.measures import Estimate, estimate
from ocil.report.formatting import duration, measured, percent
from ocil.report.plots import accuracy_after_each_task
from ocil.report.quantities import ACCURACY_QUANTITY
from ocil.report.result_tables import legend, summary_table
from ocil.report.style import save
from ocil.report.table import markdown_table
from ocil.runs.config import resolve
from ocil.runs.results import Result, Summary, summarise
from tests.conftest import left_over

MATRIX = [[0.9, 0.1], [0.5, 0.75]]


def summary(name: str = "er", seeds: int = 3, dataset: str = "cifar10") -> Summary:
    results = [
        Result(resolve(name, dataset, seed=seed), [[a + seed / 100 for a in row] for row in MATRIX], [], 75, {}, "", {})
        for seed in range(seeds)
    ]
    return summarise(results, results)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (estimate([0.4234]), "42.3 (one seed)"),
        (Estimate(0.423, 0.004, (0.4, 0.4, 0.4)), "42.3 ± 0.4"),
        (Estimate(-0.05, 0.0, (0.0, 0.0, 0.0)), "-5.0 ± 0.0"),
        (Estimate(1.0, 0.123, (1.0, 1.0, 1.0)), "100.0 ± 12.3"),
        (Estimate(0.0, None, (0.0,)), "0.0 (one seed)"),
        (Estimate(-1e-9, 0.0, (0.0,)), "0.0 ± 0.0"),
    ],
)
def test_percent(value: Estimate | None, text: str) -> None:
    assert percent(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 00 s"),
        (60, "1 min 00 s"),
        (3599.4, "59 min 59 s"),
        (3599.6, "1 h 00 min"),
        (5400, "1 h 30 min"),
        (90000, "25 h 00 min"),
    ],
)
def test_duration(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_heading() -> None:
    assert summary_table([summary(seeds=10)]).title == "cifar10, 10 seeds (mean ± 95 % interval)"
    assert summary_table([summary(seeds=1)]).title == "cifar10, one seed, so no interval"
    assert summary_table([summary(seeds=2)]).title == "cifar10, 2 seeds (mean, lowest and highest)"
    assert summary_table([summary(dataset="/data/my birds.npz")]).title.startswith("my birds, 3 seeds")


def test_markdown() -> None:
    text = markdown_table(summary_table([summary("fine-tune"), summary("er"), summary("afs", seeds=1)]), level=0)
    title, blank, head, rule, *rows = text.splitlines()
    assert (title, blank) == (summary_table([summary()]).title, "")
    assert rule == "|---|---|---|---|---|---|"
    assert len({line.count("|") for line in (head, rule, *rows)}) == 1
    assert rows[0].startswith("| fine-tune | - | 63.5 ± 2.5 | 40.0 ± 0.0 | 0.0 ± 0.0 | 1 min 15 s |")
    assert rows[1].startswith("| er | 1000 | ")
    assert "62.5 (one seed)" in rows[2]
    assert text.endswith("|")


@pytest.fixture(autouse=True)
def _no_figure_stays_open() -> None:
    assert not plt.get_fignums()


def test_png(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.png"
    save(accuracy_after_each_task([summary("er"), summary("afs", seeds=1)]), path)
    content = path.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert content[-8:-4] == b"IEND"
    width, height = struct.unpack(">II", content[16:24])
    assert width > height > 300
    assert not left_over(tmp_path)


def saved_twice(tmp_path: Path, ending: str) -> bytes:
    """The file of a figure, which is the same each time."""
    paths = [tmp_path / f"{name}{ending}" for name in "ab"]
    for path in paths:
        save(accuracy_after_each_task([summary("er"), summary("afs")]), path)
    first, second = (path.read_bytes() for path in paths)
    assert first == second
    return first


def test_svg_is_the_same_each_time(tmp_path: Path) -> None:
    svg = saved_twice(tmp_path, ".svg")
    assert ElementTree.fromstring(svg).tag == "{http://www.w3.org/2000/svg}svg"
    assert not re.search(rb"<dc:date>", svg)


def test_a_pdf_for_latex_is_the_same_each_time(tmp_path: Path) -> None:
    pdf = saved_twice(tmp_path, ".pdf")
    assert pdf.startswith(b"%PDF-")
    assert b"/TrueType" in pdf or b"/Type0" in pdf
    assert b"/Type3" not in pdf  # publishers refuse these fonts


def test_the_title_names_every_memory_and_all_numbers_of_seeds() -> None:
    def title(*summaries: Summary) -> str:
        (axes,) = accuracy_after_each_task(summaries).axes
        return axes.get_title()

    er = summary("er")
    small = replace(er, config=replace(er.config, learner=replace(er.config.learner, memory=200)))
    assert title(summary("fine-tune"), er) == "cifar10, memory 1000, 3 seeds"
    assert title(er, small, summary("afs", seeds=1)) == "cifar10, memory 200, 1000, 1 to 3 seeds"
    assert title(summary("fine-tune", seeds=1)) == "cifar10, 1 seed"


def test_many_methods_and_one_task(tmp_path: Path) -> None:
    one = summary("er")
    one = replace(one, accuracy_curve=one.accuracy_curve[:1])
    figure = accuracy_after_each_task([one] * 9)
    (axes,) = figure.axes
    looks = {(line.get_color(), line.get_linestyle(), line.get_marker()) for line in axes.get_lines()}
    assert len(looks) == len(axes.get_lines()) == 9
    assert all(np.array_equal(line.get_xdata(), [1]) for line in axes.get_lines())
    assert list(axes.get_xticks()) == [1]
    legend = axes.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == ["er  91.0 %"] * 9
    save(figure, tmp_path / "a.svg")
    assert ElementTree.parse(tmp_path / "a.svg").getroot().tag == "{http://www.w3.org/2000/svg}svg"


def test_a_figure_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    figure = accuracy_after_each_task([summary()])
    with pytest.raises(WriteError, match="cannot write"):
        save(figure, tmp_path / "file" / "a.png")
    assert not plt.get_fignums()


def test_two_seeds_have_a_range() -> None:
    """Their interval would be 12.7 standard errors wide: 41.6 ± 158.2."""
    two, three = Estimate(0.416, 1.582, (0.541, 0.291)), Estimate(0.4, 0.1, (0.3, 0.4, 0.5))
    assert [measured(two, form) for form in ("percent", ".2f")] == ["41.6 (29.1 to 54.1)", "0.42 (0.29 to 0.54)"]
    assert [measured(three, form) for form in ("percent", ".2f")] == ["40.0 ± 10.0", "0.40 ± 0.10"]
    assert measured(three, "+.2f") == "+0.40 ± 0.10"
    assert (percent(two), percent(three), percent(None)) == ("41.6 (29.1 to 54.1)", "40.0 ± 10.0", "-")
    assert two.spread == pytest.approx(0.125)
    assert two.shown_interval is None
    assert (three.spread, three.shown_interval, three.shown_range) == (0.1, 0.1, None)
    difference = Estimate(-0.004, 0.11, (0.01, -0.018))
    assert ACCURACY_QUANTITY.difference(difference) == "-0.4 (-1.8 to +1.0)"
    assert ACCURACY_QUANTITY.difference(Estimate(0.4, 0.1, (0.3, 0.4, 0.5))) == "+40.0 ± 10.0"


@pytest.mark.parametrize("seeds", [1, 2, 3, 10])
def test_a_legend_says_what_is_better(seeds: int) -> None:
    text = " ".join(legend([summary(seeds=seeds)]))
    assert "higher is better" in text
    assert "lower is better" in text
    assert ("±" in text) == (seeds > 2)
    assert ("seeds are few" in text) == (seeds == 3)
