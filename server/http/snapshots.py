"""Snapshots of running jobs: requests at the same time share one, and their number is limited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Final

from server.http.problems import Refusal
from server.ports import NewScratchFile, Scratch, ScratchFile
from shared.clock import Clock
from shared.http.authentication import CALLER

MAX_SNAPSHOTS: Final = 16
"""Snapshots on the disk at once. They cannot be removed before they have been sent."""
MAX_OF_CALLER: Final = 4
MAX_OF_JOB: Final = 2
_FRESH_S: Final = 5.0

Make = Callable[[ScratchFile], Coroutine[None, None, None]]


class _Snapshot:
    """A file, and who reads it."""

    def __init__(self, made_at: float, scratch: NewScratchFile, make: Make) -> None:
        self.made_at, self.readers, self.caller = made_at, 0, CALLER.get()
        self._scratch, file = scratch, scratch.__enter__()
        self.path = file.path
        self.making = asyncio.ensure_future(make(file))

    def may_be_shared(self, now: float) -> bool:
        return not self.making.done() or now - self.made_at < _FRESH_S

    async def remove(self) -> None:
        self.making.cancel()
        await asyncio.gather(self.making, return_exceptions=True)
        await self._scratch.__aexit__()


class Snapshots:
    """The snapshots that are being made or sent."""

    def __init__(self, scratch: Scratch, clock: Clock) -> None:
        self._scratch, self._clock = scratch, clock
        self._of_job: dict[int, list[_Snapshot]] = {}

    @asynccontextmanager
    async def snapshot(self, job_id: int, make: Make) -> AsyncIterator[Path]:
        """A snapshot of the job, removed after its last reader has read it.

        Args:
            make: writes a snapshot to the file that it is given. Not called if there is one that is
                at most a few seconds old.

        Raises:
            Refusal: too many are being sent.
            Exception: what ``make`` raises; every reader that waits for it gets it.
        """
        mine = self._of_job.setdefault(job_id, [])
        try:
            snapshot = self._choose(mine, make)
        finally:
            if not mine:
                del self._of_job[job_id]
        snapshot.readers += 1
        try:
            # Shielded, because a reader that goes away must not cancel it for the others.
            await asyncio.shield(snapshot.making)
            yield snapshot.path
        finally:
            snapshot.readers -= 1
            if not snapshot.readers:
                mine.remove(snapshot)
                if not mine:
                    del self._of_job[job_id]
                await snapshot.remove()

    def _choose(self, mine: list[_Snapshot], make: Make) -> _Snapshot:
        now = self._clock.monotonic()
        if mine and (mine[-1].may_be_shared(now) or len(mine) >= MAX_OF_JOB):
            return mine[-1]
        callers = [one.caller for snapshots in self._of_job.values() for one in snapshots]
        of_caller = callers.count(CALLER.get())
        if len(callers) >= MAX_SNAPSHOTS or of_caller >= MAX_OF_CALLER:
            count = f"{len(callers)} snapshots of running jobs"
            if of_caller >= MAX_OF_CALLER:
                count = f"{of_caller} snapshots that you asked for"
            message = f"{count} are being sent, which is the most"
            status = HTTPStatus.SERVICE_UNAVAILABLE
            raise Refusal(status, "too_many_snapshots", message, retry_after_s=5)
        mine.append(snapshot := _Snapshot(now, self._scratch.file(), make))
        return snapshot
