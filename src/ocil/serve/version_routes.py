"""What the paths about versions, the held-out set and backups do."""

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Annotated

from fastapi import FastAPI, Path, Request
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field, StrictBool, StrictStr

from ocil.serve.answers import Count, StrictRequest
from ocil.serve.backup import backup
from ocil.serve.bodies import Budget, read_body, read_small
from ocil.serve.futures import in_pool
from ocil.serve.guard import asked
from ocil.serve.held_out import Known
from ocil.serve.labels import checked_label
from ocil.serve.limits import Limits, RefusedError
from ocil.serve.openapi import BODY, add_route, json_body, learn_body
from ocil.serve.routes import Key
from ocil.serve.sample_routes import Changed, accepted_change
from ocil.serve.service import Service
from ocil.serve.versions import NAME, Version
from ocil.serve.writer import Receipt

VersionName = Annotated[str, Path(pattern=f"^{NAME}$", description="The name of a version.")]


class NewVersion(StrictRequest):
    name: StrictStr = Field(pattern=f"^{NAME}$", description="Not `pinned` or `compare`.")


class Restoration(StrictRequest):
    relearn: StrictBool = Field(False, description="Learn what came after the version again.")


class Pin(StrictRequest):
    name: StrictStr | None = Field(description="The version that answers predictions; null: the model that learns.")


class VersionState(BaseModel):  # type: ignore[misc]
    name: str
    time: datetime = Field(description="When it was saved.")
    position: Count = Field(description="Number of the last sample that had been learned.")
    model_samples: Count = Field(description="Samples it has learned in its life.")
    classes: Count
    bytes: Count


class VersionList(BaseModel):  # type: ignore[misc]
    versions: list[VersionState] = Field(description="The oldest first.")
    pinned: str | None = Field(description="The version that answers predictions; null: the model that learns.")


class VersionKnowledge(BaseModel):  # type: ignore[misc]
    name: str | None = Field(description="Null: the model that learns, as it is now.")
    model_samples: Count
    held_out: Count = Field(description="Inputs of the held-out set.")
    correct: Count = Field(description="How many of them it classifies correctly.")
    accuracy: float | None = Field(description="Their share; null without a held-out set.")
    scored_since: Count = Field(description="Samples that were predicted before learning since it was saved.")
    accuracy_since: float | None = Field(
        description="The share of these that the learning model predicted correctly; of the model that learns: in all."
    )


class VersionComparison(BaseModel):  # type: ignore[misc]
    versions: list[VersionKnowledge]


class HeldOutState(BaseModel):  # type: ignore[misc]
    count: Count = Field(description="Inputs of the held-out set.")


