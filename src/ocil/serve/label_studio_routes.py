"""The paths of Label Studio's machine learning backend: its address there is this service's, with /label-studio."""

import base64
import binascii
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any

from fastapi import FastAPI, Request
from pydantic import BaseModel, Field
from starlette.types import ASGIApp, Receive, Scope, Send

from ocil.serve.bodies import Budget, read_small
from ocil.serve.futures import in_pool
from ocil.serve.label_studio import LabelStudio, Project, chosen, read_project
from ocil.serve.openapi import BODY, add_route, named_body

PREFIX = "/label-studio"
Config = Annotated[str, Field(max_length=2**18)]


class LabelStudioTask(BaseModel):  # type: ignore[misc]
    data: dict[str, Any]


class LabelStudioPredictRequest(BaseModel):  # type: ignore[misc]
    tasks: list[LabelStudioTask] = Field(max_length=1000)
    label_config: Config


class LabelStudioSetupRequest(BaseModel):  # type: ignore[misc]
    label_schema: Config = Field(alias="schema")
    access_token: str | None = Field(default=None, max_length=1000)


class LabelStudioHookAnnotation(BaseModel):  # type: ignore[misc]
    id: int
    result: Any = None
    was_cancelled: bool = False


class LabelStudioHookProject(BaseModel):  # type: ignore[misc]
    label_config: Config


class LabelStudioWebhookRequest(BaseModel):  # type: ignore[misc]
    action: str
    annotation: LabelStudioHookAnnotation | list[LabelStudioHookAnnotation] | None = None
    annotations: list[LabelStudioHookAnnotation] | None = None
    task: LabelStudioTask | list[LabelStudioTask] | None = None
    project: LabelStudioHookProject | None = None


LABEL_STUDIO_REQUESTS = (LabelStudioSetupRequest, LabelStudioPredictRequest, LabelStudioWebhookRequest)


class LabelStudioRoutes:
    """One function per path."""

    def __init__(self, studio: LabelStudio, budget: Budget) -> None:
        self.studio, self.budget, self.limits = studio, budget, studio.service.limits
        self.pool = ThreadPoolExecutor(2, "ocil-label-studio-ask")

    def add_to(self, app: FastAPI) -> None:
        for answer, summary, request in (
            (self.setup, "Label Studio: a project is connected", LabelStudioSetupRequest),
            (self.predict, "Label Studio: predictions for tasks", LabelStudioPredictRequest),
            (self.webhook, "Label Studio: annotations were changed", LabelStudioWebhookRequest),
        ):
            path, name = f"{PREFIX}/{answer.__name__}", f"label_studio_{answer.__name__}"
            add_route(app, "POST", path, answer, summary, 503, *BODY, name=name, body=named_body(request))
        path, name = f"{PREFIX}/health", "label_studio_health"
        add_route(app, "GET", path, self.health, "Label Studio: whether the backend lives", 503, name=name)

    async def health(self) -> dict[str, Any]:
        """Also how many annotations wait to be learned, and how many were given up."""
        waiting = await self._in(lambda: self.studio.waiting)
        service = self.studio.service
        return {
            "status": "UP",
            "model_class": service.model.recipe.method,
            "waiting": waiting,
            "failed": len(self.studio.failed),
        }

    async def setup(self, request: Request) -> dict[str, str]:
        """The project must have single choices for images."""
        asked = await read_small(request, self.limits, LabelStudioSetupRequest, most=2**20)
        read_project(asked.label_schema)
        if asked.access_token:
            self.studio.task_images.offer_key(asked.access_token)
        return {"model_version": self.studio.version}

    async def predict(self, request: Request) -> dict[str, Any]:
        """The likeliest choice of each task, and how sure the model is of it."""
        with self.budget.lease() as take:
            asked = await read_small(request, self.limits, LabelStudioPredictRequest, take, self.limits.body_bytes)
            project, version = read_project(asked.label_config), self.studio.version
            addresses = [_address(project, task) for task in asked.tasks]
            guesses = await self._in(self.studio.predict, project, addresses)
        results = []
        for guess in guesses:
            value = {"choices": [guess.choice]}
            one = {"from_name": project.from_name, "to_name": project.to_name, "type": "choices", "value": value}
            result = [] if guess.choice is None else [one]
            results.append({"result": result, "score": guess.score, "model_version": version})
        return {"results": results, "model_version": version}

    async def webhook(self, request: Request) -> dict[str, int]:
        """They are learned, corrected or forgotten as soon as their images are read."""
        with self.budget.lease() as take:
            asked = await read_small(request, self.limits, LabelStudioWebhookRequest, take, self.limits.body_bytes)
        return {"changed": await self._in(self._note, asked)}

    def _note(self, asked: LabelStudioWebhookRequest) -> int:
        """Write down what changed. Other actions concern the model as little as a deleted task or project."""
        changed = 0
        if asked.action in ("ANNOTATION_CREATED", "ANNOTATIONS_CREATED", "ANNOTATION_UPDATED") and asked.project:
            project = read_project(asked.project.label_config)
            for annotation, task in zip(_listed(asked.annotation), _listed(asked.task), strict=False):
                label = None if annotation.was_cancelled else chosen(project, annotation.result)
                changed += self.studio.want(str(annotation.id), _address(project, task), label)
        elif asked.action == "ANNOTATIONS_DELETED":
            for annotation in [*_listed(asked.annotations), *_listed(asked.annotation)]:
                changed += self.studio.want(str(annotation.id), None, None)
        return changed

    async def _in(self, function: Any, *arguments: Any) -> Any:
        return await in_pool(self.pool, function, *arguments)


class BasicToken:
    """ASGI middleware: Label Studio can send the token as the password of basic authentication only."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and f"{PREFIX}/" in scope["path"]:
            headers = [
                (name, _bearer(value) if name == b"authorization" else value) for name, value in scope["headers"]
            ]
            scope = {**scope, "headers": headers}
        await self.app(scope, receive, send)


def _bearer(value: bytes) -> bytes:
    kind, _, given = value.partition(b" ")
    if kind.lower() != b"basic":
        return value
    try:
        return b"Bearer " + base64.b64decode(given, validate=True).partition(b":")[2]
    except binascii.Error:
        return value


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _address(project: Project, task: LabelStudioTask) -> str | None:
    found = task.data.get(project.field)
    return found if isinstance(found, str) else None
