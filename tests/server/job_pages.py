"""Jobs in every state, and somebody who looks at their pages."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp

from server.domain.batch import begun, tasks
from server.domain.jobs import BatchRequest, Bundle, Job, Move, NewJob
from shared.clock import SECOND
from shared.principals import Principal, Role
from shared.wire import JobState, Limits
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.pages import Browser, browsing
from tests.kit.server_http import ServerClient, driving

S = JobState
PRINCIPALS = {
    "the-token-of-ann": Principal("ann", Role.USER, "ann"),
    "the-token-of-bob": Principal("bob", Role.USER, "bob"),
    "the-token-of-a-reader": Principal("reader", Role.USER, "ann"),
    "the-token-of-admin": Principal("admin", Role.OPERATOR),
}
AWAY = "[agents.away]\nurl = 'http://[::1]:9'\n"
_NUMBERS = itertools.count(1)


class World(Browser):
    """A server, and ann's browser."""

    def __init__(self, caller: ServerClient, session: aiohttp.ClientSession) -> None:
        super().__init__(caller.url, session, "the-token-of-ann")
        self.caller, self.context = caller, caller.server.context
        self.jobs = self.context.jobs

    async def new(self, **fields: Any) -> Job:
        """A job of a service that the server does not have: it stays as it is."""
        number = next(_NUMBERS)
        start: dict[str, Any] = {
            "bundle": Bundle(f"b{number}", 100, f"d{number}"),
            "limits": Limits(),
            "timeout_s": 60.0,
            "created_at": self.context.clock.now() - 60 * SECOND,
            "user_id": "ann",
            "service": "gone",
        }
        return (await self.jobs.insert(NewJob(**(start | fields)), "accepted"))[0]

    async def move(self, job: Job, to: JobState, **how: Any) -> Job:
        message = how.pop("message", f"now {to}")
        now = self.context.clock.now()
        moved = await self.jobs.move(Move(job.id, job.attempt, job.state, to, now, message, **how))
        assert moved is not None
        return moved

    async def running(self, **changes: Any) -> Job:
        """At an agent that does not answer: no sweep moves its jobs for an hour."""
        job = await self.new()
        job = await self.move(job, S.PROCESSING, changes={"agent": "away"})
        job = await self.move(job, S.SUBMITTED, changes={"payload_id": job.id})
        return await self.move(job, S.RUNNING, changes=changes)

    async def ended(self, job: Job, to: JobState, **more: Any) -> Job:
        now = self.context.clock.now()
        changes = {"ended_at": now, "expires_at": now + 3600 * SECOND} | more.pop("changes", {})
        return await self.move(job, to, **{"facts": {}, "changes": changes} | more)

    async def parent(self, count: int) -> tuple[Job, list[Job]]:
        """With so many children, and the first of them."""
        parent = await self.new(batch=BatchRequest(((0, count - 1, 1),)), name="sweep")
        batch = await self.jobs.batch(parent.id)
        assert batch is not None
        started = await self.jobs.begin_batch(begun(parent, batch, self.context.clock.now()))
        assert started is not None
        while (batch := await self.jobs.batch(parent.id)) is not None and batch.made < count:
            some = tasks(batch, batch.made, min(1_000, count - batch.made))
            await self.jobs.make_children(batch, some, 30, "a child")  # or the server was quicker
        children = await self.jobs.children(parent.id, 9)
        return started, [await self.jobs.get(one.id) for one in children]


@contextlib.asynccontextmanager
async def serving(folder: Path, **settings: Any) -> AsyncIterator[World]:
    settings |= {"extra": AWAY, "agent_timeout": 3600.0, "principals": PRINCIPALS}
    async with (
        driving(folder, FakeOrchestrator(), **settings) as caller,
        browsing(caller.url) as browser,
    ):
        yield World(caller, browser.session)
