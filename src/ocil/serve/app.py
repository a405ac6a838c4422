"""The HTTP application."""

import logging
from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

import ocil
from ocil.errors import OcilError
from ocil.serve import answers
from ocil.serve.audit import Audit
from ocil.serve.bodies import explained
from ocil.serve.guard import LOOPBACK, Guard, asked, refusal, refused
from ocil.serve.health import add_health
from ocil.serve.label_studio import LabelStudio
from ocil.serve.label_studio_routes import BasicToken, LabelStudioRoutes
from ocil.serve.labelling import Labelling
from ocil.serve.labelling_routes import LabellingRoutes
from ocil.serve.limits import RefusedError
from ocil.serve.pages import add_pages
from ocil.serve.routes import Routes
from ocil.serve.sample_routes import add_sample_routes
from ocil.serve.service import Service
from ocil.serve.tokens import Access
from ocil.serve.version_routes import add_version_routes

REFUSALS = {
    400: "The request cannot be read.",
    401: "The token is missing or wrong.",
    403: "From another site, or beyond the scope of the token.",
    404: "There is no such sample or version.",
    408: "The request came too slowly.",
    409: "The Idempotency-Key came before with another request, or the change does not fit what is there.",
    413: "Too large.",
    415: "Neither a form nor JSON.",
    422: "Something in the request is wrong.",
    429: "Too much at once: try again after Retry-After seconds.",
    503: "Learning has stopped, the disk is full, a file is damaged, or the service is stopping.",
}
GUARD = (401, 403, 429)  # what the guard may answer to any request
BODY = (400, *GUARD, 408, 413, 415, 422, 503)  # what may be answered to a request with images
Responses = dict[int | str, dict[str, Any]]
TEXT: Responses = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}

logger = logging.getLogger("ocil.serve")


def create_app(
    service: Service,
    token: str | None = None,
    hosts: tuple[str, ...] | None = LOOPBACK,
    access: Access | None = None,
    audit: Audit | None = None,
    prefix: str = "",
) -> FastAPI:
    """``hosts``: names that a request may call this service by; None: any, which only a token makes safe.

    ``token``: one that may do everything, or ``access`` for several. ``prefix``: where the app lies, if not at ``/``.
    """
    access = access or Access(token)
    app = FastAPI(
        title="ocil serve",
        version=ocil.__version__,
        description="A classifier that learns from every labelled sample it is sent, while it predicts.",
        docs_url=None,
        redoc_url=None,
        servers=[{"url": prefix}] if prefix else None,
    )
    routes = Routes(service)
    limits = service.limits

    def add(method: str, answer: Callable[..., Any], summary: str, responses: Responses, **options: Any) -> None:
        name = answer.__name__
        options |= {"summary": summary, "responses": responses, "operation_id": name}
        app.add_api_route(f"/{name}", answer, methods=[method], **options)

    vectors = service.vectors
    posted = {"response_model": answers.Learned, "openapi_extra": answers.learn_body(limits, vectors)}
    add(
        "POST",
        routes.learn,
        f"Learn labelled {'images' if vectors is None else 'vectors'}",
        refusals(409, *BODY),
        **posted,
    )
    posted = {"response_model": answers.Predicted, "openapi_extra": answers.predict_body(limits, vectors)}
    add("POST", routes.predict, f"Classify {'images' if vectors is None else 'vectors'}", refusals(*BODY), **posted)
    add("GET", routes.status, "What it has learned", refusals(*GUARD))
    memory = refusals(*GUARD, 422, 503)
    add("GET", routes.memory, "What the memory holds", memory, response_model=answers.MemoryState)
    add("GET", routes.metrics, "Numbers for Prometheus", TEXT | refusals(*GUARD), response_class=Response)
    add_sample_routes(app, service, refusals)
    add_version_routes(app, service, refusals)
    LabellingRoutes(Labelling.of(service), routes.budget, routes.pool).add_to(app, refusals)
    schemas = answers.request_schemas(limits, vectors)
    studio = LabelStudio.find(service)
    if studio is not None:
        LabelStudioRoutes(studio, routes.budget).add_to(app, refusals, schemas)
    add_health(app, [service])
    app.openapi = lambda: _described(app, schemas, access.required)
    add_pages(app)
    guarded(app, metrics=service.metrics, access=access, hosts=hosts, model=service.folder.name, audit=audit)
    if studio is not None:
        app.add_middleware(BasicToken)  # what is added last comes first
    return app


def guarded(app: FastAPI, **options: Any) -> None:
    """Put an app behind a ``Guard`` of these options, and answer all errors in one form."""
    app.add_middleware(Guard, **options)
    app.add_exception_handler(RefusedError, _refused)
    app.add_exception_handler(OcilError, _unusable)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(Exception, _unexpected)


async def _refused(request: Request, error: RefusedError) -> Response:
    return refused(error, asked(request.scope).request_id)


async def _unusable(request: Request, error: OcilError) -> Response:
    """A file cannot be written, or is damaged: the message has what to do."""
    logger.error("%s %s", asked(request.scope).request_id, error)
    return refused(RefusedError(503, str(error)), asked(request.scope).request_id)


async def _invalid(request: Request, error: RequestValidationError) -> Response:
    return refusal(422, explained(error.errors()), None, asked(request.scope).request_id)


async def _http_error(request: Request, error: HTTPException) -> Response:
    headers = dict(error.headers or {})
    return refusal(error.status_code, str(error.detail), headers, asked(request.scope).request_id)


async def _unexpected(request: Request, error: Exception) -> Response:
    request_id = asked(request.scope).request_id
    headers = {"x-request-id": request_id}  # this answer does not pass the guard
    return refusal(500, "an unexpected error; the service's log has more.", headers, request_id)


def refusals(*codes: int) -> Responses:
    return {code: {"model": answers.Refusal, "description": REFUSALS[code]} for code in sorted(codes)}


def _described(app: FastAPI, schemas: dict[str, Any], tokens: bool) -> dict[str, Any]:
    """The OpenAPI description. ``schemas``: of the bodies of requests, which FastAPI does not parse here."""
    if app.openapi_schema is None:
        schema: dict[str, Any] = FastAPI.openapi(app)
        schema["components"]["schemas"] |= schemas
        if tokens:
            schema["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
            schema["security"] = [{"token": []}]
        app.openapi_schema = schema
    return dict(app.openapi_schema)
