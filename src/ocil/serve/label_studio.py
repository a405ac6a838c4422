"""Label Studio's tasks and annotations: what the model predicts, and what it learns from them."""

import logging
import re
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np
from numpy.typing import NDArray

from ocil.online.images import ImageFormat
from ocil.online.labels import ClassLabel
from ocil.serve.futures import ServiceThread
from ocil.serve.idempotency import digest
from ocil.serve.label_studio_images import TaskImages
from ocil.serve.labelling import Labelling, forget_if_known, margin
from ocil.serve.labelling_store import Annotation
from ocil.serve.labels import checked_label, reading
from ocil.serve.limits import RefusedError
from ocil.serve.predictor import TOGETHER
from ocil.serve.service import Service

READERS = 4  # images that are read at the same time
TRIES = 5
RETRY_SECONDS = 10.0
CLOSE_SECONDS = 5.0
CONFIG = 2**18  # characters of a project's configuration

logger = logging.getLogger("ocil.serve")


class Project(NamedTuple):
    """How a project of single choices is made up."""

    from_name: str
    to_name: str
    field: str
    """The field of a task's data that has the address of the image."""
    choices: dict[str, str]
    """What results call each choice, by how it reads; empty if tasks bring their own."""


class Guess(NamedTuple):
    choice: str | None
    score: float
    """The margin between the two likeliest choices: tasks are ordered by it, the smallest first."""


def read_project(config: str) -> Project:
    """A project from its labelling configuration. ``RefusedError`` if it is not one choice per image."""
    if len(config) > CONFIG or re.search(r"<!(DOCTYPE|ENTITY)", config, re.IGNORECASE):
        raise RefusedError(422, "the labelling configuration is too long, or declares entities.")
    try:
        root = ElementTree.fromstring(config)  # noqa: S314 # entities are refused above
    except ElementTree.ParseError as error:
        raise RefusedError(422, f"the labelling configuration is not XML: {error}.") from error
    images = {one.get("name", ""): one.get("value", "") for one in root.iter("Image")}
    fitting = [one for one in root.iter("Choices") if one.get("toName") in images]
    if len(fitting) != 1 or fitting[0].get("choice", "single").startswith("multiple"):
        raise RefusedError(422, "the project must have one <Choices> with a single choice for an <Image>.")
    choices, to_name = fitting[0], fitting[0].get("toName", "")
    names = [one.get("alias") or one.get("value") or "" for one in choices.iter("Choice")]
    known = {} if choices.get("value") else {reading(name): name for name in names if name}
    return Project(choices.get("name", ""), to_name, images[to_name].removeprefix("$"), known)


def chosen(project: Project, result: Any) -> str | None:
    """The choice in an annotation's result; None if there is none, or more than one."""
    for one in result if isinstance(result, list) else ():
        if isinstance(one, dict) and one.get("type") == "choices" and one.get("from_name") == project.from_name:
            value = one.get("value")
            found = value.get("choices") if isinstance(value, dict) else None
            return found[0] if isinstance(found, list) and len(found) == 1 and isinstance(found[0], str) else None
    return None


