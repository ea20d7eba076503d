"""Finds the lines of a stream that may be commands. All other lines cost next to nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

MAX_LINE: Final = 1 << 15
"""A longer line is no command."""
_MARK: Final = b"::"


class CommandLines:
    """Takes a stream in pieces, however it was split.

    Args:
        on_line: called with each complete line that begins with ``::`` and has at most MAX_LINE
            bytes, without its end.
    """

    def __init__(self, on_line: Callable[[bytes], None]) -> None:
        self._on_line = on_line
        self._begun: bytes | None = b""
        """What has come of a line that may be a command; None: the line is none."""

    def feed(self, data: bytes) -> int:
        """Returns how many lines were handed on."""
        start = handed_on = 0
        if self._begun is None or self._begun:
            start = data.find(b"\n") + 1
            if not start:
                self._keep(None if self._begun is None else self._begun + data)
                return 0
            if self._begun is not None:
                handed_on = self._hand_on(self._begun + data[: start - 1])
        stop = data.rfind(b"\n", start) + 1 or start
        found = _next_line(data, start, stop)
        while found >= 0:
            end = data.index(b"\n", found)
            handed_on += self._hand_on(data[found:end])
            found = _next_line(data, end + 1, stop)
        self._keep(data[stop:])
        return handed_on

    def end(self) -> None:
        """The stream has ended; its last line may have no end."""
        if self._begun is not None:
            self._hand_on(self._begun)
        self._begun = b""

    def _hand_on(self, line: bytes) -> int:
        if not line.startswith(_MARK) or len(line) > MAX_LINE:
            return 0
        self._on_line(line.removesuffix(b"\r"))
        return 1

    def _keep(self, line: bytes | None) -> None:
        """Keep the last line until its end comes, if it may be a command."""
        may_be = line is not None and len(line) <= MAX_LINE and line[:2] in (b"", b":", _MARK)
        self._begun = line if may_be else None


def _next_line(data: bytes, start: int, stop: int) -> int:
    """Where the next line with the mark begins, from ``start``, the start of a line; -1: nowhere.

    Args:
        stop: all lines before it are complete.
    """
    if start < stop and data.startswith(_MARK, start):
        return start
    found = data.find(b"\n::", start, stop)
    return -1 if found < 0 else found + 1
