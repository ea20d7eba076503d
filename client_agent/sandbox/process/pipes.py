"""The pipes between the agent and a chain of programs."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
from typing import Final

_READ_SIZE: Final = 1 << 13
_LINES: Final = 5
"""Of what a failed start said."""


class Pipes:
    """Both ends of the pipes for gate, stdout, stderr and status, until they are handed over or
    closed. The gate's is a pair of sockets, by which a driver answers, too."""

    def __init__(self) -> None:
        self._open: list[int] = []
        self.gate_r, self.gate_w = self._socket_pair()
        self.out_r, self.out_w = self._pipe()
        self.err_r, self.err_w = self._pipe()
        self.err_inode = os.fstat(self.err_r).st_ino
        self.status_r, self.status_w = self._pipe()
        for fd in (self.out_r, self.err_r, self.status_r):
            os.set_blocking(fd, False)

    def _pipe(self) -> tuple[int, int]:
        try:
            ends = os.pipe2(os.O_CLOEXEC)
        except OSError:
            self.close()
            raise
        self._open += ends
        return ends

    def _socket_pair(self) -> tuple[int, int]:
        first, second = (one.detach() for one in socket.socketpair())
        self._open += (first, second)
        return first, second

    def further(self) -> list[int]:
        """More descriptors of stdout and stderr: both reads, then both writes."""
        made: list[int] = []
        for fd in (self.out_r, self.err_r, self.out_w, self.err_w):
            made.append(os.dup(fd))
            self._open.append(made[-1])
        return made

    def hand_over(self, fd: int) -> int:
        """Hand a descriptor over to a new owner."""
        self._open.remove(fd)
        return fd

    def is_open(self, fd: int) -> bool:
        """Whether it is neither closed nor handed over."""
        return fd in self._open

    def close(self, *fds: int) -> None:
        """Close these descriptors, or all that were not handed over."""
        for fd in fds or list(self._open):
            if fd in self._open:
                self._open.remove(fd)
                os.close(fd)


class Constants:
    """Contents that many chains read, each from a descriptor of its own."""

    def __init__(self) -> None:
        self._kept: dict[str, int] = {}

    def open(self, name: str, content: bytes) -> int:
        """A new read-only descriptor of ``content``. The content is kept under ``name``."""
        if name not in self._kept:
            fd = os.memfd_create(name, os.MFD_CLOEXEC)
            os.write(fd, content)
            self._kept[name] = fd
        return os.open(f"/proc/self/fd/{self._kept[name]}", os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        for fd in self._kept.values():
            os.close(fd)
        self._kept.clear()


class Remainder:
    """Reads a pipe to its end, and keeps the last lines."""

    def __init__(self, fd: int) -> None:
        self._fd, self._data = fd, b""
        self._loop = asyncio.get_running_loop()
        self.closed: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(fd, self._on_readable)

    @property
    def text(self) -> str:
        return "\n".join(self._data.decode(errors="replace").splitlines()[-_LINES:])

    def stop(self) -> None:
        """May be called at any time."""
        if not self.closed.done():
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self.closed.set_result(None)

    def _on_readable(self) -> None:
        with contextlib.suppress(BlockingIOError):
            data = os.read(self._fd, _READ_SIZE)
            self._data = (self._data + data)[-_READ_SIZE:]
            if not data:
                self.stop()


_MAX_LINE: Final = 1 << 16


class StatusPipe:
    """Reads one status pipe on the event loop.

    Args:
        fd: read end, non-blocking; owned by this object from now on.
    """

    def __init__(self, fd: int) -> None:
        self.exit_code: int | None = None
        """Of the program inside; None until bwrap reports it."""
        loop = asyncio.get_running_loop()
        self.child_pid: asyncio.Future[int | None] = loop.create_future()
        """Pid of the sandbox's init; None if bwrap ended without starting one."""
        self.closed: asyncio.Future[None] = loop.create_future()
        self._loop, self._fd, self._buffer = loop, fd, b""
        loop.add_reader(fd, self._on_readable)

    def stop(self) -> None:
        """Stop reading before the end. May be called at any time."""
        if not self.closed.done():
            self._end()

    def _on_readable(self) -> None:
        try:
            data = os.read(self._fd, _MAX_LINE)
        except BlockingIOError:
            return
        if not data:
            self._end()
            return
        *lines, rest = (self._buffer + data).split(b"\n")
        self._buffer = rest[:_MAX_LINE]
        for line in lines:
            self._parse_line(line)

    def _parse_line(self, line: bytes) -> None:
        try:
            document = json.loads(line)
        except ValueError:
            return
        if not isinstance(document, dict):
            return
        pid, code = document.get("child-pid"), document.get("exit-code")
        if isinstance(pid, int) and not self.child_pid.done():
            self.child_pid.set_result(pid)
        if isinstance(code, int):
            self.exit_code = code

    def _end(self) -> None:
        self._loop.remove_reader(self._fd)
        os.close(self._fd)
        if not self.child_pid.done():
            self.child_pid.set_result(None)
        self.closed.set_result(None)
