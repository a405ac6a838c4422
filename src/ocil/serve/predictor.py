"""The thread that predicts. It reads snapshots and waits for nobody."""

import logging
import threading
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ocil.online.model import Label
from ocil.serve.limits import Limits, RefusedError, answer
from ocil.serve.metrics import Metrics
from ocil.serve.snapshot import NotFiniteError, Snapshot, Snapshots

TOGETHER = 16  # images predicted in one pass: more gain little and make the others wait

say = logging.getLogger("ocil.serve")


@dataclass(frozen=True)
class Prediction:
    labels: tuple[Label, ...]
    samples: int
    """That the model had learned."""
    probabilities: NDArray[np.float64]


class Predictor:
    def __init__(self, snapshots: Snapshots, limits: Limits, metrics: Metrics) -> None:
        self.snapshots, self.limits, self.metrics = snapshots, limits, metrics
        self.waiting = 0
        """Images that wait for a prediction."""
        self._asked = threading.Condition()
        self._questions: deque[tuple[NDArray[np.uint8], Future[Prediction]]] = deque()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="ocil-predict", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Answer what was asked, then stop."""
        with self._asked:
            self._stopping = True
            self._asked.notify_all()
        if self._thread.ident is not None:
            self._thread.join()

    def ask(self, pixels: NDArray[np.uint8]) -> "Future[Prediction]":
        """By the newest snapshot. Images that wait together are predicted together."""
        found: Future[Prediction] = Future()
        with self._asked:
            if self._stopping:
                raise RefusedError(503, "the service is stopping.", 5)
            if self.waiting + len(pixels) > self.limits.predictions:
                message = f"{self.waiting} images wait for a prediction, the most is {self.limits.predictions}."
                raise RefusedError(429, message, 1)
            self.waiting += len(pixels)
            self._questions.append((pixels, found))
            self._asked.notify_all()
        return found

    def _run(self) -> None:
        """The predicting thread."""
        torch.set_num_threads(1)  # counts for this thread
        while True:
            with self._asked:
                self._asked.wait_for(lambda: self._questions or self._stopping)
                if not self._questions:
                    return
                asked = [self._questions.popleft()]
                while self._questions and sum(len(x) for x, _ in asked) + len(self._questions[0][0]) <= TOGETHER:
                    asked.append(self._questions.popleft())
            images = np.concatenate([pixels for pixels, _ in asked])
            try:
                with self.snapshots.reading() as snapshot:
                    found = snapshot.probabilities(images)
            except NotFiniteError as error:
                self._answer_all(asked, RefusedError(503, f"no prediction: {error}"))
            except Exception as error:
                say.exception("a prediction failed")
                self._answer_all(asked, error)
            else:
                self._answer_all(asked, (snapshot, found))
            with self._asked:
                self.waiting -= len(images)

    def _answer_all(
        self,
        asked: "list[tuple[NDArray[np.uint8], Future[Prediction]]]",
        found: "tuple[Snapshot, NDArray[np.float64]] | Exception",
    ) -> None:
        first = 0
        for pixels, future in asked:
            rows = slice(first, first + len(pixels))
            first += len(pixels)
            if isinstance(found, Exception):
                answer(future, found)
            else:
                answer(future, Prediction(found[0].labels, found[0].samples, found[1][rows]))
        if not isinstance(found, Exception):
            self.metrics.add("ocil_images_predicted_total", first)
