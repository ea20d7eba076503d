"""The logs of attempts that run, as far as they are written."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Final

from client_agent.output.live import LiveOutput
from client_agent.output.outputs import LiveOutputs
from client_agent.payloads.errors import Refused
from client_agent.payloads.payload import Payload
from client_agent.payloads.store import Payloads
from client_agent.storage.folders import Folders
from shared.clock import Clock, wait_for
from shared.wire import PayloadState

FOLLOW_S: Final = 15.0
"""Who follows a log gets the end of the answer after so long without new bytes, and asks again."""
PACE_S: Final = 0.1
"""New bytes are sent together for so long, at least."""
PER_READER_S: Final = 0.002
"""And for so long for each reader that there is: many readers get more at a time, less often, and
leave time for everybody else."""
_CHUNK: Final = 1 << 16
"""Memory for each reader."""
_MAX_OFFSET: Final = 1 << 62


class RunningLog:
    """One log, opened. It can be read to its end also after its file has been removed."""

    def __init__(
        self, output: LiveOutput, stream: str, fd: int, clock: Clock, pace_s: Callable[[], float]
    ) -> None:
        self._output, self._stream, self._fd, self._clock = output, stream, fd, clock
        self._pace_s = pace_s
        self.size = os.fstat(fd).st_size
        """Bytes when it was opened."""

    async def chunks(self, offset: int, *, follow: bool) -> AsyncGenerator[bytes, None]:
        """Its bytes from ``offset`` on.

        Args:
            offset: in the log as it is stored. Of a flood that is its start; what is stored of its
                end follows when the attempt has ended.
            follow: wait for more, until it has ended or nothing came for a while.
        """
        offset = min(offset, _MAX_OFFSET)
        with self._output.followed(self._stream) as stored:
            while True:
                stored.clear()
                ended = self._output.ended
                while data := await asyncio.to_thread(os.pread, self._fd, _CHUNK, offset):
                    offset += len(data)
                    yield data
                if ended or not follow or not await wait_for(stored, FOLLOW_S, self._clock):
                    return
                if not self._output.ended:
                    await self._clock.sleep(self._pace_s())


class RunningLogs:
    """Opens the logs of this agent's attempts."""

    def __init__(
        self, payloads: Payloads, outputs: LiveOutputs, folders: Folders, clock: Clock
    ) -> None:
        self._payloads, self._outputs = payloads, outputs
        self._folders, self._clock = folders, clock
        self._readers = 0

    def _pace_s(self) -> float:
        return max(PACE_S, self._readers * PER_READER_S)

    async def wait_for_launch(self, payload: Payload) -> Payload:
        """The payload once it is launched, or has ended, or after a while."""
        with self._payloads.wakeups.of(payload.id) as changed:
            payload = await self._payloads.get(payload.id)
            if payload.state is PayloadState.PREPARED and self._outputs.get(payload.id) is None:
                await wait_for(changed, FOLLOW_S, self._clock)
                payload = await self._payloads.get(payload.id)
        return payload

    @contextlib.contextmanager
    def open(self, payload: Payload, stream: str) -> Iterator[RunningLog | None]:
        """None: it has none yet. Raises Refused if it has ended."""
        output = self._outputs.get(payload.id)
        if output is None and payload.state is PayloadState.PREPARED:
            yield None
            return
        fd = -1
        if output is not None:
            with contextlib.suppress(FileNotFoundError):
                path = self._folders.log(payload.id, stream)
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        if output is None or fd < 0:
            message = f"payload {payload.id} has ended: its logs are in its result"
            raise Refused(404, "log_gone", message)
        self._readers += 1
        try:
            yield RunningLog(output, stream, fd, self._clock, self._pace_s)
        finally:
            self._readers -= 1
            os.close(fd)
