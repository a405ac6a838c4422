"""The report's page in a real browser: sorting, details, light and dark, a phone; no errors, no network."""

import io
import runpy
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ocil.report.cells import Collection
from ocil.report.collect import collect
from ocil.report.longtail import NAMES, groups
from ocil.report.write import write
from ocil.runs.config import resolve
from tests.browsing import Pages, needs_browser, until
from tests.test_report_page import RESULTS, hostile, paper_like, save

pytestmark = [needs_browser(), pytest.mark.slow]

WIDE, PHONE = {"width": 1200, "height": 900}, {"width": 375, "height": 700}


@dataclass
class Opened:
    """A page and what it said and asked for."""

    page: Any
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Collection:
    root = paper_like(tmp_path_factory.mktemp("runs"))
    save(root, resolve("mir", "cifar100", settings={"precision": "bf16"}), level=0.22)
    hostile(root / "hostile")
    return collect([root, *RESULTS.glob("cifar100-lt100-*")])


@pytest.fixture(scope="module")
def address(collection: Collection, tmp_path_factory: pytest.TempPathFactory) -> str:
    return write(collection, tmp_path_factory.mktemp("report")).page.as_uri()


@pytest.fixture
def visit(pages: Pages, address: str) -> Iterator[Any]:
    """Open the page; at the end it must have said nothing on the console and asked for nothing but itself."""
    opened = []

    def go(**options: Any) -> Opened:
        said: list[str] = []
        asked: list[str] = []
        listeners = {
            "console": lambda message: said.append(message.text),
            "pageerror": lambda error: said.append(str(error)),
            "request": lambda request: asked.append(request.url),
        }
        visit = Opened(pages.open(listeners, **({"viewport": WIDE} | options)), said, asked)
        visit.page.goto(address)
        opened.append(visit)
        return visit

    yield go
    for visit in opened:
        assert visit.said == []
        assert {url.split("#")[0] for url in visit.asked if not url.startswith("data:image/svg+xml,")} == {address}
        pages.close(visit.page)


def table_of(page: Any, dataset: str = "CIFAR-100") -> Any:
    return page.locator(f'#table1 [aria-label$="{dataset}"] table')


def names(table: Any) -> list[str]:
    found: list[str] = table.locator("tbody:not(.fixed) tr > th").all_inner_texts()
    return found


def test_sorting_by_click(visit: Any) -> None:
    table = table_of(visit().page)
    before = names(table)
    heading = table.locator("thead th").nth(3)
    assert heading.inner_text().startswith("memory 5000")
    assert heading.get_attribute("aria-sort") == "none"
    heading.get_by_role("button").click()
    assert heading.get_attribute("aria-sort") == "descending"
    assert names(table)[:4] == ["afs", "er-rv", "mir", "er"]
    assert sorted(names(table)) == sorted(before)
    heading.get_by_role("button").click()
    assert heading.get_attribute("aria-sort") == "ascending"
    assert names(table)[:4] == ["er", "mir", "er-rv", "afs"]  # what was not measured stays last
    first = table.locator("thead th").first
    first.get_by_role("button").click()
    assert names(table) == sorted(before)
    assert (first.get_attribute("aria-sort"), heading.get_attribute("aria-sort")) == ("ascending", "none")
    assert table.locator("tbody.fixed th").all_inner_texts() == ["fine-tune"]  # the other bound was not measured


def test_long_tails_are_sorted_and_opened_like_the_others(visit: Any, collection: Collection) -> None:
    group = groups(collection.longtail)[0]
    means = {NAMES[cell.config.variant]: value.mean for cell in group if (value := cell.value("overall"))}
    page = visit().page
    table = page.locator("#longtail table.sortable").first
    heading = table.locator("thead th", has_text="overall")
    heading.get_by_role("button").click()
    assert set(means) == set(NAMES.values())
    assert names(table) == sorted(means, key=lambda name: means[name], reverse=True)
    assert table.evaluate("table => table.scrollWidth <= table.parentElement.clientWidth")  # no column is out of sight
    table.get_by_role("link", name="OLTR", exact=True).click()
    dialog = page.locator("#detail")
    assert dialog.locator("h3").inner_text().startswith("OLTR on CIFAR-100, long-tailed")
    command = "ocil longtail run oltr --dataset cifar100 --set precision=bf16 --seeds 3"
    assert dialog.locator("code").first.inner_text() == command
    assert dialog.locator("table.runs tbody tr").count() == 3
    (folder,) = (cell.config.cell for cell in group if cell.config.variant == "oltr")
    assert f"{folder}/seed-2" in dialog.locator("table.runs").inner_text()


