"""A socket, a server, and a clean stop."""

import errno
import ipaddress
import logging
import os
import signal
import socket
import stat
import warnings
from collections.abc import Callable
from pathlib import Path

import uvicorn

from ocil.errors import OcilError
from ocil.serve.app import LOOPBACK, create_app
from ocil.serve.service import Service

TOKEN = "OCIL_TOKEN"  # noqa: S105 # the name of a variable
SHORTEST_TOKEN = 16
CONNECTIONS = 512
STOP_SECONDS = 5


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_token(host: str, file: Path | None) -> str | None:
    """From the file, else from the environment. Without one, only this machine may ask."""
    token, source = os.environ.get(TOKEN, ""), TOKEN
    if file is not None:
        source = str(file)
        try:
            token = file.read_text().strip()
            if stat.S_IMODE(file.stat().st_mode) & 0o004:
                raise OcilError(f"{file} can be read by everybody: chmod 600 {file}")
        except (OSError, UnicodeDecodeError) as error:
            raise OcilError(f"the token file {file} cannot be read: {error}.") from None
    if not token and (file is not None or not is_loopback(host)):
        why = f"{file} is empty" if file is not None else f"{host} can be reached from elsewhere"
        raise OcilError(f"{why}: set a token in {TOKEN} or in the file of --token-file.")
    if token and (len(token) < SHORTEST_TOKEN or not token.isascii() or any(c.isspace() for c in token)):
        raise OcilError(
            f"the token in {source} must have at least {SHORTEST_TOKEN} characters, plain and without blanks."
        )
    return token or None


def listen(host: str, port: int) -> socket.socket:
    """A socket that is bound, so that a port in use is found before a model is loaded."""
    if not 0 <= port <= 65535:
        raise OcilError(f"--port {port} must lie between 0 and 65535.")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        found = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError) as error:
        raise OcilError(f"{host}:{port} is no address of this machine: {error}.") from None
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
    except OSError as error:
        found.close()
        taken = error.errno == errno.EADDRINUSE
        reason = "is in use: choose another one with --port" if taken else f"cannot be used: {error}"
        raise OcilError(f"port {port} of {host} {reason}.") from None
    return found


def address_of(bound: socket.socket, host: str) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{bound.getsockname()[1]}"


def serve(
    service: Service,
    bound: socket.socket,
    host: str,
    token: str | None,
    allowed: tuple[str, ...] = (),
    ready: Callable[[], None] = lambda: None,
) -> None:
    """Answer requests until SIGTERM or Ctrl-C; then take no more, learn what is in line, save."""
    warnings.filterwarnings("ignore", module=r"PIL\.")  # odd palettes and the like: no news to anybody
    hosts: tuple[str, ...] | None = None
    if is_loopback(host) or allowed:
        hosts = tuple(
            dict.fromkeys((*LOOPBACK, f"[{host}]" if ":" in host else host.lower(), *map(str.lower, allowed)))
        )
    app = create_app(service, token, hosts)
    config = uvicorn.Config(
        app, lifespan="off", log_config=None, access_log=False, server_header=False, proxy_headers=False, ws="none",
        limit_concurrency=CONNECTIONS, timeout_keep_alive=30, timeout_graceful_shutdown=STOP_SECONDS, http="h11",
    )  # fmt: skip
    logging.basicConfig(level=logging.WARNING, format="ocil: %(message)s")
    server = uvicorn.Server(config)
    # uvicorn raises the signal once more when it has stopped; saving comes after that.
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
    service.start()
    try:
        bound.listen(2048)
        ready()
        server.run(sockets=[bound])
        signal.signal(signal.SIGINT, signal.default_int_handler)  # from here on Ctrl-C stops at once
    finally:
        service.close(STOP_SECONDS)
        bound.close()
        for number, handler in before.items():
            signal.signal(number, handler)
