"""Whether the process lives and whether it can take requests, for probes without a token."""

from collections.abc import Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse, Response

from ocil.serve import answers
from ocil.serve.service import Service
from ocil.serve.trainer import Replay

HEALTH = ("/health", "/health/live", "/health/ready")


def add_health(app: FastAPI, services: Sequence[Service]) -> None:
    """Add the three paths. They name no model and no file."""

    async def live() -> answers.Health:
        """It answers, so it lives. Restart a process that does not."""
        return answers.Health(status="UP")

    async def ready() -> Response:
        """200 if all models learn and predict; 503 while the service stops, while a model still learns what its log
        held at the start, and when learning or predicting has stopped."""
        reason = not_ready(services)
        content = answers.Health(status="UP" if reason is None else "DOWN", reason=reason)
        return JSONResponse(content.model_dump(), 200 if reason is None else 503)

    async def health() -> answers.Health:
        """Live, with the reason why it is not ready, if it is not."""
        return answers.Health(status="UP", reason=not_ready(services))

    down: dict[int | str, dict[str, Any]] = {503: {"model": answers.Health, "description": "Not ready."}}
    for path, answer, summary, responses in (
        ("/health", health, "Whether it lives, and what is wrong", {}),
        ("/health/live", live, "Whether it lives", {}),
        ("/health/ready", ready, "Whether it takes requests", down),
    ):
        options = {"summary": summary, "operation_id": path.strip("/").replace("/", "_"), "responses": responses}
        app.add_api_route(path, answer, methods=["GET"], response_model=answers.Health, **options)
        app.add_api_route(path, answer, methods=["HEAD"], include_in_schema=False)  # as `wget --spider` asks


def not_ready(services: Sequence[Service]) -> str | None:
    """Why requests should go elsewhere; None if they need not."""
    if any(service.draining for service in services):
        return "stopping"
    if any(service.stopped for service in services):
        return "learning has stopped"
    if any(service.predictor.broken for service in services):
        return "predicting has stopped"
    replays = [service.trainer.replay for service in services]
    return None if all(replay.finished for replay in replays) else _replaying(replays)


def _replaying(replays: Sequence[Replay]) -> str:
    """How far all of them are together."""
    samples, all_samples, changes, all_changes = map(sum, zip(*replays, strict=True))
    made = f" and {changes} of {all_changes} changes are made" if all_changes else ""
    return f"replaying the log: {samples} of {all_samples} samples are learned{made}"
