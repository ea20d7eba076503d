"""Routes for the files of attempts that run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import Final, TypeVar

from aiohttp import web

from client_agent.api.requests import ID, int_param, json_answer, keyed, stream
from client_agent.collect.result import LOGS
from client_agent.collect.running import FileId, NoSuchFile, RunningTree
from client_agent.payloads.errors import Refused
from client_agent.payloads.payload import Payload
from client_agent.payloads.store import Payloads
from client_agent.run.runner import Runner
from client_agent.storage.folders import STREAMS, Folders
from shared.wire import FILE_SIZE, RunningFiles

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
