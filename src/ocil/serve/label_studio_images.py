"""Reads the images of Label Studio's tasks, from hosts that the operator allowed and from no others."""

import base64
import binascii
import http.client
import ipaddress
import json
import os
import socket
import ssl
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple
from urllib.parse import SplitResult, urljoin, urlsplit

import numpy as np
from numpy.typing import NDArray

from ocil.errors import OcilError
from ocil.online.images import ImageFormat
from ocil.serve.limits import Limits, RefusedError
from ocil.serve.pictures import decode

KEY = "LABEL_STUDIO_API_KEY"  # the name of a variable, as Label Studio's own tools call it
SECONDS = 10.0  # for one image, redirects and all
REDIRECTS = 3
CHUNK = 2**16
CACHED_BYTES = 64 * 2**20  # of decoded images and their addresses
CACHED_EACH = 2**10  # bytes that Python needs for one of them besides, rounded up
ACCESS_SECONDS = 240.0  # for which an access token is used: it is valid for five minutes
PORTS = {"http": 80, "https": 443}


class WebOrigin(NamedTuple):
    """A server that images may be read from."""

    scheme: str
    host: str
    port: int


class TaskImages:
    """Label Studio, and further hosts that its tasks may name.

    A name is resolved once per request, and the connection goes to the address that was checked. Only the hosts that
    the operator named are asked. One of them that leads to an internal address is refused, unless it did when the
    service started: then the operator meant a server of the own network. A redirect is treated as a new address.
    """

    def __init__(self, address: str, hosts: Iterable[str], limits: Limits) -> None:
        """``address``: of Label Studio. ``hosts``: names of further hosts, with a port or a scheme if need be."""
        parts = urlsplit(address)
        if parts.scheme not in PORTS or not parts.hostname or parts.username or parts.query:
            raise OcilError(f"{address} is no address of Label Studio: give one as http://localhost:8080.")
        self.address, self.limits = address.rstrip("/") + "/", limits
        self.studio = _origin(parts)
        self._internal = {self.studio: True}
        for host in hosts:
            for origin in _origins(host):
                self._internal[origin] = _is_internal_now(origin)
        self._key, self._access = os.environ.get(KEY, ""), ("", 0.0)
        self._given_key = ""
        self._lock = threading.Lock()
        self._cache: OrderedDict[str, NDArray[np.uint8]] = OrderedDict()
        self._cached = 0

    def offer_key(self, key: str) -> None:
        """A key that Label Studio sent itself. It is used if the operator gave none, and only to ask Label Studio."""
        self._given_key = key

    def image(self, address: str, form: ImageFormat) -> NDArray[np.uint8]:
        """The image at an address, in the model's format. ``RefusedError`` if it cannot be had."""
        with self._lock:
            if address in self._cache:
                self._cache.move_to_end(address)
                return self._cache[address]
        pixels = decode(self._content(address), form, self.limits, "the image of the task")
        with self._lock:
            if address not in self._cache and len(address) < 10_000:
                self._cache[address] = pixels
                self._cached += _cached_bytes(address, pixels)
            while self._cached > CACHED_BYTES:
                self._cached -= _cached_bytes(*self._cache.popitem(last=False))
        return pixels

    def _content(self, address: str) -> bytes:
        if address.startswith("data:"):
            return _inline(address, self.limits)
        url = urljoin(
            self.address, address[1:] if address.startswith("/") and not address.startswith("//") else address
        )
        end = time.monotonic() + SECONDS
        for _ in range(REDIRECTS + 1):
            status, location, content = self._get(url, end)
            if location is None:
                if status == 200:
                    return content
                hint = f": set {KEY}" if status in (401, 403) else ""
                raise RefusedError(422, f"the image of the task was answered with {status}{hint}.")
            url = urljoin(url, location)
        raise RefusedError(422, "the image of the task was redirected too often.")

    def _get(self, url: str, end: float) -> tuple[int, str | None, bytes]:
        parts = urlsplit(url)
        origin = self._allowed(parts)
        headers = {"accept": "*/*", "accept-encoding": "identity", "user-agent": "ocil"}
        if origin == self.studio:
            headers |= self._authorization(end)
        path = f"{parts.path or '/'}{'?' + parts.query if parts.query else ''}"
        return self._request(origin, "GET", path, headers, None, end)

    def _allowed(self, parts: SplitResult) -> WebOrigin:
        origin = _origin(parts) if parts.scheme in PORTS and parts.hostname and not parts.username else None
        if origin not in self._internal:
            raise RefusedError(422, "the image of the task is on a host that --label-studio-host does not name.")
        return origin

    def _authorization(self, end: float) -> dict[str, str]:
        key = self._key or self._given_key
        if not key:
            return {}
        if key.count(".") != 2:
            return {"authorization": f"Token {key}"}
        access, until = self._access  # a personal access token is exchanged for one of five minutes
        if time.monotonic() > until:
            body = json.dumps({"refresh": key}).encode()
            path = f"{urlsplit(self.address).path}api/token/refresh"
            headers = {"content-type": "application/json", "user-agent": "ocil"}
            status, _, content = self._request(self.studio, "POST", path, headers, body, end)
            try:
                access = str(json.loads(content)["access"])
            except (ValueError, KeyError, TypeError) as error:
                raise RefusedError(422, f"Label Studio does not take the token ({status}): check {KEY}.") from error
            self._access = access, time.monotonic() + ACCESS_SECONDS
        return {"authorization": f"Bearer {access}"}

    def _request(
        self, origin: WebOrigin, method: str, path: str, headers: dict[str, str], body: bytes | None, end: float
    ) -> tuple[int, str | None, bytes]:
        """Status, where it was redirected to, and content."""
        connection = http.client.HTTPConnection(origin.host, origin.port)
        try:
            connection.sock = connected = self._connect(origin, end)
            with _ended_at(end, connected):
                connection.request(method, path, body, headers)
                answer = connection.getresponse()
            location = answer.getheader("location") if 300 <= answer.status < 400 else None
            return answer.status, location, b"" if location else self._read(answer, connected, end)
        except (OSError, http.client.HTTPException, UnicodeError, ValueError) as error:
            raise RefusedError(422, f"the image of the task cannot be read: {type(error).__name__}.") from error
        finally:
            connection.close()

    def _connect(self, origin: WebOrigin, end: float) -> Any:
        """Open a connection to an address that was checked."""
        found = _addresses(origin)
        if not all(_is_fit(address, self._internal[origin]) for address in found):
            raise RefusedError(422, "the image of the task is on a host that leads to an internal address.")
        for address in found:
            try:
                connected = socket.create_connection((address, origin.port), timeout=_left(end))
                break
            except OSError:
                if address == found[-1]:
                    raise
        if origin.scheme == "http":
            return connected
        return ssl.create_default_context().wrap_socket(connected, server_hostname=origin.host)

    def _read(self, answer: http.client.HTTPResponse, connected: Any, end: float) -> bytes:
        chunks: list[bytes] = []
        most, total = self.limits.body_bytes, 0
        if answer.getheader("content-encoding", "identity") != "identity":
            raise RefusedError(422, "the image of the task is compressed once more, which was not asked for.")
        while True:
            if connected.fileno() >= 0:  # it is closed once the answer has all
                connected.settimeout(_left(end))
            chunk = answer.read1(CHUNK)
            if not chunk:
                return b"".join(chunks)
            total += len(chunk)
            if total > most:
                raise RefusedError(422, f"the image of the task has more than {most} bytes, which is the limit here.")
            chunks.append(chunk)


