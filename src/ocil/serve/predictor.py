"""The thread that predicts. It reads snapshots and never waits for a step."""

import asyncio
import itertools
import logging
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ocil.online.labels import ClassLabel
from ocil.serve.futures import ServiceThread, answer_all
from ocil.serve.limits import Limits, RefusedError
from ocil.serve.metrics import Metrics
from ocil.serve.snapshot import NotFiniteError, Snapshots

TOGETHER = 16  # inputs predicted in one pass: more gain little and make the others wait

logger = logging.getLogger("ocil.serve")


@dataclass(frozen=True)
class Prediction:
    """The prediction for the inputs of one request."""

    labels: tuple[ClassLabel, ...]
    """The classes, in the order of the columns."""
    samples: int
    """Samples that the model had learned."""
    probabilities: NDArray[np.float64]
    """[inputs, classes]"""

    def part(self, first: int, last: int) -> "Prediction":
        """That for some of the inputs."""
        return replace(self, probabilities=self.probabilities[first:last])


_Question = tuple[NDArray[Any], "Future[Prediction] | asyncio.Future[Prediction]"]


class Predictor(ServiceThread):
    """Classifies inputs by the newest snapshot. Those that wait together are classified together."""

    def __init__(self, snapshots: Snapshots, limits: Limits, metrics: Metrics) -> None:
        super().__init__("ocil-predict")
        self.snapshots, self.limits, self.metrics = snapshots, limits, metrics
        self.waiting = 0
        """Inputs that wait for a prediction."""
        self._questions: deque[_Question] = deque()
        self._asked: list[_Question] = []  # those that are being answered

    def ask(self, inputs: NDArray[Any]) -> "Future[Prediction]":
        """Classify inputs, as the learner takes them. ``RefusedError``, here or in the future, if it cannot."""
        found: Future[Prediction] = Future()
        self._add(inputs, found)
        return found

    async def predict(self, inputs: NDArray[Any]) -> Prediction:
        """``ask`` in an event loop, which wakes once for all that were predicted together."""
        found: asyncio.Future[Prediction] = asyncio.get_running_loop().create_future()
        self._add(inputs, found)
        return await found

    def _add(self, inputs: NDArray[Any], found: "Future[Prediction] | asyncio.Future[Prediction]") -> None:
        with self._changed:
            self.refuse_if_stopping()
            if self.waiting + len(inputs) > self.limits.predictions:
                message = f"{self.waiting} inputs wait for a prediction, the most is {self.limits.predictions}."
                raise RefusedError(429, message, 1)
            self.waiting += len(inputs)
            self._questions.append((inputs, found))
            self._changed.notify_all()

    def _run(self) -> None:
        """The predicting thread."""
        torch.set_num_threads(1)  # counts for this thread
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._questions or self._stopping)
                if not self._questions:
                    return
                asked = self._asked = self._take_some()
            found = self._predicted([inputs for inputs, _ in asked])
            lasts = list(itertools.accumulate(len(inputs) for inputs, _ in asked))
            answer_all(
                (future, found if isinstance(found, Exception) else found.part(last - len(inputs), last))
                for (inputs, future), last in zip(asked, lasts, strict=True)
            )
            if isinstance(found, Prediction):
                self.metrics.predicted.inc(lasts[-1])
            with self._changed:
                self.waiting -= lasts[-1]

    def _take_some(self) -> list[_Question]:
        """The questions to be answered together."""
        taken = [self._questions.popleft()]
        while self._questions and sum(len(x) for x, _ in taken) + len(self._questions[0][0]) <= TOGETHER:
            taken.append(self._questions.popleft())
        return taken

    def _refuse_waiting(self, refusal: RefusedError) -> None:
        answer_all((future, refusal) for _, future in (*self._asked, *self._questions))

    def _predicted(self, asked: list[NDArray[Any]]) -> Prediction | Exception:
        try:
            inputs = np.concatenate(asked)
            with self.snapshots.reading() as snapshot:
                return Prediction(snapshot.labels, snapshot.samples, snapshot.probabilities(inputs))
        except NotFiniteError as error:
            return RefusedError(503, f"no prediction: {error}")
        except Exception as error:
            logger.exception("a prediction failed")
            return error
