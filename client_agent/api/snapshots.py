"""ZIPs of running attempts as they are now: one for all who ask at the same time, and few at once.

A snapshot can be as large as a result may be, and lives on the agent's disk until its last reader
has it: readers that do not read must not fill the disk, nor keep threads from attempts.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from client_agent.intake.admission import Admission
from client_agent.payloads.errors import Refused
from client_agent.payloads.payload import Payload
from client_agent.run.runner import Runner
from client_agent.storage.folders import Folders
from shared.clock import Clock

MOST: Final = 4
"""Snapshots at once, being made or read."""
_MADE_AT_ONCE: Final = 2
LIFE_S: Final = 60.0
"""So long one may be read, and a second longer for each of these bytes."""
BYTES_A_SECOND: Final = 1 << 20
_CHUNK: Final = 1 << 18


class Snapshot:
    """One ZIP, which lives as long as somebody reads it.

    Attributes:
        size: bytes.
    """

    def __init__(self, fd: int, threads: ThreadPoolExecutor, clock: Clock) -> None:
        self._fd, self._threads, self._clock = fd, threads, clock
        self.size = os.fstat(fd).st_size
        self._until = clock.monotonic() + LIFE_S + self.size / BYTES_A_SECOND

    async def pieces(self) -> AsyncIterator[bytes]:
        """Its bytes.

        Raises:
            ConnectionAbortedError: its reader took too long.
        """
        loop, at = asyncio.get_running_loop(), 0
        while at < self.size:
            if self._clock.monotonic() > self._until:
                raise ConnectionAbortedError("a snapshot is read too slowly")
            data = await loop.run_in_executor(self._threads, os.pread, self._fd, _CHUNK, at)
            at += len(data)
            yield data

    def close(self) -> None:
        os.close(self._fd)


class _Shared:
    """A snapshot, and who waits for it or reads it.

    Attributes:
        making: gives the snapshot.
        readers: nobody: it is of no use any more.
    """

    def __init__(self) -> None:
        self.making: asyncio.Task[Snapshot]
        self.readers = 0


class Snapshots:
    """The snapshots of one agent; :meth:`close` at the end."""

    def __init__(
        self, runner: Runner, folders: Folders, admission: Admission, clock: Clock
    ) -> None:
        self._runner, self._folders = runner, folders
        self._admission, self._clock = admission, clock
        self._threads = ThreadPoolExecutor(_MADE_AT_ONCE + MOST, "ferryman-snapshot")
        self._turns = asyncio.Semaphore(_MADE_AT_ONCE)
        self._shared: dict[int, _Shared] = {}

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    @contextlib.asynccontextmanager
    async def of(self, payload: Payload) -> AsyncIterator[Snapshot]:
        """A snapshot; the one that others wait for or read now, if there is one.

        Raises:
            Refused: too many are there, or too little space.
        """
        shared = self._shared.get(payload.id)
        if shared is None:
            if len(self._shared) >= MOST:
                raise Refused(503, "busy", f"{MOST} other snapshots are being made or read")
            self._admission.check_space(0)
            shared = self._shared[payload.id] = _Shared()
            shared.making = asyncio.create_task(self._make(payload, shared))
        shared.readers += 1
        try:
            yield await asyncio.shield(shared.making)
        finally:
            shared.readers -= 1
            if not shared.readers:
                self._shared.pop(payload.id)
                if shared.making.done():
                    _close(shared.making)
                else:
                    shared.making.add_done_callback(_close)

    async def _make(self, payload: Payload, shared: _Shared) -> Snapshot:
        def room(size: int) -> None:
            """In the thread, before anything is written and now and then."""
            if not shared.readers:
                raise Refused(503, "abandoned", "nobody waits for this snapshot any more")
            self._admission.check_space(size)

        path = self._folders.staging()
        try:
            async with self._turns:
                await self._runner.snapshot(payload, path, self._threads, room)
            return Snapshot(os.open(path, os.O_RDONLY | os.O_CLOEXEC), self._threads, self._clock)
        except OSError as problem:
            why = f"the snapshot could not be made: {problem.strerror or problem}"
            raise Refused(503, "no_snapshot", why) from None
        finally:
            self._folders.remove_file(path)  # the open file keeps the bytes until they are sent


def _close(making: asyncio.Task[Snapshot]) -> None:
    if not making.cancelled() and making.exception() is None:
        making.result().close()
