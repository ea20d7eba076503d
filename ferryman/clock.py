"""Time as the client needs it, passed in so that tests do not wait."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """A source of time."""

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never jumps back."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return once ``seconds`` of monotonic time have passed."""
        ...


class RealClock:
    """The machine's clock."""

    def monotonic(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        import asyncio  # here: output for people needs the time, and no event loop

        await asyncio.sleep(seconds)


def wall_clock() -> datetime:
    """The time of day, in UTC; it may jump."""
    return datetime.now(UTC)