@contextmanager
def _ended_at(end: float, connected: socket.socket) -> Iterator[None]:
    """End a connection if the block takes longer. Its own time limit begins anew with each byte of a header."""
    timer = threading.Timer(_left(end), _shut_down, (connected,))
    timer.daemon = True
    timer.start()
    try:
        yield
    except (OSError, http.client.HTTPException):
        _left(end)  # raises if that is the reason
        raise
    finally:
        timer.cancel()


def _shut_down(connected: socket.socket) -> None:
    with suppress(OSError):  # it has ended
        socket.socket.shutdown(connected, socket.SHUT_RDWR)  # not that of ``ssl``, which is for the reading thread


def _cached_bytes(address: str, pixels: NDArray[np.uint8]) -> int:
    """What an image takes in memory. Its address may be far longer than the image, which may be tiny."""
    return CACHED_EACH + 4 * len(address) + pixels.nbytes


def _left(end: float) -> float:
    left = end - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _origin(parts: SplitResult) -> WebOrigin:
    try:
        return WebOrigin(parts.scheme, (parts.hostname or "").lower(), parts.port or PORTS[parts.scheme])
    except ValueError as error:
        raise RefusedError(422, "the address of the task's image has no valid port.") from error


def _origins(host: str) -> list[WebOrigin]:
    """What ``images.example.org``, ``images.example.org:8443`` or ``http://images.example.org`` allow."""
    parts = urlsplit(host if "://" in host else f"//{host}")
    try:
        port = parts.port
    except ValueError:
        port = 0
    bad = parts.scheme not in ("", *PORTS) or not parts.hostname or port == 0
    if bad or parts.path not in ("", "/") or parts.query or parts.username:
        raise OcilError(f"{host} is no host: give one as images.example.org or http://images.example.org:8000.")
    schemes = [parts.scheme] if parts.scheme else list(PORTS)
    return [WebOrigin(scheme, (parts.hostname or "").lower(), port or PORTS[scheme]) for scheme in schemes]


def _is_internal_now(origin: WebOrigin) -> bool:
    try:
        found = _addresses(origin)
    except (OSError, UnicodeError):
        return False
    return not any(_is_fit(address, False) for address in found)


def _addresses(origin: WebOrigin) -> list[str]:
    found = socket.getaddrinfo(origin.host, origin.port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(where[0]) for *_, where in found))


def _is_fit(address: str, internal: bool) -> bool:
    """Whether an address may be asked. Link-local ones never: there, clouds tell their machines' secrets."""
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        found = found.ipv4_mapped
    if found.is_link_local or found.is_multicast or found.is_unspecified:
        return False
    return internal or found.is_global


def _inline(address: str, limits: Limits) -> bytes:
    head, _, content = address.partition(",")
    if not head.endswith(";base64") or len(content) > limits.body_bytes * 4 // 3:
        raise RefusedError(422, "the image of the task is a data address that is not base64, or too long.")
    try:
        return base64.b64decode(content, validate=True)
    except (binascii.Error, ValueError) as error:
        raise RefusedError(422, "the image of the task is not base64.") from error
