"""Accepts connections: never more than the limit; goes on when file descriptors run out."""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from typing import Any, Final

import structlog
from aiohttp import web

from shared.http.connections import ConnectionLimits, Connections, peer_of
from shared.http.protocol import Connection, Deadlines
from shared.http.refusals import new_request_id
from shared.http.request_body import hide_expect
from shared.http.tls import TlsFiles, say_failure
from shared.logs import RateLimiter

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_HANDSHAKE: Final = b"\x16"
"""The first byte of TLS."""
_PLAIN: Final = b"this port speaks HTTPS: call it with https:// in place of http://\n"
_PLAIN_ANSWER: Final = (
    b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Type: text/plain\r\n"
    b"X-Request-ID: %s\r\nContent-Length: %d\r\n\r\n%s"
)
_GOODBYE_S: Final = 2.0
"""For the peer's part of closing a connection."""


class Handshake:
    """A connection whose handshake has not ended. It counts as idle: it is closed for another one
    when all connections are in use.

    Args:
        sock: closed here if it does not become a connection.
        failed: limits the log's lines about handshakes that fail.
    """

    def __init__(self, sock: socket.socket, peer: str, failed: RateLimiter) -> None:
        self._sock, self._peer, self._failed = sock, peer, failed
        self._task: asyncio.Task[None] | None = None

    def start(
        self,
        table: Connections,
        make: Callable[[], Connection],
        context: ssl.SSLContext,
        seconds: float,
    ) -> asyncio.Task[None]:
        """Begin; the task ends when it is a connection, or has failed."""
        table.add(self, self._peer)
        loop = asyncio.get_running_loop()

        def made() -> Connection:
            connection = make()
            connection.handshake = self
            return connection

        def ended(task: asyncio.Task[None]) -> None:
            if task.cancelled():
                self._sock.close()
            table.remove(self)

        self._task = loop.create_task(self._run(made, context, seconds))
        self._task.add_done_callback(ended)
        return self._task

    def drop(self) -> None:
        """Close at once."""
        if self._task is not None:
            self._task.cancel()

    async def _run(
        self, make: Callable[[], Connection], context: ssl.SSLContext, seconds: float
    ) -> None:
        loop, request_id = asyncio.get_running_loop(), new_request_id()
        why = ""
        try:
            async with asyncio.timeout(seconds):
                first = await self._first_byte()
            if first == _HANDSHAKE:
                await loop.connect_accepted_socket(
                    make,
                    self._sock,
                    ssl=context,
                    ssl_handshake_timeout=seconds,
                    ssl_shutdown_timeout=_GOODBYE_S,
                )
                return
            if first:
                why = "it speaks no TLS"
                self._sock.recv(1 << 16)  # what is not read would discard the answer
                self._sock.send(_PLAIN_ANSWER % (request_id.encode(), len(_PLAIN), _PLAIN))
        except ssl.SSLError as problem:
            why = say_failure(problem)
        except OSError:  # it is gone, or too slow
            pass
        self._sock.close()
        if why and (count := self._failed.due()) is not None:
            peer = self._peer
            log.info("tls.failed", peer=peer, why=why, request_id=request_id, also_failed=count)

    async def _first_byte(self) -> bytes:
        """Without taking it; empty: the peer has closed."""
        loop = asyncio.get_running_loop()
        readable = asyncio.Event()
        loop.add_reader(self._sock, readable.set)
        try:
            await readable.wait()
        finally:
            loop.remove_reader(self._sock)
        return self._sock.recv(1, socket.MSG_PEEK)


BACKLOG: Final = 128
_MAX_STARTING: Final = 32
_PAUSE_S: Final = 0.2
"""Pause after a connection could not be accepted."""


class _HttpServer(web.Server):
    """Makes a :class:`Connection` for each socket that was admitted."""

    def __init__(self, server: web.Server, table: Connections, deadlines: Deadlines) -> None:
        super().__init__(
            server.request_handler, request_factory=hide_expect(server.request_factory)
        )
        self.table, self.deadlines = table, deadlines

    def connection(self, peer: str) -> Connection:
        return Connection(self, self._loop, self.table, self.deadlines, peer)


class _Runner(web.AppRunner):
    """aiohttp's runner of an application, with our class of connections."""

    def __init__(
        self, application: web.Application, table: Connections, deadlines: Deadlines, **options: Any
    ) -> None:
        super().__init__(application, **options)
        self._table, self._deadlines = table, deadlines

    async def _make_server(self) -> web.Server:
        return _HttpServer(await super()._make_server(), self._table, self._deadlines)


