"""What a browser shows: the page to try the model on, the one to label on, the description of all requests, and the
list of several models.
"""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response
from jinja2 import Environment, FileSystemLoader

FILES = Path(__file__).parent / "page"
PAGE_FILES = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/shared.js": ("shared.js", "text/javascript; charset=utf-8"),
    "/label": ("label.html", "text/html; charset=utf-8"),
    "/label.css": ("label.css", "text/css; charset=utf-8"),
    "/label.js": ("label.js", "text/javascript; charset=utf-8"),
}
MODELS_FILES = {
    **{path: PAGE_FILES[path] for path in ("/page.css", "/shared.js")},
    "/": ("models.html", "text/html; charset=utf-8"),
    "/page.js": ("models.js", "text/javascript; charset=utf-8"),
}
"""Of the page that lists several models. Its paths are among those of the pages of one model."""


def add_pages(app: FastAPI) -> None:
    """Add the pages at ``/`` and ``/label`` with their files, and ``/docs``."""
    templates = _templates()
    _add_files(app, PAGE_FILES, templates)
    app.add_route("/docs", _docs(app, templates), methods=["GET"], include_in_schema=False)


def add_models_page(app: FastAPI) -> None:
    """Add the page at ``/`` that lists the models of ``/models``, with its files."""
    _add_files(app, MODELS_FILES, _templates())


@cache  # with what it has compiled: several apps may live in one process
def _templates() -> Environment:
    templates = Environment(
        loader=FileSystemLoader(FILES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    templates.filters["pretty"] = lambda value: json.dumps(value, indent=2, ensure_ascii=False)
    return templates


def _add_files(app: FastAPI, files: Mapping[str, tuple[str, str]], templates: Environment) -> None:
    for path, (name, kind) in files.items():
        content = templates.get_template(name).render() if name.endswith(".html") else (FILES / name).read_text("utf-8")
        app.add_route(path, _sent(content, kind), methods=["GET"], include_in_schema=False)


def _sent(content: str, kind: str) -> Any:
    async def send(_: Request) -> Response:
        return Response(content, media_type=kind)

    return send


def _docs(app: FastAPI, templates: Environment) -> Any:
    """The OpenAPI description as a page of our own: the usual ones load scripts from elsewhere."""
    template = templates.get_template("docs.html")

    async def send(_: Request) -> Response:
        return Response(template.render(api=app.openapi()), media_type="text/html; charset=utf-8")

    return send
