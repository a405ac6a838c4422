"""What each path does: it checks a request, asks the service, and makes the answer."""

import asyncio
import math
import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import FastAPI, Header, Query, Request
from fastapi.responses import Response
from numpy.typing import NDArray
from starlette.types import Receive, Scope, Send

import ocil
from ocil.online.images import ImageFormat
from ocil.online.labels import encoded
from ocil.serve import answers, pictures
from ocil.serve.bodies import Budget, Sent, read_body
from ocil.serve.futures import in_pool, result_in_time, result_of
from ocil.serve.guard import asked
from ocil.serve.idempotency import digest
from ocil.serve.labels import checked_label
from ocil.serve.limits import RefusedError
from ocil.serve.metrics import CONTENT_TYPE
from ocil.serve.openapi import BODY, TEXT, add_route, learn_body, predict_body
from ocil.serve.predictor import Prediction
from ocil.serve.service import Service
from ocil.serve.statistics import StoredImages

SEND_BYTES = 2**16  # of a long answer that are written at once
ANSWER_BYTES = 2**16  # that an answer about the memory takes in addition to its images
COPIES = 4  # of these images while the answer is made: pixels, PNG in base64, and JSON twice
SHORT = 100  # classes that a prediction may name and be written at once
DECODED_TOGETHER = 2**16  # bytes of images, whose decoding takes no longer than a moment
CLASS_BYTES = 2**10  # that a class of a prediction takes, while the answer is made

Wait = Annotated[Literal["true", "false"], Query(description="Answer only once the samples are learned.")]
Key = Annotated[
    str | None,
    Header(
        pattern=r"^[\x21-\x7e]{1,200}$",
        description="A name for this request: sent again under it, it is not learned again.",
    ),
]
Top = Annotated[int, Query(ge=1, le=1000, description="Classes to name; all of them if there are fewer.")]
PerClass = Annotated[int, Query(ge=1, le=16, description="Images of a class.")]
First = Annotated[int, Query(ge=0, le=10**6, description="Leave out so many classes.")]
Classes = Annotated[int, Query(ge=1, le=100, description="Classes.")]


