"""Which lines of a log a page shows, where they are, and finding a text in them. Nothing here reads
more than a fixed number of bytes, however long a log or a line is.
"""

from __future__ import annotations

import asyncio
from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple, TypeAlias

from aiohttp import web

from server.http.logs import States
from server.web.job.lines import PLAIN, SHOWN, Lines, Row, Style, stripped, style_after

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


LINES: Final = 1000
"""In a window."""
_BYTES: Final = 1 << 17
"""In a window. As HTML, full of colours, it is five times as much."""
_BEFORE: Final = 200
"""Lines before one that is asked for."""
LOOK_BACK: Final = 1 << 14
"""Bytes before a window in which colours that go on in it may have begun."""
COUNTED: Final = 64 << 20
"""Bytes in which one request counts lines; the next one goes on."""

Read: TypeAlias = Callable[[int, int], AsyncGenerator[bytes, None]]
"""Gives the bytes of a log from one position to another, at least."""
Run: TypeAlias = Callable[..., Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Log:
    """A log that can be read, as it is now.

    Attributes:
        size: bytes.
        commands: its lines can be commands.
        run: calls a function in a thread, with arguments.
    """

    size: int
    read: Read
    index: LineIndex
    commands: bool
    run: Run = asyncio.to_thread

    @property
    def counted(self) -> int:
        """Bytes whose lines are known: what of the log can be shown."""
        return min(self.size, self.index.size)

    async def piece(self, start: int, stop: int) -> bytes:
        """Its bytes from ``start`` up to, not including, ``stop``."""
        found = bytearray()
        if stop > start:
            async with aclosing(self.read(start, stop)) as chunks:
                async for chunk in chunks:
                    found += chunk
                    if len(found) >= stop - start:
                        break
        return bytes(found[: stop - start])

    async def count(self, most: int = COUNTED) -> None:
        """Count lines where it was not done before."""
        async with self.index.lock:
            stop = min(self.size, self.index.size + most)
            if self.index.size < stop:
                async with aclosing(self.read(self.index.size, stop)) as chunks:
                    async for chunk in chunks:
                        self.index.add(chunk[: stop - self.index.size])
                        if self.index.size >= stop:
                            break

    async def start_of(self, line: int) -> int:
        """Where a line begins that was counted, or the one behind the last that has an end.

        Raises:
            EOFError: the log is not the one that was counted.
        """
        at, ends, stop = self.index.before(line)
        if not ends:
            return at
        block, found = await self.piece(at, stop), -1
        for _ in range(ends):
            found = block.find(b"\n", found + 1)
            if found < 0:
                raise EOFError("a log is not what it was")
        return at + found + 1

    async def style_at(self, offset: int) -> Style:
        """The style that text has at the start of a line."""
        before = await self.piece(max(0, offset - LOOK_BACK), offset)
        return style_after(before.decode("utf-8", "replace"), PLAIN)


@dataclass(frozen=True, slots=True)
class Window:
    """Some lines of a log, one behind the other.

    Attributes:
        total: lines that were counted.
        next_line: the line behind it, or the last one, which has no end yet.
        next_offset: where that one begins.
    """

    rows: list[Row]
    total: int
    next_line: int
    next_offset: int

    @property
    def first(self) -> int:
        return self.rows[0].number if self.rows else 0

    @property
    def last(self) -> int:
        return self.rows[-1].number if self.rows else 0

    @property
    def at_end(self) -> bool:
        return self.last >= self.total


async def window_around(log: Log, line: int) -> Window:
    """Lines before and behind one; where the log is shorter, its last ones."""
    wanted = min(line, max(1, log.index.lines))
    first = max(1, wanted - _BEFORE)
    start, end = await log.start_of(first), await log.start_of(wanted)
    if end - start > _BYTES // 2:
        first = await _first_from(log, end - _BYTES // 2, first, wanted)
    return await window_from(log, first)


async def window_to(log: Log, line: int) -> Window:
    """Lines up to one, which is the last; or up to the end of the log."""
    last = min(line, log.index.lines)
    first = max(1, last - LINES + 1)
    end = log.counted if last > log.index.ends else await log.start_of(last + 1)
    if end - await log.start_of(first) > _BYTES:
        first = await _first_from(log, end - _BYTES, first, last)
    return await window_from(log, first, last - first + 1)


async def window_from(log: Log, line: int, most: int | None = None) -> Window:
    """Lines from one on."""
    total, most = log.index.lines, LINES if most is None else most
    number = max(1, min(line, total))
    start = await log.start_of(number)
    lines = Lines(number, await log.style_at(start), commands=log.commands)
    data = await log.piece(start, min(log.counted, start + _BYTES))
    rows, taken = await log.run(_rows, lines, data, most)
    at = start + taken
    next_offset = at - lines.length
    if len(rows) < most and (last := lines.unfinished()) is not None:
        if at >= log.counted:
            rows.append(last)
        elif not rows or lines.length > SHOWN:  # all that is shown of it has been read
            number = last.number
            if number > log.index.ends:
                rows.append(replace(last, more=last.more + log.counted - at))
            else:
                next_offset = await log.start_of(number + 1)
                rows.append(replace(last, more=last.more + next_offset - 1 - at))
                return Window(rows, total, number + 1, next_offset)
    return Window(rows, total, lines.number, next_offset)


def _rows(lines: Lines, data: bytes, most: int) -> tuple[list[Row], int]:
    """Complete lines, and the bytes that were taken. Half a second, if all of it is colours."""
    rows: list[Row] = []
    taken = 0
    for piece in _split(data):
        rows += lines.feed(piece)
        taken += len(piece)
        if len(rows) >= most:
            break
    return rows, taken


async def _first_from(log: Log, offset: int, first: int, last: int) -> int:
    """The first line that begins at or behind an offset, if it is one of the given ones."""
    stop = min(log.counted, offset + _BYTES)
    data = await log.piece(offset, stop)
    behind = await log.start_of(last)
    ends = data.count(b"\n", 0, max(0, behind - offset))
    return max(first, last - ends + 1) if ends else last


def _split(data: bytes) -> list[bytes]:
    return [piece + b"\n" for piece in data.split(b"\n")[:-1]] + [data.rpartition(b"\n")[2]]


MOST: Final = 500
"""Lines that are found at once."""
MAX_TEXT: Final = 200
"""Characters to search for."""
_SEARCHED: Final = 64 << 20
"""That are read for one request."""
_BLOCK: Final = 1 << 18
_AROUND: Final = 80
"""Characters that are shown before and behind what was found."""


@dataclass(frozen=True, slots=True)
class Match:
    """A line with the text, in three parts."""

    line: int
    before: str
    text: str
    behind: str


@dataclass(frozen=True, slots=True)
class Found:
    """Attributes:
    searched: up to this byte.
    next_line: where to search further; None: it was searched to its end.
    """

    matches: list[Match]
    searched: int
    next_line: int | None


async def search(log: Log, text: str, line: int) -> Found:
    """Find lines with a text, in upper or lower case, from a line on."""
    line = max(1, min(line, log.index.lines))
    start = at = await log.start_of(line)
    stop = min(log.counted, start + _SEARCHED)
    matches: list[Match] = []
    number, rest = line, b""
    async with aclosing(log.read(start, stop)) as chunks:
        block = bytearray()
        async for chunk in chunks:
            chunk = chunk[: stop - at]
            at += len(chunk)
            block += chunk
            if len(block) < _BLOCK and at < stop:
                continue
            # Lines are searched as wholes; of one that is longer than a block, a part at a time.
            cut = block.rfind(b"\n") + 1
            if at >= stop or (not cut and len(block) > _BLOCK):
                cut = len(block)
            data, rest = rest + bytes(block[:cut]), b""
            del block[:cut]
            found = await log.run(_matches, data, text, number, MOST - len(matches))
            matches += [one for one in found if not matches or one.line > matches[-1].line]
            number += data.count(b"\n")
            if not data.endswith(b"\n"):
                rest = data[-4 * MAX_TEXT :]
                number -= rest.count(b"\n")
            if len(matches) >= MOST or at >= stop:
                break
    if len(matches) >= MOST:
        behind = matches[-1].line + 1
        if behind > log.index.lines:
            return Found(matches, log.counted, None)
        return Found(matches, await log.start_of(behind), behind)
    if at >= log.counted == log.size:
        return Found(matches, at, None)
    return Found(matches, at, max(number, line + 1))


def _matches(data: bytes, text: str, number: int, most: int) -> list[Match]:
    """Lines of ``data`` with the text; its first one has the number. In time linear in both."""
    shown = stripped(data.decode("utf-8", "replace"))
    small, wanted = _small(shown), _small(text)
    found: list[Match] = []
    at = counted = 0
    while len(found) < most and (hit := small.find(wanted, at)) >= 0:
        number += shown.count("\n", counted, hit)
        start, end, stop = shown.rfind("\n", 0, hit) + 1, hit + len(text), shown.find("\n", hit)
        stop = len(shown) if stop < 0 else stop
        before = ("…" if hit - start > _AROUND else "") + shown[max(start, hit - _AROUND) : hit]
        behind = shown[end : min(stop, end + _AROUND)] + ("…" if stop - end > _AROUND else "")
        found.append(Match(number, before, shown[hit:end], behind.rstrip("\r")))
        at = counted = stop
    return found


def _small(text: str) -> str:
    """In lower case, each character where it was: all have one of the same length but İ."""
    return text.replace("İ", "i").lower().replace("ς", "σ")
