"""The HTTP application: checks, then asks the service."""

import asyncio
import hmac
import json
import math
import os
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from fastapi import FastAPI, Header, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import ocil
from ocil.online.model import encoded
from ocil.serve import answers, pictures
from ocil.serve.bodies import Budget, explained, read_body
from ocil.serve.labels import checked_label
from ocil.serve.limits import RefusedError
from ocil.serve.metrics import CONTENT_TYPE
from ocil.serve.predictor import Prediction
from ocil.serve.service import Service, Stored

T = TypeVar("T")

FILES = Path(__file__).parent / "page"
PAGE_FILES = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}
OPEN = (*PAGE_FILES, "/docs", "/openapi.json")
"""Nothing in these comes from the model: anybody may ask, and other sites may link to them."""
LINKED = ("/status", "/metrics")
"""Other sites may link to these too. What the browser shows then, their pages cannot read."""
PATHS = (*OPEN, "/learn", "/predict", "/status", "/memory", "/metrics")
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
PART = 2**16  # bytes of a long answer that are written at once
ANSWER_BYTES = 2**16  # that an answer about the memory takes beside its images
COPIES = 4  # of these images, while it is made: pixels, PNG in base64, and JSON twice
KEY = r"^[\x21-\x7e]{1,200}$"

REFUSALS = {
    400: "The request cannot be read.", 401: "The token is missing or wrong.", 403: "From another site.",
    408: "The request came too slowly.", 409: "The Idempotency-Key came before with another request.",
    413: "Too large.", 415: "Neither a form nor JSON.",
    422: "Something in the request is wrong.", 429: "Too much at once: try again after Retry-After seconds.",
    503: "Learning has stopped, the disk is full, or the service is stopping.",
}  # fmt: skip


def create_app(service: Service, token: str | None = None, hosts: tuple[str, ...] | None = LOOPBACK) -> FastAPI:
    """``hosts``: names that a request may call this service by; None: any, which only a token makes safe."""
    app = FastAPI(
        title="ocil serve",
        version=ocil.__version__,
        description="A classifier that learns from every labelled image it is sent, while it predicts.",
        docs_url=None,
        redoc_url=None,
    )
    routes = Routes(service)
    app.add_api_route(
        "/learn", routes.learn, methods=["POST"], response_model=answers.Learned, summary="Learn labelled images",
        responses=_refusals(400, 401, 403, 408, 409, 413, 415, 422, 429, 503),
        openapi_extra=answers.learn_body(service.limits), operation_id="learn",
    )  # fmt: skip
    app.add_api_route(
        "/predict", routes.predict, methods=["POST"], response_model=answers.Predicted, summary="Classify images",
        responses=_refusals(400, 401, 403, 408, 413, 415, 422, 429, 503),
        openapi_extra=answers.predict_body(service.limits), operation_id="predict",
    )  # fmt: skip
    app.add_api_route(
        "/status", routes.status, methods=["GET"], response_model=answers.Status, summary="What it has learned",
        responses=_refusals(401, 403), operation_id="status",
    )  # fmt: skip
    app.add_api_route(
        "/memory", routes.memory, methods=["GET"], response_model=answers.MemoryState, summary="What the memory holds",
        responses=_refusals(401, 403, 422, 429, 503), operation_id="memory",
    )  # fmt: skip
    app.add_api_route(
        "/metrics", routes.metrics, methods=["GET"], response_class=Response, summary="Numbers for Prometheus",
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **_refusals(401, 403)},
        operation_id="metrics",
    )  # fmt: skip
    for path, (name, kind) in PAGE_FILES.items():
        app.add_route(path, _file(FILES / name, kind), methods=["GET"], include_in_schema=False)
    app.openapi = lambda: _described(app, service, token)
    app.add_route("/docs", _docs_page(app), methods=["GET"], include_in_schema=False)
    app.add_middleware(Guard, service=service, token=token, hosts=hosts)
    app.add_exception_handler(RefusedError, _refused)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _unexpected)
    return app


