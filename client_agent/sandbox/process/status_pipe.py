"""Reads bwrap's ``--json-status-fd``: JSON documents, one per line, that arrive in pieces."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Final

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
