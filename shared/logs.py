"""One log line per outcome, on stderr: ``noun.verb`` events with fields."""

from __future__ import annotations

import asyncio
import io
import logging
import sys
from typing import Literal, TextIO

import structlog


def configure(style: Literal["auto", "text", "json"] = "auto", level: str = "info") -> None:
    """Set up structlog for this process.

    Args:
        style: "auto" is text on a terminal and JSON elsewhere.
        level: debug, info, warning or error.
    """
    text = style == "text" or (style == "auto" and sys.stderr.isatty())
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info if not text else _escape_values,
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(),
                # The default prints the local variables of every frame: tokens, users' data.
                exception_formatter=_plain_traceback,
            )
            if text
            else structlog.processors.JSONRenderer(default=str),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level.upper()]
        ),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(
        stream=sys.stderr,
        level=logging.WARNING,
        format='{"logger": "%(name)s", "event": "%(message)s"}',
    )


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
