"""One connection: aiohttp's, with deadlines for whoever sends or takes too slowly.

aiohttp gives an idle connection an hour, and the head of a request and the reader of an answer any
time; and for ten seconds it reads the rest of a request that was refused.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import socket
from dataclasses import dataclass
from typing import Any, Final

import structlog
from aiohttp import web

from shared.http.authentication import PRINCIPAL
from shared.http.connections import Connections

log: structlog.stdlib.BoundLogger = structlog.get_logger()

SMALL: Final = 4 << 10
MEDIUM: Final = 64 << 10
LARGE: Final = 256 << 10
"""Bytes read at once, before somebody else has a turn."""
COSTLY_S: Final = 0.001
"""Bytes that take longer to be taken apart were made to."""
LEAST_RATE: Final = 512
"""Bytes a second that the reader of an answer must take."""
_LATE: Final = (
    b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n"
    b"X-Request-ID: %s\r\n\r\n"
)


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds; see :class:`shared.http.settings.HttpSection`."""

    head_s: float = 20.0
    keepalive_s: float = 75.0
    send_s: float = 60.0
    linger_s: float = 2.0
    """For the rest of a refused request to be thrown away, so that its sender reads the answer."""


class Connection(web.RequestHandler):
    """What aiohttp makes of one connection, and its deadlines."""

    __slots__ = (
        "_at_once",
        "_deadlines",
        "_gone",
        "_head",
        "_plain",
        "_resting",
        "_sending",
        "_table",
        "_waiting",
        "_wire",
        "peer",
    )

    def __init__(
        self,
        manager: web.Server,
        loop: asyncio.AbstractEventLoop,
        table: Connections,
        deadlines: Deadlines,
        peer: str,
    ) -> None:
        super().__init__(
            manager,
            loop=loop,
            access_log=None,  # type: ignore[arg-type]  # as AppRunner does
            keepalive_timeout=deadlines.keepalive_s,
            lingering_time=0,
            auto_decompress=False,
        )
        self._table, self._deadlines, self.peer = table, deadlines, peer
        self._at_once, self._plain = SMALL, False
        self._resting: asyncio.TimerHandle | None = None
        self._head: asyncio.TimerHandle | None = None
        self._sending: asyncio.TimerHandle | None = None
        self._gone = loop.create_future()
        self._waiting: set[asyncio.Task[Any]] = set()
        self._wire: asyncio.Transport | None = None

    # -- coming and going

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert isinstance(transport, asyncio.Transport)
        self._wire = transport
        self._read_at_once(SMALL)
        self._table.add(self, self.peer)
        self._head = self._loop.call_later(self._deadlines.head_s, self._head_is_late, False)
        sock = transport.get_extra_info("socket")
        if sock is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
            # Also for the bytes of an answer that are left when we are done with it.
            limit_ms = round(2_000 * self._deadlines.send_s)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, limit_ms)
            # For a reader who reads nothing the kernel would keep megabytes.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, LARGE)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._table.remove(self)
        for timer in (self._head, self._sending, self._resting):
            if timer is not None:
                timer.cancel()
        if not self._gone.done():
            self._gone.set_result(None)
        for task in self._waiting:
            task.cancel()
        super().connection_lost(exc)

    def drop(self) -> None:
        """Close at once."""
        self.force_close()
        if self._wire is not None:
            self._wire.abort()

    def end_with_connection(self, task: asyncio.Task[Any]) -> None:
        """Cancel the task when the peer is gone: it only waits for something to tell."""
        self._waiting.add(task)

    def goes_on(self, task: asyncio.Task[Any]) -> None:
        """The task waits no more."""
        self._waiting.discard(task)

    # -- what comes in

    def data_received(self, data: bytes) -> None:
        if self._plain:
            super().data_received(data)
        else:
            began = self._loop.time()
            super().data_received(data)
            spent = self._loop.time() - began
            if spent > COSTLY_S:
                self._read_at_once(SMALL)
                self._rest(self._table.share.rest(began + spent, spent))
            elif len(data) == self._at_once:
                self._read_at_once(min(2 * len(data), MEDIUM))
        waiter = self._waiter
        if waiter is None or waiter.done() or self._messages:
            if self._head is not None:
                self._head.cancel()
                self._head = None
        elif self._head is None and data:
            self._head = self._loop.call_later(self._deadlines.head_s, self._head_is_late, True)

    def _rest(self, seconds: float) -> None:
        """Do not read for a while."""
        if self._resting is not None:
            self._resting.cancel()
        self._resting = self._loop.call_later(seconds, self._rested)
        self._pause_transport_reading()

    def _rested(self) -> None:
        self._resting = None
        if not (self._reading_paused or self._buffer_paused):
            self._resume_transport_reading()

    def _resume_transport_reading(self) -> None:
        if self._resting is None:
            super()._resume_transport_reading()

    def _read_at_once(self, size: int) -> None:
        """Bytes whose number was announced are read in LARGE pieces. What has to be looked at one
        by one comes in SMALL ones, which grow while they cost little.
        """
        self._at_once, self._plain = size, size == LARGE
        if self._wire is not None and hasattr(self._wire, "max_size"):  # asyncio's own loop
            self._wire.max_size = size

    def _head_is_late(self, begun: bool) -> None:
        self._head = None
        if self._waiter is None or self._waiter.done() or self._wire is None:
            return
        if begun or self._request_count == 0:
            self._wire.write(_LATE % secrets.token_hex(8).encode())
        self.force_close()
        if self._wire.get_write_buffer_size():
            self._wire.abort()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """What is no HTTP, and what escaped the middlewares."""
        if isinstance(exc, ConnectionError) or request.writer.output_size > 0:
            raise ConnectionError("the peer is gone") from exc
        request_id = secrets.token_hex(8)
        peer = self.peer
        if status < 500:
            why = " ".join((message or "").split())[:200]
            log.info("request.malformed", peer=peer, why=why, request_id=request_id)
            text = f"this is no HTTP request that can be understood: {why}"
        else:
            log.error("request.failed", peer=peer, exc_info=exc, request_id=request_id)
            text = f"something went wrong here; the log has it under request {request_id}"
        code = "bad_request" if status < 500 else "internal_error"
        body = {"id": 0, "status": "Unknown", "message": text, "code": code}
        response = web.Response(
            status=status,
            text=json.dumps(body),
            content_type="application/json",
            headers={"X-Request-ID": request_id},
        )
        response.force_close()
        return response

    # -- requests

    async def _handle_request(self, *what: Any) -> tuple[web.StreamResponse, bool]:
        self._table.busy(self)
        self._read_at_once(SMALL if what[0].content_length is None else LARGE)
        try:
            return await super()._handle_request(*what)
        finally:
            self._read_at_once(SMALL)
            self._table.idle(self)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        answered, reset = await super().finish_response(request, resp, start_time)
        if not reset and not request.content.is_eof():
            await self._leave(request)
        return answered, reset

    async def _leave(self, request: web.BaseRequest) -> None:
        """Answered before the body had come: close, but let the peer read the answer first.

        Closing at once would throw away an answer that is on its way, since bytes have come that we
        never read. What still comes is not parsed; of strangers it is not even read.
        """
        self._table.idle(self)
        self._close = True  # from here on aiohttp drops what comes
        wire = self._wire
        if wire is None or wire.is_closing():
            return
        if request.get(PRINCIPAL) is None or not request[PRINCIPAL].known:
            wire.pause_reading()
        else:
            wire.resume_reading()
        if wire.can_write_eof():
            wire.write_eof()
        await asyncio.wait([self._gone], timeout=self._deadlines.linger_s)

    # -- answers

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reader()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._sending is not None:
            self._sending.cancel()
            self._sending = None

    def _watch_reader(self) -> None:
        if self._wire is not None:
            left = self._wire.get_write_buffer_size()
            self._sending = self._loop.call_later(self._deadlines.send_s, self._reader_at, left)

    def _reader_at(self, before: int) -> None:
        """Cut off a peer that takes too little of its answer."""
        self._sending = None
        if self._wire is None or not self._paused:
            return
        taken = before - self._wire.get_write_buffer_size()
        if taken < LEAST_RATE * self._deadlines.send_s:
            log.info("answer.cut_off", peer=self.peer, why="it is not being read")
            self._wire.abort()
        else:
            self._watch_reader()


class HttpServer(web.Server):
    """Makes a :class:`Connection` of whatever was admitted."""

    def __init__(self, made: web.Server, table: Connections, deadlines: Deadlines) -> None:
        super().__init__(made.request_handler, request_factory=made.request_factory)
        self.table, self._deadlines = table, deadlines

    def connection(self, peer: str) -> Connection:
        return Connection(self, self._loop, self.table, self._deadlines, peer)