def test_sorting_by_keyboard(visit: Any) -> None:
    page = visit().page
    table = page.locator("#cells table.sortable")
    button = table.get_by_role("button", name="forgetting %")
    button.focus()
    page.keyboard.press("Enter")
    heading = table.locator("thead th", has_text="forgetting %")
    assert heading.get_attribute("aria-sort") == "ascending"

    def values() -> list[float]:
        texts = table.locator("tbody tr td:nth-child(9)").evaluate_all("cells => cells.map(c => c.dataset.sort)")
        return [float(text) for text in texts if text]

    assert values() == sorted(values())
    page.keyboard.press("Space")
    assert heading.get_attribute("aria-sort") == "descending"
    assert values() == sorted(values(), reverse=True)


def test_a_number_opens_its_runs_settings_and_command(visit: Any, collection: Collection) -> None:
    page = visit(permissions=["clipboard-read", "clipboard-write"]).page
    (cell,) = (cell for cell in collection.cells if cell.config.label == "er-rv")
    row = table_of(page).locator("tbody tr", has=page.get_by_role("rowheader", name="er-rv", exact=True))
    row.locator("a.value").click()
    dialog = page.get_by_role("dialog")
    assert dialog.is_visible()
    assert dialog.locator("code").inner_text() == cell.command
    assert "review\ntrue" in dialog.locator("dl").first.inner_text()
    assert dialog.locator("table.runs tbody tr").count() == len(cell.runs) == 3
    assert "a device" in dialog.locator("table.runs").inner_text()
    assert "ocil 0.1.0" in dialog.locator("table.runs").inner_text()
    settings = dialog.locator("details.all")
    assert not settings.locator("dl").is_visible()
    settings.locator("summary").click()
    assert settings.locator("dl").is_visible()
    assert "memory_batch" in settings.inner_text()
    dialog.get_by_role("button", name="Copy").click()
    until(page, "document.querySelector('dialog .copy').textContent === 'Copied'")
    assert page.evaluate("navigator.clipboard.readText()") == cell.command
    page.keyboard.press("Escape")
    assert not dialog.is_visible()


def test_cells_open_with_their_own_command(visit: Any, collection: Collection) -> None:
    page = visit().page
    links = page.locator("#cells table.sortable a[data-cell]")
    assert links.count() == len(collection.cells)
    for number in (0, 4, len(collection.cells) - 1):  # the last has a hostile name
        cell = collection.cells[number]
        links.nth(number).focus()
        page.keyboard.press("Enter")
        assert page.locator("dialog code").inner_text() == " ".join(cell.command.split())
        page.get_by_role("button", name="Close").click()


def test_a_forgetting_of_table_2_is_in_what_it_opens(visit: Any) -> None:
    page = visit().page
    row = page.locator('#table2 [aria-label*="CIFAR-100"] tbody tr', has_text="Baseline + FL + VKD")
    link = row.locator("a.value").nth(1)
    number = link.inner_text()
    link.click()
    assert f"forgetting over all T tasks {number} %" in page.get_by_role("dialog").inner_text()


def test_every_cell_is_in_view_at_its_length_and_width(visit: Any) -> None:
    page = visit(viewport={"width": 1400, "height": 500}).page
    page.locator("#cells table.sortable tbody tr").last.scroll_into_view_if_needed()
    for heading in page.locator("#cells table.sortable thead th").all():
        box = heading.bounding_box()
        assert 0 <= box["x"] <= box["x"] + box["width"] <= 1400
        assert 0 <= box["y"] < 50  # it stays in view
    assert page.evaluate("document.documentElement.scrollWidth") <= 1400


def test_what_reaches_beyond_the_screen_has_a_shadow(visit: Any) -> None:
    page = visit(viewport=PHONE).page
    figure = page.locator("figure:visible .scroll").first
    assert figure.evaluate("box => box.scrollWidth > box.clientWidth")
    figure.scroll_into_view_if_needed()
    box = figure.bounding_box()
    edge = {"x": box["x"] + box["width"] - 6, "y": box["y"], "width": 6, "height": 6}
    shaded = page.screenshot(clip=edge)
    figure.evaluate("box => box.scrollTo(box.scrollWidth, 0)")
    assert page.screenshot(clip=edge) != shaded  # at the end there is nothing more to see


def background(page: Any) -> float:
    red: str = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return float(red.removeprefix("rgb(").split(",")[0])


def brightness(figure: Any) -> float:
    """The median over all pixels as they are shown, which is that of the background."""
    return float(np.median(np.asarray(Image.open(io.BytesIO(figure.screenshot())).convert("L"))))