class VersionRoutes:
    """One function per path."""

    def __init__(self, service: Service) -> None:
        self.service, self.limits = service, service.limits
        self.budget = Budget(service.limits.bodies_bytes)
        # Threads of their own: in those of the event loop, which read requests, predictions would wait for a long step.
        # One comparison at a time is allowed, so that a second thread is left for backups.
        self.pool = ThreadPoolExecutor(2, "ocil-versions")

    def add_to(self, app: FastAPI) -> None:
        add = partial(add_route, app)
        one, change = "/versions/{name}", (404, 409, 422, 503)
        body = (*BODY, *change)
        save, pin, restore = json_body(NewVersion), json_body(Pin), json_body(Restoration)
        held_out = learn_body(_of_held_out(self.limits), self.service.vectors)
        add("GET", "/versions", self.list_versions, "All versions")
        add("POST", "/versions", self.save_version, "Save a version", *body, body=save)
        add("GET", "/versions/compare", self.compare_versions, "Compare all versions", 503)
        add("PUT", "/versions/pinned", self.pin_version, "Pin predictions to a version", *body, body=pin)
        add("DELETE", one, self.delete_version, "Delete a version", *change)
        add("POST", f"{one}/restore", self.restore_version, "Go back to a version", *body, body=restore)
        add("PUT", "/held-out", self.put_held_out, "Replace the held-out set", 503, *BODY, body=held_out)
        add("GET", "/backup", self.backup, "A copy of all files", 503, response_class=StreamingResponse)

    async def list_versions(self) -> VersionList:
        """All versions, and the one that predictions are pinned to."""
        pinned = self.service.pinned
        found = [_state(one) for one in self.service.versions]
        return VersionList(versions=found, pinned=None if pinned is None else pinned.name)

    async def save_version(self, request: Request, idempotency_key: Key = None) -> Changed:
        """Save the model, as it is before the next batch, under a name."""
        sent = await read_small(request, self.limits, NewVersion)
        return await self._answer(request, self.service.save_version(sent.name, idempotency_key), sent.name)

    async def restore_version(self, name: VersionName, request: Request, idempotency_key: Key = None) -> Changed:
        """Go back to a version. Samples that came after it stay in the log; with `relearn` they are learned again."""
        sent = await read_small(request, self.limits, Restoration)
        return await self._answer(request, self.service.restore_version(name, sent.relearn, idempotency_key), name)

    async def delete_version(self, name: VersionName, request: Request, idempotency_key: Key = None) -> Changed:
        """Delete a version. The log that only it needed goes with the next save of the model."""
        return await self._answer(request, self.service.drop_version(name, idempotency_key), name)

    async def pin_version(self, request: Request, idempotency_key: Key = None) -> Changed:
        """Answer predictions by a version while learning goes on."""
        sent = await read_small(request, self.limits, Pin)
        return await self._answer(request, self.service.pin_version(sent.name, idempotency_key), sent.name)

    async def compare_versions(self) -> VersionComparison:
        """The accuracy of each version on the held-out set, and of what was learned since it was saved."""
        found = await in_pool(self.pool, self.service.held_out.compare)
        return VersionComparison(versions=[_known(one) for one in found])

    async def put_held_out(self, request: Request) -> HeldOutState:
        """A labelled set that is never learned, as for `/learn`; it replaces the one before."""
        limits = _of_held_out(self.limits)
        with self.budget.lease() as take:
            sent = await read_body(request, limits, take, learning=True, vectors=self.service.vectors)
            labels = [checked_label(label, self.limits) for label in sent.labels]
            inputs = await in_pool(self.pool, sent.decoded, self.service.model.input_format, limits)
            await in_pool(self.pool, self.service.held_out.put, inputs, labels)
        return HeldOutState(count=len(labels))

    async def backup(self) -> StreamingResponse:
        """All files of the model as they are at one moment, in a tar archive, while learning goes on."""
        chunks = await in_pool(self.pool, backup, self.service)
        headers = {"content-disposition": 'attachment; filename="ocil-model.tar"'}
        return StreamingResponse(chunks, media_type="application/x-tar", headers=headers)

    async def _answer(self, request: Request, accepted: "Future[Receipt]", name: str | None) -> Changed:
        receipt, made = await accepted_change(self.service, accepted)
        asked(request.scope).changed |= {"change": receipt.first, "version": name, "repeated": receipt.repeated}
        outcome = self.service.trainer.outcomes.get(receipt.first)
        if outcome is not None and outcome.refused:
            raise RefusedError(409, outcome.refused)
        return Changed(change=receipt.first, repeated=receipt.repeated, made=made)


def _of_held_out(limits: Limits) -> Limits:
    """The limits of a request with a held-out set, which is larger than others."""
    return replace(limits, batch=limits.held_out, queue=limits.held_out, predictions=limits.held_out)


def _state(one: Version) -> VersionState:
    return VersionState(
        name=one.name,
        time=datetime.fromtimestamp(one.time, UTC),
        position=one.position,
        model_samples=one.samples,
        classes=one.classes,
        bytes=one.bytes,
    )


def _known(one: Known) -> VersionKnowledge:
    return VersionKnowledge(
        name=None if one.version is None else one.version.name,
        model_samples=one.samples,
        held_out=one.tested,
        correct=one.correct,
        accuracy=one.correct / one.tested if one.tested else None,
        scored_since=one.scored.samples,
        accuracy_since=one.scored.correct / one.scored.samples if one.scored.samples else None,
    )
