"""Which requests are let through, and the headers and metrics of every answer."""

import hmac
import time

from fastapi.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ocil.serve.metrics import Metrics
from ocil.serve.pages import PAGE_FILES

PUBLIC = (*PAGE_FILES, "/docs", "/openapi.json")
"""Nothing in these comes from the model: they need no token, and other sites may link to them."""
LINKED = ("/status", "/metrics")
"""Other sites may link to these too: their pages cannot read what the browser then shows."""
PATHS = (*PUBLIC, "/learn", "/predict", "/status", "/memory", "/metrics")
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
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


def refusal(status: int, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"detail": message}, status, headers)


class Guard:
    """ASGI middleware: it refuses requests for other hosts, from pages of other sites, or without the token."""

    def __init__(self, app: ASGIApp, metrics: Metrics, token: str | None, hosts: tuple[str, ...] | None) -> None:
        """``hosts``: names that a request may call this service by; None: any."""
        self.app, self.metrics, self.hosts = app, metrics, hosts
        self.token = None if token is None else token.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started, status = time.monotonic(), 500

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                had = {name.lower() for name, _ in message["headers"]}
                more = [(name.encode(), value.encode()) for name, value in HEADERS.items() if name.encode() not in had]
                if status >= 400 and scope["method"] in ("POST", "PUT"):  # its body may go on for ever
                    more.append((b"connection", b"close"))
                message["headers"] = [*message["headers"], *more]
            await send(message)

        try:
            await (self._refused(scope) or self.app)(scope, receive, sending)
        finally:
            path = scope["path"] if scope["path"] in PATHS else "other"
            self.metrics.request_seconds.labels(path).observe(time.monotonic() - started)
            self.metrics.requests.labels(path, str(status)).inc()

    def _refused(self, scope: Scope) -> Response | None:
        """The answer to a request that is refused; None if it may pass."""
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get(b"host", "")
        if self.hosts is not None and _without_port(host) not in self.hosts:  # a name that leads here (DNS rebinding)
            names = ", ".join(self.hosts)
            return refusal(403, f"this service is called {names}: use that, or start it with --allow-host.")
        if scope["path"] not in PUBLIC and _is_foreign(headers, host) and not _is_link(scope, headers):
            return refusal(403, "requests from the pages of another site are refused.")
        if self.token is not None and scope["path"] not in PUBLIC:
            kind, _, given = headers.get(b"authorization", "").partition(" ")
            right = hmac.compare_digest(given.strip().encode(), self.token)
            if kind.lower() != "bearer" or not right:
                return refusal(401, "send the token: Authorization: Bearer TOKEN.", {"www-authenticate": "Bearer"})
        return None


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
