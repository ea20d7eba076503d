"""Accepts connections: never more than the limit; goes on when file descriptors run out."""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import Any, Final

import structlog
from aiohttp import web

from shared.http.connections import ConnectionLimits, Connections, peer_of
from shared.http.handshake import Handshake
from shared.http.protocol import Connection, Deadlines
from shared.http.request_body import hide_expect
from shared.http.tls import TlsFiles
from shared.logs import RateLimiter

log: structlog.stdlib.BoundLogger = structlog.get_logger()

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
