"""Figures that are drawn in worker processes: the same as in this one, without PyTorch, and if a worker dies."""

import gc
import multiprocessing
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from ocil.processes import garbage_kept
from ocil.report import drawings, figures, rendering
from ocil.report.cells import Collection
from ocil.report.collect import collect
from ocil.report.drawings import Drawing, Sketch
from ocil.report.entries import entries
from ocil.report.papers import load
from ocil.report.rendering import render_all
from ocil.report.standings import Standings
from ocil.report.style import render
from tests.conftest import Call
from tests.figures_to_draw import of_times, only_here, slow, wrong
from tests.test_report_records import save


@pytest.fixture(autouse=True)
def few_per_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendering, "FIGURES_PER_WORKER", 2)


@pytest.fixture
def found(tmp_path: Path) -> Collection:
    """Runs with all that can be recorded."""
    for memory in (100, 200):
        save(tmp_path / "runs", "er", 0.3, memory=memory)
        save(tmp_path / "runs", "mir", 0.5, memory=memory)
    return collect([tmp_path / "runs"])


def test_garbage_waits_until_a_figure_is_drawn() -> None:
    enabled: list[bool] = []

    def paint(name: str) -> Figure:
        enabled.append(gc.isenabled())
        return of_times(name)

    render(paint, "one")
    with pytest.raises(ZeroDivisionError):
        render(wrong, "two")
    assert (enabled, gc.isenabled()) == ([False], True)
    with garbage_kept():
        render(paint, "three")
        assert not gc.isenabled()  # it was off before


def test_workers_draw_the_same_figures_in_the_same_order() -> None:
    paints = [(of_times, (name,)) for name in ("one", "two", "three", "four")]
    here = [render(paint, *args) for paint, args in paints]
    assert len(set(here)) == 4
    told: list[tuple[int, int]] = []
    assert render_all(paints, workers=2, progress=lambda done, total: told.append((done, total))) == here
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]
    told.clear()
    assert render_all(paints, progress=lambda done, total: told.append((done, total))) == here
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]


@pytest.mark.usefixtures("quick_workers")
def test_a_worker_that_dies_leaves_its_figures_to_this_process() -> None:
    paints = [(only_here, (name,)) for name in ("one", "two", "three", "four")]
    assert render_all(paints, workers=2) == [render(of_times, *args) for _, args in paints]


def test_a_daemon_draws_its_figures_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    paints = [(of_times, (name,)) for name in ("one", "two", "three", "four")]
    monkeypatch.setitem(multiprocessing.current_process()._config, "daemon", True)  # type: ignore[attr-defined]
    assert render_all(paints, workers=2) == [render(paint, *args) for paint, args in paints]


def test_figures_are_drawn_where_the_system_has_too_few_semaphores(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise NotImplementedError("system provides too few semaphores")

    monkeypatch.setattr("concurrent.futures.process._check_system_limits", refuse)
    paints = [(of_times, (name,)) for name in ("one", "two", "three", "four")]
    assert render_all(paints, workers=2) == [render(paint, *args) for paint, args in paints]


@pytest.mark.usefixtures("quick_workers")
def test_an_error_in_a_worker_is_that_of_the_figure_and_ends_the_others(tmp_path: Path) -> None:
    others = [(slow, (tmp_path / str(number),)) for number in range(30)]
    with pytest.raises(ZeroDivisionError, match="two"):
        render_all([(of_times, ("one",)), (wrong, ("two",)), *others], workers=2)
    assert len(list(tmp_path.iterdir())) < len(others)


@pytest.mark.parametrize(("figures", "workers", "asked"), [(3, 8, None), (4, 1, None), (4, 8, 2), (9, 3, 3)])
def test_few_figures_are_drawn_in_this_process(
    figures: int, workers: int, asked: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[int] = []
    monkeypatch.setattr(rendering, "render", lambda *_: "<svg/>")
    monkeypatch.setattr(rendering, "_in_workers", lambda _, paints, workers, __: [started.append(workers), *paints][1:])
    assert len(render_all([(of_times, ("one",))] * figures, workers)) == figures
    assert started == ([] if asked is None else [asked])


def sketches_of(found: Collection, monkeypatch: pytest.MonkeyPatch) -> list[Sketch]:
    chosen: list[Sketch] = []

    def drawn(sketches: list[Sketch], *_: object) -> list[Drawing]:
        chosen.extend(sketches)
        return [Drawing(each.name, each.title, each.caption, "<svg/>", each.paint, each.args) for each in sketches]

    monkeypatch.setattr(figures, "draw", drawn)
    figures.draw_all(found, Standings(entries(found.cells)), load("none"), workers=2)
    return chosen


def test_what_workers_get_needs_no_torch_and_no_settings(
    found: Collection, monkeypatch: pytest.MonkeyPatch, start_python: Callable[..., Any], tmp_path: Path
) -> None:
    """Settings of a run may be of a class that a plugin defines, and loading PyTorch takes longer than the figures."""
    sketches = sketches_of(found, monkeypatch)
    kinds = {sketch.paint.__name__ for sketch in sketches}
    assert {"accuracy", "over_time", "heat_maps", "confusions", "reliability", "paired"} <= kinds
    assert {"old_and_new", "sample_types", "running_time"} <= kinds
    file = tmp_path / "sketches.pickle"
    file.write_bytes(pickle.dumps([(sketch.paint, sketch.args) for sketch in sketches]))
    words = (
        "import pickle, sys, ocil.report.rendering\n"
        f"pickle.load(open({str(file)!r}, 'rb'))\n"
        "print(sorted({'torch', 'ocil.runs', 'ocil.methods'} & set(sys.modules)))"
    )
    said, error = start_python("-c", words).communicate(timeout=120)
    assert said == "[]\n", error


def test_the_command_draws_with_all_cores(
    found: Collection, ocil_command: Call, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[int] = []

    def rendered(paints: list[Any], workers: int, _: object) -> list[str]:
        asked.append(workers)
        return ['<svg viewBox="0 0 1 1"/>'] * len(paints)

    monkeypatch.setattr("ocil.threads.cores", lambda: 5)
    monkeypatch.setattr(drawings, "render_all", rendered)
    said = ocil_command("report", found.cells[0].runs[0].path.parents[2], "--out", tmp_path / "out", "--paper", "none")
    assert said.code == 0, said.err
    assert asked == [5]
