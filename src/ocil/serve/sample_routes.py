"""What the paths about single samples do: look one up, search, correct, forget, and relearn from the memory."""

import asyncio
from concurrent.futures import Future
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import FastAPI, Path, Query, Request
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from ocil.online.labels import encoded
from ocil.serve.answers import Count, JsonLabel, Number, StrictRequest, Text
from ocil.serve.bodies import read_small
from ocil.serve.catalogue import SampleState
from ocil.serve.futures import result_in_time, result_of
from ocil.serve.guard import asked
from ocil.serve.labels import BIGGEST_NUMBER, checked_label
from ocil.serve.openapi import BODY, add_route, label_body
from ocil.serve.pictures import as_png
from ocil.serve.routes import Key
from ocil.serve.service import Service
from ocil.serve.writer import Receipt

SampleNumber = Annotated[int, Path(ge=1, le=BIGGEST_NUMBER, description="The number that the sample got.")]
WithInput = Annotated[Literal["true", "false"], Query(alias="input", description="Send the image or the vector too.")]
OfClass = Annotated[str | None, Query(min_length=1, description="Samples of this class.")]
Since = Annotated[datetime | None, Query(description="Samples that came at this time or later; UTC if it names none.")]
Until = Annotated[datetime | None, Query(description="Samples that came before this time.")]
After = Annotated[int, Query(ge=0, le=BIGGEST_NUMBER, description="Samples with a higher number: the next page.")]
Most = Annotated[int, Query(ge=1, le=1000, description="At most so many samples.")]
State = Literal["waiting", "learned", "forgotten"]


class Sample(BaseModel):  # type: ignore[misc]
    number: Count
    state: State = Field(description="Whether the model has learned it.")
    label: JsonLabel = Field(description="Its class as it is now; null if it was forgotten.")
    first_label: JsonLabel = Field(description="The label it came with, if that was corrected.")
    time: datetime | None = Field(description="When it came; null if that was not written down.")


class FoundSample(Sample):
    stored: bool = Field(description="Whether the memory holds it.")
    image: str | None = Field(description="The stored image as a data address, if asked for.")
    vector: list[float] | None = Field(description="The stored vector, if asked for.")


class FoundSamples(BaseModel):  # type: ignore[misc]
    samples: list[Sample] = Field(description="By number. Forgotten ones are left out.")


class Changed(BaseModel):  # type: ignore[misc]
    """The change is on the disk: it will be made, whatever happens to the process."""

    change: Count = Field(description="Its number. Changes are made in the order of their numbers.")
    repeated: bool = Field(description="The Idempotency-Key came before: this is the first request's change.")
    made: bool = Field(description="Whether it is made by now.")


class ChangedSample(Changed):
    sample: Sample
    learned: bool | None = Field(
        description="Whether the network had learned it before: it keeps what it learned. Null: not known any more."
    )
    stored: bool | None = Field(
        description="Whether the memory held it, and so was changed. Null: not known, or not made yet."
    )


class Correction(StrictRequest):
    label: Text | Number


