"""The report's page in a real browser: filter, comparison of two rows, LaTeX, print; axe-core finds nothing wrong."""

import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from ocil.report import write as writing
from ocil.report.cells import Collection
from ocil.report.collect import collect
from ocil.report.entries import entries
from ocil.report.ranking import paired_difference
from ocil.report.standings import Standings
from ocil.report.write import Written, write
from ocil.runs.config import resolve
from ocil.runs.folder import RunFolder
from tests.browsing import Pages, axe_script, needs_browser, until, violations
from tests.test_report_page import HOSTILE, hostile, made_up, save

pytestmark = [needs_browser(), pytest.mark.slow]


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Collection:
    root = tmp_path_factory.mktemp("runs")
    for dataset, sizes in (("cifar100", (1000, 5000)), ("cifar10", (200, 500))):
        for memory in sizes:
            save(root, resolve("er", dataset, memory=memory), level=0.2 + memory / 1e5, seeds=3)
            save(root, resolve("afs", dataset, memory=memory), level=0.4 + memory / 1e5, seeds=4)
    save(root, resolve("fine-tune", "cifar100"), level=0.1, seeds=3)
    hostile(root / "hostile")
    return collect([root])


@pytest.fixture(scope="module")
def written(collection: Collection, tmp_path_factory: pytest.TempPathFactory) -> Written:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "draw_all", lambda *_: [])
        return write(collection, tmp_path_factory.mktemp("report"))


@pytest.fixture
def visit(pages: Pages, written: Written) -> Iterator[Any]:
    """Open the page; at the end it must have said nothing."""
    said: list[str] = []
    opened = []
    listeners = {
        "console": lambda message: said.append(message.text),
        "pageerror": lambda error: said.append(str(error)),
        "dialog": lambda dialog: (said.append(dialog.message), dialog.dismiss()),
    }

    def go(anchor: str = "", **options: Any) -> Any:
        page = pages.open(listeners, **({"viewport": {"width": 1200, "height": 900}} | options))
        opened.append(page)
        page.goto(written.page.as_uri() + anchor)
        return page

    yield go
    for page in opened:
        pages.close(page)
    assert said == []


def headings(page: Any) -> list[str]:
    found: list[str] = page.locator("#methods h3:visible").all_inner_texts()
    return found


def names(page: Any, section: str = "#methods") -> list[str]:
    found: list[str] = page.locator(f"{section} tbody tr:visible > th").all_inner_texts()
    return found


def test_filter_by_dataset_memory_and_method(visit: Any) -> None:
    page = visit()
    assert len(headings(page)) == 3
    assert page.locator("#explore .shown").inner_text() == "All 10 cells are shown."
    page.locator("#filter").get_by_label("Dataset").select_option("CIFAR-100")
    assert headings(page) == ["CIFAR-100"]
    assert page.locator("#methods thead th:visible").all_inner_texts() == ["method", "memory 1000", "memory 5000"]
    page.locator("#filter").get_by_label("Memory").select_option("5000")
    assert page.locator("#methods thead th:visible").all_inner_texts() == ["method", "memory 5000"]
    assert page.locator("#methods tbody.fixed td:visible").get_attribute("colspan") == "1"
    assert page.locator("#explore .shown").inner_text() == "3 of 10 cells are shown."  # fine-tuning has no memory
    method = page.locator("#filter").get_by_label("Method")
    method.focus()
    page.keyboard.type("AFS, fine")
    assert names(page) == ["fine-tune", "afs"]
    assert page.locator("#explore table.paired tbody tr").count() == 1
    assert page.evaluate("location.hash") == "#?dataset=cifar100&memory=5000&method=AFS%2C+fine"
    page.locator("#filter").get_by_label("Memory").select_option("200")
    assert headings(page) == []
    assert "void" in page.locator("#methods").get_attribute("class")
    page.get_by_role("button", name="Show all").press("Enter")
    until(page, "location.hash === ''")
    assert len(headings(page)) == 3


def test_the_address_keeps_what_was_chosen(visit: Any) -> None:
    page = visit("#?dataset=cifar10&method=er&first=er&second=afs&at=cells")
    assert headings(page) == ["CIFAR-10"]
    assert names(page) == ["er"]
    assert page.locator("#pair select[name=first]").input_value() == "er"
    assert page.locator("#cells h2").bounding_box()["y"] < 900
    page.get_by_role("link", name="How to read this").click()
    until(page, "location.hash.endsWith('at=how')")
    assert names(page) == ["er"]  # a jump inside the page leaves the filter as it is
    unknown = visit("#?dataset=nowhere&memory=-1&second=nobody&at=%22%5D")
    assert len(headings(unknown)) == 3
    assert unknown.locator("#explore table.paired tbody tr").count() == 4


