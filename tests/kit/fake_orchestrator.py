"""A job-orchestrator client as its wire contract says it is, for our server to drive."""

import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from zipfile import ZIP_STORED

from aiohttp import BodyPartReader, web

from tests.kit.raw_archives import zipped
from tests.kit.raw_http import listening


@dataclass
class HeldRun:
    id: int
    files: dict[str, bytes]
    """part name -> content, as they came"""
    file_names: dict[str, str]
    status: str = "Prepared"

    def doc(self) -> dict[str, Any]:
        """The six fields, and no other."""
        return {
            "id": self.id,
            "status": self.status,
            "loc": f"/data/{self.id}",
            "pid": 0,
            "killed": self.status == "Killed",
            "input": {},
        }


@dataclass
class FakeOrchestrator:
    """Keeps what it is sent, and answers as a test sets it.

    Attributes:
        then: what becomes of each new payload at once; a state of its wire.
        broken: answers every retrieve with 500.
        page: what it answers every retrieve with: a proxy's page.
        kill_status: what it answers every kill with.
        kill_says: it answers with the payload, as an agent of ours does.
        result: what is in each result beside the bundle.
        cut: bytes that are missing at the end of each result.
        silent: takes a submit and cuts the connection instead of answering.
    """

    payloads: dict[int, HeldRun] = field(default_factory=dict)
    then: str = "Completed"
    broken: bool = False
    page: str = ""
    kill_status: int = 200
    kill_says: bool = False
    silent: bool = False
    result: bytes = b""
    cut: int = 0
    killed: list[int] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    _ids: Any = field(default_factory=lambda: itertools.count(1))

    async def submit(self, request: web.Request) -> web.StreamResponse:
        files, names = {}, {}
        reader = await request.multipart()
        while (part := await reader.next()) is not None:
            assert isinstance(part, BodyPartReader)
            assert part.filename is not None, "it has no use for text fields"
            assert part.name is not None
            files[part.name] = bytes(await part.read())
            names[part.name] = part.filename
        held = HeldRun(next(self._ids), files, names, self.then)
        self.payloads[held.id] = held
        if self.silent:
            assert request.transport is not None
            request.transport.abort()
        return web.json_response(held.doc() | {"status": "Prepared"})

    def _held(self, request: web.Request) -> HeldRun:
        self.asked.append(request.path)
        held = self.payloads.get(int(request.match_info["id"]))
        if held is None:
            text = json.dumps(HeldRun(0, {}, {}, "Unknown").doc())
            raise web.HTTPNotFound(text=text, content_type="application/json")
        return held

    async def retrieve(self, request: web.Request) -> web.StreamResponse:
        held = self._held(request)
        if self.broken:
            raise web.HTTPInternalServerError
        if self.page:
            return web.Response(text=self.page, content_type="text/html")
        if held.status == "Completed":
            return _zip(held, self.result, self.cut)
        return web.json_response(held.doc())

    async def partial(self, request: web.Request) -> web.StreamResponse:
        """Its folder, where a result that is packed already is a file, too."""
        held = self._held(request)
        return _zip(held, self.result, packed=held.status == "Completed")

    async def kill(self, request: web.Request) -> web.StreamResponse:
        held = self._held(request)
        if self.kill_status != 200:
            return web.Response(status=self.kill_status)
        held.status = "Killed"
        self.killed.append(held.id)
        return web.json_response(held.doc()) if self.kill_says else web.Response()

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        application = web.Application()
        application.add_routes(
            [
                web.get("/", _health),
                web.get("/health", _health),
                web.post("/submit", self.submit),
                web.get("/retrieve/{id}", self.retrieve),
                web.get("/retrieve_partial/{id}", self.partial),
                web.post("/kill/{id}", self.kill),
            ]
        )
        async with listening(application) as port:
            yield f"http://127.0.0.1:{port}"


def _zip(held: HeldRun, result: bytes, cut: int = 0, *, packed: bool = False) -> web.Response:
    more = {"output.txt": f"of payload {held.id}".encode()} | ({"result": result} if result else {})
    more |= {"output.zip": b"packed"} if packed else {}
    whole = zipped({**held.files, **more}, ZIP_STORED)
    return web.Response(body=whole[: max(0, len(whole) - cut)], content_type="application/zip")


async def _health(_: web.Request) -> web.StreamResponse:
    return web.json_response({"message": "pong", "status": "ok", "database": "ok"})
