"""Several models in one process: each behind ``/models/NAME``, with its folder, its threads and its limits."""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

import ocil
from ocil.errors import OcilError
from ocil.online.model import has_model
from ocil.precision import is_exact
from ocil.serve import answers
from ocil.serve.app import add_guard, create_app
from ocil.serve.audit import FILE, Audit
from ocil.serve.guard import LOOPBACK, asked
from ocil.serve.health import add_health, not_ready
from ocil.serve.limits import RefusedError
from ocil.serve.metrics import CONTENT_TYPE, Metrics, text_of
from ocil.serve.openapi import GUARD, TEXT, refusals
from ocil.serve.pages import add_models_page
from ocil.serve.service import Service
from ocil.serve.tokens import NAME, Access

OPTIONS = "serve.toml"
PATH = re.compile(r"/models/([^/]+)(/.*)?", re.DOTALL)


@dataclass(frozen=True)
class ModelFolder:
    """One of the models of a folder, and how it is served."""

    name: str
    folder: Path
    options: Mapping[str, Any]
    """What the file of options says about it: limits, ``save_seconds``, ``keep_log``."""


def model_folders(folder: Path, known: Mapping[str, type]) -> list[ModelFolder]:
    """The models in the subfolders of ``folder``, by name, with their options from its file ``serve.toml``.

    ``known``: names and types of options.
    """
    if not folder.is_dir():
        raise OcilError(f"{folder} is not a folder: --models needs one with a folder per model.")
    found = {path.name: path for path in sorted(folder.iterdir()) if path.is_dir() and has_model(path)}
    if not found:
        raise OcilError(f"{folder} has no folder with a model: make one with `ocil learn` or `ocil serve --model`.")
    for name in found:
        if not NAME.fullmatch(name):
            raise OcilError(
                f"{folder / name}: {name!r} cannot stand in an address. Use letters, digits, dots, - and _."
            )
    options = _options(folder / OPTIONS)
    if strangers := options.keys() - found.keys():
        raise OcilError(f"{folder / OPTIONS} names {min(strangers)}, which is not the folder of a model.")
    for name, given in options.items():
        for key, value in given.items():
            if key not in known or not isinstance(value, known[key]) or isinstance(value, bool) != (known[key] is bool):
                raise OcilError(f"{folder / OPTIONS}: {key} = {value!r} of {name} is wrong. Known: {', '.join(known)}.")
    return [ModelFolder(name, path, options.get(name, {})) for name, path in found.items()]


def _options(file: Path) -> dict[str, dict[str, Any]]:
    try:
        content = tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise OcilError(f"{file} cannot be read: {error}.") from None
    if not all(isinstance(value, dict) for value in content.values()):
        raise OcilError(f"{file} must have one table per model, [NAME].")
    return content


def refuse_mixed(services: Mapping[str, Service]) -> None:
    """PyTorch's switches for exact steps are those of the process: a model that learned without them would change its
    steps. On a CPU all steps are exact."""
    on_gpu = {name: service.model for name, service in services.items() if service.model.device.type == "cuda"}
    precisions = {name: model.config.precision for name, model in on_gpu.items()}
    if len({is_exact(precision) for precision in precisions.values()}) > 1:
        listed = ", ".join(f"{name}: {one}" for name, one in precisions.items())
        raise OcilError(f"models of different precision cannot share a process ({listed}): serve them separately.")


class Models:
    """An ASGI application: requests for ``/models/NAME/...`` go to the application of that model."""

    def __init__(
        self,
        services: Mapping[str, Service],
        access: Access | None = None,
        hosts: tuple[str, ...] | None = LOOPBACK,
        audited: bool = False,
    ) -> None:
        """``audited``: whether each change is written to a file in the model's folder."""
        access = access or Access()
        self.apps: dict[str, ASGIApp] = {}
        for name, service in services.items():
            audit = Audit(service.folder / FILE) if audited else None
            self.apps[name] = create_app(service, access, hosts, audit, prefix=f"/models/{name}")
        self.shared = _shared_app(services, access, hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        match = PATH.fullmatch(scope["path"]) if scope["type"] == "http" else None
        if match is None or match[1] not in self.apps:
            await self.shared(scope, receive, send)
        elif match[2] is None:  # without the slash the page's relative addresses would lead elsewhere
            await RedirectResponse(f"{match[1]}/")(scope, receive, send)
        else:
            there = {**scope, "path": match[2], "raw_path": match[2].encode()}
            await self.apps[match[1]](there, receive, send)


def _shared_app(services: Mapping[str, Service], access: Access, hosts: tuple[str, ...] | None) -> FastAPI:
    """What concerns the whole process: the list of models and its page, health, metrics."""
    app = FastAPI(title="ocil serve", version=ocil.__version__, docs_url=None, redoc_url=None, openapi_url=None)
    own = Metrics()

    async def models(request: Request) -> answers.ModelList:
        """The models that the token is for."""
        token = asked(request.scope).token
        return answers.ModelList(
            models=[
                answers.ModelSummary(
                    name=name,
                    path=f"/models/{name}",
                    method=service.model.recipe.method,
                    model_samples=service.statistics.samples,
                    classes=len(service.statistics.labels),
                    queue=max(0, service.backlog),
                    vectors=service.vectors is not None,
                    reason=not_ready([service]),
                    problem=service.problem,
                )
                for name, service in services.items()
                if token.is_for(name)
            ]
        )

    async def metrics(request: Request) -> Response:
        """All models' numbers, each with the label ``model``; without those the token is not for."""
        token = asked(request.scope).token
        seen = {name: service.metrics for name, service in services.items() if token.is_for(name)}
        return Response(text_of(seen), media_type=CONTENT_TYPE)

    async def unknown() -> None:
        """Requests for models that are there do not come here."""
        raise RefusedError(404, "there is no model of this name here: GET /models lists those that the token is for.")

    for path in ("/models/{name}", "/models/{name}/{rest:path}"):
        app.add_api_route(path, unknown, methods=["GET", "HEAD", "POST", "PUT", "DELETE"], response_model=None)
    app.add_api_route("/models", models, methods=["GET"], response_model=answers.ModelList)
    app.add_api_route("/metrics", metrics, methods=["GET"], responses=TEXT | refusals(*GUARD))
    add_health(app, list(services.values()))
    add_models_page(app)
    add_guard(app, metrics=own, access=access, hosts=hosts)
    return app