class Listener:
    """An application that listens on a socket.

    Args:
        sock: bound and listening; closed by :meth:`stop_accepting`.
        shutdown_timeout_s: for the last bytes of answers when it is closed.
        tls: None: connections are plain.
    """

    def __init__(
        self,
        application: web.Application,
        sock: socket.socket,
        limits: ConnectionLimits,
        deadlines: Deadlines,
        shutdown_timeout_s: float,
        tls: TlsFiles | None = None,
    ) -> None:
        self._sock, self._table, self._tls = sock, Connections(limits), tls
        self._deadlines, self._max_starting = deadlines, _starting(limits)
        self._runner = _Runner(
            application, self._table, deadlines, shutdown_timeout=shutdown_timeout_s
        )
        self._loop = asyncio.get_running_loop()
        self._starting: set[asyncio.Task[Any]] = set()
        self._handshakes: set[asyncio.Task[Any]] = set()
        self._no_tls = RateLimiter(1.0)
        self._retry: asyncio.TimerHandle | None = None
        self._refused = RateLimiter(1.0)
        self._open = False

    async def start(self) -> None:
        """Set the application up and accept connections."""
        await self._runner.setup()
        self._open = True
        self._start_accepting()

    def stop_accepting(self) -> None:
        """Accept no more connections; those that are open may finish."""
        if self._open:
            self._loop.remove_reader(self._sock)
            if self._retry is not None:
                self._retry.cancel()
        self._open = False
        self._sock.close()

    async def close(self) -> None:
        """Close all connections that are left."""
        self.stop_accepting()
        for task in self._handshakes:
            task.cancel()
        await asyncio.gather(*self._handshakes, return_exceptions=True)
        await self._runner.cleanup()

    def _start_accepting(self) -> None:
        self._retry = None
        self._loop.add_reader(self._sock, self._accept)

    def _accept(self) -> None:
        # Connections that are not established yet cannot be closed for others. So only some are
        # accepted at once; the others wait in the kernel.
        while len(self._starting) < self._max_starting:
            try:
                connection, address = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as problem:
                self._accept_failed(problem)
                return
            peer = peer_of(address)
            if not self._table.admit(peer):
                connection.close()
                if (count := self._refused.due()) is not None:
                    why = "all connections are in use, or all that its address may have"
                    log.warning("connection.refused", peer=peer, why=why, also_refused=count)
                continue
            connection.setblocking(False)
            if self._tls is not None:
                self._start_handshake(connection, peer, self._tls)
                continue
            task = self._loop.create_task(self._establish(connection, peer))
            self._starting.add(task)
            task.add_done_callback(self._starting.discard)

    def _start_handshake(self, connection: socket.socket, peer: str, tls: TlsFiles) -> None:
        # Unlike plain connections these can be closed for others before they are established.
        task = Handshake(connection, peer, self._no_tls).start(
            self._table, lambda: self._connection(peer), tls.context, self._deadlines.head_s
        )
        self._handshakes.add(task)
        task.add_done_callback(self._handshakes.discard)

    def _connection(self, peer: str) -> Connection:
        server = self._runner.server
        assert isinstance(server, _HttpServer)
        return server.connection(peer)

    async def _establish(self, connection: socket.socket, peer: str) -> None:
        made = False

        def make() -> Connection:
            nonlocal made
            made = True
            return self._connection(peer)

        try:
            await self._loop.connect_accepted_socket(make, connection)
        except OSError:  # it is gone already
            connection.close()
        finally:
            if not made:
                self._table.release(peer)

    def _accept_failed(self, problem: OSError) -> None:
        """Out of descriptors or memory: close an idle connection, and try again in a moment."""
        if (count := self._refused.due()) is not None:
            expected = problem.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
            why = problem.strerror or str(problem)
            if expected:
                log.warning("connection.not_accepted", why=why, also=count)
            else:
                log.error("connection.not_accepted", why=why, also=count)
        self._table.close_idle()
        self._loop.remove_reader(self._sock)
        self._retry = self._loop.call_later(_PAUSE_S, self._start_accepting)


def _starting(limits: ConnectionLimits) -> int:
    """How many connections may be accepted and not established."""
    return max(1, min(_MAX_STARTING, (limits.connections - limits.requests) // 2))
