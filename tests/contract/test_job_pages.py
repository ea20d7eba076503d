"""The pages of a job: what they show of each state, to whom, and what their buttons do."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from server.domain.jobs import Bundle, Job, Move, NewJob
from shared.clock import SECOND
from shared.principals import Principal, Role, Scope
from shared.wire import JobState, Limits
from tests.support.fake_orchestrator import FakeOrchestrator
from tests.support.server_http import ServerClient, driving

S = JobState
PRINCIPALS = {
    "the-token-of-ann": Principal("ann-laptop", Role.USER, "ann"),
    "the-token-of-bob": Principal("bob-laptop", Role.USER, "bob"),
    "the-token-of-a-reader": Principal("reader", Role.USER, "ann", scopes=frozenset({Scope.READ})),
    "the-token-of-admin": Principal("admin", Role.OPERATOR),
}
TABS = ("", "/log", "/files", "/attempts", "/events")
EVIL = "<img src=x onerror=alert(1)>\"'&{{7*7}}"
SAFE = "&lt;img src=x onerror=alert(1)&gt;"


class World:
    """A server with tokens, and browsers."""

    def __init__(self, caller: ServerClient) -> None:
        self.caller, self.url = caller, caller.url
        self.context = caller.server.context
        self.jobs = caller.server.context.jobs

    async def get(self, path: str, who: str = "ann") -> tuple[int, str]:
        shown = {"Accept": "text/html", "Authorization": f"Bearer the-token-of-{who}"}
        if not who:
            del shown["Authorization"]
        async with self.caller.session.get(f"{self.url}{path}", headers=shown) as answer:
            return answer.status, await answer.text()

    async def page(self, path: str, who: str = "ann") -> str:
        status, text = await self.get(path, who)
        assert status == 200, text
        assert 'style="' not in text
        assert " onclick" not in text
        return text

    async def post(self, path: str, who: str = "ann", **fields: str) -> tuple[int, str, str]:
        """Status, where it leads, and the page."""
        shown = {"Accept": "text/html", "Authorization": f"Bearer the-token-of-{who}"}
        async with self.caller.session.post(
            f"{self.url}{path}", headers=shown, data=fields, allow_redirects=False
        ) as answer:
            return answer.status, answer.headers.get("Location", ""), await answer.text()

    async def new(self, **fields: Any) -> Job:
        """A job of a service that the server does not have: it stays as it is."""
        now = self.context.clock.now()
        start: dict[str, Any] = {
            "bundle": Bundle("b", 100, "d"),
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


@contextlib.asynccontextmanager
async def serving(tmp_path, **settings: Any) -> AsyncIterator[World]:
    async with driving(tmp_path, FakeOrchestrator(), principals=PRINCIPALS, **settings) as caller:
        yield World(caller)


@pytest.fixture
async def world(tmp_path):
    async with serving(tmp_path) as found:
        yield found


async def test_all_tabs_of_a_job_are_there(world):
    job = await world.new(name="docking")
    for tab in TABS:
        page = await world.page(f"/jobs/{job.id}{tab}")
        assert f"<title>Job {job.id}: Queued" in page
        assert page.count("aria-current") >= 2  # in the side, and the tab
