"""Who may ask for what: tokens with a scope, and how often each may ask.

A file of tokens holds their SHA-256, not the tokens: these are random numbers of 256 bits, which nobody finds from a
hash, so that no slow hash is needed. ``ocil token`` adds one and prints it once.
"""

import hashlib
import hmac
import json
import logging
import math
import re
import secrets
import stat
import threading
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ocil.errors import OcilError
from ocil.files import alone_at, write_bytes
from ocil.serve.limits import RefusedError

READ, WRITE = "read", "write"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
FIELDS = {"sha256": str, "scope": str, "models": list, "per_minute": int}
RELOAD_SECONDS = 1.0
WAIT_SECONDS = 10.0  # for another process that adds a token
BURST_SECONDS = 10.0  # a token may use up in one go what it is allowed in so long a time

logger = logging.getLogger("ocil.serve")


@dataclass(frozen=True)
class Token:
    """What is known of a token."""

    name: str
    digest: str
    """The SHA-256 of the token, in hexadecimal digits."""
    scope: str = WRITE
    """``read``: everything that changes nothing, predictions among it. ``write``: everything."""
    models: tuple[str, ...] | None = None
    """The models that it is for; None: all."""
    per_minute: int | None = None
    """Requests that it is allowed per minute; None: what holds for all tokens."""

    def is_for(self, model: str) -> bool:
        return self.models is None or model in self.models


NOBODY = Token("", "")
"""Who asks where no token is needed."""


