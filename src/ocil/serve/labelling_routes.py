"""The paths that the labelling page asks."""

import asyncio
import csv
import io
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, TypeVar

from fastapi import FastAPI, Path, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel

from ocil.online.images import ImageFormat
from ocil.online.labels import encoded
from ocil.serve.answers import ClassProbability, JsonLabel, Number, Share, StrictRequest, Text
from ocil.serve.bodies import Budget, read_files, read_small
from ocil.serve.futures import in_pool
from ocil.serve.guard import asked as note
from ocil.serve.labelling import Added, Labelling, Shown
from ocil.serve.labelling_images import media_type, prepare
from ocil.serve.labelling_store import Content
from ocil.serve.labels import checked_label, reading
from ocil.serve.limits import Limits, RefusedError
from ocil.serve.openapi import Responses, add_route, files_body, label_body

T = TypeVar("T")

IMAGE: Responses = {
    200: {"content": {kind: {"schema": {"type": "string", "format": "binary"}} for kind in ("image/png", "image/jpeg")}}
}
TABLE: Responses = {200: {"content": {"text/csv": {"schema": {"type": "string"}}}}}
ImageNumber = Annotated[int, Path(ge=1, le=2**62, description="The number of an image of the queue.")]
Person = Annotated[str, Query(max_length=64, description="Who asks: two people are not shown the same image.")]
Ahead = Annotated[int, Query(ge=1, le=8, description="Images to name.")]
FirstImage = Annotated[int | None, Query(ge=1, le=2**62, description="An image to begin with.")]
First = Annotated[int, Query(ge=0, le=10**6, description="Leave out so many images.")]
Count = Annotated[int, Query(ge=1, le=100, description="Images to name.")]


class LabelRequest(StrictRequest):
    label: Text | Number
    again: bool = False


class ShownImage(BaseModel):  # type: ignore[misc]
    number: int
    name: str
    classes: list[ClassProbability]


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
        common, body, one = (400, 422, 503), (408, 413, 415), (404, 409)
        files = {"body": files_body(self.limits)}
        label = {"body": label_body(LabelRequest, self.limits)}
        none: dict[str, Any] = {}
        image = {"response_class": Response, "responses": IMAGE}
        table = {"response_class": Response, "responses": TABLE}
        for method, path, answer, summary, codes, options in (
            ("POST", "images", self.add, "Put images into the queue", body, files),
            ("GET", "queue", self.queue, "The images to label next", one, none),
            ("GET", "images", self.of_class, "The images of a class, the doubtful first", (), none),
            ("GET", "labels.csv", self.labels, "All labels that were given", (), table),
            ("GET", "images/{number}", self.image, "A preview of an image", one, image),
            ("DELETE", "images/{number}", self.remove, "Take an image out of the queue", one, none),
            ("PUT", "images/{number}/label", self.label, "Label an image", (*body, *one), label),
            ("DELETE", "images/{number}/label", self.unlabel, "Take a label back", one, none),
            ("POST", "images/{number}/skip", self.skip, "Put an image off", one, none),
            ("DELETE", "images/{number}/skip", self.unskip, "Take that back", one, none),
        ):
            name = f"labelling_{answer.__name__}"
            add_route(app, method, f"/label/{path}", answer, summary, *common, *codes, name=name, **options)

    async def add(self, request: Request) -> AddedImages:
        """A form has the field `image`, repeated. Files that cannot be read are named, and the others added once."""
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
        """Those that the model is least sure of come first."""
        return await self._in(self._state, person, count, first)

    async def image(self, number: ImageNumber, thumbnail: bool = False) -> Response:
        """As PNG or JPEG, whatever was sent."""
        content = await self._in(self.labelling.image, number, thumbnail)
        return Response(content, media_type=media_type(content))

    async def label(self, number: ImageNumber, request: Request, person: Person = "") -> QueueState:
        """The model learns the image with this label, or `again`, with another one: that corrects the sample."""
        asked = await read_small(request, self.limits, LabelRequest)
        label = checked_label(asked.label, self.limits)
        one = await self._in(self.labelling.label, number, label, asked.again)
        note(request.scope).changed |= {"sample": one.sample, "label": encoded(one.label)}
        return await self.queue(person)

    async def unlabel(self, number: ImageNumber, person: Person = "") -> QueueState:
        """The image comes back into the queue, and the model forgets the sample."""
        await self._in(self.labelling.unlabel, number)
        return await self.queue(person, first=number)

    async def skip(self, number: ImageNumber, person: Person = "") -> QueueState:
        """It comes again behind all that were put off less often."""
        await self._in(self.labelling.skip, number, 1)
        return await self.queue(person)

    async def unskip(self, number: ImageNumber, person: Person = "") -> QueueState:
        """The image comes next."""
        await self._in(self.labelling.skip, number, -1)
        return await self.queue(person, first=number)

    async def remove(self, number: ImageNumber, person: Person = "") -> QueueState:
        """For good: it is deleted here. An image with a label stays."""
        await self._in(self.labelling.remove, number)
        return await self.queue(person)

    async def of_class(self, label: str, first: First = 0, count: Count = 60) -> ClassImages:
        """Only images that were labelled here."""
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
        return await in_pool(self.pool, function, *arguments)


def _prepared(file: tuple[str, bytes], form: ImageFormat, limits: Limits) -> Content | RefusedError:
    """An image as it is kept, or why it is not: the other images of a folder must not suffer."""
    try:
        return prepare(*file, form, limits)
    except RefusedError as error:
        return error


def _shown_image(one: Shown) -> ShownImage:
    classes = [ClassProbability(label=encoded(label), probability=share) for label, share in one.classes]
    return ShownImage(number=one.entry.number, name=one.entry.name, classes=classes)
