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
from uvicorn.protocols.http.h11_impl import H11Protocol

from ocil.errors import OcilError
from ocil.serve import logs
from ocil.serve.app import create_app
from ocil.serve.audit import FILE, Audit
from ocil.serve.guard import LOOPBACK
from ocil.serve.models import Models
from ocil.serve.service import Service
from ocil.serve.tokens import Access, refuse_readable

TOKEN = "OCIL_TOKEN"  # noqa: S105 # the name of a variable
SHORTEST_TOKEN = 16
CONNECTIONS = 512
STOP_SECONDS = 5
REQUEST_SECONDS = 30
"""Seconds that may pass from the beginning of a connection, or its last answer, to the end of a request's headers."""
ANSWER_SECONDS = 60
"""Seconds for which a client may read nothing of an answer that does not fit into the connection's buffers."""
WHOLE_ANSWER_SECONDS = 600
"""Seconds for which a client may read such an answer, however steadily it does."""
GATHERED_BYTES = 2**14
"""A part of an answer from this size on is sent at once."""
SEND_BUFFER = 2**17
"""Bytes that the system buffers for a client. By itself it buffers megabytes, which hide whether a client reads."""


class Gathering:
    """A transport that sends what is written in one step of the event loop at once: an answer's headers and its body.

    Each sending is a system call and a moment in which another thread takes Python's lock.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._written: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._written:
            self._loop.call_soon(self.flush)
        self._written.append(data)
        if len(data) >= GATHERED_BYTES:  # the client may be slow: that must be noticed now
            self.flush()

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size() + sum(map(len, self._written))

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def flush(self) -> None:
        written, self._written = self._written, []
        if written:
            self._transport.write(b"".join(written))


class Connection(H11Protocol):  # type: ignore[misc]
    """uvicorn's connection with deadlines, which also answers a client that closes its writing side after its request.

    Without deadlines it would wait for ever for headers that come slowly, or not at all, and for answers to be read: a
    few hundred clients that do that would keep out all others, and the answers would stay in memory.
    """

    _idle: asyncio.TimerHandle | None = None
    """Ends a connection on which no request begins."""
    _unread: asyncio.TimerHandle | None = None
    """Ends a connection whose client does not take its answer. It runs while the client is behind."""
    _unread_bytes = 0
    """What the client had not taken when this timer was started."""
    _answer_until: float | None = None
    """When an answer that the client was behind with must have been taken."""
    _half_closed = False
    """The client sends no more, but reads."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self.transport = Gathering(transport, self.loop)
        self._wait_for_request(self.cycle)

    def eof_received(self) -> bool:
        """True keeps the connection open, to answer requests that came whole."""
        self.transport.flush()
        answering = self.cycle is not None and not self.cycle.response_complete
        self._half_closed = answering and not self.cycle.more_body
        return self._half_closed

    def on_response_complete(self) -> None:
        answered = self.cycle
        super().on_response_complete()  # may begin the next request, if that has come already
        if self._half_closed and (self.cycle is answered or self.cycle.more_body):  # no whole one can come any more
            self.transport.close()
        if not self.flow.write_paused:
            self._answer_until = None
        self._wait_for_request(answered)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._answer_until is None:
            self._answer_until = self.loop.time() + WHOLE_ANSWER_SECONDS
        self._watch_unread(self._answer_until)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_unread()
        if self.cycle is None or self.cycle.response_complete:
            self._answer_until = None

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_unread()
        if self._idle is not None:
            self._idle.cancel()

    def _watch_unread(self, until: float) -> None:
        self._stop_unread()
        self._unread_bytes = self.transport.get_write_buffer_size()
        seconds = min(ANSWER_SECONDS, until - self.loop.time())
        self._unread = self.loop.call_later(seconds, self._end_unless_read, until)

    def _end_unless_read(self, until: float) -> None:
        """While a client is behind nothing is added to the buffer, so it shrinks if the client takes anything."""
        if self.transport.get_write_buffer_size() < self._unread_bytes and self.loop.time() < until:
            self._watch_unread(until)
        else:
            self.transport.abort()

    def _stop_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _wait_for_request(self, answered: Any) -> None:
        if self._idle is not None:
            self._idle.cancel()
        self._idle = self.loop.call_later(REQUEST_SECONDS, self._end_unless_asked, answered)

    def _end_unless_asked(self, answered: Any) -> None:
        if self.cycle is not answered:  # a request has begun since
            return
        if self.flow.write_paused:  # a long answer is being read: that has a deadline of its own
            self.transport.close()
        else:
            self.transport.abort()


class Server(uvicorn.Server):  # type: ignore[misc]
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
    log_format: str = logs.TEXT
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
    logs.set_up(settings.log_format, settings.log_requests)
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