class Routes:
    """What the paths do."""

    def __init__(self, service: Service) -> None:
        self.service, self.limits = service, service.limits
        self.budget = Budget(self.limits.bodies_bytes)
        self.pool = ThreadPoolExecutor(min(4, os.cpu_count() or 1), "ocil-decode")
        self.memory_budget = Budget(self.limits.memories_bytes)
        self.memory_pool = ThreadPoolExecutor(1, "ocil-memory")  # predictions must not wait for it
        self.started = time.monotonic()

    async def learn(
        self,
        request: Request,
        wait: Annotated[
            Literal["true", "false"], Query(description="Answer only once the samples are learned.")
        ] = "false",
        idempotency_key: Annotated[
            str | None,
            Header(pattern=KEY, description="A name for this request: sent again under it, it is not learned again."),
        ] = None,
    ) -> answers.Learned:
        """Samples are acknowledged when they are on the disk, and learned in that order.

        A form has fields `image` and `label`, repeated for a batch. JSON has `samples`, with images in base64.
        """
        service = self.service
        with self.budget.lease() as take:
            sent = await read_body(request, self.limits, take, learning=True)
            labels = [checked_label(label, self.limits) for label in sent.labels]
            pixels = await self._decoded(sent.images)
        receipt = await _result(service.submit(pixels, labels, idempotency_key, pictures.digest(pixels, labels)))
        if wait == "true":
            with suppress(TimeoutError):
                await asyncio.wait_for(_result(service.applied(receipt.last)), self.limits.wait_seconds)
        view = service.view
        return answers.Learned(
            first=receipt.first, last=receipt.last, count=receipt.count, repeated=receipt.repeated,
            applied=receipt.last <= view.position, learned=view.position, model_samples=view.samples,
        )  # fmt: skip

    async def predict(
        self, request: Request, top: Annotated[int, Query(ge=1, le=1000, description="Classes to name.")] = 5
    ) -> answers.Predicted:
        """A form has the field `image`, repeated for a batch. JSON has `images`, in base64."""
        with self.budget.lease() as take:
            sent = await read_body(request, self.limits, take, learning=False)
            pixels = await self._decoded(sent.images)
        found = await _result(self.service.predict(pixels))
        return answers.Predicted(predictions=_named(found, top), model_samples=found.samples)

    async def status(self) -> answers.Status:
        """All that the page shows."""
        service, view = self.service, self.service.view
        counts = view.counts
        learned = counts.learned + [0] * (len(view.labels) - len(counts.learned))
        correct = counts.correct + [0] * (len(view.labels) - len(counts.correct))
        classes = [
            answers.ClassState(label=encoded(label), learned=a, correct=b, stored=c)
            for label, a, b, c in zip(view.labels, learned, correct, view.stored, strict=True)
        ]
        bias = counts.bias(len(view.labels))
        problem = service.failed or service.log.broken or "; ".join(service.troubles.values()) or None
        return answers.Status(
            version=ocil.__version__,
            method=service.model.recipe.method,
            image=list(service.model.images.shape),
            model_samples=view.samples,
            model_batches=view.batches,
            acknowledged=max(service.durable, view.position),
            learned=view.position,
            saved=service.saved_position,
            queue=max(0, service.backlog),
            queue_limit=self.limits.queue,
            accuracy=counts.accuracy,
            recent_accuracy=counts.recent_accuracy,
            recent=len(counts.recent),
            classes=classes,
            memory_size=service.model.learner.memory.size,
            memory_stored=sum(view.stored),
            bias=None if bias is None else answers.BiasState(**asdict(bias)),
            problem=problem,
            uptime_seconds=round(time.monotonic() - self.started, 3),
        )

    async def memory(
        self,
        per_class: Annotated[int, Query(ge=1, le=16, description="Images of a class.")] = 4,
        first: Annotated[int, Query(ge=0, le=10**6, description="Leave out so many classes.")] = 0,
        count: Annotated[int, Query(ge=1, le=100, description="Classes.")] = 50,
    ) -> Response:
        """Some of the images that are kept for replay, between two steps: fewer than asked for where they are large."""
        size = math.prod(self.service.model.images.shape)
        most = min(self.limits.memory_images, self.limits.memory_bytes // size)
        classes = max(0, min(count, len(self.service.view.labels) - first))
        with ExitStack() as held:
            take = held.enter_context(self.memory_budget.lease())
            take(ANSWER_BYTES + COPIES * size * min(most, per_class * classes))
            try:
                wanted = self.service.stored(per_class, first, count, most)
                found = await asyncio.wait_for(_result(wanted), self.limits.wait_seconds)
            except TimeoutError as error:
                raise RefusedError(503, "the learner is busy with a long step.", 5) from error
            run = asyncio.get_running_loop().run_in_executor
            return _Held(await run(self.memory_pool, _drawn, found), held.pop_all())

    async def metrics(self) -> Response:
        """In the text format."""
        return Response(self.service.metrics.text(self.service.gauges()), media_type=CONTENT_TYPE)

    async def _decoded(self, images: list[bytes]) -> Any:
        run = asyncio.get_running_loop().run_in_executor
        return await run(self.pool, pictures.decode_all, images, self.service.model.images, self.limits)


def _named(found: Prediction, top: int) -> list[answers.ImagePrediction]:
    predictions = []
    for row in found.probabilities:
        best = sorted(range(len(row)), key=lambda number: -row[number])[:top]
        classes = [
            answers.ClassProbability(label=encoded(found.labels[n]), probability=min(1.0, float(row[n]))) for n in best
        ]
        label, probability = (classes[0].label, classes[0].probability) if classes else (None, None)
        predictions.append(answers.ImagePrediction(label=label, probability=probability, classes=classes))
    return predictions


def _drawn(found: Stored) -> bytes:
    classes = [
        answers.StoredClass(label=encoded(label), stored=stored, images=[pictures.as_png(one) for one in images])
        for label, stored, images in found.classes
    ]
    content: str = answers.MemoryState(model_samples=found.samples, classes=classes).model_dump_json()
    return content.encode()


class _Held(Response):  # type: ignore[misc]
    """JSON that is sent part by part, each once the client has taken those before it.

    What is held for it, a lease of memory, is given back when the last part is sent or the client is gone.
    """

    media_type = "application/json"

    def __init__(self, content: bytes, held: ExitStack) -> None:
        super().__init__(content)
        self.held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self.held:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            for first in range(0, len(self.body), PART):
                part, more = self.body[first : first + PART], first + PART < len(self.body)
                await send({"type": "http.response.body", "body": part, "more_body": more})


class Guard:
    """Before every request: is it meant for us, from our own page, with the token? After it: headers and numbers."""

    def __init__(self, app: ASGIApp, service: Service, token: str | None, hosts: tuple[str, ...] | None) -> None:
        self.app, self.service, self.hosts = app, service, hosts
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
                if status >= 400 and scope["method"] == "POST":  # its body may go on for ever
                    more.append((b"connection", b"close"))
                message["headers"] = [*message["headers"], *more]
            await send(message)

        try:
            refusal = self._refusal(scope)
            await (refusal or self.app)(scope, receive, sending)
        finally:
            path = scope["path"] if scope["path"] in PATHS else "other"
            self.service.metrics.took("ocil_request_seconds", time.monotonic() - started, path=path)
            self.service.metrics.add("ocil_requests_total", path=path, status=str(status))

    def _refusal(self, scope: Scope) -> Response | None:
        headers = {name: value.decode("latin-1") for name, value in scope["headers"]}
        host = headers.get(b"host", "")
        if self.hosts is not None and _without_port(host) not in self.hosts:  # a name that leads here (DNS rebinding)
            names = ", ".join(self.hosts)
            return _problem(403, f"this service is called {names}: use that, or start it with --allow-host.")
        if scope["path"] not in OPEN and _is_foreign(headers, host) and not _is_link(scope, headers):
            return _problem(403, "requests from the pages of another site are refused.")
        if self.token is not None and scope["path"] not in OPEN:
            kind, _, given = headers.get(b"authorization", "").partition(" ")
            right = hmac.compare_digest(given.strip().encode(), self.token)
            if kind.lower() != "bearer" or not right:
                return _problem(401, "send the token: Authorization: Bearer TOKEN.", {"www-authenticate": "Bearer"})
        return None


def _is_foreign(headers: dict[bytes, str], host: str) -> bool:
    """Whether the page of another site asks."""
    origin = headers.get(b"origin")
    if origin is not None and origin.partition("://")[2].lower() != host.lower():
        return True
    return headers.get(b"sec-fetch-site", "none") not in ("none", "same-origin")


def _is_link(scope: Scope, headers: dict[bytes, str]) -> bool:
    """Whether somebody follows a link to one of the pages that others may link to. A link has no origin."""
    opened = (headers.get(b"sec-fetch-mode"), headers.get(b"sec-fetch-dest")) == ("navigate", "document")
    return opened and scope["method"] == "GET" and scope["path"] in LINKED and b"origin" not in headers


def _without_port(host: str) -> str:
    name, colon, port = host.lower().rpartition(":")
    return name if colon and port.isdecimal() and not host.endswith("]") else host.lower()


async def _result(future: "Future[T]") -> T:
    """A client that goes away must not take the answer from others."""
    return await asyncio.shield(asyncio.wrap_future(future))


def _problem(status: int, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"detail": message}, status, headers)


