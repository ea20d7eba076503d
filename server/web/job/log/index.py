"""Where the lines of a log begin, without keeping each: line ends are counted once, and the count
is remembered for every so many bytes.
"""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_left
from collections import OrderedDict
from typing import Final, NamedTuple

from aiohttp import web

from server.http.stored_log import States

_STEP: Final = 1 << 16
"""Bytes between two counts, at first."""
_MOST: Final = 4096
"""Counts of one log. When there are more, every other one is dropped."""
_LOGS: Final = 256
"""Logs that are remembered: 8 MiB at most."""
_UNPACKED: Final = 8
"""Logs of which states of the unpacker are kept: 11 MiB at most."""


class LogKey(NamedTuple):
    """Which log. What was written at a place in it never changes."""

    job: int
    attempt: int
    stream: str


class LineIndex:
    """Lines are numbered from 1. The last one may have no end.

    Attributes:
        size: bytes that were counted, from the beginning.
        ends: line ends in these.
        lock: held by whoever counts on.
    """

    def __init__(self) -> None:
        self.size = self.ends = 0
        self.lock = asyncio.Lock()
        self._counts, self._step = array("q", [0]), _STEP
        self._open = False
        """The last byte was no line end."""

    def add(self, data: bytes) -> None:
        """Count the bytes behind those that were counted."""
        at = 0
        while at < len(data):
            stop = min(len(data), at + self._step - self.size % self._step)
            self.ends += data.count(b"\n", at, stop)
            self.size += stop - at
            at = stop
            if self.size % self._step == 0:
                self._counts.append(self.ends)
                if len(self._counts) > _MOST:
                    self._counts, self._step = self._counts[::2], self._step * 2
        if data:
            self._open = not data.endswith(b"\n")

    @property
    def lines(self) -> int:
        return self.ends + self._open

    def before(self, line: int) -> tuple[int, int, int]:
        """Where the start of a line is to be looked for: a place before it, how many line ends
        come from there to it, and a place behind it.

        Args:
            line: 1 to ``ends + 1``.
        """
        if line <= 1:
            return 0, 0, 0
        block = bisect_left(self._counts, line - 1) - 1
        at = block * self._step
        return at, line - 1 - self._counts[block], min(self.size, at + self._step)


class LogIndexes:
    """What is known of the logs that were looked at last."""

    def __init__(self) -> None:
        self._kept: OrderedDict[LogKey, LineIndex] = OrderedDict()
        self._states: OrderedDict[LogKey, States] = OrderedDict()

    def states(self, key: LogKey) -> States:
        found = self._states.pop(key, None)
        self._states[key] = found = {} if found is None else found
        while len(self._states) > _UNPACKED:
            self._states.popitem(last=False)
        return found

    def of(self, key: LogKey, size: int) -> LineIndex:
        """Args:
        size: of the log now; where it is smaller than what was counted, counting begins again.
        """
        found = self._kept.pop(key, None)
        if found is None or found.size > size:
            found = LineIndex()
        self._kept[key] = found
        while len(self._kept) > _LOGS:
            self._kept.popitem(last=False)
        return found


INDEXES: Final = web.AppKey("log_indexes", LogIndexes)
