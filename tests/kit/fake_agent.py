"""The model of an agent over real HTTP. It behaves well, but a test can make it answer anything."""

import asyncio
import io
import json
import zipfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path
from typing import Any, TypeAlias

import pytest_asyncio
from aiohttp import web

from shared.clock import SECOND, Clock, RealClock
from shared.ids import Start
from shared.wire import (
    LOG_SIZE,
    START,
    AgentEvent,
    Order,
    OrderAnswer,
    PayloadsAnswer,
    PayloadsRequest,
    PayloadState,
)
from tests.kit import raw_archives
from tests.kit.agent_model import AgentModel, No, Payload
from tests.kit.raw_http import listening
from tests.kit.server_http import ServerClient, served_by

HeldPayload = Payload
Trick: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse | None]]
"""Answers in place of the agent; None: the agent answers itself."""
Answer: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse] | None]
INTAKE = frozenset({"/payloads"})
"""Where orders are posted to."""


def page(status: int, text: str = "<html>not here</html>", kind: str = "text/html") -> Trick:

    async def answer(request: web.Request) -> web.StreamResponse:
        await request.read()
        return web.Response(status=status, text=text, content_type=kind)

    return answer


async def elsewhere(request: web.Request) -> web.StreamResponse:
    """A redirect to the same path below ``/elsewhere``, where a real agent would answer."""
    await request.read()
    raise web.HTTPTemporaryRedirect(f"/elsewhere{request.path_qs}")


def is_intake(request: web.Request) -> bool:
    return request.method == "POST" and request.path in INTAKE