def test_two_rows_compared_as_by_hand(visit: Any, collection: Collection) -> None:
    standings = Standings(entries(collection.cells))
    page = visit()
    assert page.locator("#pair select[name=first]").input_value() == "afs"
    page.get_by_role("button", name="Swap").press("Enter")
    lines = page.locator("#explore table.paired tbody tr")
    columns = [column for column in standings.entries.columns if column in standings.by_seed["afs"]]
    assert lines.count() == len(columns) == 4
    for number, column in enumerate(columns):
        title, difference, mine, other, seeds = lines.nth(number).locator("th, td").all_inner_texts()
        values = [standings.by_seed[name][column] for name in ("er", "afs")]
        assert title == column.title
        assert [mine, other] == [
            standings.quantity.text(standings.numbers[name][column].value) for name in ("er", "afs")
        ]
        paired = standings.quantity.difference(paired_difference(*values))
        assert difference == paired.replace("-", "−")
        assert seeds == "3"
    verdict = page.locator("#explore .verdict").inner_text()
    assert verdict.startswith("Of 4 columns that both have, er is ahead in none")
    assert "behind in 4 (in 4 of" in verdict
    page.locator("#pair select[name=first]").select_option("afs")
    assert page.locator("#explore .verdict").inner_text() == "Choose two different methods."


def test_a_mean_between_two_digits_is_rounded_as_in_the_tables(browser: Any, tmp_path: Path) -> None:
    """Means of two seeds of a thousand test images often end in 5: 50.65, 44.25."""
    pairs = {"er": (0.476, 0.537), "afs": (0.441, 0.444), "scr": (0.3, 0.305), "agem": (0.1005, 0.103)}
    for method, accuracies in pairs.items():
        for seed, accuracy in enumerate(accuracies):
            config = replace(resolve(method, "cifar100", settings={"tasks": 2}), seed=seed)
            row = {"accuracy": [accuracy, accuracy]}
            result = replace(made_up(config), matrix=[[accuracy, 0.0], row["accuracy"]], evaluations=[row, row])
            RunFolder.of(tmp_path / "runs", config).save_result(result)
    found = collect([tmp_path / "runs"])
    standings = Standings(entries(found.cells))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writing, "draw_all", lambda *_: [])
        page = browser.new_page()
        page.goto(write(found, tmp_path / "report").page.as_uri())
    (column,) = standings.entries.columns
    for first, second in permutations(pairs, 2):
        page.locator("#pair select[name=first]").select_option(first)
        page.locator("#pair select[name=second]").select_option(second)
        shown = page.locator("#explore table.paired tbody td").all_inner_texts()
        values = [standings.by_seed[name][column] for name in (first, second)]
        expected = [standings.quantity.difference(paired_difference(*values))]
        expected += [standings.quantity.text(standings.numbers[name][column].value) for name in (first, second)]
        assert shown == [*(text.replace("-", "−") for text in expected), "2"]
    page.close()


def test_a_table_copied_as_latex_is_that_of_its_file(visit: Any, written: Written) -> None:
    page = visit(permissions=["clipboard-read", "clipboard-write"])
    button = page.locator("#methods button.latex").first
    button.press("Enter")
    until(page, "document.querySelector('#methods button.latex').textContent === 'Copied'")
    copied = page.evaluate("navigator.clipboard.readText()")
    (path,) = (path for path in written.tables if path.name == "methods.tex")
    assert copied.startswith(r"\begin{table")
    assert copied.strip() in path.read_text()
    page.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject(); }")
    page.locator("#standings button.latex").press("Enter")
    until(page, "document.querySelector('#standings button.latex').textContent === 'Copied'")
    assert "mean rank" in page.evaluate("navigator.clipboard.readText()")
    assert page.locator("textarea").count() == 0


def test_hostile_names_can_be_chosen(visit: Any, collection: Collection) -> None:
    page = visit()
    (dataset,) = {cell.config.dataset for cell in collection.cells if "script" in cell.config.dataset}
    page.locator("#filter").get_by_label("Dataset").select_option(dataset)
    assert len(headings(page)) == 1
    assert "alert(1)" in headings(page)[0]
    page.reload()
    assert len(headings(page)) == 1
    page.locator("#filter").get_by_label("Method").fill(HOSTILE)
    assert headings(page) == []
    assert page.locator("script").count() == 1


def test_print(visit: Any, tmp_path: Path) -> None:
    page = visit(color_scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    for hidden in ("nav", "form", ".tool", "#theme", ".details"):
        assert page.locator(f"{hidden}:visible").count() == 0
    assert page.locator("#methods table thead th:visible", has_text="memory 1000").count() == 1  # headings stay
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details.empty:not([open])").count() == 0
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    assert re.match(rb"%PDF", page.pdf())


def test_nothing_to_filter_by_without_scripts(visit: Any) -> None:
    page = visit(java_script_enabled=False)
    assert not page.locator("#explore").is_visible()
    assert page.locator(".tool:visible").count() == 0
    assert page.get_by_role("link", name="Filter and compare").count() == 0


def test_axe_finds_nothing_wrong(visit: Any) -> None:
    script = axe_script()
    assert violations(visit(), script) == []
    page = visit(color_scheme="dark", viewport={"width": 400, "height": 900})
    assert violations(page, script, "#explore") == []
    page.locator("#methods a[data-cell]").first.click()
    assert violations(page, script, "#detail") == []
    page.evaluate("document.querySelector('#close').textContent = ''")
    assert [each.split(":")[0] for each in violations(page, script, "#detail")] == ["button-name"]  # it does look
