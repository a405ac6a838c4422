"""What a browser shows: the page to try the model on, the one to label on, and the description of all requests."""

import json
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


def add_pages(app: FastAPI) -> None:
    """Add the pages at ``/`` and ``/label`` with their files, and ``/docs``."""
    templates = Environment(
        loader=FileSystemLoader(FILES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    templates.filters["pretty"] = lambda value: json.dumps(value, indent=2, ensure_ascii=False)
    for path, (name, kind) in PAGE_FILES.items():
        content = templates.get_template(name).render() if name.endswith(".html") else (FILES / name).read_text("utf-8")
        app.add_route(path, _sent(content, kind), methods=["GET"], include_in_schema=False)
    app.add_route("/docs", _docs(app, templates), methods=["GET"], include_in_schema=False)


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
