"""A look at something that may hang, such as a disk, off the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import Final

from shared.clock import Clock, wait_for

EVERY_S: Final = 1.0
"""However often it is asked for, it looks no more often."""
PATIENCE_S: Final = 0.5
"""For an answer; then the look itself is the trouble."""


class Probe:
    """Looks in a thread of its own, once at a time, and remembers what it saw.

    Args:
        what: for the message when the look does not return.
        look: runs in the thread; what is wrong, in sentences.
    """

    def __init__(self, what: str, look: Callable[[], Sequence[str]], clock: Clock) -> None:
        self._what, self._look, self._clock = what, look, clock
        self._seen: list[str] = []
        self._at = float("-inf")
        self._done: asyncio.Event | None = None

    async def troubles(self) -> list[str]:
        """What is wrong, as of a second ago at most."""
        if self._done is None and self._clock.monotonic() >= self._at + EVERY_S:
            self._done = asyncio.Event()
            self._at = self._clock.monotonic()
            loop = asyncio.get_running_loop()
            # A thread of its own, which keeps neither a pool nor the end of the program waiting.
            threading.Thread(
                target=self._run, args=(loop, self._done), name="probe", daemon=True
            ).start()
        if self._done is not None and not await wait_for(self._done, PATIENCE_S, self._clock):
            return [f"{self._what} does not answer"]
        return self._seen

    def _run(self, loop: asyncio.AbstractEventLoop, done: asyncio.Event) -> None:
        try:
            seen = list(self._look())
        except Exception as problem:  # noqa: BLE001 - a look that fails is what it saw
            seen = [f"{self._what} cannot be looked at: {problem}"]
        with contextlib.suppress(RuntimeError):  # the loop has ended meanwhile
            loop.call_soon_threadsafe(self._tell, seen, done)

    def _tell(self, seen: list[str], done: asyncio.Event) -> None:
        self._seen, self._done = seen, None
        done.set()
