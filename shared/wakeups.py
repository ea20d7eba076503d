"""Wake-ups within one process: waiting for the next change of a stored row."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Change(asyncio.Event):
    """Set at each change.

    Attributes:
        row: as it was committed last, since this was made; None: nobody said.
    """

    def __init__(self) -> None:
        super().__init__()
        self.row: object = None


class Wakeups:
    """Wakes those who wait for a change of a job or payload.

    A wake-up says that there was a change: several may fall together. Whoever waits clears the
    event first and reads the store then, so that no change is missed. Only the row of a job that
    has ended may be used in place of the store: an open one changes without wake-ups, too.

    Attributes:
        version: counts the changes.
        closing: the program is stopping: nobody should wait for anything.
    """

    def __init__(self) -> None:
        self.closing = False
        self.version = 0
        self._waiting: dict[int | None, dict[Change, bool]] = {}
        """Id, or None for any -> the events of those who wait, and whether only for an end."""

    @property
    def listeners(self) -> int:
        """How many wait for a change of any row."""
        return len(self._waiting.get(None, {}))

    def notify(self, number: int, *, ended: bool, row: object = None) -> None:
        """To be called after each commit that changed the row with this id.

        Args:
            row: as it was committed.
        """
        self.version += 1
        for waited_for in (None, number):
            for event, end_only in self._waiting.get(waited_for, {}).items():
                event.row = row
                if ended or not end_only:
                    event.set()

    @contextmanager
    def of(self, number: int | None = None, *, end_only: bool = False) -> Iterator[Change]:
        """An event that is set at each change, or end, of one row; None: of any row."""
        event = Change()
        if self.closing:
            event.set()
        events = self._waiting.setdefault(number, {})
        events[event] = end_only
        try:
            yield event
        finally:
            del events[event]
            if not events:
                self._waiting.pop(number, None)

    def close(self) -> None:
        """Wake everybody who waits, now and later."""
        self.closing = True
        for events in self._waiting.values():
            for event in events:
                event.set()
