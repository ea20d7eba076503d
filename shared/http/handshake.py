"""The TLS handshake of a connection that was accepted."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import Final

import structlog

from shared.http.connections import Connections
from shared.http.protocol import Connection
from shared.http.refusals import new_request_id
from shared.http.tls import say_failure
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
