"""Downloads a published archive, resuming where it stopped, verifies it and imports it."""

import hashlib
import http.client
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ocil.data import places
from ocil.data.catalog import DatasetInfo
from ocil.data.check import differences
from ocil.data.dataset import load_npz
from ocil.data.importers import import_dataset
from ocil.data.places import data_dirs
from ocil.errors import OcilError, WriteError
from ocil.files import locked

OnBytes = Callable[[int, int | None], None]
"""Called with how many bytes have come, and how many there are, if that is known."""

READ_BYTES = 2**18
TIMEOUT_S = 30.0
BACKOFF_S = (0.5, 1.0, 2.0)  # pauses after attempts that received nothing
NETWORK_ERRORS = (OSError, http.client.HTTPException)


class _CutError(OSError):
    """The connection ended before the file did."""


class _TooLongError(Exception):
    """The server sends more than the file has."""


def download(
    info: DatasetInfo, data_dir: Path | None = None, progress: OnBytes | None = None, url: str | None = None
) -> Path:
    """Fetch, verify and import a dataset; returns the prepared file. ``progress`` gets (bytes, total or None).

    ``url`` replaces the addresses of ``info``.
    """
    addresses = addresses_of(info, url)
    assert info.filename is not None and info.size is not None  # noqa: S101, PT018
    for place in data_dirs(data_dir):
        if _is_ready(info, place):
            return place / f"{info.name}.npz"
    folder = places.data_dir(data_dir)
    archive = folder / "downloads" / info.filename
    taken = f"another process downloads to {archive.parent}: wait for it, then run the same command again."
    with locked(archive.parent, "Choose another folder.", taken):
        if not (archive.is_file() and _md5_matches(archive, info.md5)):
            fetch_from_any(addresses, archive, info.md5, info.size, progress or (lambda _done, _total: None))
        return import_dataset(info.name, archive, folder, expect=info)


def addresses_of(info: DatasetInfo, url: str | None = None) -> tuple[str, ...]:
    """The addresses to fetch a dataset from: ``url``, or those of ``info``. Raises if there is none to ask."""
    addresses = (url,) if url is not None else info.urls
    if not addresses or info.filename is None or info.size is None:
        raise OcilError(f"{info.title} has no download address. How to get it: {info.how}")
    for address in addresses:
        if not _is_web_address(address):
            raise OcilError(f"'{address}' is not an http or https address.")
    return addresses


def fetch_from_any(addresses: Sequence[str], target: Path, md5: str | None, size: int, progress: OnBytes) -> None:
    """``fetch`` from the first address that has the file. Each one goes on with what the one before has sent.

    If none has it, the ``OcilError`` gives the reason of each.
    """
    reasons = []
    for address in addresses:
        try:
            return fetch(address, target, md5, size, progress)
        except WriteError:
            raise
        except OcilError as error:
            reasons.append(str(error))
    raise OcilError(" ".join(reasons))


def fetch(url: str, target: Path, md5: str | None, size: int, progress: OnBytes) -> None:
    """Download ``size`` bytes to ``target``.part, and rename it only when it is complete and its md5 is right."""
    part = target.with_name(f"{target.name}.part")
    try:
        part.parent.mkdir(parents=True, exist_ok=True)
        part.touch()
    except OSError as error:
        raise WriteError(f"cannot write {part}: {error.strerror or error}. Choose another folder.") from error
    failures = 0
    while True:
        before = part.stat().st_size
        try:
            _attempt(url, part, md5, size, progress)
            break
        except _TooLongError:
            part.unlink()
            message = f"{url} sends more than the {size:,} bytes of {target.name}, so what came was deleted."
            raise OcilError(f"{message} Check the address.") from None
        except NETWORK_ERRORS as error:
            failures = 0 if part.stat().st_size > before else failures + 1
            if failures > len(BACKOFF_S) or not _worth_retrying(error):
                raise OcilError(_gave_up(url, part, error)) from error
            time.sleep(BACKOFF_S[max(failures - 1, 0)])
    if not _md5_matches(part, md5):
        part.unlink()
        again = "Run the same command again. If it says the same, give another address of the file: --url ADDRESS."
        raise OcilError(f"what {url} sent has the wrong md5 sum, so it was deleted. {again}")
    part.replace(target)


