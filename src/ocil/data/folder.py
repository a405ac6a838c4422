"""Images in files: listed, looked at, then decoded and resized once, in parallel, without holding them in memory."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ocil.data.class_names import without_training
from ocil.data.images import SUFFIXES, probe, read_image
from ocil.data.layouts import Files, find_layout
from ocil.data.raw_writer import Split, StoreWriter
from ocil.data.samples import OnProgress
from ocil.data.split import hold_out, in_words
from ocil.errors import OcilError
from ocil.limits import MAX_SIDE

NAMED = 5  # how many unreadable images a message names
CHUNK_IMAGES, CHUNK_BYTES = 64, 16 * 2**20  # what a thread decodes at a time: the smaller of the two
MAX_WORKERS = 8
PARALLEL_FROM = 2 * CHUNK_IMAGES  # fewer images are decoded in this thread

A = TypeVar("A")
B = TypeVar("B")


class ImageFiles:
    """The images of a folder or a label file, in whichever form they were published (``ocil.data.layouts``).

    ``size`` makes every image a square of that side. Without test images, ``test_share`` of each class (default: a
    sixth) is held out, always the same images. Images that cannot be read are left out, as long as each class keeps
    some; with ``strict`` they raise an ``OcilError``. ``note`` is called with a line about what was found, and about
    either of these.
    """

    def __init__(
        self,
        source: Path,
        size: int | None = None,
        *,
        test_share: float | None = None,
        strict: bool = False,
        note: Callable[[str], None] = lambda _: None,
    ) -> None:
        if size is not None and not 1 <= size <= MAX_SIDE:
            raise OcilError(f"the image size {size} is not between 1 and {MAX_SIDE}.")
        self.source, self.size, self.strict, self.note = source, size, strict, note
        self._first: tuple[Path, tuple[int, int]] | None = None
        """The first image with its width and height, which all others must have."""
        self._gray = True
        self._problems: list[str] = []
        self._broken: list[Path] = []

        found = find_layout(source)
        note(f"{source} was read as {found.form}")
        if found.left_out:
            note(f"left out: {found.left_out}")
        self._left_out = f" It has {found.left_out}." if found.left_out else ""
        self.classes = found.classes
        self.domain_of = found.domain_of
        self._labels = {label for _, label in found.train}  # also of images that cannot be read
        if self._labels and (without := sorted(set(range(len(self.classes))) - self._labels)):  # before all is decoded
            raise OcilError(f"{source}: {without_training(without, self.classes)}.{self._left_out}")
        self.train = self._readable(found.train)
        if found.test is None:
            held = hold_out([label for _, label in self.train], self.classes, test_share)
            self.test = [item for item, out in zip(self.train, held, strict=True) if out]
            self.train = [item for item, out in zip(self.train, held, strict=True) if not out]
            note(f"{source} has no test images: {in_words(test_share)} of each class is held out to test with")
        elif test_share is not None:
            raise OcilError(f"{source} has test images of its own: leave out --test-share.")
        else:
            self.test = self._readable(found.test)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width, channels."""
        if self._first is None:
            why = f": {self._problems[0]}" if self._problems else f" ({', '.join(SUFFIXES)})."
            raise OcilError(f"{self.source} has no images that can be read{why}{self._left_out}")
        width, height = (self.size, self.size) if self.size is not None else self._first[1]
        return height, width, 1 if self._gray else 3

    @property
    def nbytes(self) -> int:
        """The size of all images once they are decoded."""
        return (len(self.train) + len(self.test)) * int(np.prod(self.shape))

    def write(self, writer: StoreWriter, progress: OnProgress = lambda _done, _total: None) -> None:
        """Decode all images and add them to ``writer``. ``progress`` gets the number of images done and of all."""
        done, total = 0, len(self.train) + len(self.test)
        writer.classes = self.classes
        used = {self.domain_of[path] for path, _ in (*self.train, *self.test)} if self.domain_of else set()
        writer.domains = tuple(sorted(used))
        number_of = {name: number for number, name in enumerate(writer.domains)}
        learned: set[int] = set()  # the classes of the training images that could be read
        parts: tuple[tuple[Split, Files], ...] = (("train", self.train), ("test", self.test))
        for split, files in parts:
            for count, images, kept in self._decoded(files):
                labels = [label for _, label in kept]
                if kept:
                    domains = [number_of[self.domain_of[path]] for path, _ in kept] if self.domain_of else None
                    writer.add(split, np.stack(images), labels, domains)
                learned.update(labels if split == "train" else ())
                done += count
                progress(done, total)
        if self._problems:
            for label in self._labels - learned:
                raise OcilError(f"class '{self.classes[label]}' has no image that can be read: {self._problems[0]}")
            self.note(self._summary())

    def _readable(self, files: Files) -> Files:
        """The images whose header can be read. Raises if they differ in size and are not to be resized."""
        found: Files = []
        for path, label in files:
            try:
                sides, is_gray = probe(path)
            except OcilError as error:
                self._leave_out(path, error)
                continue
            self._first = self._first or (path, sides)
            if self.size is None and sides != self._first[1]:
                here, there = ("x".join(map(str, pair)) for pair in (sides, self._first[1]))
                advice = "Resize all with --size N (for example 32)."
                raise OcilError(f"{path} is {here} but {self._first[0]} is {there}. {advice}")
            self._gray = self._gray and is_gray
            found.append((path, label))
        return found

    def _decoded(self, files: Files) -> Iterator[tuple[int, list[NDArray[np.uint8]], Files]]:
        """For each chunk how many files it has, and in their order the images that can be read, with their files."""
        step = max(1, min(CHUNK_IMAGES, CHUNK_BYTES // int(np.prod(self.shape))))
        chunks = (files[first : first + step] for first in range(0, len(files), step))
        workers = min(os.cpu_count() or 1, MAX_WORKERS) if len(files) >= PARALLEL_FROM else 1
        for chunk, found in in_threads(self._decode, chunks, workers):
            images: list[NDArray[np.uint8]] = []
            kept: Files = []
            for (path, label), image in zip(chunk, found, strict=True):
                if isinstance(image, OcilError):
                    self._leave_out(path, image)
                else:
                    images.append(image)
                    kept.append((path, label))
            yield len(chunk), images, kept

    def _decode(self, chunk: Files) -> list[NDArray[np.uint8] | OcilError]:
        return [self._image_or_error(path) for path, _ in chunk]

    def _image_or_error(self, path: Path) -> NDArray[np.uint8] | OcilError:
        try:
            return read_image(path, self._gray, self.size)
        except OcilError as error:
            return error

    def _leave_out(self, path: Path, error: OcilError) -> None:
        if self.strict:
            raise error
        self._problems.append(str(error))
        self._broken.append(path)

    def _summary(self) -> str:
        """How many images were left out, with the names of the first."""
        names = ", ".join(map(str, self._broken[:NAMED]))
        more = f" and {len(self._broken) - NAMED} more" if len(self._broken) > NAMED else ""
        return f"images that cannot be read and are left out, {len(self._broken)}: {names}{more}"


def in_threads(work: Callable[[A], B], items: Iterable[A], workers: int) -> Iterator[tuple[A, B]]:
    """Each item with what ``work`` makes of it, in their order. At most two items per worker are under way."""
    if workers == 1:
        for item in items:
            yield item, work(item)
        return
    pool, under_way = ThreadPoolExecutor(workers), deque[tuple[A, "Future[B]"]]()
    try:
        for item in items:
            under_way.append((item, pool.submit(work, item)))
            if len(under_way) == 2 * workers:
                first, done = under_way.popleft()
                yield first, done.result()
        while under_way:
            first, done = under_way.popleft()
            yield first, done.result()
    finally:
        pool.shutdown(cancel_futures=True)
