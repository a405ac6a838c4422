"""A client's connection: how long it may take to ask and to read, and how answers are sent."""

import asyncio
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_SECONDS = 30
"""Seconds that may pass from the beginning of a connection, or its last answer, to the end of a request's headers."""
ANSWER_SECONDS = 60
"""Seconds for which a client may read nothing of an answer that does not fit into the connection's buffers."""
WHOLE_ANSWER_SECONDS = 600
"""Seconds for which a client may read such an answer, however steadily it does."""
GATHERED_BYTES = 2**14
"""A part of an answer from this size on is sent at once."""
HEADER_BYTES = 2**14
"""Of one request, or of one chunk's first line, as far as they have arrived."""
SMALL_CHUNKS, CHUNK_BYTES = 1024, 64
"""A chunked body may have so many chunks, and one more for each so many bytes: each takes as long as kilobytes do."""


class Requests(h11.Connection):
    """Reads requests. All that has arrived is read in one go, while other clients wait: its chunks are counted."""

    refusal: str | None = None
    """Why a request was refused that any other server would have taken."""
    _chunks = _bytes = 0

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._chunks = self._bytes = 0
        elif isinstance(event, h11.Data):
            self._chunks += event.chunk_start
            self._bytes += len(event.data)
            if self._chunks > SMALL_CHUNKS + self._bytes // CHUNK_BYTES:
                self.refusal = "The body comes in far more chunks than its bytes need: send larger ones."
                raise h11.RemoteProtocolError(self.refusal)
        return event


class Gathering:
    """A transport that sends what is written in one step of the event loop at once: an answer's headers and its body.

    Each sending is a system call and a moment in which another thread takes Python's lock.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._written: list[bytes] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        if not self._written:
            self._loop.call_soon(self.flush)
        self._written.append(data)
        if len(data) >= GATHERED_BYTES:  # the client may be slow: that must be noticed now
            self.flush()

    def get_write_buffer_size(self) -> int:
        return self._transport.get_write_buffer_size() + sum(map(len, self._written))

    def close(self) -> None:
        self.flush()
        self._transport.close()

    def flush(self) -> None:
        written, self._written = self._written, []
        if written:
            self._transport.write(b"".join(written))


class Connection(H11Protocol):  # type: ignore[misc]
    """uvicorn's connection with deadlines, which also answers a client that closes its writing side after its request.

    Without deadlines it would wait for ever for headers that come slowly, or not at all, and for answers to be read: a
    few hundred clients that do that would keep out all others, and the answers would stay in memory.
    """

    _idle: asyncio.TimerHandle | None = None
    """Ends a connection on which no request begins."""
    _unread: asyncio.TimerHandle | None = None
    """Ends a connection whose client does not take its answer. It runs while the client is behind."""
    _unread_bytes = 0
    """What the client had not taken when this timer was started."""
    _answer_until: float | None = None
    """When an answer that the client was behind with must have been taken."""
    _half_closed = False
    """The client sends no more, but reads."""

    def __init__(self, config: uvicorn.Config, *others: Any, **named: Any) -> None:
        super().__init__(config, *others, **named)
        self.conn = Requests(h11.SERVER, HEADER_BYTES)

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        self.transport = Gathering(transport, self.loop)
        self._wait_for_request(self.cycle)

    def send_400_response(self, msg: str) -> None:
        """Say what is wrong with a request. One that has its answer already, or a part of it, gets no other."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(self.conn.refusal or msg)
        else:
            self.transport.close()

    def eof_received(self) -> bool:
        """True keeps the connection open, to answer requests that came whole."""
        self.transport.flush()
        answering = self.cycle is not None and not self.cycle.response_complete
        self._half_closed = answering and not self.cycle.more_body
        return self._half_closed

    def on_response_complete(self) -> None:
        answered = self.cycle
        super().on_response_complete()  # may begin the next request, if that has come already
        if self._half_closed and (self.cycle is answered or self.cycle.more_body):  # no whole one can come any more
            self.transport.close()
        if not self.flow.write_paused:
            self._answer_until = None
        self._wait_for_request(answered)

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._answer_until is None:
            self._answer_until = self.loop.time() + WHOLE_ANSWER_SECONDS
        self._watch_unread(self._answer_until)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_unread()
        if self.cycle is None or self.cycle.response_complete:
            self._answer_until = None

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_unread()
        if self._idle is not None:
            self._idle.cancel()

    def _watch_unread(self, until: float) -> None:
        self._stop_unread()
        self._unread_bytes = self.transport.get_write_buffer_size()
        seconds = min(ANSWER_SECONDS, until - self.loop.time())
        self._unread = self.loop.call_later(seconds, self._end_unless_read, until)

    def _end_unless_read(self, until: float) -> None:
        """While a client is behind nothing is added to the buffer, so it shrinks if the client takes anything."""
        if self.transport.get_write_buffer_size() < self._unread_bytes and self.loop.time() < until:
            self._watch_unread(until)
        else:
            self.transport.abort()

    def _stop_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _wait_for_request(self, answered: Any) -> None:
        if self._idle is not None:
            self._idle.cancel()
        self._idle = self.loop.call_later(REQUEST_SECONDS, self._end_unless_asked, answered)

    def _end_unless_asked(self, answered: Any) -> None:
        if self.cycle is not answered:  # a request has begun since
            return
        if self.flow.write_paused:  # a long answer is being read: that has a deadline of its own
            self.transport.close()
        else:
            self.transport.abort()
