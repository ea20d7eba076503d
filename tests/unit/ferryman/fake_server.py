"""A small real HTTP server that misbehaves as a test wants, for what a client must survive."""

from __future__ import annotations

import asyncio
import base64
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import BodyPartReader, web
from aiohttp.test_utils import TestServer

from shared.wire import JobDoc, JobState, Links, StatusBody

QUEUED = StatusBody(id=17, status="Queued", message="Job successfully uploaded")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Expect = Callable[[web.Request], Awaitable[web.StreamResponse | None]]


class InstantClock:
    """Time passes only by sleeping, and sleeping takes no time."""

    def __init__(self) -> None:
        self.at = 0.0
        self.slept: list[float] = []

    def now(self) -> int:
        return round(self.at * 1_000_000)

    def monotonic(self) -> float:
        return self.at

    def boottime(self) -> float:
        return self.at

    async def sleep(self, seconds: float) -> None:
        self.at += seconds
        self.slept.append(seconds)

    async def wait(self, event: asyncio.Event, seconds: float) -> None:
        if not event.is_set():
            await self.sleep(seconds)


@dataclass
class Upload:
    """What arrived at ``POST /upload``."""

    fields: dict[str, str] = field(default_factory=dict)
    files: list[tuple[str, str, bytes]] = field(default_factory=list)
    """Field, file name, content."""
    key: str = ""
    query: dict[str, str] = field(default_factory=dict)
    length: int | None = None
    expected: str | None = None
    chunked: bool = False


async def read_upload(request: web.Request) -> Upload:
    """Parse a form with aiohttp's reader, which is not the code under test."""
    upload = Upload(
        key=request.headers.get("Idempotency-Key", ""),
        query=dict(request.query),
        length=request.content_length,
        expected=request.headers.get("Expect"),
        chunked="Transfer-Encoding" in request.headers,
    )
    async for part in await request.multipart():
        assert isinstance(part, BodyPartReader)
        content = bytes(await part.read())
        if part.filename is None:
            upload.fields[part.name or ""] = content.decode()
        else:
            upload.files.append((part.name or "", part.filename, content))
    return upload


def job(status: JobState = JobState.RUNNING, **changes: Any) -> JobDoc:
    """A job document."""
    ended = status in {JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED, JobState.CLEANED}
    values: dict[str, Any] = {
        "id": 17,
        "status": status,
        "message": "it runs",
        "user_id": "ada",
        "service": "example",
        "attempt": 1,
        "retries_left": 0,
        "ended": ended,
        "created_at": "2026-11-20T10:00:00.000000Z",
        "links": Links(self="/api/v1/jobs/17", events="/api/v1/jobs/17/events"),
    }
    return JobDoc(**{**values, **changes})


def answer(document: Any, status: int = 200, **headers: str) -> web.Response:
    """A model as JSON."""
    return web.Response(
        text=document.model_dump_json(),
        status=status,
        content_type="application/json",
        headers={name.replace("_", "-"): value for name, value in headers.items()},
    )


def problem(status: int, code: str, detail: str, **headers: str) -> web.Response:
    """An answer of RFC 9457."""
    return web.json_response(
        {"title": "No", "status": status, "detail": detail, "code": code, "request_id": "r-1"},
        status=status,
        content_type="application/problem+json",
        headers={name.replace("_", "-"): value for name, value in headers.items()},
    )


def repr_digest(content: bytes) -> str:
    digest = base64.b64encode(hashlib.sha256(content).digest()).decode()
    return f"sha-256=:{digest}:"


def hang_up(request: web.Request) -> None:
    """Reset the connection."""
    assert request.transport is not None
    request.transport.abort()


def _function(handler: Handler) -> Handler:
    """aiohttp takes only what was written with ``async def``."""

    async def call(request: web.Request) -> web.StreamResponse:
        return await handler(request)

    return call


@asynccontextmanager
async def serving(
    *routes: tuple[str, str, Handler], expect: Expect | None = None
) -> AsyncIterator[str]:
    """A server with these (method, path, handler); yields its URL.

    Args:
        expect: answers ``Expect: 100-continue``.
    """
    app = web.Application(client_max_size=1 << 30)
    for method, path, handler in routes:
        app.router.add_route(method, path, _function(handler), expect_handler=expect)
    server = TestServer(app)
    await server.start_server()
    try:
        yield str(server.make_url("/")).rstrip("/")
    finally:
        await server.close()


class RecordingServer:
    """A handler that keeps what it is sent."""

    def __init__(self, lose: int = 0) -> None:
        self.uploads: list[Upload] = []
        self.lose = lose
        """So many answers get lost on the way."""

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        self.uploads.append(await read_upload(request))
        if len(self.uploads) <= self.lose:
            hang_up(request)
        return answer(QUEUED, 201)
