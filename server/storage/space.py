"""Who may write how much, so that some of the disk stays free at every moment.

Who writes a new file asks before each piece. What is granted and not yet
written counts as used: two uploads that fit one by one do not fill the disk together.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

_MOST_AHEAD: Final = 4 << 20
"""Bytes that are granted in advance; at most as many as were written, so that a small or stalled
file holds next to nothing."""


class NoSpace(OSError):
    """What is to be written would not leave the space that must stay free."""

    def __init__(self) -> None:
        super().__init__(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Space:
    """The free space of one file system.

    The disk is asked in threads and never under the lock: it may not answer. What was granted
    before the disk was asked, and not known to be written then, counts as used.

    Args:
        free: bytes that are free now; may block.
        min_free: bytes that must stay free.

    Attributes:
        free_bytes: as they were measured last.
    """

    def __init__(self, free: Callable[[], int], min_free: int) -> None:
        self._free, self._min_free = free, min_free
        self._lock = threading.Lock()
        self._granted = self._written = 0
        """Bytes, ever."""
        self.free_bytes = 0
        self._written_before = 0  # it was measured

    def measure(self) -> None:
        """Ask the disk. Blocking. Raises OSError."""
        with self._lock:
            written = self._written
        free = self._free()
        with self._lock:
            self.free_bytes, self._written_before = free, written

    def available(self) -> int:
        """Bytes that may be granted, by the last measurement; may be negative."""
        with self._lock:
            return self._available()

    def _available(self) -> int:
        return self.free_bytes - self._min_free - (self._granted - self._written_before)

    @contextmanager
    def reserve(self) -> Iterator[Reservation]:
        """For one file; what was granted and not written is given back at the end."""
        reservation = Reservation(self)
        try:
            yield reservation
        finally:
            reservation.end()


class Reservation:
    """What one file has been granted; one thread at a time.

    Attributes:
        held: bytes granted and not yet known to be written.
    """

    def __init__(self, space: Space) -> None:
        self._space = space
        self.held = 0
        self._taken = self._last = 0

    def take(self, count: int) -> None:
        """Before writing ``count`` more bytes, and after having written those before. Blocking.
        Raises NoSpace.
        """
        space = self._space
        with space._lock:
            self._count_last()
        if count > self.held:
            space.measure()
        with space._lock:
            if (missing := count - self.held) > 0:
                available = space._available()
                if available < missing:
                    raise NoSpace
                ahead = min(available, missing + min(self._taken, _MOST_AHEAD))
                space._granted += ahead
                self.held += ahead
            self._last = count
            self._taken += count

    def end(self) -> None:
        """Give back what was not written."""
        with self._space._lock:
            self._count_last()
            self._space._granted -= self.held
            self.held = 0

    def _count_last(self) -> None:
        """The last bytes were written, if not, the disk has them when it is asked again."""
        self._space._written += self._last
        self.held -= self._last
        self._last = 0
