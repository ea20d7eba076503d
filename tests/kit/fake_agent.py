"""A small fake agent over real HTTP. It behaves well, but a test can make it answer anything."""

from __future__ import annotations

import asyncio
import hashlib
import io
import itertools
import json
import zipfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path
from typing import Any, TypeAlias

from aiohttp import BodyPartReader, web

from server.settings import load
from shared.clock import SECOND, Clock, RealClock
from shared.wire import LOG_SIZE
from tests.kit.server_http import ServerClient, hosted

Trick: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse | None]]
"""Answers in place of the agent; None: the agent answers itself."""


@dataclass
class HeldPayload:
    """A payload."""

    id: int
    server: str
    key: str
    digest: str | None
    status: str = "Running"
    result: bytes = b""
    more: dict[str, Any] = field(default_factory=dict)
    logs: dict[str, bytes] = field(default_factory=dict)
    """What it has written so far."""

    def doc(self) -> dict[str, Any]:
        result = {"size": len(self.result), "sha256": hashlib.sha256(self.result).hexdigest()}
        return {
            "id": self.id,
            "status": self.status,
            "server": self.server,
            "key": self.key,
            "bundle_digest": self.digest,
            "result": result if self.result else None,
            "started_at": None if self.status == "Prepared" else "2026-01-01T00:00:00Z",
        } | self.more


def page(status: int, text: str = "<html>not here</html>", kind: str = "text/html") -> Trick:
    """The same page at every address."""

    async def answer(request: web.Request) -> web.StreamResponse:
        await request.read()
        return web.Response(status=status, text=text, content_type=kind)

    return answer


async def elsewhere(request: web.Request) -> web.StreamResponse:
    """A redirect to the same path below ``/elsewhere``, where a real agent would answer."""
    await request.read()
    raise web.HTTPTemporaryRedirect(f"/elsewhere{request.path_qs}")


