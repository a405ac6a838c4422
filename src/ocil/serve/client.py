"""A client of ``ocil serve`` that needs the standard library alone.

    with Client("http://127.0.0.1:8000", token="...") as client:
        client.learn(["robin.jpg", "wren.jpg"], ["robin", "wren"])
        client.predict(["what.jpg"])[0]["label"]

A request that fails for a reason that passes (no connection, 429, 502, 503, 504) is sent again, after the time that the
service asks for. Every request that changes something carries an Idempotency-Key, so that it is done once however often
it is sent.
"""

import base64
import http.client
import json
import os
import random
import time
import urllib.parse
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

from ocil.errors import OcilError

PASSING = (429, 502, 503, 504)
LONGEST_PAUSE = 30.0


class ServiceError(OcilError):
    """The service refused a request. ``status`` is 0 if it could not be reached."""

    def __init__(self, status: int, message: str, request_id: str = "") -> None:
        super().__init__(f"{message} (request {request_id})" if request_id else message)
        self.status, self.request_id = status, request_id


class Client:
    """The requests of a service as methods. Use one per thread: it keeps a connection open."""

    def __init__(
        self, address: str, token: str | None = None, model: str | None = None, timeout: float = 60.0, retries: int = 5
    ) -> None:
        """``model``: one of several. ``timeout``: seconds without any byte. ``retries``: after the first attempt."""
        parts = urllib.parse.urlsplit(address if "//" in address else f"http://{address}")
        secure, self.timeout, self.retries = parts.scheme == "https", timeout, retries
        kind = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        self.connection = kind(parts.hostname or "", parts.port, timeout=timeout)
        self.path = parts.path.rstrip("/") + (f"/models/{urllib.parse.quote(model, safe='')}" if model else "")
        self.headers = {} if token is None else {"Authorization": f"Bearer {token}"}

    def learn(self, inputs: Any, labels: Iterable[str | int] | str | int, wait: bool = False, key: str = "") -> Any:
        """Learn images (paths or bytes of files) or vectors. ``wait``: until they are learned, not only on disk."""
        name, sent = _encoded(inputs)
        named = [labels] if isinstance(labels, str | int) else [_plain(label) for label in labels]
        if len(sent) != len(named):
            raise OcilError(f"there are {len(sent)} {name}s and {len(named)} labels: each {name} needs one.")
        samples = [{name: one, "label": label} for one, label in zip(sent, named, strict=True)]
        return self.ask("POST", "/learn", {"samples": samples}, {"wait": str(wait).lower()}, _key(key))

    def predict(self, inputs: Any, top: int = 5) -> Any:
        """One prediction per image or vector: ``label``, ``probability`` and the likeliest ``classes``."""
        name, sent = _encoded(inputs)
        return self.ask("POST", "/predict", {f"{name}s": sent}, {"top": top})["predictions"]

    def status(self) -> Any:
        return self.ask("GET", "/status")

    def sample(self, number: int) -> Any:
        return self.ask("GET", f"/samples/{number}")

    def samples(self, **wanted: Any) -> Any:
        """Search by ``label``, ``since``, ``until`` and ``limit``."""
        return self.ask("GET", "/samples", query=wanted)

    def correct(self, number: int, label: str | int) -> Any:
        return self.ask("PUT", f"/samples/{number}", {"label": label}, headers=_key())

    def forget(self, number: int) -> Any:
        return self.ask("DELETE", f"/samples/{number}", headers=_key())

    def review(self) -> Any:
        """Relearn from the memory; with a method that needs task ends, end a task."""
        return self.ask("POST", "/review", headers=_key())

    def versions(self) -> Any:
        return self.ask("GET", "/versions")

    def save_version(self, name: str) -> Any:
        return self.ask("POST", "/versions", {"name": name}, headers=_key())

    def restore(self, name: str, relearn: bool = False) -> Any:
        """Go back to a version. ``relearn``: learn again what came after it."""
        path = f"/versions/{urllib.parse.quote(name, safe='')}/restore"
        return self.ask("POST", path, {"relearn": relearn}, headers=_key())

    def pin(self, name: str | None) -> Any:
        """Predict by this version while learning goes on; None: by the newest step again."""
        return self.ask("PUT", "/versions/pinned", {"name": name}, headers=_key())

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        query: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Any:
        """The JSON answer to a request, which must be safe to send twice."""
        words = urllib.parse.urlencode({name: value for name, value in (query or {}).items() if value is not None})
        content = None if body is None else json.dumps(body).encode()
        sent = self.headers | dict(headers or {}) | ({} if content is None else {"Content-Type": "application/json"})
        attempt = 0
        while True:
            try:
                self.connection.request(method, f"{self.path}{path}{'?' * bool(words)}{words}", content, sent)
                answer = self.connection.getresponse()
                status, found, pause = answer.status, answer.read(), answer.headers.get("Retry-After", "")
                problem = None if status < 400 else _problem(status, found)
            except (OSError, http.client.HTTPException) as error:
                self.connection.close()
                status, pause = 0, ""
                place = f"{self.connection.host}:{self.connection.port}"
                problem = ServiceError(0, f"no answer from {place}: {error or type(error).__name__}.")
            if problem is None:
                return json.loads(found) if found else None
            if attempt >= self.retries or status not in (0, *PASSING):
                raise problem
            backoff = random.uniform(0.5, 1) * 0.2 * 2**attempt
            attempt += 1
            time.sleep(min(LONGEST_PAUSE, float(pause) if pause.isdecimal() else backoff))

    def close(self) -> None:
        self.connection.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _key(given: str = "") -> dict[str, str]:
    """The header by which the service knows a request that comes again."""
    return {"Idempotency-Key": given or uuid.uuid4().hex}


def _encoded(inputs: Any) -> tuple[str, list[Any]]:
    """The name of inputs in JSON, and their form there."""
    inputs = [inputs] if isinstance(inputs, str | bytes | os.PathLike) else list(inputs)
    if all(isinstance(one, str | bytes | os.PathLike) for one in inputs):
        return "image", [base64.b64encode(_content(one)).decode() for one in inputs]
    return "vector", [one.tolist() if hasattr(one, "tolist") else list(one) for one in inputs]


def _plain(label: Any) -> Any:
    """A label as JSON has it, where it comes from an array of numpy."""
    return label.item() if hasattr(label, "item") else label


def _content(image: Any) -> bytes:
    if isinstance(image, bytes):
        return image
    try:
        with open(image, "rb") as file:  # noqa: PTH123 # any kind of path
            return file.read()
    except OSError as error:
        raise OcilError(f"cannot read {os.fspath(image)}: {error.strerror}. Give the file of an image.") from None


def _problem(status: int, content: bytes) -> ServiceError:
    try:
        found = json.loads(content)
        return ServiceError(status, str(found["detail"]), str(found.get("request_id", "")))
    except (ValueError, KeyError, TypeError, AttributeError):
        return ServiceError(status, f"the service answered {status}.")
