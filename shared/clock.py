"""Time, passed in: the only file that reads the machine's clocks or sleeps.

Wall-clock times are integers, microseconds since 1970-01-01 UTC, everywhere but on the wire,
where they are RFC 3339 with a ``Z``. Tests run on ``tests.kit.clock.SimClock``.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from datetime import UTC, datetime
from typing import Final, Protocol, TypeAlias

Micros: TypeAlias = int
"""Microseconds since 1970-01-01T00:00:00Z."""

SECOND: Micros = 1_000_000

RANDOM: Final = random.Random()  # noqa: S311 - for delays, not for secrets
"""Where delays are spread at random."""


class Clock(Protocol):
    """A source of time."""

    def now(self) -> Micros:
        """Wall-clock time; may jump."""
        ...

    def monotonic(self) -> float:
        """Seconds from an arbitrary start; never jumps back."""
        ...

    def boottime(self) -> float:
        """Seconds since the machine was started, with the time that it was suspended."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return once ``seconds`` of monotonic time have passed."""
        ...

    async def wait(self, event: asyncio.Event, seconds: float) -> None:
        """Return once the event is set, or ``seconds`` of monotonic time have passed."""
        ...


class RealClock:
    """The machine's clock."""

    def now(self) -> Micros:
        return time.time_ns() // 1000

    def monotonic(self) -> float:
        return time.monotonic()

    def boottime(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def wait(self, event: asyncio.Event, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await event.wait()


def utc(at: Micros) -> datetime:
    """As the documents of the API have it."""
    return datetime.fromtimestamp(at / SECOND, UTC)


def iso(at: Micros) -> str:
    """ISO 8601 in UTC with microseconds and ``Z``, for documents and manifests."""
    return utc(at).isoformat(timespec="microseconds")[:-6] + "Z"


def say_time(at: Micros) -> str:
    """ISO 8601 in UTC to the second, for sentences."""
    return utc(at).isoformat(timespec="seconds")[:-6] + "Z"


def from_iso(text: str) -> Micros:
    """The reverse of :func:`iso`.

    Raises:
        ValueError: not an ISO 8601 time.
    """
    return round(datetime.fromisoformat(text).timestamp() * SECOND)


async def yield_to_loop() -> None:
    """For long work on the event loop: let all other tasks that are ready run first, and those that
    they wake.
    """
    turn = asyncio.get_running_loop().create_future()
    turn.get_loop().call_soon(turn.set_result, None)
    await turn


async def wait_for(event: asyncio.Event, seconds: float, clock: Clock) -> bool:
    """Wait until ``event`` is set or ``seconds`` have passed.

    Returns:
        Whether the event is set.
    """
    if not event.is_set():
        await clock.wait(event, seconds)
    return event.is_set()
