"""What a browser shows: the page to try the model on, the one to label on, and the description of all requests."""

import json
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import Response
from jinja2 import Environment

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
    for path, (name, kind) in PAGE_FILES.items():
        app.add_route(path, _file(FILES / name, kind), methods=["GET"], include_in_schema=False)
    app.add_route("/docs", _docs(app), methods=["GET"], include_in_schema=False)


def _file(path: Path, kind: str) -> Any:
    content = path.read_bytes()

    async def send(_: Request) -> Response:
        return Response(content, media_type=kind)

    return send


def _docs(app: FastAPI) -> Any:
    """The OpenAPI description as a page of our own: the usual ones load scripts from elsewhere."""
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["pretty"] = lambda value: json.dumps(value, indent=2, ensure_ascii=False)
    template = environment.from_string((FILES / "docs.html").read_text(encoding="utf-8"))

    async def send(_: Request) -> Response:
        return Response(template.render(api=app.openapi()), media_type="text/html; charset=utf-8")

    return send
