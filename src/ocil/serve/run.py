"""A socket, a server, and a clean stop."""

import asyncio
import errno
import ipaddress
import os
import signal
import socket
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn

from ocil.errors import OcilError
from ocil.serve import log_lines
from ocil.serve.app import create_app
from ocil.serve.audit import FILE, Audit
from ocil.serve.deadlines import REQUEST_SECONDS, Connection
from ocil.serve.guard import LOOPBACK
from ocil.serve.models import Models
from ocil.serve.service import Service
from ocil.serve.tokens import Access, refuse_readable

TOKEN = "OCIL_TOKEN"  # noqa: S105 # the name of a variable
SHORTEST_TOKEN = 16
CONNECTIONS = 512
STOP_SECONDS = 5
SEND_BUFFER = 2**17
"""Bytes that the system buffers for a client. By itself it buffers megabytes, which hide whether a client reads."""


class Server(uvicorn.Server):  # type: ignore[misc]
    """A server that ends all waiting before it stops, so that acknowledged samples are answered for."""

    def __init__(self, config: uvicorn.Config, *services: Service, drain_seconds: float = 0.0) -> None:
        """``drain_seconds``: how long requests are still taken after the signal to stop; probes see that it stops."""
        super().__init__(config)
        self.services, self.drain_seconds = services, drain_seconds

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End all waiting: uvicorn would answer these requests with an error though their samples are acknowledged.

        Requests that wait for the end of a step are refused after some time: their threads would keep the process from
        ending.
        """
        for service in self.services:
            service.draining = True
        until = time.monotonic() + self.drain_seconds
        while time.monotonic() < until and not self.force_exit:
            await asyncio.sleep(0.1)
        for service in self.services:
            service.trainer.end_waiting()
        refusal = asyncio.get_running_loop().call_later(STOP_SECONDS / 2, self._refuse_calls)
        await super().shutdown(sockets)
        refusal.cancel()
        self._refuse_calls()  # also those whose clients are gone

    def _refuse_calls(self) -> None:
        for service in self.services:
            service.trainer.refuse_calls()


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_token(host: str, file: Path | None, others: bool = False) -> str | None:
    """The token in the file, else in the environment; None if there is none, which only a loopback address allows.

    ``others``: there is a file of further tokens, so that none is needed here.
    """
    token, source = os.environ.get(TOKEN, ""), TOKEN
    if file is not None:
        source = str(file)
        try:
            token = file.read_text(encoding="utf-8").strip()
            refuse_readable(file)
        except (OSError, UnicodeDecodeError) as error:
            raise OcilError(f"the token file {file} cannot be read: {error}.") from None
    if not token and (file is not None or not (is_loopback(host) or others)):
        why = f"{file} is empty" if file is not None else f"{host} can be reached from elsewhere"
        raise OcilError(f"{why}: set a token in {TOKEN} or in the file of --token-file, or give --tokens.")
    if token and (len(token) < SHORTEST_TOKEN or not token.isascii() or any(c.isspace() for c in token)):
        raise OcilError(
            f"the token in {source} must have at least {SHORTEST_TOKEN} characters, plain and without blanks."
        )
    return token or None


def listen(host: str, port: int) -> socket.socket:
    """A bound socket. It is made before the model is loaded, so that a port in use is found early."""
    if not 0 <= port <= 65535:
        raise OcilError(f"--port {port} must lie between 0 and 65535.")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise OcilError(f"{host}:{port} is no address of this machine: {error}.") from None
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)  # its connections have it too
        found.bind(address)
    except OSError as error:
        found.close()
        taken = error.errno == errno.EADDRINUSE
        reason = "is in use: choose another one with --port" if taken else f"cannot be used: {error}"
        raise OcilError(f"port {port} of {host} {reason}.") from None
    return found


def address_of(bound: socket.socket, host: str) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{bound.getsockname()[1]}"


@dataclass(frozen=True)
class Settings:
    """How a process serves its models, whichever they are."""

    host: str = "127.0.0.1"
    allowed: tuple[str, ...] = ()
    """Further names that the service is reached by."""
    access: Access = field(default_factory=Access)
    drain_seconds: float = 0.0
    log_format: str = log_lines.TEXT
    log_requests: bool = False
    connections: int = CONNECTIONS
    """Connections at the same time."""

    @property
    def hosts(self) -> tuple[str, ...] | None:
        """Names that a request may call this service by; None: any."""
        if not is_loopback(self.host) and not self.allowed:
            return None
        host = f"[{self.host}]" if ":" in self.host else self.host.lower()
        return tuple(dict.fromkeys((*LOOPBACK, host, *map(str.lower, self.allowed))))


def serve(
    services: Service | Mapping[str, Service],
    bound: socket.socket,
    settings: Settings,
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Answer requests until SIGTERM or Ctrl-C; then refuse new ones, learn what is queued, and save.

    ``services``: one, or several by the names of their models, which then lie behind ``/models/NAME``.
    """
    warnings.filterwarnings("ignore", module=r"PIL\.")  # of odd palettes and the like, which the service cannot fix
    app: Any
    if isinstance(services, Service):
        audit = Audit(services.folder / FILE)
        app, all_of_them = create_app(services, settings.access, settings.hosts, audit), [services]
    else:
        app, all_of_them = Models(services, settings.access, settings.hosts, audited=True), list(services.values())
    config = uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=settings.connections,
        timeout_keep_alive=REQUEST_SECONDS,
        timeout_graceful_shutdown=STOP_SECONDS,
    )
    log_lines.set_up(settings.log_format, settings.log_requests)
    server = Server(config, *all_of_them, drain_seconds=settings.drain_seconds)
    # uvicorn raises the signal once more when it has stopped; saving comes after that.
    # One that comes before uvicorn listens to them stops it as soon as it has begun.
    before = {
        number: signal.signal(number, lambda *_: setattr(server, "should_exit", True))
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    try:
        for service in all_of_them:
            service.start()
        bound.listen(2048)
        ready()
        server.run(sockets=[bound])
        signal.signal(signal.SIGINT, signal.default_int_handler)  # from here on Ctrl-C stops at once
    finally:
        close_all(all_of_them)
        bound.close()
        for number, handler in before.items():
            signal.signal(number, handler)


def close_all(services: Sequence[Service]) -> None:
    """Close them at the same time: each may take some seconds to learn what waits."""
    if len(services) == 1:
        services[0].close(STOP_SECONDS)
        return
    with ThreadPoolExecutor(len(services), "ocil-close") as pool:
        for done in [pool.submit(service.close, STOP_SECONDS) for service in services]:
            done.result()
