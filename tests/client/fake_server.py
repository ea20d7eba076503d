"""A small real HTTP server that answers what a test says: what no server does, and what a client
must survive.
"""

import asyncio
import base64
import hashlib
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self, TypeAlias, TypeVar, get_args, get_origin

from aiohttp import BodyPartReader, web
from aiohttp.test_utils import TestServer
from pydantic import BaseModel

from ferryman import Client
from shared.wire import AttemptDoc, EventDoc, EventPage, JobDoc, JobPage, JobState, StatusBody
from tests.kit.clock import SimClock

Model = TypeVar("Model", bound=BaseModel)
HERE = "/api/v1/jobs/17"
AT = "2026-11-20T10:00:0{}.500000Z"
ZIP = b"PK\x05\x06" + bytes(18)
SCRIPT = {"run.sh": b"echo hi\n"}


class InstantClock(SimClock):
    """Time passes only by sleeping, and sleeping takes no time."""

    def __init__(self, slower: float = 1.0) -> None:
        super().__init__(0)
        self.slept, self._slower = list[float](), slower

    @property
    def at(self) -> float:
        return self.monotonic()

    async def sleep(self, seconds: float) -> None:
        self._monotonic += seconds / self._slower
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
        how: dict[str, Any] = {"status": self.status, "content_type": self.kind}
        return web.Response(body=self.body, headers=self.headers, **how)


Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]
Answer: TypeAlias = Reply | Handler


def doc(document: Any, status: int = 200, **headers: str) -> Reply:
    """A model, or what is JSON already."""
    if isinstance(document, BaseModel):
        document = document.model_dump(mode="json")
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(json.dumps(document).encode(), status, headers=named)


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


def filled(model: type[Model], **given: Any) -> Model:
    """A document that says nothing but what is given: what it must say is 0, false or empty."""
    for name, info in model.model_fields.items():
        kind: Any = info.annotation
        if name in given or not info.is_required():
            continue
        if get_origin(kind) is Literal:
            given[name] = get_args(kind)[0]
        elif isinstance(kind, type) and issubclass(kind, BaseModel):
            given[name] = filled(kind)
        else:
            given[name] = None if None in get_args(kind) else (get_origin(kind) or kind)()
    return model.model_validate(given)


def job(status: JobState = JobState.RUNNING, **changes: Any) -> JobDoc:
    """A job document."""
    values: dict[str, Any] = {"id": 17, "status": status, "message": "it runs", "attempt": 1}
    values |= {"user_id": "ada", "service": "example", "created_at": "2026-11-20T10:00:00Z"}
    values["ended"] = status in {"Completed", "Failed", "Cancelled", "Cleaned"}
    values["links"] = {"self": HERE, "events": f"{HERE}/events"}
    return filled(JobDoc, **values | changes)


def attempt(number: int, status: JobState = JobState.COMPLETED, **changes: Any) -> AttemptDoc:
    """An attempt that left a result, unless ``left`` is false."""
    runs, links = status is JobState.RUNNING, {}
    if changes.pop("left", not runs):
        stdout = f"{HERE}/logs?attempt={number}"
        links = {"stdout": stdout, "stderr": f"{stdout}&stream=stderr"}
        links["result"] = f"{HERE}/result?attempt={number}"
    values: dict[str, Any] = {"number": number, "status": status, "agent": "node-3", "links": links}
    values |= {"claimed_at": AT.format(0), "started_at": AT.format(1)}
    values["ended_at"] = None if runs else "2026-11-20T10:01:31.500000Z"
    return filled(AttemptDoc, **values | changes)


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
