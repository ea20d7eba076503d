"""Finds a text in a log, as far as one request may read."""

from __future__ import annotations

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
