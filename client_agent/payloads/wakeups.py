"""Telling waiters in this process that payloads have changed."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from client_agent.payloads import states
from shared.wire import PayloadState

ANY: Final = 0
"""Stands for every payload; real ids begin at 1."""


class Bell:
    """Rung after each commit that changed a payload.

    Level-triggered: a waiter looks at the store again, so that rings may fall together.
    """

    def __init__(self) -> None:
        self._waiting: dict[int, set[asyncio.Event]] = {}
        self.closed = False

    def ring(self, payload_id: int, state: PayloadState) -> None:
        """Wake those who wait for any change; and at its end those who wait for this payload."""
        for event in self._waiting.get(ANY, ()):
            event.set()
        if state in states.ENDED:
            for event in self._waiting.get(payload_id, ()):
                event.set()

    def close(self) -> None:
        """Wake everybody for good: the agent ends."""
        self.closed = True
        for events in self._waiting.values():
            for event in events:
                event.set()

    @contextmanager
    def listen(self, payload_id: int = ANY) -> Iterator[asyncio.Event]:
        """An event that each ring sets; whoever waits clears it before looking."""
        event = asyncio.Event()
        if self.closed:
            event.set()
        self._waiting.setdefault(payload_id, set()).add(event)
        try:
            yield event
        finally:
            waiting = self._waiting[payload_id]
            waiting.discard(event)
            if not waiting:
                del self._waiting[payload_id]
