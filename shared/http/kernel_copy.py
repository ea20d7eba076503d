"""Answers that the kernel copies from a file to a connection, without passing through Python.

asyncio's ``loop.sendfile`` reads the disk on the event loop, and does not return when the transport
is aborted meanwhile. This one works in a thread, on a descriptor of its own for the connection.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import select
import socket
import struct
import termios
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final, ParamSpec, TypeVar

import structlog
from aiohttp import web

from shared.files.opened import to_end
from shared.http.protocol import MIN_READ_RATE, Connection

log: structlog.stdlib.BoundLogger = structlog.get_logger()

_AT_ONCE: Final = 32
"""Answers sent so. Each needs a descriptor more than the limits of connections reckon with."""
_VISIT: Final = 4 << 20
"""Bytes that a thread sends before it serves others: those threads read files for all requests."""
_MOMENT_MS: Final = 1
"""For which a thread waits for a peer that reads fast."""
_UNSUPPORTED: Final = frozenset({errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP})
_LOST: Final = frozenset({errno.ENOTCONN, errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH})
_sending = 0
_threads = ThreadPoolExecutor(4, "answers")
T = TypeVar("T")
P = ParamSpec("P")


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """As ``asyncio.to_thread``, in threads that only read and send what callers asked for: the
    program's own work does not wait for these.
    """
    loop = asyncio.get_running_loop()
    return await loop.run_in_executor(_threads, lambda: work(*args, **kwargs))


def _make_threads() -> None:
    global _threads
    _threads = ThreadPoolExecutor(4, "answers")


os.register_at_fork(after_in_child=_make_threads)  # a forked process has none of them


async def copy_by_kernel(request: web.Request, file: int, start: int, stop: int) -> int:
    """Send these bytes of a file, after the headers have been sent.

    Args:
        file: its descriptor.

    Returns:
        Where it came to; before ``stop``: the rest has to be sent in another way, because the
        connection has TLS, the file system cannot do it, or so many do it already.

    Raises:
        ConnectionError: the peer is gone, or does not read.
        EOFError: the file is shorter.
        OSError: it cannot be read.
    """
    global _sending
    connection, transport = request.protocol, request.transport
    if (
        _sending >= _AT_ONCE
        or not isinstance(connection, Connection)
        or transport is None
        or transport.get_extra_info("sslcontext") is not None
        or transport.get_write_buffer_size()
    ):
        return start
    try:
        line = transport.get_extra_info("socket").dup()
    except OSError:  # no descriptor is free
        return start
    _sending += 1
    try:
        return await _copy(connection, line, file, start, stop)
    finally:
        _sending -= 1
        line.close()


async def _copy(
    connection: Connection, line: socket.socket, file: int, start: int, stop: int
) -> int:
    while start < stop:
        visit = partial(_send, line.fileno(), file, start, stop)
        try:
            reached, full = await to_end(visit, _threads)
        except OSError as problem:
            if problem.errno in _UNSUPPORTED:
                return start
            if problem.errno in _LOST:
                raise ConnectionResetError(problem.errno, "the peer is gone") from problem
            raise
        start = reached
        if connection.closed.done():
            raise ConnectionResetError("the peer is gone")
        if full:
            await _wait_until_read(connection, line)
    return start


def _send(line: int, file: int, start: int, stop: int) -> tuple[int, bool]:
    """Blocking. Where it came to, and whether that is because the peer has to read first."""
    begun, end = start, min(stop, start + _VISIT)
    room = select.poll()
    room.register(line, select.POLLOUT)
    while start < end:
        try:
            sent = os.sendfile(line, file, start, end - start)
        except BlockingIOError:
            if not room.poll(_MOMENT_MS):
                return start, True
        except OSError:
            if start == begun:
                raise
            break  # the next visit tells, from where it came to
        else:
            if not sent:
                raise EOFError("the file ends before")
            start += sent
    return start, False


async def _wait_until_read(connection: Connection, line: socket.socket) -> None:
    """Until more can be sent; a peer that reads too slowly is disconnected."""
    loop, allowed_s = asyncio.get_running_loop(), connection.deadlines.send_s
    room: asyncio.Future[None] = loop.create_future()
    loop.add_writer(line.fileno(), _resolve, room)
    try:
        before = _unread(line)
        while True:
            await asyncio.wait(
                [room, connection.closed], timeout=allowed_s, return_when=asyncio.FIRST_COMPLETED
            )
            if connection.closed.done():
                raise ConnectionResetError("the peer is gone")
            if room.done():
                return
            now = _unread(line)
            if before - now < MIN_READ_RATE * allowed_s:
                connection.cut_off("it is not being read")
                raise ConnectionResetError("the peer does not read")
            before = now
    finally:
        loop.remove_writer(line.fileno())


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _unread(line: socket.socket) -> int:
    """Bytes that the kernel keeps for the peer."""
    (count,) = struct.unpack("i", fcntl.ioctl(line, termios.TIOCOUTQ, bytes(4)))
    return int(count)
