"""One connection: aiohttp's, with deadlines for peers that send or read too slowly.

aiohttp keeps an idle connection for an hour. It waits without limit for the head of a request and
for the peer to read an answer, and reads the rest of a refused request for ten seconds.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, Final

import structlog
from aiohttp import web

from shared.http.authentication import CALLER, PRINCIPAL
from shared.http.connections import Closable, Connections
from shared.http.origins import SAFE_METHODS
from shared.http.refusals import ID_HEADER, REQUEST_ID, Denied, new_request_id
from shared.principals import ANONYMOUS

RELEASE: Final = web.RequestKey("release", partial)
"""To be called when the answer to a request has been sent, or never will be."""
_SMALL: Final = 64 << 10
"""Bytes of an answer that is not counted: a connection buffers as much of any answer."""
_OF_ONE: Final = 16 << 20
_OF_ALL: Final = 64 << 20


class UnreadAnswers:
    """Their bytes, of each caller and in all. Who has read all of its own gets any answer: a few
    who read nothing keep nobody else from reading.
    """

    def __init__(self, of_one: int = _OF_ONE, of_all: int = _OF_ALL) -> None:
        self._of_one, self._of_all = of_one, of_all
        self._of: Counter[str] = Counter()

    def hold(self, request: web.Request, answer: web.StreamResponse) -> None:
        """Count an answer until it is sent.

        Raises:
            Denied: with those that are not read yet it would be too much. Never for a request that
                has changed something: whoever sent it would send it again.
        """
        body = answer.body if isinstance(answer, web.Response) else None
        if not isinstance(body, bytes) or len(body) <= _SMALL:
            return
        size, caller = len(body), CALLER.get()
        if request.method in SAFE_METHODS:
            self._check(caller, size)
        self._of[caller] += size
        request[RELEASE] = partial(self._release, caller, size)

    def _check(self, caller: str, size: int) -> None:
        mine = self._of.get(caller, 0)
        if not mine:
            return
        if mine + size > self._of_one:
            status, whose = HTTPStatus.TOO_MANY_REQUESTS, "of yours"
        elif self._of.total() + size > self._of_all:
            status, whose = HTTPStatus.SERVICE_UNAVAILABLE, "of all callers"
        else:
            return
        raise Denied(
            status,
            "unread_answers",
            f"too many bytes of answers {whose} are sent and not read yet: read them, ask for less "
            "at once, or try again in a moment",
            {"Retry-After": "5"},
        )

    def _release(self, caller: str, size: int) -> None:
        self._of[caller] -= size
        if not self._of[caller]:
            del self._of[caller]


log: structlog.stdlib.BoundLogger = structlog.get_logger()

SMALL: Final = 4 << 10
MEDIUM: Final = 64 << 10
LARGE: Final = 256 << 10
"""Bytes read at once, before other connections are served."""
COSTLY_S: Final = 0.001
"""Seconds; data that takes longer to parse is costly, and its connection is throttled."""
MIN_READ_RATE: Final = 512
"""Bytes a second that the peer must read of an answer."""
_SENT: Final = re.compile(r"""[:?]|\bb['"]|(?<=line) ['"]""")
"""Where aiohttp's messages begin to repeat what was sent, which may be a token."""
_REQUEST_TIMEOUT: Final = (
    b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n"
    b"X-Request-ID: %s\r\n\r\n"
)


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Seconds."""

    head_s: float = 20.0
    """From the first byte of a request to the end of its head: a slow line brings it in one."""
    keepalive_s: float = 75.0
    """For which an idle connection is kept: longer than the minute that proxies keep theirs."""
    send_s: float = 60.0
    """An answer is cut off whose peer reads less than MIN_READ_RATE for so long."""
    linger_s: float = 2.0
    """For which the rest of a refused request is discarded, so that its sender reads the answer."""


class Connection(web.RequestHandler):
    """aiohttp's handler of one connection, with deadlines."""

    __slots__ = (
        "_head_timer",
        "_long_polls",
        "_read_size",
        "_reading_pause",
        "_send_timer",
        "_table",
        "_tcp",
        "_unthrottled",
        "closed",
        "deadlines",
        "handshake",
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
        self._table, self.deadlines, self.peer = table, deadlines, peer
        self.handshake: Closable | None = None  # what it was before, in the table
        self._read_size, self._unthrottled = SMALL, False
        self._reading_pause: asyncio.TimerHandle | None = None
        self._head_timer: asyncio.TimerHandle | None = None
        self._send_timer: asyncio.TimerHandle | None = None
        self.closed = loop.create_future()
        self._long_polls: set[asyncio.Task[Any]] = set()
        self._tcp: asyncio.Transport | None = None

    # -- opened and closed

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        assert isinstance(transport, asyncio.Transport)
        self._tcp = transport
        self._set_read_size(SMALL)
        self._table.add(self, self.peer, self.handshake)
        self.handshake = None
        self._head_timer = self._start_head_timer(begun=False)
        sock = transport.get_extra_info("socket")
        if sock is not None and hasattr(socket, "TCP_USER_TIMEOUT"):
            # This also holds for the bytes that are still in the kernel when the answer is written.
            limit_ms = round(2_000 * self.deadlines.send_s)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, limit_ms)
            # Otherwise the kernel would buffer megabytes for a peer that reads nothing.
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, LARGE)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._table.remove(self)
        for timer in (self._head_timer, self._send_timer, self._reading_pause):
            if timer is not None:
                timer.cancel()
        if not self.closed.done():
            self.closed.set_result(None)
        for task in self._long_polls:
            task.cancel()
        super().connection_lost(exc)

    def drop(self) -> None:
        """Close at once."""
        self.force_close()
        if self._tcp is not None:
            self._tcp.abort()

    def cancel_on_disconnect(self, task: asyncio.Task[Any]) -> None:
        """Cancel the task when the peer disconnects: it is a long poll."""
        self._long_polls.add(task)

    def keep_on_disconnect(self, task: asyncio.Task[Any]) -> None:
        """The long poll is over: do not cancel the task any more."""
        self._long_polls.discard(task)

    # -- reading

    def data_received(self, data: bytes) -> None:
        # A head that begins while the answer before it is being finished: no more may come of it.
        request = self._current_request
        in_answer = self._waiter is None and (request is None or request.content.is_eof())
        if self._unthrottled:
            super().data_received(data)
        else:
            began = self._loop.time()
            super().data_received(data)
            spent = self._loop.time() - began
            if spent > COSTLY_S:
                self._set_read_size(SMALL)
                self._pause_reading(self._table.throttle.pause_s(began + spent, spent))
            elif len(data) == self._read_size:
                self._set_read_size(min(2 * len(data), MEDIUM))
        waiter = self._waiter
        waits = in_answer if waiter is None else not waiter.done()
        if not waits or self._messages:
            if self._head_timer is not None:
                self._head_timer.cancel()
                self._head_timer = None
        elif self._head_timer is None and data:
            self._head_timer = self._start_head_timer(begun=True)

    def _pause_reading(self, seconds: float) -> None:
        """Read nothing for so long."""
        if self._reading_pause is not None:
            self._reading_pause.cancel()
        self._reading_pause = self._loop.call_later(seconds, self._end_reading_pause)
        self._pause_transport_reading()

    def _end_reading_pause(self) -> None:
        self._reading_pause = None
        if not (self._reading_paused or self._buffer_paused):
            self._resume_transport_reading()

    def _resume_transport_reading(self) -> None:
        if self._reading_pause is None:
            super()._resume_transport_reading()

    def _set_read_size(self, size: int) -> None:
        """Read so many bytes at once.

        A body of known length is read in LARGE pieces. Other data has to be parsed: it is read in
        SMALL pieces, which grow as long as parsing is cheap.
        """
        self._read_size, self._unthrottled = size, size == LARGE
        if self._tcp is not None and hasattr(self._tcp, "max_size"):  # asyncio's own loop
            self._tcp.max_size = size

    def _start_head_timer(self, *, begun: bool) -> asyncio.TimerHandle:
        return self._loop.call_later(self.deadlines.head_s, self._head_timed_out, begun)

    def _head_timed_out(self, begun: bool) -> None:
        self._head_timer = None
        if self._waiter is None:  # it answers still
            self._head_timer = self._start_head_timer(begun=begun)
            return
        if self._waiter.done() or self._tcp is None:
            return
        if begun or self._request_count == 0:
            request_id = new_request_id()
            self._tcp.write(_REQUEST_TIMEOUT % request_id.encode())
            self._log_malformed("its head did not come in time", request_id)
        self.force_close()
        if self._tcp.get_write_buffer_size():
            self._tcp.abort()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answers to bytes that are no HTTP, and to errors outside the middlewares."""
        if isinstance(exc, ConnectionError) or request.writer.output_size > 0:
            raise ConnectionError("the peer is gone") from exc
        request_id = request.get(REQUEST_ID) or new_request_id()
        if status < 500:
            why = _SENT.split(message or "", maxsplit=1)[0].strip()[:200]
            self._log_malformed(why, request_id)
            text = f"this is no HTTP request that can be understood: {why}"
        else:
            if (count := self._table.failed.due()) is not None:
                log.error(
                    "request.failed",
                    peer=self.peer,
                    exc_info=exc,
                    request_id=request_id,
                    **({"also_failed": count} if count else {}),
                )
            text = f"something went wrong here; the log has it under request {request_id}"
        code = "bad_request" if status < 500 else "internal_error"
        body = {"id": 0, "status": "Unknown", "message": text, "code": code}
        response = web.Response(
            status=status,
            text=json.dumps(body),
            content_type="application/json",
            headers={ID_HEADER: request_id},
        )
        response.force_close()
        return response

    def _log_malformed(self, why: str, request_id: str) -> None:
        if (count := self._table.malformed.due()) is not None:
            more = {"also_malformed": count} if count else {}
            log.info("request.malformed", peer=self.peer, why=why, request_id=request_id, **more)

    # -- requests

    async def _handle_request(self, *what: Any) -> tuple[web.StreamResponse, bool]:
        self._table.busy(self)
        self._set_read_size(SMALL if what[0].content_length is None else LARGE)
        try:
            return await super()._handle_request(*what)
        finally:
            if (release := what[0].get(RELEASE)) is not None:
                release()
            self._set_read_size(SMALL)
            self._table.idle(self)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        answered, reset = await super().finish_response(request, resp, start_time)
        if not reset and not request.content.is_eof():
            await self._linger(request)
        return answered, reset

    async def _linger(self, request: web.BaseRequest) -> None:
        """Close a connection whose request was answered before all of its body had come.

        The peer gets time to read the answer first: closing at once, with unread bytes, would
        discard an answer that is on its way. What still comes is not parsed, and is not even read
        if the peer is not authenticated.
        """
        self._table.idle(self)
        self._close = True  # from here on aiohttp discards what comes
        transport = self._tcp
        if transport is None or transport.is_closing():
            return
        if not request.get(PRINCIPAL, ANONYMOUS).authenticated:
            transport.pause_reading()
        else:
            transport.resume_reading()
        if transport.can_write_eof():
            with suppress(OSError):  # the peer is gone
                transport.write_eof()
        await asyncio.wait([self.closed], timeout=self.deadlines.linger_s)

    # -- writing

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_peer()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._send_timer is not None:
            self._send_timer.cancel()
            self._send_timer = None

    def _watch_peer(self) -> None:
        if self._tcp is not None:
            left = self._tcp.get_write_buffer_size()
            self._send_timer = self._loop.call_later(
                self.deadlines.send_s, self._check_peer_reads, left
            )

    def _check_peer_reads(self, before: int) -> None:
        """Close the connection of a peer that reads its answer too slowly."""
        self._send_timer = None
        if self._tcp is None or not self._paused:
            return
        read = before - self._tcp.get_write_buffer_size()
        if read < MIN_READ_RATE * self.deadlines.send_s:
            self.cut_off("it is not being read")
        else:
            self._watch_peer()

    def cut_off(self, why: str) -> None:
        """Close the connection during an answer."""
        log.info("answer.cut_off", peer=self.peer, why=why)
        if self._tcp is not None:
            self._tcp.abort()
