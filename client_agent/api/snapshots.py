"""ZIPs of running attempts as they are now.

A snapshot can be as large as a result, and takes space on the agent's disk until its reader is
done, so few exist at once. They have threads of their own: attempts never wait for them.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from client_agent.intake.admission import Admission
from client_agent.payloads.errors import Refused
from client_agent.payloads.payload import Payload
from client_agent.run.runner import Runner
from client_agent.storage.folders import Folders

MAX_SNAPSHOTS: Final = 4
"""That are being written or read at once."""


class Snapshots:
    """The snapshots of one agent; :meth:`close` at the end."""

    def __init__(self, runner: Runner, folders: Folders, admission: Admission) -> None:
        self._runner, self._folders, self._admission = runner, folders, admission
        self._threads = ThreadPoolExecutor(MAX_SNAPSHOTS, "ferryman-snapshot")
        self._count = 0

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    @contextlib.asynccontextmanager
    async def open(self, payload: Payload) -> AsyncIterator[Path]:
        """A snapshot's file, which is removed at the end.

        Raises:
            Refused: there are too many, or there is too little space, or it cannot be made.
        """
        if self._count >= MAX_SNAPSHOTS:
            raise Refused(503, "busy", f"{MAX_SNAPSHOTS} other snapshots are being made or read")
        self._admission.check_space(0)
        task, path = asyncio.current_task(), self._folders.staging()

        def check_space(size: int) -> None:
            """Called in the thread, before and while the ZIP is written."""
            if task is not None and task.cancelling():
                raise Refused(503, "abandoned", "nobody waits for this snapshot any more")
            self._admission.check_space(size)

        self._count += 1
        try:
            try:
                await self._runner.snapshot(payload, path, self._threads, check_space)
            except OSError as problem:
                why = f"the snapshot could not be made: {problem.strerror or problem}"
                raise Refused(503, "no_snapshot", why) from None
            yield path
        finally:
            self._count -= 1
            self._folders.remove_file(path)