@dataclass
class FakeAgent:
    """A Ferryman agent; it keeps everything that was ever submitted.

    Attributes:
        trick: answers first.
        calls: method and route -> how often it was called.
        starts: key -> how often the payload was made.
        ends: what becomes of a new payload at once.
        says: more of its health document.
        clock_ahead_s: how far its clock is ahead of the real time.
    """

    name: str = "fake"
    id: str | None = None
    slots: int = 4
    well: bool = True
    ends: str = "Completed"
    says_digest: bool = True
    says: dict[str, Any] = field(default_factory=dict)
    clock_ahead_s: float = 0.0
    trick: Trick | None = None
    payloads: dict[int, HeldPayload] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    calls: Counter[str] = field(default_factory=Counter)
    starts: Counter[str] = field(default_factory=Counter)
    killed: list[str] = field(default_factory=list)
    orders: list[dict[str, Any]] = field(default_factory=list)
    url: str = ""

    def __post_init__(self) -> None:
        self._ids = itertools.count(1)
        self._changed = asyncio.Condition()
        self._streams: list[asyncio.Queue[dict[str, Any] | None]] = []

    # -- what a test does

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something to be so; looked at after each call and each change."""
        async with self._changed:
            await self._changed.wait_for(condition)

    async def say(self, held: HeldPayload) -> None:
        """Send an event about a payload to the servers."""
        self.payloads[held.id] = held
        for stream in self._streams:
            stream.put_nowait(held.doc())
        await self._notify()

    async def beat(self, **status: Any) -> None:
        """Send a heartbeat to the servers."""
        line = {"slots": self.slots, "running": 0, "load": None, "draining": False} | status
        for stream in self._streams:
            stream.put_nowait({"status": line})
        await self._notify()

    async def end(self, held: HeldPayload, status: str = "Completed") -> None:
        held.status, held.result = status, zipped(f"result of {held.key}")
        await self.say(held)

    def held(self, key: str) -> HeldPayload:
        return next(one for one in self.payloads.values() if one.key == key)

    @property
    def streams(self) -> int:
        """How many event streams are open."""
        return len(self._streams)

    async def write(self, held: HeldPayload, data: bytes, stream: str = "stdout") -> None:
        """The payload's run.sh writes something."""
        held.logs[stream] = held.logs.get(stream, b"") + data
        await self._notify()

    async def followed(self, times: int) -> None:
        """Wait until its event stream is opened for this time, and is open."""
        await self.until(lambda: self.calls["GET /events"] == times and self.streams == 1)

    def hang_up(self) -> None:
        """End the event streams."""
        for stream in self._streams:
            stream.put_nowait(None)

    def new(self, server: str, key: str, digest: str | None) -> HeldPayload:
        held = HeldPayload(next(self._ids), server, key, digest)
        self.payloads[held.id] = held
        return held

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    # -- routes

    async def health(self, _: web.Request) -> web.StreamResponse:
        status = "ok" if self.well else "error"
        document = {
            "status": status,
            "agent": self.name,
            "slots": self.slots,
            "message": "no sandbox",
        }
        if self.id is not None:
            document["agent_id"] = self.id
        date = formatdate(RealClock().now() / SECOND + self.clock_ahead_s, usegmt=True)
        return web.json_response(
            document | self.says, status=200 if self.well else 503, headers={"Date": date}
        )

    async def listing(self, _: web.Request) -> web.StreamResponse:
        held = [one.doc() for one in self.payloads.values() if one.status != "Cleaned"]
        return web.json_response({"seq": 1, "payloads": held})

    async def events(self, request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        lines: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._streams.append(lines)
        await self._notify()
        try:
            await answer.write(b'{"seq": 1}\n')
            while (doc := await lines.get()) is not None:
                said = doc if doc.get("id") is None else {"payload": doc}
                await answer.write(json.dumps({"seq": 1} | said).encode() + b"\n")
        finally:
            self._streams.remove(lines)
            await self._notify()
        return answer

    async def submit(self, request: web.Request) -> web.StreamResponse:
        order: dict[str, Any] = {}
        reader = await request.multipart()
        while (part := await reader.next()) is not None:
            assert isinstance(part, BodyPartReader)
            body = bytes(await part.read())
            if part.name == "order":
                order = json.loads(body)
        self.orders.append(order)
        key, digest = order["key"], order["bundle_digest"]
        known = next((one for one in self.payloads.values() if one.key == key), None)
        if key in self.refused:
            return refuse(409, "key_refused")
        if known and self.says_digest and known.digest != digest:
            return refuse(409, "digest_mismatch")
        if known is None:
            known = self.new(order["server"], key, digest if self.says_digest else None)
            self.starts[key] += 1
            known.status = self.ends
            if self.ends == "Completed":
                known.result = zipped(f"result of {key}")
        return web.json_response(known.doc())

    async def settle(self, request: web.Request) -> web.StreamResponse:
        key = request.match_info["key"]
        known = next((one for one in self.payloads.values() if one.key == key), None)
        if known is None:
            self.refused.add(key)
        elif request.query.get("kill") and known.status in ("Prepared", "Running"):
            self.killed.append(key)
            await self.end(known, "Killed")
        return web.json_response({"payload": known.doc() if known else None})

    async def kill(self, request: web.Request) -> web.StreamResponse:
        held = self.payloads.get(int(request.match_info["id"]))
        if held is None or request.query.get("key", held.key) != held.key:
            return refuse(404, "payload_not_found")
        self.killed.append(held.key)
        await self.end(held, "Killed")
        return web.json_response(held.doc())

    async def fetch(self, request: web.Request) -> web.StreamResponse:
        held = self.payloads.get(int(request.match_info["id"]))
        if held is None:
            return refuse(404, "payload_not_found")
        return web.Response(body=held.result, content_type="application/zip")

    async def log(self, request: web.Request) -> web.StreamResponse:
        held = self.payloads.get(int(request.match_info["id"]))
        stream, sent = request.match_info["stream"], int(request.query["offset"])
        if held is None or request.query.get("key", held.key) != held.key:
            return refuse(404, "payload_not_found")
        if held.status not in ("Prepared", "Running"):
            return refuse(404, "log_gone")
        size = len(held.logs.get(stream, b""))
        headers = {"Content-Type": "application/octet-stream", LOG_SIZE: str(size)}
        answer = web.StreamResponse(headers=headers)
        await answer.prepare(request)
        async with self._changed:
            while True:
                data = held.logs.get(stream, b"")[sent:]
                sent += len(data)
                await answer.write(data)
                if request.query.get("follow") != "1" or held.status != "Running":
                    return answer
                await self._changed.wait()

    async def acknowledge(self, request: web.Request) -> web.StreamResponse:
        held = self.payloads[int(request.match_info["id"])]
        if request.query.get("key", held.key) != held.key:
            return refuse(404, "payload_not_found")
        held.status = "Cleaned"
        return web.Response(status=204)

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:
        """Yields its address."""

        @web.middleware
        async def first(request: web.Request, handler: Any) -> web.StreamResponse:
            route = request.match_info.route.resource
            name = route.canonical if route is not None else request.path
            self.calls[f"{request.method} {name}"] += 1
            await self._notify()
            answer = await self.trick(request) if self.trick is not None else None
            if answer is None:
                answer = await handler(request)
            await self._notify()
            return answer

        application = web.Application(middlewares=[first], client_max_size=1 << 30)
        for prefix in ("", "/elsewhere"):
            application.add_routes(
                [
                    web.get(f"{prefix}/health", self.health),
                    web.get(f"{prefix}/payloads", self.listing),
                    web.get(f"{prefix}/events", self.events),
                    web.post(f"{prefix}/submit", self.submit),
                    web.post(f"{prefix}/keys/{{server}}/{{key}}/settle", self.settle),
                    web.post(f"{prefix}/kill/{{id}}", self.kill),
                    web.get(f"{prefix}/retrieve/{{id}}", self.fetch),
                    web.get(f"{prefix}/retrieve_partial/{{id}}", self.fetch),
                    web.delete(f"{prefix}/payloads/{{id}}", self.acknowledge),
                    web.get(f"{prefix}/payloads/{{id}}/logs/{{stream}}", self.log),
                ]
            )
        runner = web.AppRunner(application, shutdown_timeout=0, handler_cancellation=True)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        try:
            yield self.url
        finally:
            self.hang_up()
            await runner.cleanup()


def refuse(status: int, code: str, **headers: str) -> web.Response:
    document = {"code": code, "message": code}
    return web.json_response(document, status=status, headers=headers)


def zipped(text: str) -> bytes:
    """A result that says ``text``."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("output.txt", text)
    return packed.getvalue()


def said(result: bytes) -> str:
    """What a result says."""
    return zipfile.ZipFile(io.BytesIO(result)).read("output.txt").decode()


@asynccontextmanager
async def serving(
    folder: Path,
    *agents: FakeAgent,
    extra: str = "",
    url: str = "url",
    machine: Clock | None = None,
    **server: Any,
) -> AsyncIterator[ServerClient]:
    """A Ferryman server with these agents, and one service ``my_service``.

    Args:
        url: "url", or "three": they are given as job-orchestrator clients.
    """
    async with AsyncExitStack() as stack:
        lines = ["[services.my_service]", extra]
        for agent in agents:
            address = agent.url or await stack.enter_async_context(agent.listening())
            lines.append(f"[agents.{agent.name}]")
            if url == "url":
                lines.append(f"url = '{address}'")
            else:
                lines += [
                    f"upload_url = '{address}/submit'",
                    f"download_url = '{address}/retrieve'",
                    f"terminate_url = '{address}/kill'",
                ]
        file = folder / "ferryman.toml"
        file.write_text("\n".join(lines))
        intervals = {"getter_interval": 0.02, "sender_interval": 0.05}
        flags = {"server": {"data_dir": folder / "data", **intervals} | server}
        yield await hosted(load.read(file, flags, {}), stack, machine)


RETRIED = """
retries = 1
retry_delays = ["0s"]
retry_on = ["exit:3"]
"""
"""Settings of a service whose jobs are tried twice."""


def left(stdout: str, stderr: str) -> bytes:
    """A result with logs, of which one has another name than usual."""
    packed = io.BytesIO()
    logs = {"stdout": "stdout.log", "stderr": "stderr.ferryman.log"}
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(logs["stdout"], stdout)
        archive.writestr(logs["stderr"], stderr)
        archive.writestr("stderr.log", "the job's own file")
        archive.writestr("ferryman.json", json.dumps({"logs": logs}))
    return packed.getvalue()
