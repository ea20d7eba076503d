"""Clients that poll and wait: entity tags, when to ask again, how long a wait lasts, and tokens
that end meanwhile.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import pytest

from shared.clock import SECOND
from shared.principals import Principal, Role
from tests.kit.clock import SimClock
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.server_http import ServerClient, driving

HERE = "/api/v1/jobs/1"
SSE = {"Accept": "text/event-stream"}


async def ask(caller: ServerClient, path: str, **headers: str) -> tuple[int, Any, bytes]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with caller.session.get(f"{caller.url}{path}", headers=named) as answer:
        return answer.status, answer.headers, await answer.read()


async def test_a_document_that_is_known_already_is_not_sent_again(tmp_path) -> None:
    async with driving(tmp_path, FakeOrchestrator()) as caller:
        await caller.job(await caller.upload(tags="a"))
        for path in (
            *(HERE, f"{HERE}/events", "/api/v1/jobs", "/api/v1/jobs?tag=a"),
            *("/api/v1/services", "/api/v1/schedules"),
        ):
            status, headers, body = await ask(caller, path)
            assert (status, headers["Cache-Control"]) == (200, "private, no-cache")
            tag = headers["ETag"]
            for known in (tag, f'"other", {tag}', tag.removeprefix("W/"), "*"):
                status, headers, again = await ask(caller, path, If_None_Match=known)
                assert (status, headers["ETag"], again) == (304, tag, b""), (path, known)
            for other in ('"other"', 'W/"other"', ""):
                status, _, again = await ask(caller, path, If_None_Match=other)
                assert (status, again[:9]) == (200, body[:9]), (path, other)
        # What has rules of its own, or is for everybody, has no tag.
        for path in ("/health", "/openapi.json"):
            assert "ETag" not in (await ask(caller, path))[1]
        status, headers, _ = await ask(caller, "/api/v1/jobs/99", If_None_Match="*")
        assert (status, "ETag" in headers) == (404, False)
        url, known = f"{caller.url}{HERE}/cancel", {"If-None-Match": "*"}
        async with caller.session.post(url, headers=known) as answer:
            assert answer.status == 200


async def test_the_tag_of_a_job_changes_with_it_and_who_polls_learns_when_to_ask_again(
    tmp_path,
) -> None:
    host = FakeOrchestrator(then="Running")
    async with driving(tmp_path, host) as caller:
        await caller.job(await caller.upload(), until="Running")
        _, headers, first = await ask(caller, HERE)
        assert headers["Retry-After"] == "2"
        _, same, second = await ask(caller, HERE)
        assert first != second, "how long it has been Running is in it"
        assert same["ETag"] == headers["ETag"]
        status, at_304, _ = await ask(caller, HERE, If_None_Match=same["ETag"])
        assert (status, at_304["Retry-After"]) == (304, "2")
        host.payloads[1].status = "Completed"
        query = f"{HERE}?wait=20&seen=Running"
        status, headers, _ = await ask(caller, query, If_None_Match=same["ETag"])
        assert status == 200
        assert headers["ETag"] != same["ETag"]
        assert "Retry-After" not in headers
        later = await caller.upload(not_before="in 2h")
        for path in (f"/api/v1/jobs/{later}", f"/download/{later}", f"/api/v1/jobs/{later}/result"):
            assert (await ask(caller, path))[1]["Retry-After"] == "60", path


# -- how long a wait lasts

INTERVAL_S = 10.0
"""Seconds between two looks at the client."""
SLACK_S = 3 * INTERVAL_S
"""Time may pass while a request is on its way."""


@dataclass
class World:
    """Job 1, which runs on a client; time passes when all wait for it."""

    caller: ServerClient
    clock: SimClock
    client: FakeOrchestrator

    async def get(self, path: str, seconds: float) -> tuple[int, str]:
        """The answer's status, and the job's in it; it comes after so many seconds."""
        before = self.clock.monotonic()
        code, kind, body = await self.caller.get(path)
        waited = self.clock.monotonic() - before
        assert seconds - 0.001 <= waited <= seconds + SLACK_S, (path, waited)
        return code, "Completed" if kind == "application/zip" else json.loads(body).get("status")


@pytest.fixture
async def world(tmp_path) -> AsyncIterator[World]:
    clock, client = SimClock(), FakeOrchestrator(then="Running")
    more: dict[str, Any] = {"getter_interval": INTERVAL_S, "sender_interval": INTERVAL_S}
    async with driving(tmp_path, client, machine=clock, **more) as caller:
        with clock.autojump(most_s=3_600):
            await caller.job(await caller.upload(), until="Running")
            yield World(caller, clock, client)


async def test_a_wait_is_as_long_as_it_was_asked_for_and_two_minutes_at_most(world: World) -> None:
    for query, seconds in {
        "": 0.0,
        "?wait=0": 0.0,
        "?wait=90&seen=Queued": 0.0,
        "?wait=31.5&seen=Running": 31.5,
        "?wait=30s&seen=Running": 30.0,
        "?wait=1e9&seen=Running": 120.0,
    }.items():
        assert await world.get(f"{HERE}{query}", seconds) == (200, "Running")
    assert await world.get("/download/1?wait=30", 30) == (200, "Running")
    assert await world.get(f"{HERE}/result?wait=30", 30) == (202, "Running")
    code, _ = await world.get("/api/v1/jobs/8?wait=90&seen=Running", 0)
    assert code == 404, "nobody waits for a job that is not there"


async def test_a_wait_ends_with_the_job_or_with_the_server(world: World) -> None:
    later = await world.caller.upload(not_before="in 20s")
    assert await world.get(f"/download/{later}?wait=50", 50) == (200, "Running"), "not its end"
    another = await world.caller.upload(user_id="8", not_before="in 20s")
    code, status = await world.get(f"/api/v1/jobs/{another}?wait=90&seen=Queued", 0)
    assert (code, status != "Queued") == (200, True)

    async def after(seconds: float, happens: Callable[[], object]) -> None:
        await world.clock.sleep(seconds)
        happens()

    def end() -> None:
        world.client.payloads[1].status = "Completed"

    ending = asyncio.create_task(after(25, end))
    paths = (f"{HERE}?wait=90&seen=Running", "/download/1?wait=90")
    both = await asyncio.gather(*(world.get(path, 25) for path in paths))
    assert both == [(200, "Completed")] * 2
    stopping = asyncio.create_task(after(5, world.caller.server.wakeups.close))
    assert await world.get(f"/download/{later}?wait=90", 5) == (200, "Running")
    await asyncio.gather(ending, stopping)


# -- who may go on waiting


@asynccontextmanager
async def at_work(folder: Any, **more: Principal) -> AsyncIterator[tuple[ServerClient, Any]]:
    """Job 1 runs, of an operator; and what is to be done for it to end."""
    host = FakeOrchestrator(then="Running")
    principals: Mapping[str, Principal] = {"admin": Principal("admin", Role.OPERATOR), **more}
    async with driving(folder, host, principals=principals) as caller:
        caller.session.headers["Authorization"] = "Bearer admin"
        await caller.job(await caller.upload(), until="Running")

        async def end() -> None:
            host.payloads[1].status = "Completed"
            await caller.job(1)

        yield caller, end


async def said(stream: aiohttp.ClientResponse, until: bytes) -> None:
    seen = b""
    while until not in seen:
        seen += await stream.content.readany()


async def test_a_stream_and_a_wait_end_with_their_token(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with at_work(tmp_path) as (caller, end):
        url, asked = f"{caller.url}/api/v1", {"name": "other-op", "role": "operator"}
        async with caller.session.post(f"{url}/tokens", json=asked) as answer:
            token = await answer.json()
        header = {"Authorization": f"Bearer {token['token']}"}
        async with caller.session.get(f"{url}/events?after=0", headers=SSE | header) as stream:
            await said(stream, b"job.running")
            began, of = asyncio.Event(), caller.server.wakeups.of

            def waits(*args: Any, **more: Any) -> Any:
                began.set()
                return of(*args, **more)

            monkeypatch.setattr(caller.server.wakeups, "of", waits)
            waiting = asyncio.create_task(
                caller.session.get(f"{caller.url}{HERE}?wait=20&seen=Running", headers=header)
            )
            await began.wait()
            async with caller.session.delete(f"{url}/tokens/{token['id']}") as answer:
                assert answer.status == 200
            await end()
            assert b"job.completed" not in await stream.content.read()
            answer = await waiting
            assert answer.status == 403
            assert "not good any more" in (await answer.json())["detail"]


async def test_a_stream_ends_with_its_link(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with at_work(tmp_path) as (caller, end):
        url = f"{caller.url}{HERE}"
        async with caller.session.post(f"{url}/links", json={}) as answer:
            link = (await answer.json())["link"]
        async with caller.session.get(f"{url}/events?link={link}", headers=SSE) as stream:
            await said(stream, b"job.running")
            permits = caller.server.context.permits
            read, two_days = permits.read, 2 * 86_400 * SECOND
            monkeypatch.setattr(
                permits, "read", lambda kind, text, now: read(kind, text, now + two_days)
            )
            await end()
            assert b"job.completed" not in await stream.content.read()


async def test_two_users_who_listen_at_once_share_no_read(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    users = {name: Principal(name, Role.USER, name) for name in ("ann", "7")}
    async with at_work(tmp_path, **users) as (caller, end):
        await end()
        reads, asked = caller.server.context.event_reads, list[Any]()
        read = reads.read

        async def noted(version: int, key: Any, own: Any) -> Any:
            asked.append(key)
            return await read(version, key, own)

        monkeypatch.setattr(reads, "read", noted)
        for name in users:
            headers = {"Authorization": f"Bearer {name}", **SSE}
            path = f"{caller.url}/api/v1/events?after=0"
            async with caller.session.get(path, headers=headers) as stream:
                if name == "7":
                    await said(stream, b"job.completed")
        assert len({visible for visible, *_ in asked}) == 2
