"""Who may run now: as many attempts at once as there are slots, the oldest first."""

from __future__ import annotations

import asyncio
import heapq


class Turns:
    """Turns to run, given in the order of payload ids among those who wait.

    Args:
        slots: turns held at once.
    """

    def __init__(self, slots: int) -> None:
        self._free = self._slots = slots
        self._waiting: list[tuple[int, asyncio.Future[bool]]] = []

    @property
    def held(self) -> int:
        """Attempts whose turn it is."""
        return self._slots - self._free

    async def take(self, payload_id: int) -> bool:
        """Wait for a turn. False: dropped meanwhile; there is nothing to give back."""
        if self._free:
            self._free -= 1
            return True
        turn: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (payload_id, turn))
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.result():
                self.give_back()
            raise

    def give_back(self) -> None:
        """The attempt has ended: the next may run."""
        while self._waiting:
            _, turn = heapq.heappop(self._waiting)
            if not turn.done():
                turn.set_result(True)
                return
        self._free += 1

    def drop(self, payload_id: int) -> None:
        """This one shall not run any more."""
        for waiting, turn in self._waiting:
            if waiting == payload_id and not turn.done():
                turn.set_result(False)