class LabelStudio(ServiceThread):
    """Gives the model the labels that people give in Label Studio, in a thread of its own.

    What a webhook says is on the disk before it is answered: Label Studio waits for a second, and does not ask again.
    The thread then reads the image and has the label learned, corrected or forgotten, once, whatever crashes.
    """

    def __init__(self, service: Service, task_images: TaskImages) -> None:
        super().__init__("ocil-label-studio")
        self.service, self.task_images = service, task_images
        self.labelling = Labelling.of(service)
        self.failed: dict[str, str] = {}
        """Why annotations were given up, until they change or the service restarts."""
        self._later: dict[str, tuple[int, float]] = {}  # tries, and when to try again; not of one that has just changed
        self._woken = False  # an annotation has changed since the thread last looked
        self._readers = ThreadPoolExecutor(READERS, "ocil-label-studio-read")
        self.labelling.open()
        service.attach(self)

    @classmethod
    def find(cls, service: Service) -> "LabelStudio | None":
        """That of a service, if it has one."""
        return next((part for part in service.attached if isinstance(part, cls)), None)

    def close(self) -> None:
        """It may be reading from a slow host: do not wait for that."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join(CLOSE_SECONDS)
        self._readers.shutdown(wait=False, cancel_futures=True)

    @property
    def version(self) -> str:
        """It changes as the model learns, so that Label Studio asks for new predictions."""
        return f"ocil-{self.service.statistics.samples}"

    def want(self, name: str, address: str | None, label: str | None) -> bool:
        """Write down which label an annotation has now; None if it has none."""
        meant = None if label is None else checked_label(label, self.service.limits)
        changed = self.labelling.open().want_annotation(name, address, meant)
        if changed:
            with self._changed:
                self._later.pop(name, None)
                self.failed.pop(name, None)
                self._woken = True
                self._changed.notify_all()
        return changed

    @property
    def waiting(self) -> int:
        """Annotations that the model has not been given yet, without those that were given up."""
        return sum(one.name not in self.failed for one in self.labelling.open().unsettled())

    def predict(self, project: Project, addresses: Sequence[str | None]) -> list[Guess]:
        """One guess per image. An image that cannot be read has none, and a score of 0."""
        guesses: list[Guess] = []
        for first in range(0, len(addresses), TOGETHER):
            images = list(self._readers.map(self._readable, addresses[first : first + TOGETHER]))
            some = [one for one in images if one is not None]
            found = self.service.predictor.ask(np.stack(some)).result() if some else None
            rows = iter([] if found is None else [_guess(project, found.labels, row) for row in found.probabilities])
            guesses += [Guess(None, 0.0) if one is None else next(rows) for one in images]
        return guesses

    def _readable(self, address: str | None) -> NDArray[np.uint8] | None:
        try:
            return None if address is None else self._image(address)
        except RefusedError as error:
            logger.warning("no prediction for a task of Label Studio: %s", error)
            return None

    def _image(self, address: str) -> NDArray[np.uint8]:
        form = self.service.model.input_format
        if not isinstance(form, ImageFormat):
            raise RefusedError(400, "this model takes vectors, and Label Studio shows images.")
        return self.task_images.image(address, form)

    def _run(self) -> None:
        while not self._stopping:
            self._woken = False
            try:
                self._settle_all()
            except RefusedError as error:
                logger.warning("annotations of Label Studio wait: %s", error)
            with self._changed:
                now = time.monotonic()
                soonest = min((when for _, when in self._later.values()), default=now + RETRY_SECONDS)
                pause = max(0.05, min(RETRY_SECONDS, soonest - now))
                self._changed.wait_for(lambda: self._stopping or self._woken, pause)

    def _settle_all(self) -> None:
        for one in self.labelling.open().unsettled():
            if self._stopping or one.name in self.failed:
                continue
            tries, when = self._later.setdefault(one.name, (0, 0.0))
            if time.monotonic() < when:
                continue
            try:
                self.labelling.open().settle(self._give_to_model(one))
                self._later.pop(one.name, None)
            except Exception as error:  # one annotation must not keep the others from being learned
                if not isinstance(error, RefusedError):
                    logger.exception("annotation %s of Label Studio", one.name)
                self._try_later(one.name, tries, error)

    def _try_later(self, name: str, tries: int, error: Exception) -> None:
        """Try again, or give up after so many tries. One that has changed since this try began is new: see ``want``."""
        busy = isinstance(error, RefusedError) and error.status in (429, 503)
        with self._changed:
            if name not in self._later:
                return
            self._later[name] = tries + (not busy), time.monotonic() + RETRY_SECONDS
            if tries + 1 < TRIES or busy:
                return
            self._later.pop(name)
            self.failed[name] = str(error)
        logger.warning("annotation %s of Label Studio is not learned: %s", name, error)

    def _give_to_model(self, one: Annotation) -> Annotation:
        """Have the model learn, correct or forget. The annotation as it then is."""
        service, key = self.service, f"label-studio-{one.name}-{one.turn}"
        known = service.writer.keys.get(key)
        sample = one.sample if one.sample is not None or known is None else known.first  # learned before a crash
        if one.wanted is None:
            if sample is not None:
                forget_if_known(service, sample)
            return one._replace(label=None, sample=None, turn=one.turn + 1)
        if sample is not None:
            service.correct(sample, one.wanted).result()
            return one._replace(label=one.wanted, sample=sample)
        inputs = self._image(one.address)[None]
        self.labelling.open().settle(one._replace(label=""))  # a crash must not hide that the log may have it
        receipt = service.writer.submit(inputs, [one.wanted], key, digest(inputs, [one.wanted])).result()
        return one._replace(label=one.wanted, sample=receipt.first)


def _guess(project: Project, labels: Sequence[ClassLabel], row: NDArray[np.float64]) -> Guess:
    """The likeliest of the project's choices: the model may know classes that the project has not."""
    names = [reading(label) for label in labels]
    fitting = [n for n, name in enumerate(names) if not project.choices or name in project.choices]
    if not fitting:
        return Guess(None, 0.0)
    best = max(fitting, key=lambda n: row[n])
    return Guess(project.choices.get(names[best], names[best]), min(1.0, margin(row[fitting])))
