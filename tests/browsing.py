"""Chromium for the tests of pages, where it is."""

import os
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest

from tests.skipping import must_run

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
NO_BROWSER = "there is no chromium: apt-get install chromium, or brew install --cask chromium"


def needs_browser(*packages: str) -> pytest.MarkDecorator:
    """Skip where something is missing, with the reason; an error where OCIL_NO_SKIP says that it must be there."""
    if BROWSER is None and must_run("browser"):
        raise RuntimeError(f"OCIL_NO_SKIP names browser: {NO_BROWSER}")
    wanted = ("playwright", *packages)
    missing = [f"{name} is not installed: make test installs it" for name in wanted if not find_spec(name)]
    missing += [] if BROWSER else [NO_BROWSER]
    return pytest.mark.skipif(bool(missing), reason="".join(missing[:1]))


def launched() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        running = play.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"] if os.getuid() == 0 else [])
        yield running
        running.close()
