"""A small real HTTP server that answers what a test says: what no server does, and what a client
must survive.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeAlias

from aiohttp import BodyPartReader, web
from aiohttp.test_utils import TestServer

from ferryman import Client
from shared.wire import (
    AttemptDoc,
    AttemptLinks,
    EventDoc,
    EventPage,
    JobDoc,
    JobPage,
    JobState,
    Limits,
    Links,
    StatusBody,
)

HERE = "/api/v1/jobs/17"
AT = "2026-11-20T10:00:0{}.500000Z"
ZIP = b"PK\x05\x06" + bytes(18)
SCRIPT = {"run.sh": b"echo hi\n"}


class InstantClock:
    """Time passes only by sleeping, and sleeping takes no time."""

    def __init__(self, slower: float = 1.0) -> None:
        self.at, self.slept, self._slower = 0.0, list[float](), slower

    def now(self) -> int:
        return round(self.at * 1_000_000)

    def monotonic(self) -> float:
        return self.at

    def boottime(self) -> float:
        return self.at

    async def sleep(self, seconds: float) -> None:
        self.at += seconds / self._slower
        self.slept.append(seconds)

    async def wait(self, event: asyncio.Event, seconds: float) -> None:
        if not event.is_set():
            await self.sleep(seconds)


@dataclass(frozen=True)
class Reply:
    """An answer, to be given any number of times."""

    body: bytes = b""
    status: int = 200
    kind: str = "application/json"
    headers: dict[str, str] = field(default_factory=dict)

    def response(self) -> web.Response:
        return web.Response(
            body=self.body, status=self.status, content_type=self.kind, headers=self.headers
        )


Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]
Answer: TypeAlias = Reply | Handler


def doc(document: Any, status: int = 200, **headers: str) -> Reply:
    """A model, or what is JSON already."""
    if not hasattr(document, "model_dump_json"):
        given = web.json_response(document).body
        return Reply(given if isinstance(given, bytes) else b"", status, headers=_named(headers))
    return Reply(document.model_dump_json().encode(), status, headers=_named(headers))


def problem(status: int, code: str, detail: str, **headers: str) -> Reply:
    """An answer of RFC 9457."""
    document = {"title": "No", "status": status, "detail": detail, "code": code}
    found = doc(document | {"request_id": "r-1"}, status, **headers)
    return replace(found, kind="application/problem+json")


def page(text: str = "<h1>Welcome</h1>", status: int = 200, kind: str = "text/html") -> Reply:
    """What another program answers."""
    return Reply(text.encode(), status, kind)


def zipped() -> Reply:
    return Reply(ZIP, kind="application/zip", headers={"Repr-Digest": repr_digest(ZIP)})


def _named(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


def repr_digest(content: bytes) -> str:
    digest = base64.b64encode(hashlib.sha256(content).digest()).decode()
    return f"sha-256=:{digest}:"


async def hang_up(request: web.Request) -> web.StreamResponse:
    """Reset the connection, once everything has arrived."""
    await request.read()
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def never(request: web.Request) -> web.StreamResponse:
    """Hold the request until the client leaves."""
    await asyncio.Event().wait()
    return web.Response()


def job(status: JobState = JobState.RUNNING, **changes: Any) -> JobDoc:
    """A job document."""
    values: dict[str, Any] = {
        "id": 17,
        "status": status,
        "message": "it runs",
        "user_id": "ada",
        "service": "example",
        "attempt": 1,
        "retries_left": 0,
        "ended": status in {"Completed", "Failed", "Cancelled", "Cleaned"},
        "created_at": "2026-11-20T10:00:00.000000Z",
        "links": Links(self=HERE, events=f"{HERE}/events"),
    }
    return JobDoc(**{**values, **changes})


LIMITS = Limits(cpus=1, memory=1, pids=1, disk=1, log=1, results=1, network=False)


def attempt(number: int, status: JobState = JobState.COMPLETED, **changes: Any) -> AttemptDoc:
    """An attempt that left a result, unless ``left`` is false."""
    links, runs = AttemptLinks(), status is JobState.RUNNING
    if changes.pop("left", not runs):
        stdout = f"{HERE}/logs?attempt={number}"
        links = AttemptLinks(
            result=f"{HERE}/result?attempt={number}",
            stdout=stdout,
            stderr=f"{stdout}&stream=stderr",
        )
    values: dict[str, Any] = {
        "number": number,
        "status": status,
        "agent": "node-3",
        "timeout_s": 60,
        "limits": LIMITS,
        "claimed_at": "2026-11-20T10:00:00.000000Z",
        "started_at": "2026-11-20T10:00:01.000000Z",
        "ended_at": None if runs else "2026-11-20T10:01:31.000000Z",
        "links": links,
    }
    return AttemptDoc(**{**values, **changes})


def jobs(*listed: JobDoc, following: str | None = None) -> Reply:
    return doc(JobPage(items=list(listed), next=following))


def event(seq: int, status: JobState, message: str = "", **more: Any) -> EventDoc:
    """What happened half a second after the start of second ``seq - 1``."""
    given = {"seq": seq, "at": AT.format(seq - 1), "attempt": 1, "before": None, "status": status}
    return EventDoc.model_validate({**given, "message": message, **more})


def events(*happened: EventDoc) -> Handler:
    """All that came after the number that is asked for."""

    async def answer(request: web.Request) -> web.StreamResponse:
        after = int(request.query["after"])
        return doc(EventPage(items=[one for one in happened if one.seq > after])).response()

    return answer


def accepted(number: int = 17, *warnings: str) -> Reply:
    """The answer to an upload."""
    said = "Job successfully uploaded"
    body = StatusBody(id=number, status="Queued", message=said, warnings=list(warnings) or None)
    return doc(body, 201)


@dataclass
class Asked:
    """A request."""

    path: str
    query: dict[str, str]
    headers: dict[str, str]
    json: Any = None
    fields: dict[str, str] = field(default_factory=dict)
    files: list[tuple[str, str, bytes]] = field(default_factory=list)
    """Field, file name, content."""


async def _read(request: web.Request, found: Asked) -> None:
    """Forms are parsed with aiohttp's reader, which is not the code under test."""
    if request.content_type == "application/json" and request.can_read_body:
        found.json = await request.json()
    if request.content_type == "multipart/form-data":
        async for part in await request.multipart():
            assert isinstance(part, BodyPartReader)
            content = bytes(await part.read())
            if part.filename is None:
                found.fields[part.name or ""] = content.decode()
            else:
                found.files.append((part.name or "", part.filename, content))