def test_light_and_dark(visit: Any) -> None:
    page = visit(color_scheme="light").page
    assert background(page) > 200
    figure = page.locator("figure:visible img").first
    light = brightness(figure)
    assert light > 200
    page.get_by_role("button", name="Switch between light and dark").click()
    assert background(page) < 60
    assert brightness(figure) < 60
    page.reload()
    assert background(page) < 60  # it is kept
    page.get_by_role("button", name="Switch between light and dark").click()
    assert background(page) > 200
    assert brightness(figure) == light
    dark = visit(color_scheme="dark").page
    assert background(dark) < 60
    assert brightness(dark.locator("figure:visible img").first) < 60


@pytest.mark.parametrize("width", [400, 900, 1400])
def test_headings_are_whole_words_and_nothing_overflows(visit: Any, width: int) -> None:
    page = visit(viewport={"width": width, "height": 900}).page
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    cut = page.evaluate("""() => [...document.querySelectorAll("h1, h2, thead th")].filter((heading) => {
      const style = getComputedStyle(heading), pen = document.createElement("canvas").getContext("2d");
      pen.font = style.font;
      const room = heading.getBoundingClientRect().width;
      return room && heading.textContent.trim().split(/\\s+/).some((word) => pen.measureText(word).width > room + 1);
    }).map((heading) => heading.textContent)""")
    assert cut == []


def test_on_a_phone_names_of_rows_break_between_words_only(tmp_path: Path, pages: Pages) -> None:
    for settings in ({}, {"memory_batch": 20}, {"optimizer": "adamw", "momentum": 0.0}):
        save(tmp_path, resolve("er", "cifar100", settings=settings), level=0.2)
    written = write(collect([tmp_path]), tmp_path / "report").page
    page = pages.open({}, viewport={"width": 390, "height": 844})
    page.goto(written.as_uri())
    pieces, broken = page.evaluate("""() => {
      const pieces = [], broken = [];
      for (const name of document.querySelectorAll("tbody th")) {
        const texts = document.createTreeWalker(name, NodeFilter.SHOW_TEXT);
        while (texts.nextNode()) for (const found of texts.currentNode.data.matchAll(/[^\\s-]+/g)) {
          const range = document.createRange();
          range.setStart(texts.currentNode, found.index);
          range.setEnd(texts.currentNode, found.index + found[0].length);
          const lines = new Set([...range.getClientRects()].map((box) => box.top));
          if (lines.size) pieces.push(found[0]);
          if (lines.size > 1) broken.push(found[0]);
        }
      }
      return [pieces, broken];
    }""")
    pages.close(page)
    assert {"memory_", "batch=", "20", "optimizer=", "adamw"} <= set(pieces)
    assert broken == []


@pytest.mark.parametrize(("width", "height"), [(390, 844), (900, 900), (1400, 900)])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_first_screen_answers_with_words_and_a_figure(visit: Any, width: int, height: int, scheme: str) -> None:
    page = visit(viewport={"width": width, "height": height}, color_scheme=scheme).page
    answers = page.locator("#standings .headline")
    box = answers.bounding_box()
    assert box["y"] + box["height"] < height
    questions = answers.locator("dt").all_inner_texts()
    assert questions == ["Who", "By how much", "At what cost"]
    (figure,) = page.locator("#standings figure svg").filter(visible=True).all()
    assert figure.get_attribute("role") == "img"
    assert "afs" in figure.get_attribute("aria-label")
    box = figure.bounding_box()
    assert 0 <= box["x"] <= box["x"] + box["width"] <= width
    assert box["y"] + 0.6 * box["height"] < height  # the leaders are in its upper part
    size = figure.locator(".label").first.evaluate(
        "label => label.getScreenCTM().a * parseFloat(getComputedStyle(label).fontSize)"
    )
    assert size > 10.5  # readable
    leader = page.locator(".point.leader circle").filter(visible=True)
    ink, paper = (
        leader.evaluate(f"dot => getComputedStyle({of}).{name}")
        for of, name in (("dot", "fill"), ("document.body", "backgroundColor"))
    )
    assert ink != paper
    boxes = [label.bounding_box() for label in figure.locator(".label").all()]
    assert not [(a, b) for i, a in enumerate(boxes) for b in boxes[:i] if overlapping(a, b)]


def overlapping(one: dict[str, float], other: dict[str, float]) -> bool:
    """By more than the space around letters."""
    ways = (("x", "width"), ("y", "height"))
    shared = [min(one[at] + one[by], other[at] + other[by]) - max(one[at], other[at]) for at, by in ways]
    return min(shared) > 3


def test_what_is_folded_away_opens_by_keyboard(visit: Any) -> None:
    page = visit().page
    folded = page.locator("#table1 details.empty", has_text="not measured").first
    summary = folded.locator("summary")
    summary.focus()
    page.keyboard.press("Enter")
    assert folded.locator("table").is_visible()
    assert "gss" in folded.inner_text()
    page.locator("#standings .scroll").first.focus()  # a table that scrolls can be reached
    assert page.evaluate("document.activeElement.getAttribute('aria-label')") == "Standings"