class Routes:
    """One function per path."""

    def __init__(self, service: Service) -> None:
        self.service, self.limits = service, service.limits
        self.budget = Budget(self.limits.bodies_bytes)
        self.pool = ThreadPoolExecutor(min(4, os.cpu_count() or 1), "ocil-decode")
        self.memory_budget = Budget(self.limits.memories_bytes)
        self.memory_pool = ThreadPoolExecutor(1, "ocil-memory")  # predictions must not wait for it
        self.started = time.monotonic()

    def add_to(self, app: FastAPI) -> None:
        add, vectors = partial(add_route, app), self.service.vectors
        inputs = "images" if vectors is None else "vectors"
        learn, predict = learn_body(self.limits, vectors), predict_body(self.limits, vectors)
        found, memory = answers.Predicted, answers.MemoryState
        add("POST", "/learn", self.learn, f"Learn labelled {inputs}", 409, 503, *BODY, body=learn)
        add("POST", "/predict", self.predict, f"Classify {inputs}", 503, *BODY, body=predict, response_model=found)
        add("GET", "/status", self.status, "What it has learned")
        add("GET", "/memory", self.memory, "What the memory holds", 422, 503, response_model=memory)
        add("GET", "/metrics", self.metrics, "Numbers for Prometheus", responses=TEXT, response_class=Response)

    async def learn(self, request: Request, wait: Wait = "false", idempotency_key: Key = None) -> answers.Learned:
        """Samples are acknowledged when they are on the disk, and learned in that order.

        A form has fields `image` and `label`, repeated for a batch. JSON has `samples`, with images in base64, or with
        vectors as lists of numbers.
        """
        service = self.service
        with self.budget.lease() as take:
            sent = await read_body(request, self.limits, take, learning=True, vectors=service.vectors)
            labels = [checked_label(label, self.limits) for label in sent.labels]
            inputs = await self._decoded(sent)
        receipt = await result_of(service.writer.submit(inputs, labels, idempotency_key, digest(inputs, labels)))
        asked(request.scope).changed |= {"first": receipt.first, "last": receipt.last, "repeated": receipt.repeated}
        if wait == "true":
            with suppress(TimeoutError):
                await asyncio.wait_for(
                    result_of(service.trainer.waiters.wait_for(receipt.last)), self.limits.wait_seconds
                )
        now = service.statistics
        return answers.Learned(
            first=receipt.first,
            last=receipt.last,
            count=receipt.count,
            repeated=receipt.repeated,
            applied=receipt.last <= now.position,
            learned=now.position,
            model_samples=now.samples,
        )

    async def predict(self, request: Request, top: Top = 5) -> Response:
        """A form has the field `image`, repeated for a batch. JSON has `images`, in base64, or `vectors`."""
        with self.budget.lease() as take:
            sent = await read_body(request, self.limits, take, learning=False, vectors=self.service.vectors)
            inputs = await self._decoded(sent)
        named = len(inputs) * min(top, len(self.service.statistics.labels))
        size = named * CLASS_BYTES
        if size > self.budget.limit:
            raise RefusedError(422, f"{top} classes for each of {len(inputs)} inputs are too many: ask for fewer.")
        with ExitStack() as held:
            held.enter_context(self.budget.lease())(size)
            found = await self.service.predictor.predict(inputs)
            # A short answer takes less time than another thread takes to begin.
            short = named <= SHORT
            content = _predictions(found, top) if short else await in_pool(self.pool, _predictions, found, top)
            return _Held(content, held.pop_all())

    async def status(self) -> answers.Status:
        """All that the page shows."""
        service, now = self.service, self.service.statistics
        counts = now.counts
        learned = counts.learned + [0] * (len(now.labels) - len(counts.learned))
        correct = counts.correct + [0] * (len(now.labels) - len(counts.correct))
        classes = [
            answers.ClassState(label=encoded(label), learned=a, correct=b, stored=c)
            for label, a, b, c in zip(now.labels, learned, correct, now.stored, strict=True)
        ]
        return answers.Status(
            version=ocil.__version__,
            method=service.model.recipe.method,
            image=list(service.model.input_format.shape) if service.vectors is None else None,
            vector=service.vectors,
            model_samples=now.samples,
            model_batches=now.batches,
            acknowledged=max(service.writer.acknowledged, now.position),
            learned=now.position,
            saved=service.checkpoints.position,
            queue=max(0, service.backlog),
            queue_limit=self.limits.queue,
            accuracy=counts.accuracy,
            recent_accuracy=counts.recent_accuracy,
            recent=len(counts.recent),
            classes=classes,
            memory_size=service.model.learner.memory.size,
            memory_stored=sum(now.stored),
            bias=counts.bias(len(now.labels)),
            problem=service.problem,
            uptime_seconds=round(time.monotonic() - self.started, 3),
        )

    async def memory(self, per_class: PerClass = 4, first: First = 0, count: Classes = 50) -> Response:
        """Some of the images that are kept for replay, between two steps: fewer than asked for where they are large.

        Of vectors, only how many each class has.
        """
        size = math.prod(self.service.model.input_format.shape)
        most = min(self.limits.memory_images, self.limits.memory_bytes // size)
        classes = max(0, min(count, len(self.service.statistics.labels) - first))
        with ExitStack() as held:
            take = held.enter_context(self.memory_budget.lease())
            take(ANSWER_BYTES + COPIES * size * min(most, per_class * classes))
            wanted = self.service.stored(per_class, first, count, most)
            found = await result_in_time(wanted, self.limits.wait_seconds)
            return _Held(await in_pool(self.memory_pool, _stored_images, found), held.pop_all())

    async def metrics(self) -> Response:
        """Counters and durations in Prometheus' text format."""
        return Response(self.service.metrics.text(), media_type=CONTENT_TYPE)

    async def _decoded(self, sent: Sent) -> NDArray[Any]:
        form = self.service.model.input_format
        if isinstance(form, ImageFormat):
            if len(sent.inputs) == 1 and pictures.is_quick(sent.inputs[0]):
                return sent.decoded(form, self.limits)
            if sum(map(len, sent.inputs)) > DECODED_TOGETHER:
                return await self._decoded_in_turns(sent, form)
        return await in_pool(self.pool, sent.decoded, form, self.limits)

    async def _decoded_in_turns(self, sent: Sent, form: ImageFormat) -> NDArray[Any]:
        """One image after the other, so that those of other requests come between them."""
        pictures.check_count(sent.inputs, self.limits)
        found = []
        for number, content in enumerate(sent.inputs, 1):
            found.append(await in_pool(self.pool, pictures.decode, content, form, self.limits, f"image {number}"))
        return np.stack(found)


def _predictions(found: Prediction, top: int) -> bytes:
    predictions = []
    for row in found.probabilities:
        classes = [
            answers.ClassProbability(label=encoded(found.labels[n]), probability=min(1.0, float(row[n])))
            for n in np.argsort(-row, kind="stable")[:top]
        ]
        label, probability = (classes[0].label, classes[0].probability) if classes else (None, None)
        predictions.append(answers.InputPrediction(label=label, probability=probability, classes=classes))
    content: str = answers.Predicted(predictions=predictions, model_samples=found.samples).model_dump_json()
    return content.encode()


def _stored_images(found: StoredImages) -> bytes:
    classes = [
        answers.StoredClass(label=encoded(label), stored=stored, images=[pictures.as_png(one) for one in images])
        for label, stored, images in found.classes
    ]
    content: str = answers.MemoryState(model_samples=found.samples, classes=classes).model_dump_json()
    return content.encode()


class _Held(Response):  # type: ignore[misc]
    """JSON that is sent in chunks, each once the client has taken those before it.

    What is held for it, a lease of memory, is given back when the last chunk is sent or the client is gone.
    """

    media_type = "application/json"

    def __init__(self, content: bytes, held: ExitStack) -> None:
        super().__init__(content)
        self.held = held

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self.held:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            for first in range(0, len(self.body), SEND_BYTES):
                chunk, more = self.body[first : first + SEND_BYTES], first + SEND_BYTES < len(self.body)
                await send({"type": "http.response.body", "body": chunk, "more_body": more})
