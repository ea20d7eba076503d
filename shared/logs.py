"""One log line per outcome, on stderr: ``noun.verb`` events with fields."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Literal

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
            structlog.processors.format_exc_info if not text else _as_is,
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(),
                # The pretty ones print every local of every frame: tokens, users' data.
                exception_formatter=structlog.dev.plain_traceback,
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


def _as_is(
    _logger: structlog.typing.WrappedLogger, _name: str, event: structlog.typing.EventDict
) -> structlog.typing.EventDict:
    return event


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
