"""One log line per outcome, on stderr: ``noun.verb`` events with fields."""

from __future__ import annotations

import asyncio
import contextlib
import io
import logging
import sys
from typing import Final, Literal, TextIO

import structlog

from shared.clock import RealClock
from shared.log_folding import Folding

FOLDING: Final = Folding(RealClock().monotonic)
"""Of this process, for what knows that a trouble is over."""
_processors: Final[list[structlog.typing.Processor]] = []
_program = ""


def configure(
    style: Literal["auto", "text", "json"] = "auto", level: str = "info", program: str = ""
) -> None:
    """Set up structlog for this process, and what libraries log by ``logging`` and ``warnings``;
    a second time, to change how it logs from then on.

    Args:
        style: "auto" is text on a terminal and JSON elsewhere.
        level: debug, info, warning or error.
        program: its name, in each line; empty: as it was.
    """
    global _program
    _program = program or _program
    text = style == "text" or (style == "auto" and sys.stderr.isatty())
    before: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        _add_program,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    rendering: list[structlog.typing.Processor] = [
        structlog.processors.format_exc_info if not text else _escape_values,
        structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(),
            # The default prints the local variables of every frame: tokens, users' data.
            exception_formatter=_plain_traceback,
        )
        if text
        else structlog.processors.JSONRenderer(default=str),
    ]
    # The same list each time: loggers that have been used keep it.
    _processors[:] = [_AtLeast(level), *before, FOLDING, *rendering]
    structlog.configure(
        processors=_processors,
        wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG),
        logger_factory=lambda *_: _Lines(),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*before, _as_library_said],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.captureWarnings(capture=True)


class _Lines:
    """Lines on stderr. One that cannot be written is left out: what is logged must not fail since
    the log's disk is full or its reader has gone.
    """

    def msg(self, line: str) -> None:
        with contextlib.suppress(OSError):
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()

    debug = info = warning = error = critical = fatal = exception = log = msg


def shown(level: str) -> bool:
    """Whether lines of a level are written: who makes many need not make them for nothing."""
    first = _processors[0] if _processors else None
    return not isinstance(first, _AtLeast) or first.shows(level)


def _add_program(
    _logger: structlog.typing.WrappedLogger, _name: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    if _program:
        event["program"] = _program
    return event


def _as_library_said(
    _logger: structlog.typing.WrappedLogger, _name: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """A library's sentence is no event of ours."""
    event["message"], event["event"] = event["event"], "library.said"
    record = event.get("_record")
    event["logger"] = record.name if record is not None else ""
    return event


class _AtLeast:
    """Drops what is below a level."""

    def __init__(self, level: str) -> None:
        self._levels = logging.getLevelNamesMapping()
        self._least = self._levels[level.upper()]

    def __call__(
        self, _logger: structlog.typing.WrappedLogger, name: str, event: structlog.typing.EventDict
    ) -> structlog.typing.EventDict:
        if not self.shows(name):
            raise structlog.DropEvent
        return event

    def shows(self, name: str) -> bool:
        return self._levels.get(name.upper(), self._least) >= self._least


def _escape_values(
    _logger: structlog.typing.WrappedLogger, _name: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """Escape control characters: values from requests must not control a terminal. JSON has them
    escaped already.
    """
    for name, value in event.items():
        if isinstance(value, str) and not value.isprintable():
            event[name] = _escaped(value)
    return event


def _plain_traceback(to: TextIO, problem: structlog.typing.ExcInfo) -> None:
    plain = io.StringIO()
    structlog.dev.plain_traceback(plain, problem)
    to.write("\n".join(map(_escaped, plain.getvalue().split("\n"))))


def _escaped(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class RateLimiter:
    """Limits log lines that any caller can cause, so that they cannot fill the disk.

    Args:
        per_s: lines a second on average, and in a burst.
    """

    def __init__(self, per_s: float) -> None:
        self._per_s, self._tokens, self._at = per_s, max(1.0, per_s), 0.0
        self._dropped = 0

    def due(self) -> int | None:
        """None: drop this line. Otherwise the number of lines dropped since the last one."""
        now = asyncio.get_running_loop().time()
        self._tokens = min(max(1.0, self._per_s), self._tokens + (now - self._at) * self._per_s)
        self._at = now
        if self._tokens < 1:
            self._dropped += 1
            return None
        self._tokens -= 1
        dropped, self._dropped = self._dropped, 0
        return dropped
