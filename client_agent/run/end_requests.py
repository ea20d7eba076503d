"""What an agent's operator asks for, by signals."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from shared.clock import Clock


@dataclass(slots=True)
class EndRequests:
    """How the agent is to end."""

    drain: asyncio.Event = field(default_factory=asyncio.Event)
    """Take nothing new, finish everything, then end."""
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    """End."""
    hurry: asyncio.Event = field(default_factory=asyncio.Event)
    """Do not wait for attempts that are to continue."""
    waits: bool = False
    """It waits for such attempts."""

    def patience(self, seconds: float, clock: Clock) -> Callable[[], bool]:
        """Whether the end may take longer still: so long after the last of these attempts."""
        until = clock.monotonic() + seconds

        def still() -> bool:
            nonlocal until
            if self.waits:
                until = clock.monotonic() + seconds
            return clock.monotonic() < until

        return still

    def on_stop_signal(self) -> bool:
        """A signal to stop has come. Returns whether the agent is to end at once."""
        if not self.stop.is_set():
            self.stop.set()
            return False
        if self.waits and not self.hurry.is_set():
            self.hurry.set()
            return False
        return True
