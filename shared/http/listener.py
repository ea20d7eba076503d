"""Accepting connections: never more than fit, and quietly when descriptors run out."""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import Any, Final

import structlog
from aiohttp import web

from shared.http.connections import Connections, Room, peer_of
from shared.http.protocol import Deadlines, HttpServer
from shared.logs import Limiter

log: structlog.stdlib.BoundLogger = structlog.get_logger()

BACKLOG: Final = 128
_AT_ONCE: Final = 32
_PAUSE_S: Final = 0.2
"""After a connection could not be accepted."""


class _Runner(web.AppRunner):
    """aiohttp's life of an application, with connections of ours."""

    def __init__(
        self, application: web.Application, table: Connections, deadlines: Deadlines, **how: Any
    ) -> None:
        super().__init__(application, **how)
        self._table, self._deadlines = table, deadlines

    async def _make_server(self) -> web.Server:
        return HttpServer(await super()._make_server(), self._table, self._deadlines)


class Listener:
    """An application that listens on a socket.

    Args:
        sock: bound and listening; closed by :meth:`stop_accepting`.
        answers_s: for the last bytes of answers when it is closed.
    """

    def __init__(
        self,
        application: web.Application,
        sock: socket.socket,
        room: Room,
        deadlines: Deadlines,
        answers_s: float,
    ) -> None:
        self._sock, self._table = sock, Connections(room)
        self._at_once = max(1, min(_AT_ONCE, (room.connections - room.requests) // 2))
        self._runner = _Runner(application, self._table, deadlines, shutdown_timeout=answers_s)
        self._loop = asyncio.get_running_loop()
        self._making: set[asyncio.Task[Any]] = set()
        self._again: asyncio.TimerHandle | None = None
        self._refused = Limiter(1.0)
        self._open = False

    async def start(self) -> None:
        """Set the application up and accept connections."""
        await self._runner.setup()
        self._open = True
        self._read()

    def stop_accepting(self) -> None:
        """Nobody new; who is here may finish."""
        if self._open:
            self._loop.remove_reader(self._sock)
            if self._again is not None:
                self._again.cancel()
        self._open = False
        self._sock.close()

    async def close(self) -> None:
        """End everything that is left."""
        self.stop_accepting()
        await self._runner.cleanup()

    def _read(self) -> None:
        self._again = None
        self._loop.add_reader(self._sock, self._accept)

    def _accept(self) -> None:
        # Those that are being made cannot make room yet: the others wait in the kernel meanwhile.
        while len(self._making) < self._at_once:
            try:
                connection, address = self._sock.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as problem:
                self._cannot(problem)
                return
            peer = peer_of(address)
            if not self._table.admit(peer):
                connection.close()
                if (count := self._refused.due()) is not None:
                    why = "all connections are at work, or all that its address may have"
                    log.warning("connection.refused", peer=peer, why=why, also_refused=count)
                continue
            connection.setblocking(False)
            task = self._loop.create_task(self._make(connection, peer))
            self._making.add(task)
            task.add_done_callback(self._making.discard)

    async def _make(self, connection: socket.socket, peer: str) -> None:
        server = self._runner.server
        made = False

        def make() -> web.RequestHandler:
            nonlocal made
            assert isinstance(server, HttpServer)
            made = True
            return server.connection(peer)

        try:
            await self._loop.connect_accepted_socket(make, connection)
        except OSError:  # it is gone already
            connection.close()
        finally:
            if not made:
                self._table.give_back(peer)

    def _cannot(self, problem: OSError) -> None:
        """Out of descriptors or memory: give some back, and look again in a moment."""
        if (count := self._refused.due()) is not None:
            known = problem.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
            say = log.warning if known else log.error
            say("connection.not_accepted", why=problem.strerror or str(problem), also=count)
        self._table.make_room()
        self._loop.remove_reader(self._sock)
        self._again = self._loop.call_later(_PAUSE_S, self._read)