def digest_of(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


class Access:
    """Admits requests. Safe to use from any thread."""

    def __init__(
        self,
        token: str | None = None,
        file: Path | None = None,
        per_minute: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``token``: one that may do everything. ``file``: more of them; it is read again when it changes.

        Without either, everybody is admitted. ``per_minute``: requests per minute and token; None: any number.
        """
        self.file, self.per_minute, self.clock = file, per_minute, clock
        self.required = token is not None or file is not None
        self._single = [] if token is None else [Token("token", digest_of(token))]
        self._lock = threading.Lock()
        self._buckets: dict[str, tuple[float, float]] = {}  # by name: requests left, and when that was so
        self._read_at, self._stamp = clock(), _stamp(file)
        listed = read_tokens(file) if file is not None else []
        if file is not None and not listed:
            raise OcilError(f"{file} has no token: add one with `ocil token NAME --file {file}`.")
        self._tokens = self._single + listed

    def admit(self, authorization: str, write: bool, model: str | None) -> Token:
        """Count a request against the allowance of its token, and return the token.

        ``RefusedError``: 401 without a token, 403 beyond its scope, 429 too often.
        """
        self._reload()
        token = self._known(authorization) if self.required else NOBODY
        if model is not None and not token.is_for(model):
            raise RefusedError(403, f"the token {token.name} is not for the model {model}.")
        if write and token.scope != WRITE:
            raise RefusedError(403, f"the token {token.name} may read and predict only: this needs the scope write.")
        self._count(token)
        return token

    def _known(self, authorization: str) -> Token:
        kind, _, given = authorization.partition(" ")
        digest, found = digest_of(given.strip()), None
        for token in self._tokens:  # all of them, and each in constant time
            if hmac.compare_digest(digest, token.digest):
                found = token
        if kind.lower() != "bearer" or found is None:
            raise RefusedError(401, "send the token: Authorization: Bearer TOKEN.")
        return found

    def _count(self, token: Token) -> None:
        """Take one request from the token's allowance, which fills up steadily."""
        if not (rate := token.per_minute or self.per_minute):
            return
        most = max(1.0, rate * BURST_SECONDS / 60)
        with self._lock:
            now = self.clock()
            left, since = self._buckets.get(token.name, (most, now))
            left = min(most, left + (now - since) * rate / 60)
            self._buckets[token.name] = (left - 1 if left >= 1 else left, now)
        if left < 1:
            wait = max(1, math.ceil((1 - left) * 60 / rate))
            who = f"the token {token.name}" if token.name else "requests without a token"
            raise RefusedError(429, f"{rate} requests per minute are allowed for {who}: wait.", wait)

    def _reload(self) -> None:
        """Read the file again if it has changed. One that cannot be read changes nothing."""
        if self.file is None or self.clock() - self._read_at < RELOAD_SECONDS:
            return
        self._read_at = self.clock()
        if (stamp := _stamp(self.file)) == self._stamp:
            return
        self._stamp = stamp
        try:
            self._tokens = self._single + read_tokens(self.file)
        except OcilError as error:
            logger.error("the tokens stay as they were: %s", error)


def _stamp(file: Path | None) -> tuple[int, ...] | None:
    """What changes when a file's content or its mode does: ``chmod`` leaves the time of the content as it was."""
    try:
        found = file.stat() if file is not None else None
    except OSError:
        return None
    return None if found is None else (found.st_mtime_ns, found.st_ctime_ns, found.st_size, found.st_ino)


def refuse_readable(file: Path) -> None:
    """Raise if everybody can read a file with secrets."""
    if stat.S_IMODE(file.stat().st_mode) & 0o004:
        raise OcilError(f"{file} can be read by everybody: chmod 600 {file}")


def read_tokens(file: Path) -> list[Token]:
    """The tokens of a file: one table per token, ``[NAME]``, with ``sha256`` and, as needed, the other fields."""
    try:
        refuse_readable(file)
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise OcilError(f"the file of tokens {file} cannot be read: {error}.") from None
    return [_token(name, fields, file) for name, fields in content.items()]


def _token(name: str, fields: Any, file: Path) -> Token:
    where = f"the token {name} in {file}"
    if not isinstance(fields, dict) or not NAME.fullmatch(name):
        raise OcilError(f"{file}: {name!r} is not a table [NAME] of a token.")
    for field, value in fields.items():
        if field not in FIELDS or type(value) is not FIELDS[field]:
            raise OcilError(f"{where}: {field} = {value!r} is not known. Known: {', '.join(FIELDS)}.")
    digest, scope, models = fields.get("sha256", ""), fields.get("scope", READ), fields.get("models")
    if not re.fullmatch("[0-9a-f]{64}", digest):
        raise OcilError(f"{where} needs sha256, 64 hexadecimal digits.")
    if scope not in (READ, WRITE):
        raise OcilError(f"{where}: scope = {scope!r} must be {READ} or {WRITE}.")
    if models is not None and not all(isinstance(one, str) for one in models):
        raise OcilError(f"{where}: models must be a list of names.")
    if fields.get("per_minute", 1) < 1:
        raise OcilError(f"{where}: per_minute must be more than 0.")
    return Token(name, digest, scope, None if models is None else tuple(models), fields.get("per_minute"))


def add_token(file: Path, name: str, scope: str, models: tuple[str, ...] = (), per_minute: int | None = None) -> str:
    """Add a new token to a file, which is made if it is not there. Returns the token, which is kept nowhere."""
    if not NAME.fullmatch(name):
        raise OcilError(f"{name!r} is no name for a token: use letters, digits, dots, - and _.")
    token = secrets.token_urlsafe(32)
    lines = [f"[{json.dumps(name)}]", f'sha256 = "{digest_of(token)}"', f'scope = "{scope}"']
    lines += [f"models = {json.dumps(list(models))}"] if models else []
    lines += [f"per_minute = {per_minute}"] if per_minute is not None else []
    table = "\n".join(lines)
    _token(name, tomllib.loads(table)[name], file)
    with alone_at(file, WAIT_SECONDS):
        there = file.exists()
        if there and name in (one.name for one in read_tokens(file)):
            raise OcilError(f"{file} has a token {name} already: choose another name, or delete its table.")
        before = file.read_text(encoding="utf-8").rstrip("\n") + "\n\n" if there else ""
        mode = stat.S_IMODE(file.stat().st_mode) if there else 0o600
        write_bytes(file, f"{before}{table}\n".encode())
        file.chmod(mode)
    return token