@dataclass(frozen=True)
class _Answer:
    response: Any
    start: int
    total: int | None


def _attempt(url: str, part: Path, md5: str | None, size: int, progress: OnBytes) -> None:
    have = part.stat().st_size
    try:
        answer = _ask(url, have)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code != 416 or not have:
            raise
        # Nothing is left to send: the part is whole, or it is not this file at all.
        if md5 is not None and _md5_matches(part, md5):
            progress(have, have)
            return
        part.write_bytes(b"")
        answer = _ask(url, 0)
    with answer.response as response:
        done = _receive(response, part, answer, size, progress)
    if done < (answer.total or size):
        raise _CutError(f"the connection ended after {done} of {answer.total or size} bytes")


def _ask(url: str, have: int) -> _Answer:
    headers = {"User-Agent": "ocil", "Accept-Encoding": "identity"}
    if have:
        headers["Range"] = f"bytes={have}-"
    response = _opener().open(urllib.request.Request(url, headers=headers), timeout=TIMEOUT_S)  # noqa: S310 - checked above
    length = response.headers.get("Content-Length", "")
    size = int(length) if length.isdecimal() else None
    # A server may ignore the range and send all (200), or send another range than asked for: then start over.
    resumed = response.status == 206 and response.headers.get("Content-Range", "").startswith(f"bytes {have}-")
    if response.status == 206 and not resumed:
        response.close()
        if not have:
            raise _CutError("the server sends only a part of the file")
        return _ask(url, 0)
    start = have if resumed else 0
    return _Answer(response, start, None if size is None else start + size)


def _receive(response: Any, part: Path, answer: _Answer, size: int, progress: OnBytes) -> int:
    done = answer.start
    if (answer.total or 0) > size:
        raise _TooLongError
    progress(done, answer.total)
    with part.open("r+b") as file:
        file.truncate(done)
        file.seek(done)
        while chunk := response.read(READ_BYTES):
            if done + len(chunk) > size:  # a server that never ends would fill the disk
                raise _TooLongError
            try:
                file.write(chunk)
                file.flush()
            except OSError as error:
                message = f"cannot write {part}: {error.strerror or error}. Free some space and run again."
                raise WriteError(message) from error
            done += len(chunk)
            progress(done, answer.total)
    return done


def _opener() -> urllib.request.OpenerDirector:
    # Built by hand: the usual one would also follow a redirect to ftp.
    u = urllib.request
    opener = u.OpenerDirector()
    errors = (u.HTTPDefaultErrorHandler, u.HTTPErrorProcessor, u.UnknownHandler)
    for handler in (u.ProxyHandler, u.HTTPHandler, u.HTTPSHandler, u.HTTPRedirectHandler, *errors):
        opener.add_handler(handler())
    return opener


def _worth_retrying(error: BaseException) -> bool:
    # A wrong address stays wrong; a busy server may recover.
    if isinstance(error, urllib.error.HTTPError):
        return error.code in (408, 429) or error.code >= 500
    return not isinstance(error, http.client.InvalidURL)


def _gave_up(url: str, part: Path, error: BaseException) -> str:
    if isinstance(error, urllib.error.HTTPError):
        reason = f"the server answered {error.code} {error.reason}"
    else:
        reason = " ".join(str(getattr(error, "reason", None) or error).split()) or type(error).__name__
    if size := part.stat().st_size:
        return f"{url}: {reason}. The first {size} bytes are kept; the same command resumes."
    part.unlink()
    if not _worth_retrying(error):
        return f"{url}: {reason}. Nothing was received; give another address of the file: --url ADDRESS."
    return f"{url}: {reason}. Nothing was received; check the connection and run the same command again."


def _is_web_address(url: str) -> bool:
    try:
        parts = urlsplit(url)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.netloc)


def _is_ready(info: DatasetInfo, folder: Path) -> bool:
    try:
        return not differences(load_npz(folder / f"{info.name}.npz", info.name), info)
    except OcilError:
        return False  # missing or broken


def _md5_matches(path: Path, md5: str | None) -> bool:
    if md5 is None:
        return True
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest() == md5