@pytest.mark.parametrize("width", [320, 600])
def test_a_narrow_window_scrolls_inside_tables_only(visit: Any, width: int) -> None:
    page = visit(viewport=PHONE | {"width": width}, has_touch=True).page
    wide = "document.documentElement.scrollWidth"
    assert page.evaluate(wide) <= width
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert page.evaluate(wide) <= width
    assert page.evaluate("Math.max(...[...document.querySelectorAll('.scroll')].map(s => s.scrollWidth))") > width
    page.evaluate("scrollTo(500, 0)")
    assert page.evaluate("scrollX") == 0
    page.locator("#cells a[data-cell]").first.tap()
    dialog = page.get_by_role("dialog").bounding_box()
    assert dialog["width"] <= width
    assert page.evaluate("document.querySelector('dialog').scrollWidth") <= width


def test_it_can_be_read_without_scripts(visit: Any, collection: Collection) -> None:
    page = visit(java_script_enabled=False).page
    assert page.locator("thead button").count() == 0
    assert not page.locator("#theme").is_visible()
    assert not page.locator(".copy").first.is_visible()
    details = page.locator("details.cell")
    assert details.count() == len(collection.cells) + len(collection.longtail)
    details.first.locator("summary").first.click()
    assert details.first.locator("code").inner_text() == collection.cells[0].command
    assert page.locator("figure img").first.is_visible()


def test_figures_have_size_names_and_captions(visit: Any) -> None:
    page = visit().page
    page.get_by_role("group", name="Figures of").get_by_text("all").click()
    figures = page.locator(".figures figure")
    assert figures.count() >= 9
    for number in range(figures.count()):
        figure = figures.nth(number)
        assert figure.locator("h3").inner_text()
        assert figure.locator("figcaption").inner_text()
        image = figure.get_by_role("img", name=figure.locator("h3").inner_text(), exact=True)
        image.scroll_into_view_if_needed()  # which loads it
        image.evaluate("image => image.decode()")
        assert image.evaluate("image => image.complete && image.naturalWidth") > 300  # it could be read
        box = image.bounding_box()
        assert box["width"] > 300
        assert box["height"] > 100


def test_nothing_hostile_runs(visit: Any) -> None:
    page = visit(alone=True).page
    alerts: list[str] = []
    page.on("dialog", lambda dialog: (alerts.append(dialog.message), dialog.dismiss()))
    page.reload()
    assert "<script>alert(1)" in page.locator("#cells").inner_text()
    assert alerts == []
    assert page.locator("script").count() == 1


def test_figures_of_one_dataset_and_memory_at_a_time(visit: Any) -> None:
    page = visit().page
    chips, figures = page.get_by_role("group", name="Figures of"), page.locator(".figures figure")
    everything = figures.count()
    assert figures.filter(visible=True).count() < everything
    first = chips.locator("[aria-pressed=true]").inner_text()
    assert page.locator(".figures figure:visible h3", has_text=first).count() > 0
    other = chips.locator("button[data-dataset=cifar10]").first
    other.click()
    assert chips.locator("[aria-pressed=true]").all_inner_texts() == [other.inner_text()]
    shown = page.locator(".figures figure:visible h3").all_inner_texts()
    assert any(title.endswith("CIFAR-10") for title in shown)
    assert not any("CIFAR-100" in title for title in shown)
    assert any("focal" in title for title in shown)  # of no dataset: always there
    chips.locator("button").last.click()
    assert figures.filter(visible=True).count() == everything
    assert visit(java_script_enabled=False).page.locator(".figures figure:visible").count() == everything


def test_a_link_to_a_figure_that_is_not_chosen_shows_it(visit: Any) -> None:
    page = visit().page
    hidden = page.locator("figure[hidden]").first.get_attribute("id")
    assert hidden is not None
    page.evaluate(f"location.hash = '#{hidden}'")
    page.locator(f"#{hidden}").wait_for(state="visible")


def test_the_pictures_of_the_docs_are_taken(browser: Any, address: str, tmp_path: Path) -> None:
    """tools/screenshots.py takes them of all results, which would take a minute."""
    made = runpy.run_path(str(RESULTS.parent / "tools/screenshots.py"), run_name="screenshots")
    page, out = Path(address.removeprefix("file://")), tmp_path / "both.png"
    made["picture"](browser, page, page, out)
    with Image.open(out) as picture, Image.open(RESULTS.parent / "docs/images/report.png") as shown:
        assert picture.size == shown.size
        gray = np.asarray(picture.convert("L"))
    assert gray[5, 5] > 200  # light on the left, dark on the right
    assert gray[5, -5] < 60
