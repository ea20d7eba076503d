"""Slots: as many attempts run at once as there are slots, the oldest first."""

from __future__ import annotations

import asyncio
import heapq


class SlotQueue:
    """Gives slots to the attempts that wait for one, in the order of their payload ids.

    Args:
        slots: attempts that may run at once.
    """

    def __init__(self, slots: int) -> None:
        self._free = self._slots = slots
        self._waiting: list[tuple[int, asyncio.Future[bool]]] = []

    @property
    def in_use(self) -> int:
        return self._slots - self._free

    def acquire_free(self) -> bool:
        """Take a slot if one is free: then nobody waits for one."""
        free = self._free > 0
        self._free -= free
        return free

    async def acquire(self, payload_id: int) -> bool:
        """Wait for a slot. False: it was withdrawn meanwhile and holds no slot."""
        if self.acquire_free():
            return True
        granted: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (payload_id, granted))
        try:
            return await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled() and granted.result():
                self.release()
            raise

    def release(self) -> None:
        """Give the slot back, to the oldest that waits."""
        self._free += 1
        while self._free > 0 and self._waiting:
            _, granted = heapq.heappop(self._waiting)
            if not granted.done():
                granted.set_result(True)
                self._free -= 1

    def withdraw(self, payload_id: int) -> None:
        """End the wait of an attempt that is not to run any more."""
        for waiting, granted in self._waiting:
            if waiting == payload_id and not granted.done():
                granted.set_result(False)
