"""A paper as data: what its file may hold, what is refused, and a report with it or without any."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from ocil.errors import OcilError
from ocil.report import comparison, longtail, papers
from ocil.report.collect import collect
from ocil.report.comparison import compared_tables
from ocil.report.papers import ColumnKey, Published
from ocil.report.result_tables import compared_document
from ocil.report.table import csv
from ocil.runs.config import resolve
from tests.conftest import Call, one_error
from tests.test_report_page import Page, blank_figures, rows_of, save

__all__ = ["blank_figures"]

DOCS = Path(__file__).resolve().parents[1] / "docs/report.md"
(EXAMPLE,) = re.findall(r"```toml\n(.*?)```", DOCS.read_text(), re.DOTALL)


@pytest.fixture
def example(tmp_path: Path) -> Path:
    """The file that the documentation shows."""
    path = tmp_path / "paper.toml"
    path.write_text(EXAMPLE)
    return path


def test_the_documented_file(example: Path) -> None:
    paper = papers.load(str(example))
    assert {dataset for table in paper.tables for dataset in table.memory} == {"cifar100", "birds"}
    assert paper.published("er-rv", {}, ColumnKey("cifar100", 5000)) == Published(30.9, 0.6)
    assert paper.published("fine-tune", {}, ColumnKey("cifar100", 0)) == Published(5.7, 0.2)
    rate = {"lr": 0.05}
    assert paper.published("er", rate, ColumnKey("cifar100", 5000)) == Published(21.3, None)
    assert paper.published("er", rate, ColumnKey("cifar100", 5000, "average_forgetting")) is None
    assert paper.published("er", {"lr": 0.1}, ColumnKey("cifar100", 5000)) is None
    assert [table.by_memory for table in paper.tables] == [True, False]


def test_the_documentation_names_every_key() -> None:
    text = DOCS.read_text()
    for key in {key for keys in papers.KEYS.values() for key in keys}:
        assert re.search(rf"\b{key}\b", text), key


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("citation =", "quotation =", "the file: 'quotation' is not known. Did you mean 'citation'?"),
        ('citation = "Doe', 'Citation = "Doe', "'Citation' is not known"),
        ('formulas = ["losses"]', 'formulas = ["loss"]', "formulas: 'loss' is not known. Did you mean 'losses'?"),
        ('formulas = ["losses"]', "formulas = [[]]", "'[]' is not known"),
        ('name = "table2"', 'name = "table1"', "tables: two of them have one name"),
        ('name = "table2"', 'name = "../x"', "tables 2: name = '../x' is that of another file, or no name"),
        ('name = "table2"', 'name = "cells"', "tables 2: name = 'cells'"),
        ('name = "table2"', "name = 2", "tables 2: name = 2 is not a text"),
        ('heading = "method"', "", "tables 1: heading is missing"),
        ("all_methods = true", "all_methods = 1", "tables 1: all_methods = 1 is not true or false"),
        ("all_methods = true", 'measures = ["average_forgetting"]\nall_methods = true', "has one measure"),
        ('label = "er" #', 'all_values = "lr" #', "tables 2: all_values needs a label"),
        ('label = "er" #', 'title2 = "" #', "tables 2: 'title2' is not known. Did you mean 'title'?"),
        ('"average_forgetting"]', '"forgetting"]', "measures: 'forgetting' is not known"),
        ("birds = [200]", "birds = [0.5]", "memory: birds = [0.5] is not a list of memory sizes"),
        ("birds = [200]", "birds = []", "memory: birds = [] is not a list of memory sizes"),
        ("birds = [200]", "birds = 200", "memory: birds = 200 is not a list"),
        ("[[14.5, 0.4], [30.9, 0.6]]", "[[14.5, 0.4]]", "tables 1, rows 2: published.cifar100: it must be a list of 2"),
        ("[[14.5, 0.4], [30.9, 0.6]]", "[[14.5, 0.4, 1], []]", "[14.5, 0.4, 1] is not [mean, interval]"),
        ("[[14.5, 0.4], [30.9, 0.6]]", '["14.5", []]', "'14.5' is not"),
        ("[[14.5, 0.4], [30.9, 0.6]]", "[nan, []]", "nan is not"),
        ("published.cifar100 = [21.3", "published.cifar10 = [21.3", "published: 'cifar10' is not known. Did you mean"),
        ("settings = { lr = 0.05 }", "settings = 3", "rows 1: settings = 3 is not a table of keys and values"),
        (
            'label = "er-rv"',
            'label = "er-rv"\nname = "x"',
            "tables 1, rows 2: a row of a table of all_methods has neither",
        ),
        ("settings = {", "bound = true\nsettings = {", "tables 2, rows 1: only a table of all_methods has bounds"),
        ("[[tables]]", "[tables]", "is not a TOML file"),
        ("citation", "longtail = { title = 3 }\ncitation", "longtail: title = 3 is not a text"),
    ],
)
def test_mistakes_are_named_with_their_place(example: Path, old: str, new: str, message: str) -> None:
    assert old in EXAMPLE
    example.write_text(EXAMPLE.replace(old, new, 1))
    with pytest.raises(OcilError, match=re.escape(str(example))) as caught:
        papers.load(str(example))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ('[[longtail.rows]]\nname = "x"\nnumbers = [1.0]', "longtail, rows 1: numbers must be a list of 8 numbers"),
        ('[[longtail.claims]]\ntext = "x"', "longtail, claims 1: variant is missing"),
        (
            '[[longtail.claims]]\ntext = "x"\nvariant = "oltr"\nthan = "olt"\nmeasure = "few"\ndirection = "higher"',
            "longtail, claims 1: 'olt' is not known. Did you mean 'oltr'?",
        ),
        (
            '[[longtail.claims]]\ntext = "x"\nvariant = "oltr"\nthan = "ce"\nmeasure = "few"\ndirection = "up"',
            "'up' is not known. Known: higher, lower.",
        ),
    ],
)
def test_mistakes_of_long_tails(example: Path, section: str, message: str) -> None:
    example.write_text(f'citation = "x"\n[longtail]\ntitle = "x"\ndataset = "y"\n{section}\n')
    with pytest.raises(OcilError, match=re.escape(message)):
        papers.load(str(example))


def test_the_embedded_paper_is_the_default_and_is_packaged() -> None:
    settings = tomllib.loads((DOCS.parents[1] / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    assert "report/papers/*.toml" in settings["ocil"]
    assert [table.name for table in papers.load().tables] == ["table1", "table2", "table3", "alpha", "sigma"]
    assert papers.load("none") == papers.NO_PAPER
    with pytest.raises(OcilError, match="cannot read nowhere"):
        papers.load("nowhere.toml")


def tables(root: Path, name: str) -> dict[str, Any]:
    found = compared_tables(collect([root]), papers.load(name))
    return {table.table.name: compared_document(table) for table in found}


def test_a_table_of_another_paper(example: Path, tmp_path: Path) -> None:
    root = tmp_path / "runs"
    save(root, resolve("er", "cifar100", review=True), level=0.31)
    assert list(tables(root, str(example))) == ["table1"]  # nothing of the second table was measured
    save(root, resolve("er", "cifar100", settings={"lr": 0.05}), level=0.2)
    save(root, resolve("gss", "cifar100", memory=300), level=0.2)
    found = tables(root, str(example))
    assert list(found) == ["table1", "table2"]
    first, birds = found["table1"].tables
    assert [column.title for column in first.columns] == ["method", "memory 300", "memory 1000", "memory 5000"]
    assert [row.values[0].text for row in first.rows] == ["fine-tune", "er-rv", "gss"]
    assert birds.empty
    (second,) = found["table2"].tables
    assert second.title == "CIFAR-100, memory 5000"
    assert [column.title for column in second.columns] == ["learning rate", "accuracy", "forgetting"]
    ((name, accuracy, forgetting),) = (row.values for row in second.rows)
    assert (name.text, accuracy.published, accuracy.overlap) == ("0.05", "21.3", None)
    assert accuracy.difference
    assert (forgetting.published, forgetting.difference) == ("", "")
    assert forgetting.text


def test_all_values_of_a_method_that_is_not_known_here(example: Path, tmp_path: Path) -> None:
    example.write_text(example.read_text().replace('label = "er" #', 'label = "foo"\nall_values = "lr" #'))
    paper = papers.load(str(example))
    assert [table.all_values for table in paper.tables] == ["", "lr"]
    save(tmp_path / "runs", resolve("er", "cifar100"))
    assert [each.table.name for each in compared_tables(collect([tmp_path / "runs"]), paper)] == ["table1"]


def test_all_values_of_a_setting_of_any_kind(tmp_path: Path) -> None:
    """Also of one whose values are lists; a row that changes another setting too is a row of its own."""
    table = 'name = "t"\ntitle = ""\ncaption = ""\nheading = ""\nmemory = {cifar10 = [1000]}\nlabel = "er"\n'

    def rows(setting: str, *given: str) -> list[tuple[str, bool]]:
        path = tmp_path / "paper.toml"
        listed = ", ".join(f'{{name = "{number}", settings = {{{one}}}}}' for number, one in enumerate(given))
        path.write_text(f'citation = ""\n[[tables]]\n{table}all_values = "{setting}"\nrows = [{listed}]\n')
        (found,) = compared_tables(collect([tmp_path / "runs"]), papers.load(str(path)))
        return [(row.name, row.numbers[0].cell is not None) for row in found.grids[0].rows]

    for settings in ({"lr": 0.2}, {"lr": 0.3}, {"task_sizes": "4,3,3", "tasks": 3}):
        save(tmp_path / "runs", resolve("er", "cifar10", settings=settings))
    assert rows("lr", "lr = 0.2", "", "momentum = 0.9") == [("1", False), ("2", False), ("0", True), ("0.3", True)]
    lists = rows("task_sizes", "tasks = 3, task_sizes = [4, 3, 3]", "", "tasks = 2, task_sizes = [5, 5]")
    assert lists == [("1", False), ("0", True), ("2", False)]


def test_a_paper_without_a_table_of_all_methods(tmp_path: Path) -> None:
    path = tmp_path / "paper.toml"
    path.write_text(
        'citation = "x"\n[[tables]]\nname = "table1"\ntitle = "t"\ncaption = "c"\nheading = "h"\n'
        'memory = { cifar100 = [1000, 5000] }\nmeasures = ["average_accuracy", "average_forgetting"]\n'
        '[[tables.rows]]\nlabel = "er"\n[[tables.rows]]\nlabel = "unheard-of"\n'
    )
    save(tmp_path / "runs", resolve("er", "cifar100"))
    found = tables(tmp_path / "runs", str(path))
    assert list(found) == ["table1"]
    (table,) = found["table1"].tables
    assert [column.title for column in table.columns][1:3] == ["memory 1000, accuracy", "memory 1000, forgetting"]
    assert [row.values[0].text for row in table.rows] == ["er", "unheard-of"]


@pytest.mark.slow
def test_results_of_no_paper_give_plain_tables_and_figures(ocil_command: Call, tmp_path: Path) -> None:
    for name, level in (("er", 0.3), ("afs", 0.5), ("mir", 0.2), ("gss", 0.4)):
        save(tmp_path / "runs", resolve(name, "/data/birds.npz", memory=100), seeds=2, level=level)
    said = ocil_command("report", tmp_path / "runs", "--out", tmp_path / "report")
    assert said.code == 0, said.err
    text = (tmp_path / "report/tables/methods.md").read_text()
    assert text.startswith("# All methods\n")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == ["birds"]
    assert "published" not in text
    assert "published" not in (tmp_path / "report/tables/methods.tex").read_text()
    assert not (tmp_path / "report/tables/table1.md").exists()
    page = Page((tmp_path / "report/index.html").read_text()).text
    for word in ("Liang", "published", "not measured", "Beside the paper"):
        assert word not in page
    names = {path.stem for path in (tmp_path / "report/figures").glob("*.svg")}
    assert {"mean-weights-birds-m100", "accuracy-birds-m100"} <= names
    assert "losses" not in names
    svg = (tmp_path / "report/figures/mean-weights-birds-m100.svg").read_text()
    assert [name for name in ("afs", "gss", "er", "mir") if f"{name}, new classes" in svg] == ["afs", "gss", "er"]


@pytest.mark.usefixtures("blank_figures")
def test_the_option(ocil_command: Call, example: Path, tmp_path: Path) -> None:
    save(tmp_path / "runs", resolve("er", "cifar100", review=True), level=0.31)
    words = ("report", tmp_path / "runs", "--out", tmp_path / "report", "--paper")
    assert ocil_command(*words, "none").code == 0
    assert not (tmp_path / "report/tables/table1.csv").exists()
    (row,) = rows_of((tmp_path / "report/tables/methods.csv").read_text())
    assert (row["method"], row["seeds"]) == ("er-rv", "3")
    assert ocil_command(*words, example).code == 0
    rows = rows_of((tmp_path / "report/tables/table1.csv").read_text())
    assert [row["published"] for row in rows if row["seeds"] != "0"] == ["30.9"]
    assert "Doe et al." in (tmp_path / "report/index.html").read_text()
    assert "cannot read" in one_error(ocil_command(*words, tmp_path / "nowhere.toml"))
    example.write_text("x = 1")
    assert "'x' is not known" in one_error(ocil_command(*words, example))


def test_a_paper_is_compared_with_only_if_results_belong_to_it(tmp_path: Path) -> None:
    def concerned(root: Path) -> bool:
        return bool(comparison.concerned(papers.load(), collect([root])).tables)

    save(tmp_path / "own", resolve("er", "/data/birds.npz", memory=100))
    assert not concerned(tmp_path / "own")
    save(tmp_path / "own", resolve("fine-tune", "cifar100"))  # a bound alone
    save(tmp_path / "own", resolve("er", "cifar100", memory=300))  # a memory that the paper does not have
    save(tmp_path / "own", resolve("afs", "cifar100", settings={"lr": 0.3}))  # nor that learning rate
    save(tmp_path / "own", resolve("afs", "cifar100", settings={"boundary": "blurry"}))
    assert not concerned(tmp_path / "own")
    for name, settings in (("er", {}), ("afs", {"alpha": 0.5}), ("er", {"precision": "bf16", "evaluate_every": 50})):
        root = tmp_path / f"{name}-{len(settings)}"
        save(root, resolve(name, "cifar100", settings=settings))
        assert concerned(root), (name, settings)


@pytest.mark.usefixtures("blank_figures")
def test_results_of_the_paper_and_of_ones_own_are_kept_apart(ocil_command: Call, tmp_path: Path) -> None:
    save(tmp_path / "runs", resolve("er", "cifar100"), level=0.2)
    save(tmp_path / "runs", resolve("afs", "/data/birds.npz", memory=100), level=0.4)
    save(tmp_path / "runs", resolve("er", "/data/birds.npz", memory=100), level=0.3)
    words = ("report", tmp_path / "runs", "--out", tmp_path / "report")
    assert ocil_command(*words).code == 0
    tables = tmp_path / "report/tables"
    assert "birds" not in (tables / "table1.csv").read_text()
    assert re.findall(r"^## (.*)$", (tables / "methods.md").read_text(), re.MULTILINE) == ["CIFAR-100", "birds"]
    assert "not measured" not in (tables / "methods.md").read_text()
    text = (tmp_path / "report/index.html").read_text()
    own, paper = text.split("Beside the paper")
    assert "not measured" not in Page(own[own.index("<main>") + 6 : own.rindex("<section")]).text
    assert "20 rows of the paper that were not measured" in paper
    assert ocil_command(*words, "--against", "er").code == 0
    assert "against er" in (tmp_path / "report/index.html").read_text()
    assert "no run of 'mir'" in one_error(ocil_command(*words, "--against", "mir"))
    assert ocil_command(*words, "--paper", "none").code == 0
    assert "Beside the paper" not in (tmp_path / "report/index.html").read_text()


def test_names_of_a_paper_are_no_formulas(example: Path) -> None:
    numbers = ", ".join(["1.0"] * 8)
    rows = f'[[longtail.rows]]\nname = "@SUM(1)"\nnumbers = [{numbers}]'
    example.write_text(f'citation = "x"\n[longtail]\ntitle = "x"\ndataset = "=1+1"\n{rows}\n')
    line = csv(longtail.document([], papers.load(str(example))).records).splitlines()[1]
    assert line.startswith("published,'=1+1,")
    assert ",'@SUM(1)," in line


def test_a_paper_that_is_none(tmp_path: Path) -> None:
    said = r"afsx: No such file or directory\. A paper is auto, none, afs or a TOML file\.$"
    with pytest.raises(OcilError, match=said):
        papers.load(str(tmp_path / "afsx"))
