"""The paths that the labelling page asks."""

import asyncio
import csv
import io
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, TypeVar

from fastapi import FastAPI, Path, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict

from ocil.online.images import ImageFormat
from ocil.online.labels import encoded
from ocil.serve.answers import JsonLabel, Number, Share, Text
from ocil.serve.bodies import Budget, read_files, read_small
from ocil.serve.guard import asked as note
from ocil.serve.labelling import Added, Labelling, Shown
from ocil.serve.labelling_images import media_type, prepare
from ocil.serve.labelling_store import Content
from ocil.serve.labels import checked_label, reading
from ocil.serve.limits import RefusedError

T = TypeVar("T")

ImageNumber = Annotated[int, Path(ge=1, le=2**62)]
Person = Annotated[str, Query(max_length=64, description="Who asks: two people are not shown the same image.")]
Ahead = Annotated[int, Query(ge=1, le=8)]
FirstImage = Annotated[int | None, Query(ge=1, le=2**62)]
First = Annotated[int, Query(ge=0, le=10**6)]
Count = Annotated[int, Query(ge=1, le=100)]


class LabelRequest(BaseModel):  # type: ignore[misc]
    model_config = ConfigDict(extra="forbid")
    label: Text | Number
    again: bool = False


class Guess(BaseModel):  # type: ignore[misc]
    label: JsonLabel
    probability: Share


class ShownImage(BaseModel):  # type: ignore[misc]
    number: int
    name: str
    classes: list[Guess]


class LabelledClass(BaseModel):  # type: ignore[misc]
    label: JsonLabel
    labelled: int


class QueueState(BaseModel):  # type: ignore[misc]
    """The images to label next, and how far the work is."""

    images: list[ShownImage]
    waiting: int
    skipped: int
    labelled: int
    accuracy: Share | None
    recent_accuracy: Share | None
    recent: int
    classes: list[LabelledClass]
    model_samples: int
    most_images: int
    most_bytes: int
    problem: str | None


class RefusedFile(BaseModel):  # type: ignore[misc]
    name: str
    detail: str


class AddedImages(BaseModel):  # type: ignore[misc]
    added: int
    known: int
    refused: list[RefusedFile]


class ClassImage(BaseModel):  # type: ignore[misc]
    number: int
    name: str
    sample: int
    probability: Share | None


class ClassImages(BaseModel):  # type: ignore[misc]
    total: int
    images: list[ClassImage]