async def _refused(_: Request, error: RefusedError) -> Response:
    retry = {} if error.retry_after is None else {"retry-after": str(error.retry_after)}
    return _problem(error.status, str(error), retry)


async def _invalid(_: Request, error: RequestValidationError) -> Response:
    return _problem(422, explained(error.errors()))


async def _http_error(_: Request, error: HTTPException) -> Response:
    return _problem(error.status_code, str(error.detail), dict(error.headers or {}))


async def _unexpected(_: Request, error: Exception) -> Response:
    return _problem(500, "an unexpected error; the service's log has more.")


def _refusals(*codes: int) -> dict[int | str, dict[str, Any]]:
    return {code: {"model": answers.Problem, "description": REFUSALS[code]} for code in codes}


def _file(path: Path, kind: str) -> Any:
    content = path.read_bytes()

    async def send(_: Request) -> Response:
        return Response(content, media_type=kind)

    return send


def _described(app: FastAPI, service: Service, token: str | None) -> dict[str, Any]:
    """The OpenAPI description, with the requests that are read by hand."""
    if app.openapi_schema is None:
        schema: dict[str, Any] = FastAPI.openapi(app)
        schema["components"]["schemas"] |= answers.request_schemas(service.limits)
        if token is not None:
            schema["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
            schema["security"] = [{"token": []}]
        app.openapi_schema = schema
    described: dict[str, Any] = app.openapi_schema
    return described


def _docs_page(app: FastAPI) -> Any:
    """The description as a page of its own: the usual ones load scripts from elsewhere."""
    from jinja2 import Environment

    def pretty(value: Any) -> str:
        return json.dumps(value, indent=2, ensure_ascii=False)

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["pretty"] = pretty
    template = environment.from_string((FILES / "docs.html").read_text())

    async def send(_: Request) -> Response:
        return Response(template.render(api=app.openapi()), media_type="text/html; charset=utf-8")

    return send