def on(paths: Iterable[str], answer: Answer) -> Trick:
    """A trick at the routes that begin so, but at lists."""

    async def trick(request: web.Request) -> web.StreamResponse | None:
        lists = (request.method, request.path) == ("GET", "/payloads")
        here = request.path.startswith(tuple(paths)) and not lists
        made = answer(request) if here else None
        if made is not None:
            await request.read()
            return await made
        return None

    return trick


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
        sends_results: with its events, to who asks for them.
    """

    name: str = "fake"
    id: str | None = None
    slots: int = 4
    well: bool = True
    ends: str = "Completed"
    says: dict[str, Any] = field(default_factory=dict)
    clock_ahead_s: float = 0.0
    clock: Clock = field(default_factory=RealClock)
    sends_results: bool = True
    trick: Trick | None = None
    model: AgentModel = field(default_factory=AgentModel)
    calls: Counter[str] = field(default_factory=Counter)
    starts: Counter[str] = field(default_factory=Counter)
    killed: list[str] = field(default_factory=list)
    orders: list[dict[str, Any]] = field(default_factory=list)
    url: str = ""

    def __post_init__(self) -> None:
        self._changed = asyncio.Condition()
        self._streams: list[asyncio.Queue[dict[str, Any] | HeldPayload | None]] = []
        self.model.listeners.append(self._report)

    # -- what a test does

    @property
    def payloads(self) -> dict[int, HeldPayload]:
        return self.model.payloads

    @property
    def refused(self) -> set[str]:
        return {key for _, key in self.model.settled}

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something to be so; looked at after each call and each change."""
        async with self._changed:
            await self._changed.wait_for(condition)

    async def say(self, held: HeldPayload) -> None:
        self.model.add(held)
        await self._notify()

    async def beat(self, **status: Any) -> None:
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
        return len(self._streams)

    async def write(self, held: HeldPayload, data: bytes, stream: str = "stdout") -> None:
        held.logs[stream] = held.logs.get(stream, b"") + data
        await self._notify()

    async def followed(self, times: int = 0) -> None:
        """Wait until its event stream is open, and was opened so often if a number is given."""
        opened = "GET /events"
        await self.until(lambda: self.streams == 1 and times in (0, self.calls[opened]))

    def hang_up(self) -> None:
        for stream in self._streams:
            stream.put_nowait(None)

    def away(self, trick: Trick | None = None) -> None:
        """Something else answers at its address from now on; a proxy that has lost it, say."""
        self.trick = trick or page(502, "<html>Bad Gateway</html>")
        self.hang_up()

    async def asked_twice(self) -> None:
        """Until the server has asked whether it is well, and seen what it said before."""
        health = self.calls["GET /health"]
        await self.until(lambda: self.calls["GET /health"] >= health + 2)

    def new(self, server: str, key: str, digest: str | None) -> HeldPayload:
        held = HeldPayload(next(self.model.ids), server, key, digest)
        self.payloads[held.id] = held
        return held

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    def _report(self, held: HeldPayload) -> None:
        for stream in self._streams:
            stream.put_nowait(held)

    # -- routes

    async def health(self, _: web.Request) -> web.StreamResponse:
        document: dict[str, Any] = {"status": "ok" if self.well else "error", "agent": self.name}
        document |= {"slots": self.slots, "message": "no sandbox"}
        if self.id is not None:
            document["agent_id"] = self.id
        date = formatdate(self.clock.now() / SECOND + self.clock_ahead_s, usegmt=True)
        return web.json_response(
            document | self.says, status=200 if self.well else 503, headers={"Date": date}
        )

    async def listing(self, request: web.Request) -> web.StreamResponse:
        held = [one.wire() for one in self.model.held(request.query.get("server"))]
        return web.json_response({"seq": self.model.seq, "payloads": held})

    async def events(self, request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        lines: asyncio.Queue[dict[str, Any] | HeldPayload | None] = asyncio.Queue()
        after, server = int(request.query.get("after", 0)), request.query.get("server")
        for held in sorted(self.model.held(server), key=lambda one: one.changed):
            if held.changed > after:
                lines.put_nowait(held)
        self._streams.append(lines)
        most = int(request.query.get("results", 0)) if self.sends_results else 0
        await self._notify()
        try:
            await answer.write(AgentEvent(seq=after).model_dump_json().encode() + b"\n")
            while (said := await lines.get()) is not None:
                await answer.write(self._line(said, most))
        finally:
            self._streams.remove(lines)
            await self._notify()
        return answer

    def _line(self, said: dict[str, Any] | HeldPayload, most: int) -> bytes:
        """With a small result behind it."""
        event: dict[str, Any] = {"seq": self.model.seq, "payload": None, "result_bytes": 0}
        result = b""
        if isinstance(said, dict):
            event |= said
        else:
            event |= {"payload": said.wire()}
            if "result" not in said.more and said.result_info() and len(said.result) <= most:
                result = said.result
                event |= {"result_bytes": len(result)}
        return json.dumps(event).encode() + b"\n" + result

    async def submit(self, request: web.Request) -> web.StreamResponse:
        line, _, _ = (await request.read()).partition(b"\n")
        head = PayloadsRequest.model_validate_json(line)
        answers, refused = list[OrderAnswer](), dict[int, str]()
        for ref in head.acknowledge:
            try:
                self._change(request, head.server)
                self.model.forget(ref.id, ref.key)
            except No as no:
                refused[ref.id] = no.code
        for order, size in zip(head.orders, head.sizes, strict=True):
            try:
                answers.append(
                    OrderAnswer.model_validate({"payload": self._take(order, size).wire()})
                )
            except No as no:
                answers.append(OrderAnswer(status=no.status, code=no.code, message=no.code))
        text = PayloadsAnswer(answers=answers, refused=refused).model_dump_json()
        return web.Response(text=text, content_type="application/json")

    def _take(self, order: Order, size: int) -> HeldPayload:
        """Raises No."""
        self.orders.append(order.model_dump(mode="json"))
        key, digest = order.key, order.bundle_digest
        known = self.model.find(order.server, key)
        kept = (order.server, order.bundle_digest)
        if known is None and not size and kept not in self.model.bundles:
            raise No(409, "bundle_missing")
        held = self.model.take(order.server, key, digest)
        if order.keep_bundle:
            self.model.bundles[kept] = size
        if known is None:
            self.starts[key] += 1
            if self.ends == "Completed":
                held.result = zipped(f"result of {key}")
            self.model.end(held, self.ends)
        return held

    def _change(self, request: web.Request, server: str) -> None:
        if START in request.headers:
            self.model.check_start(server, Start.parse(request.headers[START]))

    async def settle(self, request: web.Request) -> web.StreamResponse:
        server, key = request.match_info["server"], request.match_info["key"]
        self._change(request, server)
        known = self.model.settle(server, key)
        if known is not None and request.query.get("kill"):
            await self._kill(known)
        return web.json_response({"payload": known.wire() if known else None})

    async def kill(self, request: web.Request) -> web.StreamResponse:
        held = self.model.known(int(request.match_info["id"]), request.query.get("key"))
        self._change(request, held.server)
        await self._kill(held)
        return web.json_response(held.wire())

    async def _kill(self, held: HeldPayload) -> None:
        if held.alive:
            self.killed.append(held.key)
            await self.end(held, "Killed")

    async def fetch(self, request: web.Request) -> web.StreamResponse:
        held = self.model.known(int(request.match_info["id"]))
        if held.status == PayloadState.CLEANED:
            raise No(404, "cleaned")
        return web.Response(body=held.result or zipped("so far"), content_type="application/zip")

    async def log(self, request: web.Request) -> web.StreamResponse:
        held = self.model.known(int(request.match_info["id"]), request.query.get("key"))
        stream, sent = request.match_info["stream"], int(request.query["offset"])
        if not held.alive:
            raise No(404, "log_gone")
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

    @asynccontextmanager
    async def listening(self) -> AsyncIterator[str]:

        @web.middleware
        async def first(request: web.Request, handler: Any) -> web.StreamResponse:
            route = request.match_info.route.resource
            name = route.canonical if route is not None else request.path
            self.calls[f"{request.method} {name}"] += 1
            await self._notify()
            answer = await self.trick(request) if self.trick is not None else None
            if answer is None:
                try:
                    answer = await handler(request)
                except No as no:
                    answer = refuse(no.status, no.code)
                except web.HTTPNotFound:
                    answer = refuse(404, "no_such_route")
            await self._notify()
            return answer

        application = web.Application(middlewares=[first], client_max_size=1 << 30)
        routes = (
            ("GET", "/health", self.health),
            ("GET", "/payloads", self.listing),
            ("GET", "/events", self.events),
            ("POST", "/payloads", self.submit),
            ("POST", "/keys/{server}/{key}/settle", self.settle),
            ("POST", "/kill/{id}", self.kill),
            ("GET", "/retrieve/{id}", self.fetch),
            ("GET", "/retrieve_partial/{id}", self.fetch),
            ("GET", "/payloads/{id}/logs/{stream}", self.log),
        )
        for prefix in ("", "/elsewhere"):
            for method, path, handler in routes:
                application.router.add_route(method, prefix + path, handler)
        how = {"shutdown_timeout": 0, "handler_cancellation": True}
        async with listening(application, **how) as port:
            self.url = f"http://127.0.0.1:{port}"
            try:
                yield self.url
            finally:
                self.hang_up()


def refuse(status: int, code: str, **headers: str) -> web.Response:
    document = {"code": code, "message": code}
    return web.json_response(document, status=status, headers=headers)


def zipped(text: str) -> bytes:
    return raw_archives.zipped({"output.txt": text.encode()}, zipfile.ZIP_STORED)


def said(result: bytes) -> str:
    return zipfile.ZipFile(io.BytesIO(result)).read("output.txt").decode()


@asynccontextmanager
async def serving(
    folder: Path, *agents: FakeAgent, extra: str = "", **server: Any
) -> AsyncIterator[ServerClient]:
    async with AsyncExitStack() as stack:
        lines = ["[services.my_service]", extra]
        for agent in agents:
            address = agent.url or await stack.enter_async_context(agent.listening())
            lines.append(f"[agents.{agent.name}]\nurl = '{address}'")
        given = {"sender_interval": 0.05} | server
        yield await served_by(stack, folder, "\n".join(lines), **given)


RETRIED = """
retries = 1
retry_delays = ["0s"]
retry_on = ["exit:3"]
"""
"""Settings of a service whose jobs are tried twice."""


def left(stdout: str, stderr: str) -> bytes:
    """A result with logs, of which one has another name than usual."""
    logs = {"stdout": "stdout.log", "stderr": "stderr.ferryman.log"}
    files = {
        logs["stdout"]: stdout,
        logs["stderr"]: stderr,
        "stderr.log": "the job's own file",
        "ferryman.json": json.dumps({"logs": logs}),
    }
    return raw_archives.zipped({name: text.encode() for name, text in files.items()})


async def completes(caller: ServerClient, job_id: int, attempt: int = 1) -> None:
    """By this attempt, whose own result is given out."""
    job = await caller.job(job_id)
    assert (job["status"], job["attempt"]) == ("Completed", attempt)
    status, kind, body = await caller.get(f"/download/{job_id}")
    assert (status, kind, said(body)) == (200, "application/zip", f"result of {job_id}.{attempt}")


async def partial(caller: ServerClient, job_id: int) -> zipfile.ZipFile:
    _, _, body = await caller.get(f"/download_partial/{job_id}")
    return zipfile.ZipFile(io.BytesIO(body))


Served: TypeAlias = tuple[ServerClient, FakeAgent]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(module_folder: Path) -> AsyncIterator[Served]:
    """A server whose jobs are retried once, and its agent, for all tests of a module."""
    agent = FakeAgent(ends="Running")
    async with serving(module_folder, agent, extra=RETRIED) as caller:
        yield caller, agent
