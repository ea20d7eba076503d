"""Snapshots of running jobs: one for all who ask at once, and not many at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Final

from server.api.problems import Refusal
from server.ports import Scratch, ScratchFile
from shared.clock import Clock

MOST: Final = 8
"""Snapshots that lie on the disk at once; until they have been sent, they cannot be removed."""
MOST_OF_JOB: Final = 2
_FRESH_S: Final = 5.0

Make = Callable[[ScratchFile], Coroutine[None, None, None]]


class _Snapshot:
    """A file, and who reads it."""

    def __init__(
        self, made_at: float, scratch: AbstractContextManager[ScratchFile], make: Make
    ) -> None:
        self.made_at, self.readers = made_at, 0
        self.stack = ExitStack()
        file = self.stack.enter_context(scratch)
        self.path = file.path
        self.making = asyncio.ensure_future(make(file))

    def may_be_shared(self, now: float) -> bool:
        return not self.making.done() or now - self.made_at < _FRESH_S

    async def remove(self) -> None:
        self.making.cancel()
        await asyncio.gather(self.making, return_exceptions=True)
        self.stack.close()


class Partials:
    """The snapshots that are being made or sent."""

    def __init__(self, scratch: Scratch, clock: Clock) -> None:
        self._scratch, self._clock = scratch, clock
        self._of_job: dict[int, list[_Snapshot]] = {}

    @asynccontextmanager
    async def snapshot(self, job_id: int, make: Make) -> AsyncIterator[Path]:
        """A snapshot of the job, removed when its last reader has it.

        Args:
            make: writes one to the file that it is given; not called where one that is a few
                seconds old is there.

        Raises:
            Refusal: too many are being sent.
            Exception: what ``make`` raises, for all who wait for it.
        """
        mine = self._of_job.setdefault(job_id, [])
        try:
            snapshot = self._choose(mine, make)
        finally:
            if not mine:
                del self._of_job[job_id]
        snapshot.readers += 1
        try:
            # Shielded: of several who wait, one who goes away takes nothing from the others.
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
        if mine and (mine[-1].may_be_shared(now) or len(mine) >= MOST_OF_JOB):
            return mine[-1]
        if sum(len(snapshots) for snapshots in self._of_job.values()) >= MOST:
            raise Refusal(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "too_many_snapshots",
                f"{MOST} snapshots of running jobs are being sent, the most this server holds",
                retry_after_s=5,
            )
        mine.append(snapshot := _Snapshot(now, self._scratch.file(), make))
        return snapshot
