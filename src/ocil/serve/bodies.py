"""Reads the body of a request, a form or JSON, and keeps no more of it in memory than the limits allow."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError
from starlette.datastructures import Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from ocil.online.formats import InputFormat
from ocil.online.images import ImageFormat
from ocil.serve.answers import LEARN, OTHERS, PREDICT
from ocil.serve.labels import BIGGEST_NUMBER
from ocil.serve.limits import Limits, RefusedError
from ocil.serve.pictures import decode_pictures, from_base64
from ocil.serve.vectors import decode_vectors

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)
JSON, FORM = "application/json", "multipart/form-data"
SMALL_BYTES = 2**16  # of a request without images
MOST_PARTS = 2**19  # of a larger one: to read so many takes a moment in which nobody else is answered
KEY_FORM = "use 1 to 200 visible ASCII characters, without spaces"
LABEL_KINDS = f"a label is text of at least one character, or a whole number within ±{BIGGEST_NUMBER}"


@dataclass(frozen=True)
class Sent:
    """The content of a request: image files or vectors and, if they are to be learned, as many labels."""

    inputs: list[Any]
    """Bytes of an image file each, or a list of numbers each."""
    labels: list[str | int]

    def decoded(self, form: InputFormat, limits: Limits) -> NDArray[Any]:
        """The inputs as the learner takes them."""
        if isinstance(form, ImageFormat):
            return decode_pictures(self.inputs, form, limits)
        return decode_vectors(self.inputs, form, limits)


class Budget:
    """A limit on the bytes that all requests take together."""

    def __init__(self, limit: int) -> None:
        self.limit, self.used = limit, 0

    @contextmanager
    def lease(self) -> "Iterator[Callable[[int], None]]":
        """Take bytes inside the block; they are given back at its end."""
        taken = 0

        def take(count: int) -> None:
            nonlocal taken
            if self.used + count > self.limit:
                raise RefusedError(429, "too many large requests at once.", 1)
            self.used += count
            taken += count

        try:
            yield take
        finally:
            self.used -= taken


async def read_body(
    request: Request, limits: Limits, take: Callable[[int], None], learning: bool, vectors: int | None
) -> Sent:
    """Read a request. One that is too long is refused while it arrives, whatever length its header claims.

    ``take``: what a lease of the budget gives. ``learning``: each input must have a label. ``vectors``: how many
    numbers a vector has, for a model that takes vectors.
    """
    kind = _media_type(request)
    if kind not in (JSON, FORM):
        raise RefusedError(415, f"send {FORM} or {JSON}.")
    if kind == FORM and vectors is not None:
        raise _wrong_kind(vectors)
    stream = _bounded(request, limits, take)
    async with _arriving(limits):
        if kind == FORM:
            return await _read_form(request.headers, stream, limits, partial(_sorted_out, learning=learning))
        content = b"".join([chunk async for chunk in stream])
    return await asyncio.to_thread(_read_json, content, limits, learning, vectors)


async def read_files(request: Request, limits: Limits, take: Callable[[int], None]) -> list[tuple[str, bytes]]:
    """Name and content of each file of a form, all in fields called ``image``. Limits as for ``read_body``."""
    if _media_type(request) != FORM:
        raise RefusedError(415, f"send {FORM}.")
    async with _arriving(limits):
        files = await _read_form(request.headers, _bounded(request, limits, take), limits, _named_files)
    if not 0 < len(files) <= limits.batch:
        raise RefusedError(422, f"there are {len(files)} images, a request has 1 to {limits.batch}.")
    return files


async def read_small(
    request: Request,
    limits: Limits,
    model: type[M],
    take: Callable[[int], None] = lambda _: None,
    most: int = SMALL_BYTES,
) -> M:
    """JSON of at most ``most`` bytes, as a model of it."""
    if _media_type(request) != JSON:
        raise RefusedError(415, f"send {JSON}.")
    async with _arriving(limits):
        stream = _bounded(request, replace(limits, body_bytes=most), take)
        content = b"".join([chunk async for chunk in stream])
    if content.count(b",") > MOST_PARTS:
        raise RefusedError(422, f"the JSON has more than {MOST_PARTS} parts, which is the limit here.")
    try:
        found: M = model.model_validate_json(content)
        return found
    except ValidationError as error:
        raise RefusedError(422, explained(error.errors(include_url=False, include_input=False))) from error


def _media_type(request: Request) -> str:
    given: str = request.headers.get("content-type", "")
    return given.partition(";")[0].strip().lower()


@asynccontextmanager
async def _arriving(limits: Limits) -> AsyncIterator[None]:
    """A body is read inside the block, which has an end."""
    try:
        async with asyncio.timeout(limits.body_seconds):
            yield
    except TimeoutError as error:
        raise RefusedError(408, f"the request took more than {limits.body_seconds:g} s to arrive.") from error
    except ClientDisconnect as error:
        raise RefusedError(400, "the request broke off.") from error


async def _bounded(request: Request, limits: Limits, take: Callable[[int], None]) -> AsyncGenerator[bytes, None]:
    too_long = RefusedError(413, f"the request has more than {limits.body_bytes} bytes, which is the limit here.")
    announced, total = request.headers.get("content-length", ""), 0
    if announced.isdecimal() and len(announced) < 20 and int(announced) > limits.body_bytes:
        raise too_long
    async for chunk in request.stream():
        total += len(chunk)
        if total > limits.body_bytes:
            raise too_long
        take(len(chunk))
        yield chunk


class _InMemory(MultiPartParser):  # type: ignore[misc]
    """Files stay in memory: the body has a limit, and nothing that a client sends is written to the disk unasked."""

    spool_max_size = 2**62
    ended = False

    def on_part_end(self) -> None:
        """Refuse text that is not UTF-8, which starlette would read as Latin-1."""
        part = self._current_part
        if part.file is not None:
            super().on_part_end()
            return
        try:
            self.items.append((part.field_name, part.data.decode("utf-8")))
        except UnicodeDecodeError as error:
            raise RefusedError(422, f"the field {part.field_name} is not UTF-8.") from error

    def on_end(self) -> None:
        """The last boundary has come. A form that stops before it may have lost whole fields."""
        self.ended = True

    def close(self) -> None:
        """Close all files, also those of a form that broke off."""
        for file in self._files_to_close_on_error:
            file.close()


async def _read_form(
    headers: Headers,
    stream: AsyncGenerator[bytes, None],
    limits: Limits,
    sort: Callable[[list[tuple[str, Any]]], Awaitable[T]],
) -> T:
    """What ``sort`` makes of the form's fields. Their files are closed afterwards."""
    most = limits.batch + 1  # one more, so that the message can name the limit
    parser = _InMemory(headers, stream, max_files=most, max_fields=most, max_part_size=2**16)
    try:
        form = await parser.parse()
        if not parser.ended:
            raise RefusedError(400, "the form cannot be read: its end is missing.")
        return await sort(form.multi_items())
    except (RefusedError, TimeoutError, ClientDisconnect):
        raise
    except MultiPartException as error:
        raise RefusedError(400, f"the form cannot be read: {error.message}") from error
    except Exception as error:  # a broken form can fail in any way
        raise RefusedError(400, "the form cannot be read.") from error
    finally:
        parser.close()


