"""Routes for the files of attempts that run."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from client_agent.api.requests import ID, int_param, json_answer, keyed, stream
from client_agent.api.running_files import FilesOfRunning
from client_agent.payloads.store import Payloads
from client_agent.run.runner import Runner
from client_agent.storage.folders import Folders
from shared.running_files import FILE_SIZE

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
