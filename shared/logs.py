"""One log line per outcome, on stderr: ``noun.verb`` events with fields."""

from __future__ import annotations

import asyncio
import io
import logging
import sys
from typing import Literal, TextIO

import structlog


def configure(form: Literal["auto", "text", "json"] = "auto", level: str = "info") -> None:
    """Set up structlog for this process.

    Args:
        form: "auto" is text on a terminal and JSON elsewhere.
        level: debug, info, warning or error.
    """
    text = form == "text" or (form == "auto" and sys.stderr.isatty())
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info if not text else _visible,
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(),
                # The pretty ones print every local of every frame: tokens, users' data.
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


def _visible(
    _logger: structlog.typing.WrappedLogger, _name: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    """What strangers send must not move the cursor of whoever reads the log. JSON escapes it."""
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
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in text
    )


class Limiter:
    """Keeps what strangers can cause from filling the log.

    Args:
        per_s: lines a second, on average and at once.
    """

    def __init__(self, per_s: float) -> None:
        self._per_s, self._left, self._at = per_s, max(1.0, per_s), 0.0
        self._dropped = 0

    def due(self) -> int | None:
        """None: not now. Else how many were dropped since the last line."""
        now = asyncio.get_running_loop().time()
        self._left = min(max(1.0, self._per_s), self._left + (now - self._at) * self._per_s)
        self._at = now
        if self._left < 1:
            self._dropped += 1
            return None
        self._left -= 1
        dropped, self._dropped = self._dropped, 0
        return dropped
