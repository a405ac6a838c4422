"""The thread that predicts. It reads snapshots and never waits for a step."""

import logging
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from ocil.online.labels import ClassLabel
from ocil.serve.futures import ServiceThread, answer
from ocil.serve.limits import Limits, RefusedError
from ocil.serve.metrics import Metrics
from ocil.serve.snapshot import NotFiniteError, Snapshots

TOGETHER = 16  # images predicted in one pass: more gain little and make the others wait

logger = logging.getLogger("ocil.serve")


@dataclass(frozen=True)
class Prediction:
    """The prediction for the images of one request."""

    labels: tuple[ClassLabel, ...]
    """The classes, in the order of the columns."""
    samples: int
    """Samples that the model had learned."""
    probabilities: NDArray[np.float64]
    """[images, classes]"""


class Predictor(ServiceThread):
    """Classifies images by the newest snapshot. Images that wait together are classified together."""

    def __init__(self, snapshots: Snapshots, limits: Limits, metrics: Metrics) -> None:
        super().__init__("ocil-predict")
        self.snapshots, self.limits, self.metrics = snapshots, limits, metrics
        self.waiting = 0
        """Images that wait for a prediction."""
        self._questions: deque[tuple[NDArray[np.uint8], Future[Prediction]]] = deque()

    def ask(self, pixels: NDArray[np.uint8]) -> "Future[Prediction]":
        """Classify images [N, H, W, C]. ``RefusedError``, here or in the future, if that is not possible now."""
        found: Future[Prediction] = Future()
        with self._changed:
            self._refuse_if_stopping()
            if self.waiting + len(pixels) > self.limits.predictions:
                message = f"{self.waiting} images wait for a prediction, the most is {self.limits.predictions}."
                raise RefusedError(429, message, 1)
            self.waiting += len(pixels)
            self._questions.append((pixels, found))
            self._changed.notify_all()
        return found

    def _run(self) -> None:
        """The predicting thread."""
        torch.set_num_threads(1)  # counts for this thread
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._questions or self._stopping)
                if not self._questions:
                    return
                asked = [self._questions.popleft()]
                while self._questions and sum(len(x) for x, _ in asked) + len(self._questions[0][0]) <= TOGETHER:
                    asked.append(self._questions.popleft())
            images = np.concatenate([pixels for pixels, _ in asked])
            found, first = self._predicted(images), 0
            for pixels, future in asked:
                rows = slice(first, first + len(pixels))
                first = rows.stop
                part = (
                    found if isinstance(found, Exception) else replace(found, probabilities=found.probabilities[rows])
                )
                answer(future, part)
            if isinstance(found, Prediction):
                self.metrics.predicted.inc(len(images))
            with self._changed:
                self.waiting -= len(images)

    def _predicted(self, images: NDArray[np.uint8]) -> Prediction | Exception:
        try:
            with self.snapshots.reading() as snapshot:
                return Prediction(snapshot.labels, snapshot.samples, snapshot.probabilities(images))
        except NotFiniteError as error:
            return RefusedError(503, f"no prediction: {error}")
        except Exception as error:
            logger.exception("a prediction failed")
            return error
