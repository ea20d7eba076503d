"""Jobs in every state, and browsers that look at their pages."""

from __future__ import annotations

import contextlib
import itertools
import re
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import FormData

from server.domain.batch import begun, tasks
from server.domain.jobs import BatchRequest, Bundle, Job, Move, NewJob
from shared.clock import SECOND
from shared.principals import Principal, Role, Scope
from shared.wire import JobState, Limits
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.server_http import RUN, ServerClient, driving

S = JobState
PRINCIPALS = {
    "the-token-of-ann": Principal("ann-laptop", Role.USER, "ann"),
    "the-token-of-bob": Principal("bob-laptop", Role.USER, "bob"),
    "the-token-of-a-reader": Principal("reader", Role.USER, "ann", scopes=frozenset({Scope.READ})),
    "the-token-of-admin": Principal("admin", Role.OPERATOR),
}
TABS = ("", "/log", "/files")
EVIL = "<img src=x onerror=alert(1)>\"'&{{7*7}}"
_NUMBERS = itertools.count(1)
_PAGE = "text/html,application/xhtml+xml"


class World:
    """A server with tokens, and browsers."""

    def __init__(self, caller: ServerClient) -> None:
        self.caller, self.url = caller, caller.url
        self.context = caller.server.context
        self.jobs = caller.server.context.jobs

    async def get(self, path: str, who: str = "ann") -> tuple[int, str]:
        shown = {
            "Accept": _PAGE,
            "Authorization": f"Bearer the-token-of-{who}",
        }
        if not who:
            del shown["Authorization"]
        async with self.caller.session.get(f"{self.url}{path}", headers=shown) as answer:
            return answer.status, await answer.text(errors="replace")

    async def page(self, path: str, who: str = "ann") -> str:
        status, text = await self.get(path, who)
        assert status == 200, text
        assert 'style="' not in text
        assert " onclick" not in text
        return text

    async def post(self, there: str, who: str = "ann", **fields: str) -> tuple[int, str, str]:
        """Status, where it leads, and the page."""
        shown = {
            "Accept": _PAGE,
            "Authorization": f"Bearer the-token-of-{who}",
        }
        async with self.caller.session.post(
            f"{self.url}{there}", headers=shown, data=fields, allow_redirects=False
        ) as answer:
            return answer.status, answer.headers.get("Location", ""), await answer.text()

    async def upload(self) -> tuple[int, str, str]:
        fields = {"user_id": "ann", "service": "my_service"}
        data = FormData()
        for name, value in fields.items():
            data.add_field(name, value)
        data.add_field("file", RUN, filename="run.sh")
        shown = {"Authorization": "Bearer the-token-of-ann"}
        async with self.caller.session.post(
            f"{self.url}/upload", data=data, headers=shown
        ) as answer:
            return answer.status, "", await answer.text()

    async def new(self, **fields: Any) -> Job:
        """A job of a service that the server does not have: it stays as it is."""
        now = self.context.clock.now()
        number = next(_NUMBERS)
        start: dict[str, Any] = {
            "bundle": Bundle(f"b{number}", 100, f"d{number}"),
            "limits": Limits(),
            "timeout_s": 60.0,
            "created_at": now - 60 * SECOND,
            "user_id": "ann",
            "service": "gone",
        }
        return (await self.jobs.insert(NewJob(**(start | fields)), "accepted"))[0]

    async def move(self, job: Job, to: JobState, **how: Any) -> Job:
        now = self.context.clock.now()
        message = how.pop("message", f"now {to}")
        move = Move(job.id, job.attempt, job.state, to, now, message, **how)
        moved = await self.jobs.move(move)
        assert moved is not None
        return moved

    async def running(self, job: Job, **changes: Any) -> Job:
        job = await self.move(job, S.PROCESSING, changes={"agent": "node"})
        job = await self.move(job, S.SUBMITTED, changes={"payload_id": 1})
        return await self.move(job, S.RUNNING, changes=changes)

    async def ended(self, job: Job, to: JobState, **more: Any) -> Job:
        now = self.context.clock.now()
        facts = more.pop("facts", {})
        changes = {"ended_at": now, "expires_at": now + 3600 * SECOND} | more.pop("changes", {})
        return await self.move(job, to, changes=changes, facts=facts, **more)


def actions_of(page: str) -> set[str]:
    """What the page has forms for."""
    return set(re.findall(r'action="/jobs/\d+/(\w+)', page))


@contextlib.asynccontextmanager
async def serving(tmp_path, **settings: Any) -> AsyncIterator[World]:
    async with driving(tmp_path, FakeOrchestrator(), principals=PRINCIPALS, **settings) as caller:
        yield World(caller)


async def parent_of(world: World, count: int, **fields: Any) -> Job:
    ranges = ((0, count - 1, 1),)
    parent = await world.new(batch=BatchRequest(ranges), name="sweep", **fields)
    batch = await world.jobs.batch(parent.id)
    assert batch is not None
    started = await world.jobs.begin_batch(begun(parent, batch, world.context.clock.now()))
    assert started is not None
    while (batch := await world.jobs.batch(parent.id)) is not None and batch.made < count:
        some = tasks(batch, batch.made, min(1_000, count - batch.made))
        await world.jobs.make_children(batch, some, 30, "a child")  # or the server was quicker
    return started