class FakeServer:
    """Routes such as ``GET /api/v1/jobs/{id}`` and their answers.

    Attributes:
        parses: reads what it is sent, before it answers.
    """

    def __init__(self) -> None:
        self.url = ""
        self.clock = InstantClock()
        self.parses = True
        self.asked: dict[str, list[Asked]] = {}
        self._routes: dict[str, list[Answer]] = {}

    def on(self, route: str, *answers: Answer) -> Self:
        """Give these answers, one after the other; the last again and again. Names in full are
        looked for first.
        """
        self._routes[route], self.asked[route] = [*answers], []
        return self

    def client(self, **options: Any) -> Client:
        return Client(self.url, **{"user": "ada", "clock": self.clock, **options})

    @property
    def uploads(self) -> list[Asked]:
        return self.asked["POST /upload"]

    async def answer(self, request: web.Request) -> web.StreamResponse:
        line = f"{request.method} {request.path}"
        for route, answers in sorted(self._routes.items(), key=lambda one: "{" in one[0]):
            if re.fullmatch(re.sub(r"\{\w+\}", "[^/]+", route).replace("**", ".*"), line):
                asked = Asked(request.path, dict(request.query), dict(request.headers))
                self.asked[route].append(asked)
                if self.parses:
                    await _read(request, asked)
                found = answers.pop(0) if len(answers) > 1 else answers[0]
                return found.response() if isinstance(found, Reply) else await found(request)
        return page("nothing here", 404, "text/plain").response()

    @asynccontextmanager
    async def serving(self, **how: Any) -> AsyncIterator[Self]:
        app = web.Application(client_max_size=1 << 30)
        app.router.add_route("*", "/{any:.*}", self.answer)
        server = TestServer(app, scheme="https" if how else "http")
        await server.start_server(**how)
        self.url = str(server.make_url("")).rstrip("/")
        try:
            yield self
        finally:
            await server.close()
