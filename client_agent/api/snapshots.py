"""ZIPs of running attempts as they are now.

A snapshot can be as large as a result, and takes space on the agent's disk until its last reader is
done. So all who ask for it at the same time share one, few exist at once, and slow readers are cut
off. Snapshots have threads of their own: attempts never wait for them.
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

MAX_SNAPSHOTS: Final = 4
"""That are being written or read at once."""
_MAX_WRITERS: Final = 2
READ_TIME_S: Final = 60.0
"""Time to read a snapshot, besides what :data:`MIN_BYTES_PER_S` gives for its size."""
MIN_BYTES_PER_S: Final = 1 << 20
_CHUNK: Final = 1 << 18


class Snapshot:
    """One ZIP. Its file has no name any more: its space is free once it is closed.

    Attributes:
        size: bytes.
    """

    def __init__(self, fd: int, threads: ThreadPoolExecutor, clock: Clock) -> None:
        self._fd, self._threads, self._clock = fd, threads, clock
        self.size = os.fstat(fd).st_size
        self._deadline = clock.monotonic() + READ_TIME_S + self.size / MIN_BYTES_PER_S

    async def chunks(self) -> AsyncIterator[bytes]:
        """Its bytes. Raises ConnectionAbortedError if the reader takes too long."""
        loop, at = asyncio.get_running_loop(), 0
        while at < self.size:
            if self._clock.monotonic() > self._deadline:
                raise ConnectionAbortedError("a snapshot is read too slowly")
            data = await loop.run_in_executor(self._threads, os.pread, self._fd, _CHUNK, at)
            at += len(data)
            yield data

    def close(self) -> None:
        os.close(self._fd)


class _Shared:
    """A snapshot, and how many wait for it or read it.

    Attributes:
        task: writes the snapshot.
        readers: when there are none, the snapshot is closed.
    """

    def __init__(self) -> None:
        self.task: asyncio.Task[Snapshot]
        self.readers = 0


class Snapshots:
    """The snapshots of one agent; :meth:`close` at the end."""

    def __init__(
        self, runner: Runner, folders: Folders, admission: Admission, clock: Clock
    ) -> None:
        self._runner, self._folders = runner, folders
        self._admission, self._clock = admission, clock
        self._threads = ThreadPoolExecutor(_MAX_WRITERS + MAX_SNAPSHOTS, "ferryman-snapshot")
        self._writers = asyncio.Semaphore(_MAX_WRITERS)
        self._shared: dict[int, _Shared] = {}

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    @contextlib.asynccontextmanager
    async def open(self, payload: Payload) -> AsyncIterator[Snapshot]:
        """A snapshot; the one that others wait for or read, if there is one. Raises Refused if
        there are too many, or there is too little space."""
        shared = self._shared.get(payload.id)
        if shared is None:
            if len(self._shared) >= MAX_SNAPSHOTS:
                raise Refused(
                    503, "busy", f"{MAX_SNAPSHOTS} other snapshots are being made or read"
                )
            self._admission.check_space(0)
            shared = self._shared[payload.id] = _Shared()
            shared.task = asyncio.create_task(self._write(payload, shared))
        shared.readers += 1
        try:
            yield await asyncio.shield(shared.task)
        finally:
            shared.readers -= 1
            if not shared.readers:
                self._shared.pop(payload.id)
                if shared.task.done():
                    _close(shared.task)
                else:
                    shared.task.add_done_callback(_close)

    async def _write(self, payload: Payload, shared: _Shared) -> Snapshot:
        def check_space(size: int) -> None:
            """Called in the thread, before and while the ZIP is written."""
            if not shared.readers:
                raise Refused(503, "abandoned", "nobody waits for this snapshot any more")
            self._admission.check_space(size)

        path = self._folders.staging()
        try:
            async with self._writers:
                await self._runner.snapshot(payload, path, self._threads, check_space)
            return Snapshot(os.open(path, os.O_RDONLY | os.O_CLOEXEC), self._threads, self._clock)
        except OSError as problem:
            why = f"the snapshot could not be made: {problem.strerror or problem}"
            raise Refused(503, "no_snapshot", why) from None
        finally:
            self._folders.remove_file(path)  # the descriptor keeps the bytes until they are sent


def _close(task: asyncio.Task[Snapshot]) -> None:
    if not task.cancelled() and task.exception() is None:
        task.result().close()
