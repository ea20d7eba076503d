"""Finds a text in a log, as far as one request may read."""

from __future__ import annotations

import asyncio
import re
from contextlib import aclosing
from dataclasses import dataclass
from typing import Final

from server.web.job.log.ansi import stripped
from server.web.job.log.window import Log

MOST: Final = 500
"""Lines that are found at once."""
MAX_TEXT: Final = 200
"""Characters to search for."""
_BYTES: Final = 64 << 20
"""That are read for one request."""
_BLOCK: Final = 1 << 20
_LINE: Final = 1 << 16
"""Bytes of a line: what is shown of it is taken from these."""
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
    stop = min(log.counted, start + _BYTES)
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
            found = await asyncio.to_thread(_matches, data, text, number, MOST - len(matches))
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
    small, wanted = shown.lower(), text.lower()
    found: list[Match] = []
    first, at, counted = number, 0, 0
    lines: list[str] = []
    while len(found) < most and (hit := small.find(wanted, at)) >= 0:
        number += small.count("\n", counted, hit)
        counted = hit
        lines = lines or shown.split("\n")
        found.append(_match(lines[number - first], text, number))
        at = small.find("\n", hit)
        if at < 0:
            break
    return found


def _match(line: str, text: str, number: int) -> Match:
    line = line[:_LINE]
    hit = re.search(re.escape(text), line, re.IGNORECASE)
    if hit is None:  # far behind in a long line, or upper case of another length
        return Match(number, line[: 2 * _AROUND].rstrip("\r"), "", "")
    start, end = hit.span()
    before = ("…" if start > _AROUND else "") + line[max(0, start - _AROUND) : start]
    behind = line[end : end + _AROUND] + ("…" if len(line) > end + _AROUND else "")
    return Match(number, before, hit[0], behind.rstrip("\r"))
