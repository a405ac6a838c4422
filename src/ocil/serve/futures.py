"""What the service's threads have in common, and answers that one thread waits for and another one gives."""

import asyncio
import heapq
import itertools
import logging
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import Future, InvalidStateError, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from ocil.serve.limits import RefusedError

T = TypeVar("T")

logger = logging.getLogger("ocil.serve")


def answer(future: "Future[T]", found: T | Exception) -> None:
    """Set the result or the exception of a future, unless it is cancelled or answered already."""
    try:
        if isinstance(found, Exception):
            future.set_exception(found)
        else:
            future.set_result(found)
    except InvalidStateError:
        pass


async def in_pool(pool: ThreadPoolExecutor, function: Callable[..., T], *arguments: Any) -> T:
    """The result of a function that one of the pool's threads calls."""
    return await asyncio.get_running_loop().run_in_executor(pool, function, *arguments)


async def result_of(future: "Future[T]") -> T:
    """The result that another thread gives. A client that goes away must not take the answer from others."""
    return await asyncio.shield(asyncio.wrap_future(future))


async def result_in_time(wanted: "Future[T]", seconds: float) -> T:
    """The result of a call of ``Trainer.between_steps``. It is withdrawn, and refused, if it does not come in time."""
    try:
        return await asyncio.wait_for(result_of(wanted), seconds)
    except TimeoutError as error:
        wanted.cancel()
        raise RefusedError(503, "the learner is busy with a long step.", 5) from error


def answer_all(answers: "Iterable[tuple[Future[T] | asyncio.Future[T], T | Exception]]") -> None:
    """Answer futures of threads and of event loops. A loop is woken once for all of its futures."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[T], T | Exception]]] = defaultdict(list)
    for future, found in answers:
        if isinstance(future, Future):
            answer(future, found)
        else:
            by_loop[future.get_loop()].append((future, found))
    for loop, own in by_loop.items():
        with suppress(RuntimeError):  # it is closed: nobody waits any more
            loop.call_soon_threadsafe(_answer_in_loop, own)


def _answer_in_loop(answers: "Iterable[tuple[asyncio.Future[T], T | Exception]]") -> None:
    for future, found in answers:
        if future.done():  # its client is gone
            continue
        if isinstance(found, Exception):
            future.set_exception(found)
        else:
            future.set_result(found)


def stopping() -> RefusedError:
    return RefusedError(503, "the service is stopping.", 5)


class ServiceThread:
    """A thread of the service. It runs ``_run``, which must return soon after ``_stopping`` is set."""

    def __init__(self, name: str) -> None:
        self._changed = threading.Condition()
        """Guards what the thread shares with others, and wakes it."""
        self._refusing = False  # it takes no more requests
        self._stopping = False
        self.broken: str | None = None
        """Why the thread has ended although nobody had asked it to."""
        self._thread = threading.Thread(target=self._run_until_broken, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Take no more requests, finish those that wait, and stop."""
        with self._changed:
            self._refusing = self._stopping = True
            self._changed.notify_all()
        if self._thread.ident is not None:
            self._thread.join()

    def refuse_if_stopping(self) -> None:
        """Raise if this thread takes no more requests."""
        if self.broken:
            raise RefusedError(503, self.broken)
        if self._refusing:
            raise stopping()

    def _run_until_broken(self) -> None:
        try:
            self._run()
        except Exception as error:
            name = self._thread.name
            logger.exception("the thread %s has ended", name)
            with self._changed:
                self.broken = f"{type(error).__name__} has ended the thread {name}. Restart the service."
            self._refuse_waiting(RefusedError(503, self.broken))

    def _run(self) -> None:
        raise NotImplementedError

    def _refuse_waiting(self, refusal: RefusedError) -> None:
        """The thread is broken: answer those who wait for it. No more of them can come."""


class Waiters:
    """Futures of clients that wait until everything up to a number is done: samples are learned, or changes are made.

    Both are numbered in the order in which they are done. Safe to use from any thread.
    """

    def __init__(self, position: int) -> None:
        """``position``: the number of the last sample or change that is done."""
        self._lock = threading.Lock()
        self._position, self._closed = position, False
        self._waiting: list[tuple[int, int, Future[bool]]] = []
        self._tickets = itertools.count()

    def wait_for(self, number: int) -> "Future[bool]":
        """True once this number is done; False after ``close``."""
        waiter: Future[bool] = Future()
        with self._lock:
            if number > self._position and not self._closed:
                heapq.heappush(self._waiting, (number, next(self._tickets), waiter))
            else:
                waiter.set_result(number <= self._position)
        return waiter

    def advance(self, position: int) -> None:
        """All up to ``position`` is done."""
        done = []
        with self._lock:
            self._position = position
            while self._waiting and self._waiting[0][0] <= position:
                done.append(heapq.heappop(self._waiting)[2])
        for waiter in done:
            answer(waiter, True)

    def close(self) -> None:
        """Answer False to all who wait, now and from now on. The work itself goes on."""
        with self._lock:
            self._closed = True
            left, self._waiting = self._waiting, []
        for _, _, waiter in left:
            answer(waiter, False)
