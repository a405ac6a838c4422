"""``ocil report``: numbers against an independent computation, formats, figures, escaping, bad input."""

import csv
import errno
import html.parser
import io
import json
import math
import os
import re
import statistics
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

from ocil.data import Dataset
from ocil.errors import OcilError
from ocil.evaluation.record_types import EASY, HARD
from ocil.files import read_regular, write_together
from ocil.longtail.metrics import LATER
from ocil.report import formulas, plots
from ocil.report.cells import Collection, FinishedRun, MeasuredCell
from ocil.report.collect import collect, read
from ocil.report.comparison import ComparedTable, compared_tables, published_accuracy
from ocil.report.entries import entries
from ocil.report.examples import _names
from ocil.report.figures import _accuracy
from ocil.report.formatting import percent
from ocil.report.page import agreement
from ocil.report.papers import ColumnKey, Published, load
from ocil.report.result_tables import (
    ALL_METHODS_RECORD,
    CELL_RECORD,
    COMPARED_RECORD,
    cells_document,
    compared_document,
)
from ocil.report.standing_tables import methods_document
from ocil.report.standings import Standings
from ocil.report.style import render
from ocil.report.table import csv as as_csv
from ocil.report.table import latex, markdown
from ocil.report.write import Written, write
from ocil.runs.build import build
from ocil.runs.config import RunConfig, resolve
from ocil.runs.folder import RunFolder
from ocil.runs.results import Result, read_json, sealed, write_json
from tests.conftest import Call, left_over, one_error

PAPER = load()
RESULTS = Path(__file__).resolve().parents[1] / "results"
HOSTILE = "</script><script>alert(1)</script>\"'&<b>|$x_{1}$\\input{a} --> `*"


def made_up(config: RunConfig, level: float = 0.5, device: str = "a device", **environment: Any) -> Result:
    """A result with numbers that look like a run's, drawn from its seed."""
    rng = np.random.default_rng(config.seed + int(1000 * level))
    tasks = config.stream.tasks
    rows = 1 if config.stream.boundary == "iid" else tasks
    matrix = np.clip(level + rng.normal(0, 0.02, (rows, tasks)), 0, 1)
    if rows > 1:
        matrix = np.tril(matrix) + np.diag(np.full(tasks, 0.2))
        matrix = np.clip(matrix, 0, 1)
    evaluations = [
        {
            "accuracy": row.tolist(),
            "mean_logit_old": None if number == 0 else 0.5,
            "mean_logit_new": 1.0 + number,
            "mean_weight_old": None if number == 0 else 0.01,
            "mean_weight_new": 0.02,
            "hard": 100 + number,
            "ambiguous": 50,
            "easy": 25,
        }
        for number, row in enumerate(matrix)
    ]
    environment = {"ocil": "0.1.0", "python": "3", "torch": "2", "device": device} | environment
    return Result(config, matrix.tolist(), evaluations, 10 + config.seed, {"host": 2**20}, "ab" * 32, environment)


def save(root: Path, config: RunConfig, seeds: int = 3, level: float = 0.5, **environment: Any) -> None:
    for seed in range(seeds):
        one = replace(config, seed=seed)
        RunFolder.of(root, one).save_result(made_up(one, level, **environment))


