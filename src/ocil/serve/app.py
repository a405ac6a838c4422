"""The HTTP application."""

import logging
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

import ocil
from ocil.errors import OcilError
from ocil.serve.audit import Audit
from ocil.serve.bodies import explained
from ocil.serve.guard import LOOPBACK, Guard, asked, refusal, refused
from ocil.serve.health import add_health
from ocil.serve.label_studio import LabelStudio
from ocil.serve.label_studio_routes import LABEL_STUDIO_REQUESTS, BasicToken, LabelStudioRoutes
from ocil.serve.labelling import Labelling
from ocil.serve.labelling_routes import LabellingRoutes
from ocil.serve.limits import RefusedError
from ocil.serve.openapi import described, request_schemas, schemas_of
from ocil.serve.pages import add_pages
from ocil.serve.routes import Routes
from ocil.serve.sample_routes import SampleRoutes
from ocil.serve.service import Service
from ocil.serve.tokens import Access
from ocil.serve.version_routes import VersionRoutes

logger = logging.getLogger("ocil.serve")


def create_app(
    service: Service,
    access: Access | None = None,
    hosts: tuple[str, ...] | None = LOOPBACK,
    audit: Audit | None = None,
    prefix: str = "",
) -> FastAPI:
    """``access``: whom requests are taken from; None: everybody. ``prefix``: where the app lies, if not at ``/``.

    ``hosts``: names that a request may call this service by; None: any, which only a token makes safe.
    """
    access = access or Access()
    app = FastAPI(
        title="ocil serve",
        version=ocil.__version__,
        description="A classifier that learns from every labelled sample it is sent, while it predicts.",
        docs_url=None,
        redoc_url=None,
        servers=[{"url": prefix}] if prefix else None,
    )
    routes, studio = Routes(service), LabelStudio.find(service)
    schemas = request_schemas(service.limits, service.vectors)
    routes.add_to(app)
    SampleRoutes(service).add_to(app)
    VersionRoutes(service).add_to(app)
    LabellingRoutes(Labelling.of(service), routes.budget, routes.pool).add_to(app)
    if studio is not None:
        LabelStudioRoutes(studio, routes.budget).add_to(app)
        schemas |= schemas_of(*LABEL_STUDIO_REQUESTS)
    add_health(app, [service])
    app.openapi = lambda: described(app, schemas, access.required)
    add_pages(app)
    add_guard(app, metrics=service.metrics, access=access, hosts=hosts, model=service.folder.name, audit=audit)
    if studio is not None:
        app.add_middleware(BasicToken)  # what is added last comes first
    return app


def add_guard(app: FastAPI, **options: Any) -> None:
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