async def _sorted_out(items: list[tuple[str, Any]], learning: bool) -> Sent:
    images: list[bytes] = []
    labels: list[str | int] = []
    for name, value in items:
        if name == "image" and isinstance(value, UploadFile):
            images.append(await value.read())
        elif name == "label" and learning and isinstance(value, str):
            labels.append(value)
        elif name in ("image", "label") and (learning or name == "image"):
            wanted = "a file" if name == "image" else "text, not a file"
            raise RefusedError(422, f"the field {name} must be {wanted}.")
        else:
            fields = "image and label" if learning else "image"
            raise RefusedError(422, f"a field of the form is not known: there is {fields}.")
    if learning and len(images) != len(labels):
        raise RefusedError(422, f"there are {len(images)} images and {len(labels)} labels: each image needs one.")
    return Sent(images, labels)


async def _named_files(items: list[tuple[str, Any]]) -> list[tuple[str, bytes]]:
    if any(name != "image" or not isinstance(value, UploadFile) for name, value in items):
        raise RefusedError(422, "a field of the form is not known: there is image, a file.")
    return [(value.filename or "", await value.read()) for _, value in items]


def _read_json(content: bytes, limits: Limits, learning: bool, vectors: int | None) -> Sent:
    # For a long list of empty items the parser and its list of errors would take gigabytes. Base64 has no commas.
    if content.count(b",") > limits.batch * (limits.label + 10 + (vectors or 0)):
        raise RefusedError(422, f"the JSON has far more parts than a request of {limits.batch} samples.")
    try:
        if learning:
            samples = LEARN[vectors is not None].model_validate_json(content).samples
            labels = [one.label for one in samples]
            inputs = [one.image if vectors is None else one.vector for one in samples]
        else:
            asked = PREDICT[vectors is not None].model_validate_json(content)
            labels, inputs = [], asked.images if vectors is None else asked.vectors
    except ValidationError as error:
        errors = error.errors(include_url=False, include_input=False)
        if any(one["type"] == "extra_forbidden" and one["loc"][-1] in OTHERS[vectors is not None] for one in errors):
            raise _wrong_kind(vectors) from error
        raise RefusedError(422, explained(errors)) from error
    if vectors is None:
        inputs = [from_base64(one, number) for number, one in enumerate(inputs, 1)]
    return Sent(inputs, labels)


def _wrong_kind(vectors: int | None) -> RefusedError:
    if vectors is None:
        return RefusedError(400, "this model takes images, not vectors.")
    example = '{"samples": [{"vector": [...], "label": ...}]}, or {"vectors": [[...]]} for a prediction'
    return RefusedError(400, f"this model takes vectors of {vectors} numbers, not images: send JSON, {example}.")


def explained(errors: Any) -> str:
    """The first of pydantic's errors in one line."""
    first = errors[0]
    place, message = first["loc"], first["msg"]
    if "label" in place[:-1]:  # neither of the two kinds of labels: pydantic has an error for each of them
        place = place[: place.index("label") + 1]
        message, errors = LABEL_KINDS, [one for one in errors if one["loc"][: len(place)] != place] + [first]
    elif place == ("header", "idempotency-key"):
        message = KEY_FORM
    where = ".".join(str(part) for part in place)
    more = f" ({len(errors) - 1} more)" if len(errors) > 1 else ""
    return f"{where}: {message}{more}" if where else f"{message}{more}"