def paper_like(root: Path) -> Path:
    """A few cells of every table, with references."""
    for name, review, level in (("er", False, 0.2), ("er", True, 0.31), ("afs", None, 0.42), ("fine-tune", None, 0.06)):
        save(root, resolve(name, "cifar100", review=review), level=level)
    for settings, level in (
        ({"loss": "ce", "regulariser": "none"}, 0.36),
        ({"loss": "ce", "regulariser": "none", "ce_scale": 0.25}, 0.37),
        ({"loss": "focal"}, 0.41),
        ({"sample_value": "gini"}, 0.40),
        ({"alpha": 0.5}, 0.43),
        ({"alpha": 0.3}, 0.44),
        ({"sigma": 0.05}, 0.1),
        ({"memory_batch": 50}, 0.39),
    ):
        save(root, resolve("afs", "cifar100", settings=settings), level=level)
    save(root, resolve("iid-offline", "cifar10"), seeds=1, level=0.8)
    return root


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return paper_like(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def collection(runs: Path) -> Collection:
    return collect([runs])


@pytest.fixture(scope="module")
def written(collection: Collection, tmp_path_factory: pytest.TempPathFactory) -> Written:
    return write(collection, tmp_path_factory.mktemp("report"))


@pytest.fixture
def blank_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of which files a report has: every figure is chosen and titled as usual, and drawn as a blank."""
    blank = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1 1"/>'
    monkeypatch.setattr("ocil.report.rendering.render", lambda paint, *args: blank)
    monkeypatch.setattr("ocil.report.figures._rendered_once", lambda paint: blank)  # it would keep the blank


def test_figures_for_latex_come_and_go_with_their_option(
    runs: Path, tmp_path: Path, blank_figures: None, monkeypatch: pytest.MonkeyPatch, ocil_command: Call
) -> None:
    monkeypatch.setattr("ocil.report.rendering.render_pdf", lambda paint, *args: b"%PDF-")
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures" / "logo.pdf").touch()
    said = ocil_command("report", runs, "--out", tmp_path, "--pdf", "--json")
    assert said.code == 0, said
    files = {Path(name) for name in json.loads(said.out)["figures"]}
    stems = {path.stem for path in files if path.suffix == ".svg"}
    assert stems == {path.stem for path in files if path.suffix == ".pdf"} != set()
    assert all(path.read_bytes() for path in files)
    assert ocil_command("report", runs, "--out", tmp_path).code == 0
    assert [path.name for path in (tmp_path / "figures").glob("*.pdf")] == ["logo.pdf"]  # which is not ours


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def table1(found: Collection) -> ComparedTable:
    return compared_tables(found, PAPER)[0]


def table_called(name: str, found: Collection) -> ComparedTable:
    (table,) = (table for table in compared_tables(found, PAPER) if table.table.name == name)
    return table


def csv_of(table: ComparedTable) -> str:
    return as_csv(compared_document(table).records)


def by_hand(folder: Path) -> tuple[float, float, int]:
    """Mean and half the 95 % interval in percent, from the files alone, without ocil."""
    values = []
    for path in folder.glob("seed-*/result.json"):
        last = json.loads(path.read_text())["matrix"][-1]
        values.append(100 * sum(last) / len(last))
    t = {2: 12.7062, 3: 4.30265, 5: 2.77645, 10: 2.26216, 20: 2.09302}[len(values)]
    return statistics.mean(values), t * statistics.stdev(values) / math.sqrt(len(values)), len(values)


# Numbers


def test_intransigence_is_against_fine_tuning_of_the_same_seed(runs: Path, collection: Collection) -> None:
    (er,) = (cell for cell in collection.cells if cell.config.label == "er")
    (reference,) = (cell for cell in collection.cells if cell.config.label == "fine-tune")
    expected = []
    for mine, theirs in zip(er.runs, reference.runs, strict=True):
        a, r = (json.loads(run.path.read_text())["matrix"] for run in (mine, theirs))
        expected.append(statistics.mean(r[j][j] - a[j][j] for j in range(10)))
    assert er.summary.average_intransigence is not None
    assert er.summary.average_intransigence.values == pytest.approx(expected)


@pytest.mark.parametrize(
    ("label", "settings", "column", "expected"),
    [
        ("afs", {}, ("cifar10", 500, "average_intransigence"), (5.1, 2.1)),
        ("afs", {"loss": "focal"}, ("cifar100", 5000, "average_accuracy"), (42.4, 0.2)),
        ("er-rv", {}, ("mini_imagenet", 5000, "average_forgetting_common"), (5.4, 0.3)),
        ("afs", {"sample_value": "gen"}, ("cifar10", 1000), (61.6, 1.2)),
        ("afs", {"sample_value": "smu"}, ("mini_imagenet", 1000), (22.2, 1.1)),
        ("afs", {"alpha": 0.75}, ("cifar100", 5000), (40.4, 1.7)),
        ("afs", {"sigma": 0.1}, ("cifar100", 5000), (23.7, 1.1)),
        ("agem-rv", {}, ("mini_imagenet", 2000), (11.6, 1.1)),
        ("iid-offline", {}, ("cifar100", 0), (49.6, 0.2)),
    ],
)
def test_published_numbers(
    label: str, settings: dict[str, Any], column: tuple[Any, ...], expected: tuple[float, float]
) -> None:
    assert PAPER.published(label, settings, ColumnKey(*column)) == expected


def test_the_published_tables_agree_where_they_overlap() -> None:
    """AFS and ER-RV stand in several tables of the paper."""
    numbers: dict[tuple[str, str, ColumnKey], list[Published]] = {}
    for row in (row for table in PAPER.tables for row in table.rows):
        for column, number in row.published.items():
            numbers.setdefault((row.label, str(row.settings), column), []).append(number)
    assert all(len(set(alike)) == 1 for alike in numbers.values())
    assert len(numbers["afs", "{}", ColumnKey("cifar100", 5000)]) == 5  # in every table
    assert sum(len(alike) > 1 for alike in numbers.values()) == 3 * 3 + 3  # AFS in Table III, ER-RV in Table II


def test_counterparts(collection: Collection) -> None:
    means = {
        tuple(cell.changed.items()): published_accuracy(cell, PAPER)
        for cell in collection.cells
        if cell.config.method == "afs"
    }
    assert {key: value and value.mean for key, value in means.items()} == {
        (): 42.3,
        (("loss", "ce"), ("regulariser", "none")): 36.7,
        (("loss", "ce"), ("regulariser", "none"), ("ce_scale", 0.25)): None,
        (("loss", "focal"),): 42.4,
        (("sample_value", "gini"),): 42.1,
        (("alpha", 0.5),): 42.8,
        (("alpha", 0.3),): None,
        (("sigma", 0.05),): 8.3,
        (("memory_batch", 50),): None,
    }


def cell_of(config: RunConfig, level: float = 0.5, seeds: int = 3, spread: float = 0.0) -> MeasuredCell:
    """A cell whose accuracies are known exactly."""
    from ocil.runs.results import summarise

    results = []
    for seed in range(seeds):
        value = level + spread * (seed - (seeds - 1) / 2)
        matrix = [[value] * config.stream.tasks] * config.stream.tasks
        results.append(replace(made_up(replace(config, seed=seed)), matrix=matrix))
    return MeasuredCell(tuple(FinishedRun(Path("x"), result) for result in results), summarise(results))


def test_curves_with_and_without_reviews() -> None:
    """Where there are many, each method is shown with the review trick alone, if it was run with it; with the same
    settings, if these differ."""

    def shown(*configs: RunConfig) -> list[str]:
        found = entries([cell_of(config) for config in configs])
        (sketch,) = _accuracy(found.columns[0], found.at(found.columns[0]))
        return sorted(sketch.args[0])

    def configs(name: str, review: bool, *rates: float) -> list[RunConfig]:
        return [resolve(name, "cifar100", review=review, settings={"lr": rate}) for rate in rates]

    both = shown(*configs("er", False, 0.2, 0.3, 0.4, 0.5, 0.6), *configs("er", True, 0.2, 0.3, 0.4, 0.5))
    assert both == ["er lr=0.6", "er-rv lr=0.2", "er-rv lr=0.3", "er-rv lr=0.4", "er-rv lr=0.5"]
    plain = ("mir", "gss", "aser", "er-ace", "dvc", "pcr", "derpp")
    usual = [resolve(name, "cifar100", review=False) for name in ("afs", *plain, "er")]
    assert shown(*usual) == sorted(["afs-no-rv", *plain, "er"])
    assert shown(*usual, resolve("afs", "cifar100")) == sorted(["afs", *plain, "er"])


def test_overlap_best_and_second() -> None:
    er, rv, afs = (resolve(n, "cifar100", review=r) for n, r in (("er", False), ("er", True), ("afs", None)))
    cells = (cell_of(er, 0.25), cell_of(rv, 0.309, spread=0.01), cell_of(afs, 0.42, seeds=1))
    (part,) = (p for p in table1(Collection(cells, ())).grids if p.title == "CIFAR-100")
    rows = {row.name: row.numbers[-1] for row in part.rows}
    assert (rows["er"].overlap, rows["er-rv"].overlap, rows["afs"].overlap) == (False, True, None)
    assert (rows["er"].rank, rows["er-rv"].rank, rows["afs"].rank) == (0, 2, 1)
    assert rows["er"].difference == pytest.approx(25 - 20.1)
    assert rows["gss"].value is None
    assert rows["gss"].rank == 0
    (part,) = (p for p in table1(Collection(cells[:1], ())).grids if p.title == "CIFAR-100")
    assert {row.numbers[-1].rank for row in part.rows} == {0}  # the only one is not the best


def test_means_that_print_alike_share_a_rank() -> None:
    """Halves of a digit too, which are rounded away from zero wherever they are shown."""
    er, mir, aser = (resolve(name, "cifar100", review=False) for name in ("er", "mir", "aser"))
    cells = (cell_of(er, 0.2225), cell_of(mir, 0.223), cell_of(aser, 0.2))
    (part,) = (p for p in table1(Collection(cells, ())).grids if p.title == "CIFAR-100")
    rows = {row.name: row.numbers[-1] for row in part.rows}
    assert percent(rows["er"].value)[:4] == percent(rows["mir"].value)[:4] == "22.3"
    assert (rows["er"].rank, rows["mir"].rank, rows["aser"].rank) == (1, 1, 2)


def test_forgetting_is_best_when_low(collection: Collection) -> None:
    (part,) = (p for p in table_called("table2", collection).grids if p.measured)
    for column, best in ((0, max), (1, min), (2, min)):
        measured = [row.numbers[column] for row in part.rows if row.numbers[column].value]
        top = best(measured, key=lambda entry: entry.value.mean if entry.value else np.nan)
        assert top.rank == 1
    assert part.rows[-1].name.endswith("CE × 0.25")


def test_folders_and_files_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of thousands of runs each listing and each parsing counts."""
    save(tmp_path, resolve("er", "cifar10", memory=200), seeds=2)
    begun = RunFolder.of(tmp_path, resolve("afs", "cifar10", memory=200))
    begun.path.mkdir(parents=True)
    write_json(begun.path / "config.json", resolve("afs", "cifar10", memory=200).to_json())
    listed: Counter[str] = Counter()
    parsed: Counter[str] = Counter()
    scan, read_file = os.scandir, read_regular

    def scandir(path: Any) -> Any:
        listed[os.fspath(path)] += 1
        return scan(path)

    def counted(path: Path, most: int | None = None) -> bytes:
        parsed[str(path)] += 1
        return read_file(path, most)

    monkeypatch.setattr(os, "scandir", scandir)
    monkeypatch.setattr("ocil.runs.results.read_regular", counted)
    found = collect([tmp_path])
    assert [len(cell.runs) for cell in found.cells] == [2]
    assert [warning.partition(":")[0] for warning in found.warnings] == ["1 run is not finished"]
    assert set(listed.values()) == {1}
    assert set(parsed.values()) == {1}
    assert len(parsed) == 3


def test_more_seeds_then_the_common_precision_fill_a_column(tmp_path: Path) -> None:
    save(tmp_path, resolve("er", "cifar100", settings={"precision": "bf16"}), seeds=3, level=0.3)
    save(tmp_path, resolve("er", "cifar100"), seeds=2, level=0.2)

    def shown() -> str:
        rows = rows_of(csv_of(table1(collect([tmp_path]))))
        place = {"dataset": "cifar100", "memory": "5000", "method": "er", "review": "false"}
        (row,) = (row for row in rows if place.items() <= row.items())
        return row["seeds"] + row["mean"][:1]

    assert shown() == "33"
    save(tmp_path, resolve("er", "cifar100"), seeds=3, level=0.2)
    assert shown() == "32"
    assert len(collect([tmp_path]).cells) == 2


def test_other_datasets_have_tables_of_their_own(tmp_path: Path) -> None:
    for settings in ({}, {"lr": 0.2}):
        save(tmp_path, resolve("er", "/data/birds.npz", memory=50, settings=settings), seeds=2)
    save(tmp_path, resolve("er", "/data/birds.npz", memory=70, review=True), seeds=2)
    save(tmp_path, resolve("fine-tune", "/data/birds.npz"), seeds=2)
    document = methods_document(Standings(entries(collect([tmp_path]).cells)))
    (part,) = document.tables
    assert part.title == "birds"
    assert [column.title for column in part.columns] == ["method", "memory 50", "memory 70"]
    assert {row.values[0].text: row.bound for row in part.rows} == {
        "fine-tune": True,
        "er": False,
        "er lr=0.2": False,
        "er-rv": False,
    }
    assert {(r["method"], r["memory"], r["seeds"]) for r in rows_of(as_csv(document.records))} == {
        ("fine-tune", "0", "2"),
        ("er", "50", "2"),
        ("er lr=0.2", "50", "2"),
        ("er-rv", "70", "2"),
    }


def birds(root: Path, name: str, memory: int, level: float = 0.5, **settings: Any) -> None:
    save(root, resolve(name, "/data/birds.npz", memory=memory, settings=settings), seeds=2, level=level)


def birds_rows(root: Path) -> dict[str, list[bool]]:
    """The names of the rows, and whether each column was measured."""
    standings = Standings(entries(collect([root]).cells))
    return {
        entry.name: [column in standings.numbers[entry.name] for column in standings.entries.columns]
        for entry in standings.entries.ranked
    }


def test_a_row_is_one_set_of_settings_at_all_memory_sizes(tmp_path: Path) -> None:
    birds(tmp_path, "er", 100, 0.2)
    birds(tmp_path, "er", 100, 0.4, memory_batch=5)
    birds(tmp_path, "er", 200, 0.6, memory_batch=5)
    rows = birds_rows(tmp_path)
    assert list(rows) == ["er", "er memory_batch=5"]
    assert rows["er"] == [True, False]
    assert rows["er memory_batch=5"] == [True, True]


def test_one_set_of_settings_is_one_row(tmp_path: Path) -> None:
    for memory, width in ((100, 4), (100, 8), (200, 8)):
        birds(tmp_path, "er", memory, width=width)
    rows = birds_rows(tmp_path)
    assert list(rows) == ["er width=4", "er width=8"]
    assert rows["er width=8"] == [True, True]


@pytest.mark.slow
def test_rows_say_what_methods_do_not_share(tmp_path: Path) -> None:
    birds(tmp_path, "er", 100, width=4, lr=0.2)
    birds(tmp_path, "afs", 100, width=8, lr=0.2, beta=0.3)
    save(tmp_path, resolve("fine-tune", "/data/birds.npz"), seeds=2)
    assert list(birds_rows(tmp_path)) == ["afs width=8", "er width=4"]  # not lr, which both have, nor AFS's own beta
    write(collect([tmp_path]), tmp_path / "report")
    svg = (tmp_path / "report/figures/mean-weights-birds-m100.svg").read_text()
    assert all(f"{name}, new classes" in svg for name in ("er width=4", "afs width=8"))


def test_each_published_number_counts_once(tmp_path: Path) -> None:
    for precision, level in (("bf16", 0.201), ("tf32", 0.9)):
        save(tmp_path, resolve("er", "cifar100", settings={"precision": precision}), level=level)
    save(tmp_path, resolve("mir", "cifar100", settings={"precision": "bf16"}), level=0.9)
    save(tmp_path, resolve("gss", "cifar100", settings={"precision": "bf16"}), level=0.9, seeds=2)  # without interval
    found = collect([tmp_path])
    (shown,) = (r for r in rows_of(csv_of(table1(found))) if r["method"] == "er" and r["mean"])
    assert float(shown["mean"]) < 50  # in bf16, as most
    assert agreement(found.cells, PAPER).startswith(
        "Measured with three seeds or more: 2 of the published accuracies. With 1 of"
    )


# Formats


@pytest.mark.slow
@pytest.mark.usefixtures("blank_figures")
def test_seeds_that_differ_are_said(tmp_path: Path) -> None:
    for memory, seeds in ((1000, 2), (5000, 3)):
        save(tmp_path, resolve("er", "cifar100", memory=memory), seeds=seeds)
    for name in ("mir", "gss", "aser"):
        save(tmp_path, resolve(name, "cifar100"), seeds=3)
    save(tmp_path, resolve("afs", "cifar100"), seeds=4)
    save(tmp_path, resolve("fine-tune", "cifar100"), seeds=1)
    found = collect([tmp_path])
    table = table1(found)
    said = "3 seeds; 4 seeds: afs; 2 seeds: er (memory 1000); 1 seed: fine-tune."
    for text in (markdown(compared_document(table)), latex(compared_document(table))):
        assert said in text
    page = write(found, tmp_path / "report").page.read_text()
    paper = page[page.index("Beside the paper") : page.index('id="figures"')]
    assert paper.count("3 seeds unless noted otherwise.") == 1  # nothing below a table that is empty
    assert re.findall(r'<span class="note">(.*?)</span>', paper) == ["2 seeds", "4 seeds"]
    assert paper.count("(one seed)</a>") == 1


@pytest.mark.slow
def test_every_file_is_there(written: Written) -> None:
    names = {path.name for path in written.tables}
    expected = {f"{t}.{e}" for t in ("table1", "table2", "table3", "alpha", "sigma") for e in ("md", "csv", "tex")}
    own = {f"methods.{ending}" for ending in ("md", "csv", "tex")} | {"standings.md", "standings.csv"}
    assert names == expected | own | {"cells.md", "cells.csv"}
    figures = {path.stem for path in written.figures}
    assert figures == {
        "mean-weights-cifar100-m5000",
        "mean-logits-cifar100-m5000",
        "sample-types-cifar100-m5000",
        "losses",
        "label-distribution",
        "accuracy-cifar100-m5000",
        "accuracy-per-task-cifar100-m5000",
        "accuracy-against-compute-cifar100-m5000",
        "paired-differences-cifar100-m5000",
        "intransigence-forgetting-cifar100-m5000",
        "running-time-cifar100-m5000-a-device",
        "memory-batch-cifar100-m5000",
        "difference-cifar100",
        "difference-cifar10",
    }
    for path in (written.page, *written.tables, *written.figures):
        assert path.read_text().strip()
    assert not left_over(written.page.parent)


def test_csv(written: Written) -> None:
    folder = written.page.parent / "tables"
    table = rows_of((folder / "table1.csv").read_text())
    assert list(table[0]) == list(ALL_METHODS_RECORD)
    paper = [(r["dataset"], r["memory"], r["method"], r["review"]) for r in table]
    assert len(paper) == len(set(paper)) == 3 * (3 * 19 + 2)
    unmeasured = [row for row in table if row["seeds"] == "0"]
    assert len(unmeasured) == len(table) - 5
    assert all(row["mean"] == row["interval"] == row["difference"] == row["device"] == "" for row in unmeasured)
    (one,) = (row for row in table if row["method"] == "iid-offline" and row["dataset"] == "cifar10")
    assert (one["seeds"], one["interval"], one["memory"]) == ("1", "", "0")
    for name in ("table2", "table3", "alpha", "sigma"):
        assert list(rows_of((folder / f"{name}.csv").read_text())[0]) == list(COMPARED_RECORD)
    names = list(rows_of((folder / "cells.csv").read_text())[0])
    assert names[: len(CELL_RECORD)] == list(CELL_RECORD)
    assert {"backward_transfer", "backward_transfer_interval"} <= set(names[len(CELL_RECORD) :])
    alpha = rows_of((folder / "alpha.csv").read_text())
    assert [row["row"] for row in alpha] == ["0.05", "0.1", "0.25", "0.3", "0.5", "0.75", "1"]
    assert [row["seeds"] for row in alpha] == ["0", "0", "3", "3", "3", "0", "0"]


def test_markdown(written: Written) -> None:
    for path in written.tables:
        if path.suffix == ".md":
            block: list[int] = []
            for line in [*path.read_text().splitlines(), ""]:
                if line.startswith("|"):
                    block.append(len(re.findall(r"(?<!\\)\|", line)))
                elif block:
                    assert len(set(block)) == 1
                    block = []
    text = (written.page.parent / "tables/table1.md").read_text()
    assert re.search(r"\| afs \| not measured \(27.8 ± 0.7\) \|.*\*\*4\d\.\d ± \d+\.\d\*\* \(42.3 ± 0.4, [+-]", text)
    assert "<u>" in text
    assert "overlap)" in text
    assert "apart)" in text


def check_latex(text: str) -> None:
    """Balanced, every row as wide as its table, nothing special left unescaped."""
    text = re.sub(r"(?m)^%.*$", "", text)
    opened: list[str] = []
    for kind, name in re.findall(r"\\(begin|end)\{([a-z*]+)\}", text):
        if kind == "begin":
            opened.append(name)
        else:
            assert opened.pop() == name
    assert not opened
    depth = 0
    for brace in re.findall(r"(?<!\\)[{}]", text):
        depth += 1 if brace == "{" else -1
        assert depth >= 0
    assert depth == 0
    assert len(re.findall(r"(?<!\\)\$", text)) % 2 == 0
    for body in re.findall(r"\\begin\{tabular\}\{(.*?)\}\n(.*?)\\end\{tabular\}", text, re.DOTALL):
        for line in body[1].splitlines():
            if line.endswith(r"\\"):
                width = len(re.split(r"(?<!\\)&", line)) + 2 * line.count(r"\multicolumn{3}")
                assert width == len(body[0]), line
    bare = re.sub(r"\$[^$]*\$", "", text.replace(r"\$", ""))
    assert not re.search(r"(?<!\\)[#^_%~]", bare)


def test_latex_has_minus_signs(tmp_path: Path) -> None:
    save(tmp_path, resolve("afs", "cifar100", settings={"loss": "ce"}), level=0.9)
    save(tmp_path, resolve("fine-tune", "cifar100"), level=0.1)
    text = latex(compared_document(table_called("table2", collect([tmp_path]))))
    assert "$-$" in text
    assert not re.search(r"(& |\{)-\d", text)


def test_latex_has_minus_signs_in_ranges(tmp_path: Path) -> None:
    save(tmp_path, resolve("afs", "cifar100"), level=0.9, seeds=2)
    save(tmp_path, resolve("er", "cifar100"), level=0.5, seeds=2)
    text = latex(methods_document(Standings(entries(collect([tmp_path]).cells))))
    assert re.search(r"\(\$-\$\d+\.\d \(\$-\$\d+\.\d to \$-\$\d+\.\d\)\)", text)
    assert not re.search(r"[( ]-\d", text)
    assert "Best in bold, second underlined. In brackets, with a sign: the paired difference." in text  # so are ranges
    check_latex(text)


def test_a_latex_caption_explains_bold_numbers_where_there_are_no_differences(tmp_path: Path) -> None:
    for name, level, seed in (("afs", 0.9, 0), ("er", 0.5, 1)):  # no seed is shared
        config = resolve(name, "cifar100", seed=seed)
        RunFolder.of(tmp_path, config).save_result(made_up(config, level))
    text = latex(methods_document(Standings(entries(collect([tmp_path]).cells))))
    assert r"\textbf" in text
    assert "Best in bold, second underlined." in text
    assert "brackets" not in text


def test_latex(written: Written) -> None:
    for path in written.tables:
        if path.suffix == ".tex":
            text = path.read_text()
            assert r"\toprule" in text
            check_latex(text)
    assert r"\textbf{" in (written.page.parent / "tables/table1.tex").read_text()


@pytest.mark.slow
def test_the_same_runs_give_the_same_bytes(collection: Collection, written: Written, tmp_path: Path) -> None:
    again = write(collection, tmp_path)
    for one, two in zip(
        (written.page, *written.tables, *written.figures), (again.page, *again.tables, *again.figures), strict=True
    ):
        assert one.read_bytes() == two.read_bytes(), one.name


# Figures


@pytest.mark.slow
@pytest.mark.usefixtures("blank_figures")
def test_a_report_written_over_another_leaves_nothing_of_it(collection: Collection, tmp_path: Path) -> None:
    out = tmp_path / "report"
    first = write(collection, out)
    theirs = out / "tables" / "notes.txt", out / "tables" / "data.csv", out / "figures" / "logo.svg"
    for path in theirs:
        path.write_text("of the user")
    save(tmp_path / "few", resolve("er", "cifar10"))
    second = write(collect([tmp_path / "few"]), out)
    assert {*first.tables, *first.figures} - {*second.tables, *second.figures}  # there was something to leave behind
    kept = {out / "index.html", out / ".ocil-report.json", *theirs, *second.tables, *second.figures}
    assert {path for path in out.rglob("*") if path.is_file()} == kept


@pytest.mark.slow
@pytest.mark.usefixtures("blank_figures")
@pytest.mark.parametrize("room", [0, 1, 9, -1], ids=["no file", "the list", "some files", "all but the page"])
def test_a_full_disk_leaves_the_earlier_report_as_it_was(
    collection: Collection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ocil_command: Call, room: int
) -> None:
    out = tmp_path / "report"
    write(collection, out)
    (out / "tables" / "notes.txt").write_text("of the user")
    save(tmp_path / "few", resolve("er", "cifar10"))
    words = ("report", tmp_path / "few", "--out", out)
    sync, synced = os.fsync, list[int]()

    def counted(descriptor: int) -> None:
        if len(synced) == room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        synced.append(descriptor)
        sync(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", counted)
        if room < 0:  # the page is the last but the list of what was written
            write(collect([tmp_path / "few"]), tmp_path / "counted")
            room = len(synced) - 2
            synced.clear()
        before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
        message = one_error(ocil_command(*words))
    assert message.endswith("No space left on device. Free some space or choose another folder.")
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    assert ocil_command(*words).code == 0


@pytest.mark.slow
@pytest.mark.usefixtures("blank_figures")
def test_two_reports_into_one_folder_at_once(
    collection: Collection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both delete what neither of them has."""
    write(collection, tmp_path / "report")
    save(tmp_path / "few", resolve("er", "cifar10"))
    few = collect([tmp_path / "few"])

    with monkeypatch.context() as patch:

        def after_the_other(contents: Mapping[Path, bytes]) -> None:
            patch.undo()
            write(few, tmp_path / "report")
            write_together(contents)

        patch.setattr("ocil.report.write.write_together", after_the_other)
        assert write(few, tmp_path / "report").page.is_file()


@pytest.mark.slow
@pytest.mark.usefixtures("blank_figures")
def test_files_beside_a_page_that_is_none_of_ours_stay(collection: Collection, tmp_path: Path) -> None:
    for name in ("index.html", "tables/data.csv", "figures/logo.svg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("of the user")
    for listed in ("[", "3", "[3]", '["../x"]'):
        (tmp_path / ".ocil-report.json").write_text(listed)
        write(collection, tmp_path)
        for name in ("tables/data.csv", "figures/logo.svg"):
            assert (tmp_path / name).read_text() == "of the user"


def test_a_table_keeps_to_the_precision_that_most_of_it_has(tmp_path: Path) -> None:
    for name in ("er", "mir", "gss"):
        save(tmp_path, resolve(name, "cifar100", settings={"precision": "bf16"}), level=0.3)
    save(tmp_path, resolve("er", "cifar100"), level=0.9)
    save(tmp_path, resolve("aser", "cifar100"), level=0.2)
    found = collect([tmp_path])
    text = markdown(compared_document(table1(found)))
    assert "Precision bf16; tf32: aser." in text
    save(tmp_path, resolve("er", "cifar100"), level=0.9, seeds=4)
    table = table1(collect([tmp_path]))  # more seeds count for more
    for text in (markdown(compared_document(table)), latex(compared_document(table))):
        assert "Precision bf16; tf32: er, aser." in text


@pytest.mark.slow
@pytest.mark.usefixtures("blank_figures")
def test_times_among_others_are_no_running_times(tmp_path: Path) -> None:
    for name in ("er", "mir"):
        save(tmp_path / "alone", resolve(name, "cifar100"))
        save(tmp_path / "beside", resolve(name, "cifar10"), side_by_side=10)
        save(tmp_path / "a-cell-alone", resolve(name, "mini_imagenet"), side_by_side=10, seconds_for_all=30.0)
    for precision in ("tf32", "bf16"):  # alone, but with nothing beside it to compare with
        save(tmp_path / "alone", resolve("fine-tune", "cifar10", settings={"precision": precision}))
    figures = {path.stem for path in write(collect([tmp_path]), tmp_path / "out").figures}
    assert any(name.startswith("running-time-cifar100") for name in figures)
    assert any(name.startswith("running-time-mini-imagenet") for name in figures)
    assert not any(name.startswith("running-time-cifar10-") for name in figures)


def test_a_memory_smaller_than_the_usual_batch(tmp_path: Path) -> None:
    """The run can be, though the method's usual settings could not have so small a memory."""
    save(tmp_path, resolve("er", "cifar10", memory=5, settings={"batch_size": 5, "memory_batch": 5}))
    (cell,) = collect([tmp_path]).cells
    assert cell.changed == {"batch_size": 5, "memory_batch": 5}
    assert cell.command.endswith("--memory 5 --set batch_size=5 memory_batch=5 precision=tf32 --seeds 3")


def test_figures_are_svg_and_the_page_holds_each_of_them(written: Written) -> None:
    page = Page(written.page.read_text())
    images = {attributes["src"]: attributes["alt"] for tag, attributes in page.tags if tag == "img"}
    assert len(images) == len(written.figures)
    contents = {path.read_text() for path in written.figures}
    assert {unquote((address or "").removeprefix("data:image/svg+xml,")) for address in images} == contents
    assert all(images.values())
    for svg in contents:
        assert ElementTree.fromstring(svg.encode()).tag == "{http://www.w3.org/2000/svg}svg"


def test_loss_curves_are_those_of_the_paper() -> None:
    """Section III: the gradients of CE and RFL meet at 0.3; RFL's weight is largest there."""
    figure = formulas.losses()
    _, weight, gradient = figure.axes
    curves = {line.get_label(): np.asarray(line.get_xydata()) for line in weight.lines}
    rfl = curves["RFL, μ = 0.3, σ = 0.5"]
    assert rfl[rfl[:, 1].argmax(), 0] == pytest.approx(0.3, abs=0.006)
    slopes = {str(line.get_label()).split(",")[0]: np.asarray(line.get_xydata()) for line in gradient.lines}
    p = slopes["CE"][:, 0]
    assert slopes["CE"][:, 1] == pytest.approx(1 - p)
    expected = np.exp(-((p - 0.3) ** 2) / 0.5) * (1 - 2 * p * (p - 0.3) * np.log(p) / 0.5) * (1 - p)
    assert slopes["RFL"][:, 1] == pytest.approx(expected)
    assert slopes["FL"][:, 1] == pytest.approx((1 - p) ** 2 * (1 - p - 2 * p * np.log(p)))


def test_label_distributions_are_those_of_the_paper() -> None:
    smooth, distill = formulas.label_distribution().axes
    heights = [[bar.get_height() for bar in axes.patches] for axes in (smooth, distill)]  # type: ignore[attr-defined]
    assert heights[0] == pytest.approx([0.99 if c == 3 else 0.01 / 9 for c in range(10)])
    teacher = np.exp(np.array([0.99 if c == 3 else 0.01 / 9 for c in range(10)]) / 20)
    assert heights[1] == pytest.approx((teacher / teacher.sum()).tolist())


def test_a_method_without_weights_is_left_out_of_the_bias_figures(tmp_path: Path) -> None:
    config = resolve("er", "cifar100")
    result = made_up(config)
    bare = [row | dict.fromkeys(("mean_weight_old", "mean_weight_new")) for row in result.evaluations]
    RunFolder.of(tmp_path, config).save_result(replace(result, evaluations=bare))
    figures = {path.stem for path in write(collect([tmp_path]), tmp_path / "out").figures}
    assert "mean-logits-cifar100-m5000" in figures
    assert "mean-weights-cifar100-m5000" not in figures


# The page


class Page(html.parser.HTMLParser):
    """Checks that tags nest, and gathers what matters."""

    VOID = frozenset({"meta", "br", "wbr", "link", "input", "img"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_page(written: Written, collection: Collection) -> None:
    page = Page(written.page.read_text())
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for tag, attributes in page.tags:
        target = attributes.get("href") or attributes.get("xlink:href") or ""
        if target.startswith("#"):
            assert target[1:] in ids
        elif tag == "a":
            assert (written.page.parent / target).is_file()
        assert (attributes.get("src") or "data:image/svg+xml,").startswith("data:image/svg+xml,")
        assert not [name for name in attributes if name.startswith("on")]
    for cell in collection.cells:
        assert cell.command in page.text
    assert "not measured" in page.text
    assert "How to read this" in page.text
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert not re.search(r"""(?:src|href)=["'](?:https?:)?//|@import|url\((?!#)""", written.page.read_text())


def test_a_cell_has_both_kinds_of_forgetting(written: Written, collection: Collection) -> None:
    (afs,) = (cell for cell in collection.cells if cell.config.method == "afs" and not cell.changed)
    summary = afs.summary
    assert summary.average_forgetting
    assert summary.average_forgetting_common
    first, every = percent(summary.average_forgetting), percent(summary.average_forgetting_common)
    assert first != every
    text = Page(written.page.read_text()).text.replace("−", "-")
    assert f"; forgetting over the first T - 1 tasks {first} %; forgetting over all T tasks {every} %; " in text


@pytest.mark.usefixtures("blank_figures")
def test_long_tailed_runs_of_before_some_measures(tmp_path: Path) -> None:
    """The columns of measures that older results lack are left out, also where a cell opens."""
    for path in RESULTS.glob("cifar100-lt100-*/seed-*/result.json"):
        content = read_json(path)
        for name in LATER:
            del content["measures"][name]
        write_json(tmp_path / "runs" / path.relative_to(RESULTS), sealed(content))
    found = collect([tmp_path / "runs"])
    assert found.longtail
    text = Page(write(found, tmp_path / "out").page.read_text()).text
    assert "AUROC" not in text
    assert "OLTR on CIFAR-100, long-tailed" in text
    assert re.search(r"many [\d.]+ ± [\d.]+ %; ", text)


def hostile(root: Path) -> None:
    """Every text of a result file that a person may choose."""
    config = replace(resolve("er", "cifar100", memory=50), dataset=f"/data/{HOSTILE.replace('/', '')}.npz")
    for seed in range(2):
        result = made_up(replace(config, seed=seed), device=HOSTILE, ocil=HOSTILE, finished=HOSTILE, torch=HOSTILE)
        RunFolder(root / "x" / f"seed-{seed}").save_result(replace(result, digest=HOSTILE))


@pytest.mark.slow
def test_hostile_names_are_text(tmp_path: Path) -> None:
    hostile(tmp_path)
    found = collect([tmp_path])
    assert not found.warnings
    written = write(found, tmp_path / "out")
    text = written.page.read_text()
    page = Page(text)
    assert [tag for tag, _ in page.tags].count("script") == 1
    assert text.count("<script>") == 1
    assert "alert(1)" in page.text
    assert [tag for tag, _ in page.tags].count("b") == 1  # the page's own
    for path in written.figures:
        assert path.parent == tmp_path / "out/figures"
        ElementTree.fromstring(path.read_bytes())
    for path in written.tables:
        content = path.read_text()
        if path.suffix == ".tex":
            check_latex(content)
            assert r"\input{a}" not in content
        if path.suffix == ".md":
            assert "<script" not in content
    (row,) = (r for r in rows_of((tmp_path / "out/tables/cells.csv").read_text()))
    assert row["device"] == HOSTILE


def test_a_spreadsheet_gets_no_formula(tmp_path: Path) -> None:
    config = resolve("er", "cifar100")
    RunFolder.of(tmp_path, config).save_result(made_up(config, device="=HYPERLINK(1)"))
    (row,) = rows_of(as_csv(cells_document(collect([tmp_path]).cells, PAPER).records))
    assert row["device"] == "'=HYPERLINK(1)"


# Bad input


def spoil(content: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    content = json.loads(json.dumps(content))
    *parents, last = path.split(".")
    inner: Any = content
    for name in parents:
        inner = inner[int(name)] if isinstance(inner, list) else inner[name]
    inner[int(last) if isinstance(inner, list) else last] = value
    return sealed(content)


GOOD = made_up(resolve("er", "cifar10")).to_json()
BAD = {
    "empty": "",
    "half": json.dumps(GOOD)[:200],
    "a list": "[1, 2]",
    "a number": "7",
    "null": "null",
    "another object": '{"a": 1}',
    "deep": "[" * 100_000,
    "not text": b"\xff\xfe\x00",
    "unknown method": json.dumps(spoil(GOOD, "config.method", "nonesuch")),
    "unknown setting": json.dumps(spoil(GOOD, "config.learner.nonesuch", 1)),
    "text for a number": json.dumps(spoil(GOOD, "config.learner.lr", "<b>")),
    "no dataset": json.dumps(spoil(GOOD, "config.dataset", None)),
    "a dataset's name beyond folders": json.dumps(spoil(GOOD, "config.dataset", "x" * 5000)),
    "a text as seed": json.dumps(spoil(GOOD, "config.seed", "0")),
    "nan": json.dumps(spoil(GOOD, "matrix.0.0", float("nan"))),
    "above one": json.dumps(spoil(GOOD, "matrix.0.0", 42.0)),
    "a text in the matrix": json.dumps(spoil(GOOD, "matrix.0.0", "x")),
    "a row missing": json.dumps(spoil(GOOD, "matrix", GOOD["matrix"][:-1])),
    "a short row": json.dumps(spoil(GOOD, "matrix.1", [0.5])),
    "matrix null": json.dumps(spoil(GOOD, "matrix", None)),
    "evaluation": json.dumps(spoil(GOOD, "evaluations.0.hard", "<b>")),
    "evaluations": json.dumps(spoil(GOOD, "evaluations", 3)),
    "time": json.dumps(spoil(GOOD, "wall_seconds", "1")),
    "beyond numbers": json.dumps(spoil(GOOD, "wall_seconds", 10**400)),
    "environment": json.dumps(spoil(GOOD, "environment", [])),
    "another number since": json.dumps(GOOD | {"wall_seconds": 2.0}),
    "half a character": json.dumps(spoil(GOOD, "environment.device", "\ud800")),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_result_is_named(name: str, tmp_path: Path) -> None:
    path = tmp_path / "cell" / "seed-0" / "result.json"
    path.parent.mkdir(parents=True)
    content = BAD[name]
    path.write_bytes(content if isinstance(content, bytes) else str(content).encode())
    with pytest.raises(OcilError, match=re.escape(str(path))):
        read(path)
    save(tmp_path, resolve("er", "cifar100"), seeds=2)
    found = collect([tmp_path])
    assert len(found.cells) == 1
    (warning,) = found.warnings
    assert str(path) in warning
    assert "\n" not in warning


def test_two_runs_of_one_seed(tmp_path: Path) -> None:
    config = resolve("er", "cifar100")
    for place, digest in (("a", "1"), ("b", "1"), ("c", "2")):
        RunFolder.of(tmp_path / place, config).save_result(replace(made_up(config), digest=digest))
    found = collect([tmp_path / "a", tmp_path / "b", tmp_path / "a"])
    assert (len(found.cells[0].runs), found.warnings) == (1, ())
    (warning,) = collect([tmp_path]).warnings
    assert "/c/" in warning
    assert "is left out" in warning


def test_runs_of_other_images_under_one_name(tmp_path: Path) -> None:
    save(tmp_path / "a", resolve("er", "mini_imagenet"), images="1")
    save(tmp_path / "b", resolve("afs", "mini_imagenet"))  # from before it was kept
    save(tmp_path / "c", resolve("er", "cifar100"), images="3")
    assert collect([tmp_path]).warnings == ()
    save(tmp_path / "d", resolve("er", "mini_imagenet", review=True), images="2")
    (warning,) = collect([tmp_path]).warnings
    assert warning.startswith("Mini-ImageNet was not the same images in all runs, as in ")
    assert "/a/" in warning
    assert "/d/" in warning


@pytest.mark.parametrize(
    ("settings", "orders", "says"),
    [
        ({}, ("1", "1"), ""),
        ({}, ("1", "2"), "samples came in another order in "),
        ({}, ("", "2"), ""),  # from before it was kept, and that order never changed
        ({"task_ends": "hidden"}, ("", "2"), "samples may have come in another order in "),
        ({"task_ends": "hidden"}, ("", ""), ""),
        ({"boundary": "i-blurry"}, ("1", "2"), "samples came in another order in "),
    ],
)
def test_runs_of_another_order_of_arrival(
    tmp_path: Path, settings: dict[str, Any], orders: tuple[str, str], says: str
) -> None:
    first = resolve("er", "mini_imagenet", settings=settings)
    second = resolve("er", "mini_imagenet", review=True, settings=settings | {"evaluate_every": 9})
    for place, config, order in zip("ab", (first, second), orders, strict=True):
        found = made_up(config, images="1")
        entry = {"order": order} if order else {}
        RunFolder.of(tmp_path / place, config).save_result(replace(found, environment=found.environment | entry))
    other = replace(first, seed=1)  # has an order of its own
    found = made_up(other, images="1")
    RunFolder.of(tmp_path / "c", other).save_result(replace(found, environment=found.environment | {"order": "9"}))
    warnings = collect([tmp_path]).warnings
    assert len(warnings) == bool(says)
    for warning in warnings:
        assert warning.startswith(says)
        assert ("/a/" in warning, "/b/" in warning, "/c/" in warning) == (True, True, False)


def test_runs_of_other_images_in_one_cell_are_left_out(tmp_path: Path) -> None:
    config = resolve("er", "mini_imagenet")
    save(tmp_path / "a", config, seeds=2, images="1")
    RunFolder.of(tmp_path / "b", replace(config, seed=2)).save_result(made_up(replace(config, seed=2), images="2"))
    save(tmp_path / "c", config.reference(), images="2")
    found = collect([tmp_path])
    cells = {cell.config.method: cell for cell in found.cells}
    assert [run.result.config.seed for run in cells["er"].runs] == [0, 1]
    assert cells["er"].summary.average_intransigence is None  # the reference had other images
    left_out, mixed = found.warnings
    assert "/b/" in left_out
    assert "it had other images than the other runs of its cell" in left_out
    assert "do not compare them" in mixed


def test_an_imported_dataset_that_was_imported_again(tmp_path: Path) -> None:
    for place, fingerprint in (("a", "1"), ("b", "2")):
        save(tmp_path / place, replace(resolve("er", "birds"), fingerprint=fingerprint))
    found = collect([tmp_path])
    (warning,) = found.warnings
    assert warning.startswith("birds was not the same images in all runs")
    assert {cell.stream for cell in found.cells} == {"images=1", "images=2"}  # one took the place of the other


@pytest.mark.slow
@pytest.mark.usefixtures("blank_figures")
def test_a_path_that_is_no_text(tmp_path: Path) -> None:
    save(tmp_path, resolve("er", "cifar100"))
    bad = tmp_path / os.fsdecode(b"bad\xff")
    bad.mkdir()
    (bad / "result.json").write_text("{}")
    written = write(collect([tmp_path]), tmp_path / "report")
    assert "bad\\udcff" in written.page.read_text()


@pytest.mark.slow
@pytest.mark.usefixtures("blank_figures")
def test_a_folder_of_runs_whose_name_is_no_text(tmp_path: Path) -> None:
    """The page could not be written, after all tables and figures."""
    bad = tmp_path / os.fsdecode(b"bad\xff")
    save(bad, resolve("er", "cifar100"))
    assert "bad\\udcff/" in write(collect([bad]), tmp_path / "report").page.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("place", ["tables/cells.md", "index.html", "figures", "tables"])
@pytest.mark.usefixtures("blank_figures")
def test_what_stands_in_the_way_of_a_report(tmp_path: Path, place: str) -> None:
    save(tmp_path / "runs", resolve("er", "cifar100"))
    way = tmp_path / "report" / place
    if "." in place:
        way.mkdir(parents=True)
    else:
        way.parent.mkdir()
        way.touch()
    with pytest.raises(OcilError, match=r"cannot write .* Choose another place"):
        write(collect([tmp_path / "runs"]), tmp_path / "report")
    files = [path.name for path in (tmp_path / "report").rglob("*") if path.is_file()]
    assert files == ([] if "." in place else [place])


# The command


@pytest.fixture
def a_run(run_tiny: Call, tmp_path: Path) -> Path:
    assert run_tiny("er", "--seeds", 2).code == 0
    (folder,) = (tmp_path / "runs").glob("tiny-er-*")
    return folder


@pytest.mark.slow
@pytest.mark.usefixtures("blank_figures")
def test_report_command(ocil_command: Call, a_run: Path, tmp_path: Path) -> None:
    (tmp_path / "runs/notes").mkdir()
    (tmp_path / "runs/notes/result.json").write_text('{"a": 1}')
    said = ocil_command("report", tmp_path / "runs", "--out", tmp_path / "report", "--json")
    assert said.code == 0, said.err
    content = json.loads(said.out)
    assert {cell["method"] for cell in content["cells"]} == {"er", "fine-tune"}
    assert Path(content["page"]).is_file()
    assert all(Path(path).is_file() for path in (*content["tables"], *content["figures"]))
    (line,) = (line for line in said.err.splitlines() if "warning" in line)
    assert "notes/result.json" in line
    assert len(content["warnings"]) == 1
    assert "notes/result.json" in Path(content["page"]).read_text()
    (row,) = (
        r
        for r in rows_of((tmp_path / "report/tables/methods.csv").read_text())
        if r["method"] == "er" and "tiny" in r["dataset"]
    )
    mean, interval, _ = by_hand(a_run)
    assert (float(row["mean"]), float(row["interval"])) == pytest.approx((mean, interval), abs=2e-2)


@pytest.mark.slow
@pytest.mark.usefixtures("blank_figures")
def test_example_images(ocil_command: Call, a_run: Path, tiny: Dataset, tmp_path: Path) -> None:
    words = ("report", a_run, "--out", tmp_path / "report", "--examples", a_run / "seed-0")
    said = ocil_command(*words)
    assert said.code == 0, said.err
    assert "index.html" in said.out
    (figure,) = (tmp_path / "report/figures").glob("examples-*.svg")
    svg = figure.read_text()
    assert svg.count("<image") >= 8
    assert all(kind in svg for kind in ("hard", "ambiguous", "easy"))
    checkpoint = RunFolder(a_run / "seed-0").load_checkpoint()
    assert checkpoint is not None
    learner = build(read(a_run / "seed-0/result.json").config, tiny)
    learner.load_state(checkpoint[0])
    old = tiny.train_y < 2  # of two tasks of two classes
    probability = learner.scores(torch.from_numpy(tiny.train_x[old])).softmax(1).numpy()
    scores = probability[np.arange(old.sum()), tiny.train_y[old]]
    kinds = (scores < HARD, (scores >= HARD) & (scores <= EASY), scores > EASY)
    assert svg.count("<image") == sum(min(8, kind.sum()) for kind in kinds)
    tensors = {n: t[:16] if n.startswith("rng.") else t for n, t in checkpoint[0].items()}  # as a GPU's generators are
    RunFolder(a_run / "seed-0").save_checkpoint(tensors, checkpoint[1])
    assert ocil_command(*words).code == 0
    assert figure.read_text() == svg
    figure.unlink()
    (a_run / "seed-0/checkpoint.safetensors").unlink()
    said = ocil_command(*words)
    assert said.code == 0
    assert "no checkpoint.safetensors" in said.err
    assert not figure.exists()


@pytest.mark.slow
@pytest.mark.usefixtures("blank_figures")
def test_a_method_without_probabilities_has_no_example_images(
    run_tiny: Call, ocil_command: Call, tmp_path: Path
) -> None:
    assert run_tiny("scr", "--no-review").code == 0
    (folder,) = (tmp_path / "runs").glob("tiny-scr-*")
    words = ("report", folder, "--out", tmp_path / "report", "--examples", folder / "seed-0")
    said = ocil_command(*words)
    assert said.code == 0, said.err
    assert "scr distinguishes classes by distance, so no sample is hard or easy" in said.err
    assert not [*(tmp_path / "report/figures").glob("examples-*.svg")]


@pytest.mark.slow
@pytest.mark.usefixtures("blank_figures")
def test_runs_of_one_stream_share_their_example_images(ocil_command: Call, a_run: Path, tmp_path: Path) -> None:
    (reference,) = (tmp_path / "runs").glob("tiny-fine-tune-*")
    folders = [reference / "seed-0", a_run / "seed-0", a_run / "seed-1"]
    named = [word for folder in folders for word in ("--examples", folder)]
    assert ocil_command("report", tmp_path / "runs", "--out", tmp_path / "report", *named[:4]).code == 0
    (figure,) = (tmp_path / "report/figures").glob("examples-*.svg")
    svg = figure.read_text()
    assert figure.name.startswith("examples-tiny-er-")
    for name in ("fine-tune", "er"):
        assert len(re.findall(rf">{name} [01]\.\d\d<", svg)) == svg.count("<image") > 0
    assert ocil_command("report", tmp_path / "runs", "--out", tmp_path / "report", *named).code == 0
    (figure,) = (tmp_path / "report/figures").glob("examples-*.svg")
    assert ">er, seed 1 0." in figure.read_text()
    configs = [resolve("afs", "cifar10", memory=memory, seed=seed) for memory, seed in ((200, 0), (300, 0), (300, 1))]
    assert _names(configs[:2]) == ["afs m200", "afs m300"]
    assert _names(configs) == ["afs m200, seed 0", "afs m300, seed 0", "afs m300, seed 1"]
    other = replace(configs[0], learner=replace(configs[0].learner, beta=0.7))  # type: ignore[call-arg]
    assert _names([configs[0], other]) == ["1 afs", "2 afs"]


@pytest.mark.usefixtures("blank_figures")
def test_examples_of_images_that_have_changed(
    ocil_command: Call, run_tiny: Call, tiny: Dataset, tmp_path: Path
) -> None:
    data = tmp_path / "mine.npz"
    tiny.save(data)
    run_tiny("fine-tune", "--seeds", 1, "-d", data, settings=())
    (folder,) = (tmp_path / "runs").glob("mine-*/seed-0")
    replace(tiny, train_x=tiny.train_x[::-1].copy()).save(data)
    said = ocil_command("report", folder, "--out", tmp_path / "report", "--examples", folder)
    assert said.code == 0
    assert "has changed since" in said.err


@pytest.mark.usefixtures("blank_figures")
def test_vectors_have_no_example_images(ocil_command: Call, tmp_path: Path) -> None:
    data, labels = tmp_path / "vectors.npz", np.arange(40) % 4
    x = np.random.default_rng(0).normal(size=(40, 8)).astype(np.float32)
    np.savez(data, train_x=x, train_y=labels, test_x=x, test_y=labels, classes=np.array([*"abcd"]))
    words = ("--no-reference", "--seeds", 1, "--memory", 20, "--workers", 1, "--set", "tasks=2")
    assert ocil_command("run", "er", "-d", data, "--out", tmp_path / "runs", *words).code == 0
    (folder,) = (tmp_path / "runs").glob("vectors-er-*/seed-0")
    said = ocil_command("report", folder, "--out", tmp_path / "report", "--examples", folder)
    assert said.code == 0, said.err
    assert "learned from vectors" in said.err
    assert not [*(tmp_path / "report/figures").glob("examples-*.svg")]


def test_examples_of_a_cell_name_one_of_its_runs(ocil_command: Call, tmp_path: Path) -> None:
    save(tmp_path / "runs", resolve("er", "cifar100"), seeds=11)
    (cell,) = (tmp_path / "runs").iterdir()
    for folder in (cell, tmp_path / "runs"):
        said = one_error(ocil_command("report", cell, "--out", tmp_path / "report", "--examples", folder))
        assert said.endswith(f"in that folder. Give one of its runs, for example {cell / 'seed-0'}")


def test_a_class_with_a_hostile_name() -> None:
    image = np.zeros((4, 4, 3), np.uint8)
    svg = render(plots.examples, {"hard": [plots.Example(image, {"er": 0.1}, f"\0\v{HOSTILE}")], "easy": []})
    ElementTree.fromstring(svg.encode())
    assert "<script" not in svg


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "name the folders of the runs"),
        (("nowhere",), "there is nothing at nowhere"),
        (("empty",), "no finished run (result.json) under empty"),
        (("spoilt",), "spoilt/result.json is not a result of ocil"),
        (("good", "--out", "file"), "is a file. Name a folder"),
        (("good", "--out", "file/inside"), "is a file. Name a folder"),
        (("good", "--examples", "empty"), "there is no finished run"),
    ],
)
def test_mistakes_are_said_in_a_line(
    words: tuple[str, ...], message: str, ocil_command: Call, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("spoilt").mkdir()
    Path("spoilt/result.json").write_text("{")
    Path("file").touch()
    save(Path("good"), resolve("er", "cifar100"), seeds=2)
    assert message in one_error(ocil_command("report", *words))
    assert not Path("report").exists()
    assert not left_over(tmp_path)
