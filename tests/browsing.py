"""Chromium for the tests of pages, where it is."""

import importlib.util
import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest

BROWSER = shutil.which("chromium")


def needs_browser(*packages: str) -> pytest.MarkDecorator:
    """Skip where something is missing, with the reason; an error where OCIL_NO_SKIP says that it must be there."""
    wanted = ("playwright", *packages)
    missing = next((f"{name} is not installed" for name in wanted if importlib.util.find_spec(name) is None), None)
    missing = missing or (None if BROWSER else "there is no chromium")
    if missing and "playwright" in os.environ.get("OCIL_NO_SKIP", ""):
        raise RuntimeError(f"OCIL_NO_SKIP names playwright: {missing}")
    return pytest.mark.skipif(missing is not None, reason=str(missing))


def launched() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        running = play.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"] if os.getuid() == 0 else [])
        yield running
        running.close()
