"""Chromium for the tests of pages, where it is."""

import os
import shutil
import subprocess
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.skipping import must_run

if TYPE_CHECKING:
    from ocil.serve.service import Service

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
NO_BROWSER = "there is no chromium: apt-get install chromium, or brew install --cask chromium"


AXE = "axe-core-4.14.0"
AXE_FOLDER = Path(__file__).parents[1] / ".npm"  # not in git


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


def axe_script() -> str:
    """The script of axe-core, which checks a page for readers with a keyboard or a screen reader. npm fetches it once;
    without npm or a network the test is skipped."""
    kept = AXE_FOLDER / f"{AXE}.js"
    if not kept.exists():
        npm = shutil.which("npm")
        if npm is None:
            pytest.skip("there is no npm to fetch axe-core with")
        with tempfile.TemporaryDirectory() as folder:
            package = AXE.replace("core-", "core@")
            command = [npm, "pack", package, "--silent", "--fetch-retries=0", "--pack-destination", folder]
            try:
                subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=60)
            except (subprocess.SubprocessError, OSError):
                pytest.skip(f"npm could not fetch {package}")
            with tarfile.open(Path(folder) / f"{AXE}.tgz") as packed:
                member = packed.extractfile("package/axe.min.js")
                assert member is not None
                text = member.read()
        AXE_FOLDER.mkdir(exist_ok=True)
        part = kept.with_suffix(f".{os.getpid()}")
        part.write_bytes(text)
        part.replace(kept)
    return kept.read_text()


def violations(page: Any, script: str, within: str = "html") -> list[str]:
    """What axe-core finds wrong with what the page shows: the rule and the first element of each."""
    page.evaluate(script)
    found = page.evaluate("within => axe.run(within, {resultTypes: ['violations']})", within)
    return [f"{each['id']}: {each['nodes'][0]['html'][:200]}" for each in found["violations"]]


def served(service: "Service", token: str | None = None) -> Iterator[str]:
    """A real server on a real port, in a thread."""
    from ocil.serve.app import create_app
    from ocil.serve.tokens import Access

    yield from served_app(create_app(service, Access(token)))


def served_app(app: Any) -> Iterator[str]:
    import uvicorn

    from ocil.serve.run import address_of, listen

    bound = listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_config=None, ws="none"))
    server.install_signal_handlers = lambda: None
    thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]}, daemon=True)
    thread.start()
    yield address_of(bound, "127.0.0.1")
    server.should_exit = True
    thread.join()
    bound.close()


class Pages:
    """Those that differ by their size and colours alone are used again: a new one takes a second of a core."""

    def __init__(self, browser: Any) -> None:
        self.browser, self.idle, self.shared = browser, list[Any](), list[Any]()
        self.listeners: dict[Any, Mapping[str, Any]] = {}

    def open(self, listeners: Mapping[str, Any], alone: bool = False, **options: Any) -> Any:
        """An empty page. ``alone``: of its own, for a test that gives it more than a size and colours."""
        if alone or not options.keys() <= {"viewport", "color_scheme"}:
            page = self.browser.new_context(**options).new_page()
        else:
            page = self._shared()
            page.set_viewport_size(options["viewport"])
            page.emulate_media(media="null", color_scheme=options.get("color_scheme", "light"))
        self.listeners[page] = listeners
        for event, listener in listeners.items():
            page.on(event, listener)
        return page

    def _shared(self) -> Any:
        if self.idle:
            return self.idle.pop()
        self.shared.append(self.browser.new_context().new_page())
        return self.shared[-1]

    def close(self, page: Any) -> None:
        listeners = self.listeners.pop(page)
        if page not in self.shared or page.is_closed():
            page.context.close()
            return
        for event, listener in listeners.items():
            page.remove_listener(event, listener)
        page.evaluate("[localStorage, sessionStorage].forEach((kept) => kept.clear())")
        page.context.clear_cookies()
        page.mouse.move(0, 0)
        page.goto("about:blank")
        self.idle.append(page)


def visits(pages: Pages) -> Iterator[Any]:
    """Open the page; at the end it must have said nothing on the console and asked nobody else."""
    opened = []

    def go(address: str, refused: str = "no status", **options: Any) -> Any:
        """``refused``: the status of an expected answer, which the browser logs by itself."""
        said: list[str] = []
        asked: list[str] = []
        listeners = {
            "console": lambda message: said.append(message.text),
            "pageerror": lambda error: said.append(str(error)),
            "dialog": lambda dialog: (said.append(f"dialog: {dialog.message}"), dialog.dismiss()),
            "request": lambda request: asked.append(request.url),
        }
        page = pages.open(listeners, **({"viewport": {"width": 1100, "height": 900}} | options))
        page.goto(address)
        opened.append((page, address, refused, said, asked))
        return page

    yield go
    for page, address, refused, said, asked in opened:
        pages.close(page)
        unexpected = [text for text in said if f"status of {refused}" not in text]
        assert not unexpected, unexpected
        assert {
            url for url in asked if not url.startswith(("/".join(address.split("/")[:3]), "data:", "blob:"))
        } == set()


def until(page: Any, condition: str | Callable[[], object]) -> None:
    """Asked from outside: the page's policy forbids to evaluate text inside it."""
    end = time.monotonic() + 300
    while not (page.evaluate(condition) if isinstance(condition, str) else condition()):
        assert time.monotonic() < end, condition
        page.wait_for_timeout(20)
