"""Which lines of a log a page shows, and reading these. Nothing here reads more than a fixed number
of bytes, however long a log or a line is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from server.web.job.log.ansi import PLAIN, Style, style_after
from server.web.job.log.index import LineIndex
from server.web.job.log.lines import SHOWN, Lines, Row

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