class LabellingRoutes:
    """One function per path. All that waits, for the disk or a prediction, happens in threads."""

    def __init__(self, labelling: Labelling, budget: Budget, decoding: ThreadPoolExecutor) -> None:
        """``budget``: of bytes of all requests together. ``decoding``: the threads that decode images."""
        self.labelling, self.budget, self.decoding = labelling, budget, decoding
        self.service, self.limits = labelling.service, labelling.limits
        self.pool = ThreadPoolExecutor(4, "ocil-label")

    def add_to(self, app: FastAPI) -> None:
        for method, path, answer in (
            ("POST", "/label/images", self.add),
            ("GET", "/label/queue", self.queue),
            ("GET", "/label/images", self.of_class),
            ("GET", "/label/labels.csv", self.labels),
            ("GET", "/label/images/{number}", self.image),
            ("DELETE", "/label/images/{number}", self.remove),
            ("PUT", "/label/images/{number}/label", self.label),
            ("DELETE", "/label/images/{number}/label", self.unlabel),
            ("POST", "/label/images/{number}/skip", self.skip),
            ("DELETE", "/label/images/{number}/skip", self.unskip),
        ):
            app.add_api_route(path, answer, methods=[method], include_in_schema=False)

    async def add(self, request: Request) -> AddedImages:
        form = self.service.model.input_format
        if not isinstance(form, ImageFormat):
            raise RefusedError(400, "this model takes vectors: there are no images to label.")
        with self.budget.lease() as take:
            files = await read_files(request, self.limits, take)
            loop, contents, refused = asyncio.get_running_loop(), [], []
            jobs = [loop.run_in_executor(self.decoding, _prepared, one, form, self.limits) for one in files]
            for (name, _), found in zip(files, await asyncio.gather(*jobs), strict=True):
                if isinstance(found, Content):
                    contents.append(found)
                else:
                    refused.append(RefusedFile(name=name, detail=str(found)))
            added = await self._in(self.labelling.add, contents) if contents else Added(0, 0)
        return AddedImages(added=added.added, known=added.known, refused=refused)

    async def queue(self, person: Person = "", count: Ahead = 2, first: FirstImage = None) -> QueueState:
        return await self._in(self._state, person, count, first)

    async def image(self, number: ImageNumber, thumbnail: bool = False) -> Response:
        content = await self._in(self.labelling.image, number, thumbnail)
        return Response(content, media_type=media_type(content))

    async def label(self, number: ImageNumber, request: Request, person: Person = "") -> QueueState:
        asked = await read_small(request, self.limits, LabelRequest)
        label = checked_label(asked.label, self.limits)
        one = await self._in(self.labelling.label, number, label, asked.again)
        note(request.scope).changed |= {"sample": one.sample, "label": encoded(one.label)}
        return await self.queue(person)

    async def unlabel(self, number: ImageNumber, person: Person = "") -> QueueState:
        await self._in(self.labelling.unlabel, number)
        return await self.queue(person, first=number)

    async def skip(self, number: ImageNumber, person: Person = "") -> QueueState:
        await self._in(self.labelling.skip, number, 1)
        return await self.queue(person)

    async def unskip(self, number: ImageNumber, person: Person = "") -> QueueState:
        await self._in(self.labelling.skip, number, -1)
        return await self.queue(person, first=number)

    async def remove(self, number: ImageNumber, person: Person = "") -> QueueState:
        await self._in(self.labelling.remove, number)
        return await self.queue(person)

    async def of_class(self, label: str, first: First = 0, count: Count = 60) -> ClassImages:
        total, found = await self._in(self.labelling.of_class, label, first, count)
        images = [
            ClassImage(number=one.number, name=one.name, sample=one.sample or 0, probability=one.certainty)
            for one in found
        ]
        return ClassImages(total=total, images=images)

    async def labels(self) -> Response:
        """Name and label of every image that was labelled here, as a file for other programs."""
        rows = await self._in(lambda: self.labelling.open().labels())
        text = io.StringIO()
        table = csv.writer(text)
        table.writerow(("file", "label", "sample"))
        table.writerows((name, reading(label), sample) for name, label, sample in rows)
        headers = {"content-disposition": 'attachment; filename="labels.csv"'}
        return Response(text.getvalue(), media_type="text/csv; charset=utf-8", headers=headers)

    def _state(self, person: str, count: int, first: int | None) -> QueueState:
        labelling, statistics = self.labelling, self.service.statistics
        shown = labelling.next(person, count, first)
        waiting, skipped, by_class = labelling.counts()
        totals = labelling.totals()
        return QueueState(
            images=[_shown_image(one) for one in shown],
            waiting=waiting,
            skipped=skipped,
            labelled=totals.labelled,
            accuracy=totals.accuracy,
            recent_accuracy=totals.recent_accuracy,
            recent=totals.recent,
            classes=[
                LabelledClass(label=encoded(label), labelled=by_class.pop(reading(label), 0))
                for label in statistics.labels
            ]
            + [LabelledClass(label=name, labelled=count) for name, count in by_class.items()],  # not learned yet
            model_samples=statistics.samples,
            most_images=self.limits.batch,
            most_bytes=self.limits.body_bytes,
            problem=self.service.problem,
        )

    async def _in(self, function: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.pool, function, *arguments)


def _prepared(file: tuple[str, bytes], form: ImageFormat, limits: Any) -> Content | RefusedError:
    """An image as it is kept, or why it is not: the other images of a folder must not suffer."""
    try:
        return prepare(*file, form, limits)
    except RefusedError as error:
        return error


def _shown_image(one: Shown) -> ShownImage:
    classes = [Guess(label=encoded(label), probability=share) for label, share in one.classes]
    return ShownImage(number=one.entry.number, name=one.entry.name, classes=classes)
