"""Signals that both programs handle alike."""

from __future__ import annotations

import asyncio
import signal

import structlog

log: structlog.stdlib.BoundLogger = structlog.get_logger()


def ignore_hangup(loop: asyncio.AbstractEventLoop) -> None:
    """Log SIGHUP and go on; by default it would end the program."""

    def warn() -> None:
        log.warning("settings.not_reloaded", why="SIGHUP: restart the program for new settings")

    loop.add_signal_handler(signal.SIGHUP, warn)