class SampleRoutes:
    """One function per path. The list of samples may wait for the disk, so it is asked in other threads."""

    def __init__(self, service: Service) -> None:
        self.service, self.limits = service, service.limits

    def add_to(self, app: FastAPI) -> None:
        add = partial(add_route, app)
        one, change = "/samples/{number}", (409, 422, 503)
        body = label_body(Correction, self.limits)
        add("GET", "/samples", self.find_samples, "Search for samples", 422, 503)
        add("GET", one, self.find_sample, "One sample", 404, 422, 503)
        add("PUT", one, self.correct_sample, "Correct a sample's label", 404, *change, *BODY, body=body)
        add("DELETE", one, self.forget_sample, "Forget a sample", 404, *change)
        add("POST", "/review", self.review, "Relearn from the memory", *change)

    async def find_samples(
        self, label: OfClass = None, since: Since = None, until: Until = None, after: After = 0, limit: Most = 100
    ) -> FoundSamples:
        """Samples by class and time. For the next page ask for those `after` the last number."""
        of_class = None if label is None else checked_label(label, self.limits)
        found = await asyncio.to_thread(self.service.samples, of_class, _seconds(since), _seconds(until), after, limit)
        return FoundSamples(samples=[Sample(**self._described(one)) for one in found])

    async def find_sample(self, number: SampleNumber, with_input: WithInput = "false") -> FoundSample:
        """One sample, and whether the memory holds it."""
        known = await asyncio.to_thread(self.service.sample, number)
        pixels = await result_in_time(self.service.stored_input(number), self.limits.wait_seconds)
        shown = _shown(pixels if with_input == "true" else None, self.service.vectors)
        return FoundSample(stored=pixels is not None, **shown, **self._described(known))

    async def correct_sample(
        self, number: SampleNumber, request: Request, idempotency_key: Key = None
    ) -> ChangedSample:
        """Give a sample another label. The memory replays it with that label from now on.

        The network keeps what it has learned from the wrong label, until later steps or a review outweigh it.
        """
        sent = await read_small(request, self.limits, Correction)
        label = checked_label(sent.label, self.limits)
        accepted = await asyncio.to_thread(self.service.correct, number, label, idempotency_key)
        return await self._answer(request, number, accepted)

    async def forget_sample(self, number: SampleNumber, request: Request, idempotency_key: Key = None) -> ChangedSample:
        """Remove a sample from the memory, or from the queue if it was not learned yet.

        The network keeps what it has learned from it; so do versions and backups that were saved before. If learning
        has stopped at the sample, the next start goes on without it.
        """
        accepted = await asyncio.to_thread(self.service.forget, number, idempotency_key)
        return await self._answer(request, number, accepted)

    async def review(self, request: Request, idempotency_key: Key = None) -> Changed:
        """Relearn from the memory, with the labels as they are now: one pass over all that it holds.

        With a method that needs task ends it is a task end instead. GDumb then trains a new network.
        """
        receipt, made = await accepted_change(self.service, self.service.review(idempotency_key))
        asked(request.scope).changed |= {"change": receipt.first, "repeated": receipt.repeated}
        return Changed(change=receipt.first, repeated=receipt.repeated, made=made)

    async def _answer(self, request: Request, number: int, accepted: "Future[Receipt]") -> ChangedSample:
        receipt, made = await accepted_change(self.service, accepted)
        outcome = self.service.trainer.outcomes.get(receipt.first)
        now = await asyncio.to_thread(self.service.sample, number)
        label = encoded(now.label)
        audited = {"change": receipt.first, "sample": number, "label": label, "repeated": receipt.repeated}
        asked(request.scope).changed |= audited
        return ChangedSample(
            change=receipt.first,
            repeated=receipt.repeated,
            made=made,
            sample=Sample(**self._described(now)),
            learned=outcome.learned if outcome else None,
            stored=outcome.stored if outcome else None,
        )

    def _described(self, one: SampleState) -> dict[str, Any]:
        learned: State = "learned" if one.number <= self.service.statistics.position else "waiting"
        return {
            "number": one.number,
            "state": "forgotten" if one.forgotten else learned,
            "label": encoded(one.label),
            "first_label": encoded(one.first_label),
            "time": None if one.time is None else datetime.fromtimestamp(one.time, UTC),
        }


async def accepted_change(service: Service, accepted: "Future[Receipt]") -> tuple[Receipt, bool]:
    """The receipt of a change, and whether it was made in the time that a request may wait."""
    receipt, made = await result_of(accepted), False
    with suppress(TimeoutError):
        made = await asyncio.wait_for(result_of(service.wait_for_change(receipt.first)), service.limits.wait_seconds)
    return receipt, made


def _seconds(time: datetime | None) -> float | None:
    if time is None:
        return None
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()


def _shown(stored: NDArray[Any] | None, vectors: int | None) -> dict[str, Any]:
    if stored is None:
        return {"image": None, "vector": None}
    if vectors is None:
        return {"image": as_png(np.asarray(stored)), "vector": None}
    return {"image": None, "vector": stored.astype(float).tolist()}
