"""Routes for the files of attempts that run."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncGenerator, Callable, Iterator
from functools import partial
from typing import Final, TypeVar

from aiohttp import web

from client_agent.api.requests import ID, int_param, json_answer, keyed, stream
from client_agent.collect.result import LOGS
from client_agent.collect.running import FileId, NoSuchFile, RunningTree
from client_agent.output.live import LiveOutput
from client_agent.output.outputs import LiveOutputs
from client_agent.payloads.errors import Refused
from client_agent.payloads.payload import Payload
from client_agent.payloads.store import Payloads
from client_agent.run.runner import Runner
from client_agent.storage.folders import STREAMS, Folders
from shared.clock import Clock, wait_for
from shared.wire import FILE_SIZE, PayloadState, RunningFiles

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


T = TypeVar("T")
_MAX_READERS: Final = 4
"""Threads that read at once: those of the attempts go first."""


class RunningFile:
    """A file that was found. ``size``: bytes at that moment."""

    def __init__(self, files: FilesOfRunning, payload: Payload, file: FileId) -> None:
        self._files, self._payload, self._file = files, payload, file
        self.size = file.size

    async def chunks(self, start: int, stop: int) -> AsyncGenerator[bytes, None]:
        """Its bytes from ``start`` up to, not including, ``stop``; fewer if it became shorter, was
        replaced, or the attempt has ended."""
        at = start
        while at < stop:
            read = partial(RunningTree.read, file=self._file, at=at, count=stop - at)
            try:
                data = await self._files.reads(self._payload, read)
            except (Refused, NoSuchFile):
                return
            if not data:
                return
            at += len(data)
            yield data


class FilesOfRunning:
    """Reads the files of this agent's attempts."""

    def __init__(self, runner: Runner, folders: Folders) -> None:
        self._runner, self._folders = runner, folders
        self._readers = asyncio.Semaphore(_MAX_READERS)

    async def list(self, payload: Payload, after: str, limit: int) -> RunningFiles:
        """Some of its files, behind ``after``. Raises Refused: it does not run."""
        return await self.reads(payload, lambda tree: tree.list(after, limit))

    async def find(self, payload: Payload, path: str) -> RunningFile:
        """One file. Raises Refused: it does not run, or has no such file."""
        try:
            file = await self.reads(payload, lambda tree: tree.find(path))
        except NoSuchFile as problem:
            raise Refused(404, "file_not_found", f"{path}: {problem}") from None
        return RunningFile(self, payload, file)

    async def reads(self, payload: Payload, work: Callable[[RunningTree], T]) -> T:
        """What ``work`` finds in a thread. Raises Refused: it does not run."""
        reading = asyncio.ensure_future(self._reads(payload, work))
        reading.add_done_callback(lambda done: done.cancelled() or done.exception())
        # Shielded: the directory must not be closed under a thread whose caller went away.
        return await asyncio.shield(reading)

    async def _reads(self, payload: Payload, work: Callable[[RunningTree], T]) -> T:
        paths = [self._folders.log(payload.id, stream) for stream in STREAMS]
        async with self._readers, self._runner.directory(payload) as fd:
            if fd is None:
                message = f"payload {payload.id} does not run: its files are in its result"
                raise Refused(404, "files_gone", message)
            tree = RunningTree(fd, dict(zip(LOGS, paths, strict=True)))
            return await asyncio.to_thread(work, tree)


MAX_FILES: Final = 500
"""In one answer."""


class Files:
    """The handlers."""

    def __init__(self, payloads: Payloads, runner: Runner, folders: Folders) -> None:
        self._payloads, self._files = payloads, FilesOfRunning(runner, folders)

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get(f"/payloads/{ID}/files", self.list, allow_head=False),
            web.get(f"/payloads/{ID}/files/{{path:.+}}", self.file, allow_head=False),
        ]

    async def list(self, request: web.Request) -> web.StreamResponse:
        """The files of an attempt that runs, behind ``after``."""
        after, limit = request.query.get("after", ""), int_param(request, "limit")
        payload = await keyed(request, self._payloads)
        most = min(limit, MAX_FILES) or MAX_FILES
        return json_answer(await self._files.list(payload, after, most))

    async def file(self, request: web.Request) -> web.StreamResponse:
        """One of them, or its part from ``offset`` up to, not including, ``stop``."""
        offset, stop = int_param(request, "offset"), int_param(request, "stop")
        payload = await keyed(request, self._payloads)
        file = await self._files.find(payload, request.match_info["path"])
        response = stream("application/octet-stream")
        response.headers[FILE_SIZE] = str(file.size)
        await response.prepare(request)
        last = min(file.size, stop) if "stop" in request.query else file.size
        async for data in file.chunks(offset, last):
            await response.write(data)
        await response.write_eof()
        return response
