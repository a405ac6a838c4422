"""The documentation as a site: built strictly, read and searched in a browser, from files."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import ocil
from tests.browsing import needs_browser

ROOT = Path(__file__).parents[1]
WIDTHS = {"phone": 390, "desktop": 1280}
SOME = ("index", "start", "results", "reference/runs", "notebooks/streams", "methods/afs")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Strict: a link to a page, a file or a heading that is not there ends it, and so does a page outside the menu."""
    for package in ("mkdocs", "material", "mkdocstrings"):
        pytest.importorskip(package, reason=f"{package} is not installed: pip install 'ocil[docs]'")
    folder = tmp_path_factory.mktemp("docs") / "site"
    words = (sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder))  # --quiet is never strict
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)
    assert built.returncode == 0, built.stderr
    return folder


def test_what_lies_outside_the_folder_of_pages_is_there(site: Path) -> None:
    for name in ("CHANGELOG.html", "results/index.html", "examples/folder.html", "notebooks/streams.html"):
        assert (site / name).is_file(), name
    assert "data:image/png" in (site / "notebooks/streams.html").read_text()


def test_no_page_fetches_anything_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        fetched = re.findall(r'(?:src|<link[^>]*rel="stylesheet"[^>]*href)="(https?:[^"]+)"', page.read_text())
        assert not fetched, f"{page.name} fetches {fetched}"


def test_the_reference_has_every_public_name(site: Path) -> None:
    shown = "".join(page.read_text() for page in (site / "reference").glob("*.html"))
    missing = [name for name in ocil.__all__ if f">{name}<" not in shown]
    assert not missing


@needs_browser()
@pytest.mark.parametrize("width", WIDTHS)
def test_pages_are_as_wide_as_the_screen(site: Path, browser: Any, width: str) -> None:
    page = browser.new_page(viewport={"width": WIDTHS[width], "height": 800})
    for name in SOME:
        page.goto((site / f"{name}.html").as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= WIDTHS[width], name
    page.close()


@needs_browser()
def test_the_search_works_without_a_server(site: Path, browser: Any) -> None:
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.goto((site / "tutorials/photos.html").as_uri())
    page.click("input.md-search__input")
    page.keyboard.type("intransigence")
    result = page.locator(".md-search-result__link").first
    result.wait_for(timeout=60_000)
    result.click()
    page.wait_for_url(re.compile("intransigence"), timeout=60_000)  # the word is marked on the page
    page.close()
