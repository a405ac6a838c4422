"""Which requests are let through, and the headers, metrics, log and audit of every answer."""

import asyncio
import logging
import re
import secrets
import time
from dataclasses import dataclass, field
from typing import Any

from fastapi.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ocil.serve.audit import Audit
from ocil.serve.futures import stopping
from ocil.serve.health import HEALTH
from ocil.serve.limits import RefusedError
from ocil.serve.log_lines import REQUESTS
from ocil.serve.metrics import Metrics
from ocil.serve.pages import PAGE_FILES
from ocil.serve.tokens import NOBODY, Access, Token
from ocil.text import escaped

PUBLIC = (*PAGE_FILES, "/docs", "/openapi.json")
"""Nothing in these comes from the model: they need no token, and other sites may link to them."""
LINKED = ("/status", "/metrics")
"""Other sites may link to these too: their pages cannot read what the browser then shows."""
PATHS = (*PUBLIC, "/learn", "/predict", "/status", "/memory", "/metrics")
UNCHANGING = ("/predict", "/label-studio/predict", "/label-studio/setup")
"""Requests that send something and change nothing."""
WHOLE = "/backup"
"""It changes nothing and yet needs the scope ``write``: it gives away all that there is."""
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
ASKED = "ocil.asked"
REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}

logger = logging.getLogger(REQUESTS)


def refusal(
    status: int, message: str, headers: dict[str, str] | None = None, request_id: str | None = None
) -> JSONResponse:
    content = {"detail": message} | ({} if request_id is None else {"request_id": request_id})
    return JSONResponse(content, status, headers)


def refused(error: RefusedError, request_id: str | None = None) -> JSONResponse:
    headers = {} if error.retry_after is None else {"retry-after": str(error.retry_after)}
    if error.status == 401:
        headers["www-authenticate"] = "Bearer"
    return refusal(error.status, str(error), headers, request_id)


@dataclass
class Asked:
    """What is known of a request while it is answered. It lies in the request's scope."""

    request_id: str
    token: Token = NOBODY
    changed: dict[str, Any] = field(default_factory=dict)
    """What the request has changed, for the audit: the numbers of samples, a label, the name of a version."""


def asked(scope: Scope) -> Asked:
    """``asked(request.scope).changed`` is where a route writes down what it has changed."""
    found: Asked = scope.setdefault(ASKED, Asked(""))
    return found


class Guard:
    """ASGI middleware: it refuses requests for other hosts, from pages of other sites, or beyond a token's scope.

    Each request gets an identifier, which its answer, the log and the audit name.
    """

    def __init__(
        self,
        app: ASGIApp,
        metrics: Metrics,
        access: Access,
        hosts: tuple[str, ...] | None,
        model: str | None = None,
        audit: Audit | None = None,
    ) -> None:
        """``hosts``: names that a request may call this service by; None: any. ``model``: the name of its model."""
        self.app, self.metrics, self.access, self.hosts = app, metrics, access, hosts
        self.model, self.audit = model, audit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status, begun = time.monotonic(), 500, False
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        given = headers.get(b"x-request-id", "")
        scope[ASKED] = now = Asked(given if REQUEST_ID.fullmatch(given) else secrets.token_hex(8))

        async def sending(message: Message) -> None:
            nonlocal status, begun
            if message["type"] == "http.response.start":
                status, begun = message["status"], True
                had = {name.lower() for name, _ in message["headers"]}
                more = [(name.encode(), value.encode()) for name, value in HEADERS.items() if name.encode() not in had]
                more.append((b"x-request-id", now.request_id.encode()))
                if status >= 400 and scope["method"] in ("POST", "PUT"):  # its body may go on for ever
                    more.append((b"connection", b"close"))
                message["headers"] = [*message["headers"], *more]
                if status < 400 and self.audit is not None and changes(scope):
                    self.audit.write(self._who(scope, now) | now.changed)
            await send(message)

        try:
            await (self._refused(scope, headers, now) or self.app)(scope, receive, sending)
        except asyncio.CancelledError:  # uvicorn ends so what is not answered when the time to stop is over
            if begun:
                raise
            await refused(stopping(), now.request_id)(scope, receive, sending)
        finally:
            seconds, path = time.monotonic() - started, _route(scope)
            self.metrics.request_seconds.labels(path).observe(seconds)
            self.metrics.requests.labels(path, str(status)).inc()
            if logger.isEnabledFor(logging.INFO):
                fields = self._who(scope, now) | {"status": status, "ms": round(1000 * seconds, 1)}
                text = escaped(f"{scope['method']} {scope['path']}")
                logger.info("%s %d %.1f ms %s", text, status, 1000 * seconds, now.request_id, extra={"fields": fields})

    def _who(self, scope: Scope, now: Asked) -> dict[str, Any]:
        client = scope.get("client")
        who: dict[str, Any] = {"request_id": now.request_id, "token": now.token.name or None}
        who["client"] = client[0] if client else None
        if self.model is not None:
            who["model"] = self.model
        return who | {"method": scope["method"], "path": scope["path"]}

    def _refused(self, scope: Scope, headers: dict[bytes, str], now: Asked) -> Response | None:
        """The answer to a request that is refused; None if it may pass."""
        host, path = headers.get(b"host", ""), scope["path"]
        if path in HEALTH:
            return None
        try:
            # Another name that leads here would be DNS rebinding.
            if self.hosts is not None and _without_port(host) not in self.hosts:
                names = ", ".join(self.hosts)
                raise RefusedError(403, f"this service is called {names}: use that, or start it with --allow-host.")
            if path not in PUBLIC:
                if _is_foreign(headers, host) and not _is_link(scope, headers):
                    raise RefusedError(403, "requests from the pages of another site are refused.")
                given = headers.get(b"authorization", "")
                now.token = self.access.admit(given, changes(scope), self.model)
        except RefusedError as error:
            return refused(error, now.request_id)
        return None


def changes(scope: Scope) -> bool:
    """Whether a request may change a model: all but those that only read, and predictions. So counts a copy of all."""
    reads = scope["method"] in ("GET", "HEAD", "OPTIONS") and scope["path"] != WHOLE
    return not reads and scope["path"] not in UNCHANGING


def _route(scope: Scope) -> str:
    """The path of a request as the metrics name it, with names instead of numbers."""
    found: str | None = getattr(scope.get("route"), "path", None)
    return found or (scope["path"] if scope["path"] in PATHS else "other")


def _is_foreign(headers: dict[bytes, str], host: str) -> bool:
    """Whether the request comes from a page of another site."""
    origin = headers.get(b"origin")
    if origin is not None and origin.partition("://")[2].lower() != host.lower():
        return True
    return headers.get(b"sec-fetch-site", "none") not in ("none", "same-origin")


def _is_link(scope: Scope, headers: dict[bytes, str]) -> bool:
    """Whether the browser follows a link to a page that others may link to. Such a request has no origin."""
    opened = (headers.get(b"sec-fetch-mode"), headers.get(b"sec-fetch-dest")) == ("navigate", "document")
    return opened and scope["method"] == "GET" and scope["path"] in LINKED and b"origin" not in headers


def _without_port(host: str) -> str:
    name, colon, port = host.lower().rpartition(":")
    return name if colon and port.isdecimal() and not host.endswith("]") else host.lower()
