"""Clients that poll: entity tags, when to ask again, and tokens that end while a caller waits."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from shared.clock import SECOND
from shared.principals import Principal, Role
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.server_http import ServerClient, driving

Found = tuple[int, Mapping[str, str], bytes]


async def ask(caller: ServerClient, path: str, **headers: str) -> Found:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    async with caller.session.get(f"{caller.url}{path}", headers=named) as answer:
        return answer.status, answer.headers, await answer.read()


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/jobs/1",
        "/api/v1/jobs",
        "/api/v1/jobs/1/events",
        "/api/v1/services",
        "/api/v1/schedules",
        "/api/v1/jobs?tag=a",
    ],
)
async def test_a_document_that_is_known_already_is_not_sent_again(tmp_path, path):
    async with driving(tmp_path, FakeOrchestrator()) as caller:
        await caller.job(await caller.upload(tags="a"))
        status, headers, body = await ask(caller, path)
        assert (status, headers["Cache-Control"]) == (200, "private, no-cache")
        tag = headers["ETag"]
        for known in (tag, f'"other", {tag}', tag.removeprefix("W/"), "*"):
            status, headers, again = await ask(caller, path, If_None_Match=known)
            assert (status, headers["ETag"], again) == (304, tag, b"")
        for other in ('"other"', 'W/"other"', ""):
            status, _, again = await ask(caller, path, If_None_Match=other)
            assert status == 200
            assert again[:9] == body[:9]


async def test_the_tag_of_a_job_changes_with_the_job_and_not_with_time(tmp_path):
    host = FakeOrchestrator(then="Running")
    async with driving(tmp_path, host) as caller:
        job = await caller.upload()
        await caller.job(job, until="Running")
        path = f"/api/v1/jobs/{job}"
        _, headers, first = await ask(caller, path)
        _, same, second = await ask(caller, path)
        assert first != second, "how long it has been Running is in it"
        assert same["ETag"] == headers["ETag"]
        status, at_304, _ = await ask(caller, path, If_None_Match=same["ETag"])
        assert (status, at_304["Retry-After"]) == (304, "2")
        host.payloads[1].status = "Completed"
        query = f"{path}?wait=20&seen=Running"
        status, headers, _ = await ask(caller, query, If_None_Match=same["ETag"])
        assert status == 200
        assert headers["ETag"] != same["ETag"]
        assert "Retry-After" not in headers


async def test_what_has_rules_of_its_own_or_is_for_everybody_has_no_tag(tmp_path):
    async with driving(tmp_path, FakeOrchestrator()) as caller:
        job = await caller.upload()
        await caller.job(job)
        for path in ("/health", "/openapi.json"):
            _, headers, _ = await ask(caller, path)
            assert "ETag" not in headers
        status, headers, _ = await ask(caller, "/api/v1/jobs/99", If_None_Match="*")
        assert (status, "ETag" in headers) == (404, False)
        async with caller.session.post(
            f"{caller.url}/api/v1/jobs/{job}/cancel", headers={"If-None-Match": "*"}
        ) as answer:
            assert answer.status == 200


async def test_pollers_learn_when_to_ask_again(tmp_path):
    async with driving(tmp_path, FakeOrchestrator(then="Running")) as caller:
        job = await caller.upload()
        _, headers, _ = await ask(caller, f"/api/v1/jobs/{job}")
        assert headers["Retry-After"] == "2"
        later = await caller.upload(not_before="in 2h")
        for path in (f"/api/v1/jobs/{later}", f"/download/{later}", f"/api/v1/jobs/{later}/result"):
            _, headers, _ = await ask(caller, path)
            assert headers["Retry-After"] == "60", path


async def with_token(caller: ServerClient) -> tuple[str, dict[str, str]]:
    """A new token of an operator: its id, and the header."""
    url = f"{caller.url}/api/v1/tokens"
    body = {"name": "other-op", "role": "operator"}
    admin = {"Authorization": "Bearer admin"}
    async with caller.session.post(url, json=body, headers=admin) as answer:
        assert answer.status == 201, await answer.text()
        found: dict[str, Any] = await answer.json()
    return found["id"], {"Authorization": f"Bearer {found['token']}"}


async def revoke(caller: ServerClient, token_id: str) -> None:
    url = f"{caller.url}/api/v1/tokens/{token_id}"
    async with caller.session.delete(url, headers={"Authorization": "Bearer admin"}) as answer:
        assert answer.status == 200


async def test_a_stream_and_a_wait_end_with_their_token(tmp_path, monkeypatch):
    principals = {"admin": Principal("admin", Role.OPERATOR)}
    host = FakeOrchestrator(then="Running")
    async with driving(tmp_path, host, principals=principals) as caller:
        token_id, header = await with_token(caller)
        admin = {"Authorization": "Bearer admin"}
        caller.session.headers.update(admin)
        job = await caller.upload()
        await caller.job(job, until="Running")
        url = f"{caller.url}/api/v1"
        as_stream = {**header, "Accept": "text/event-stream"}
        async with caller.session.get(f"{url}/events?after=0", headers=as_stream) as stream:
            seen = b""
            while b"job.running" not in seen:
                seen += await stream.content.readany()
            began, of = asyncio.Event(), caller.server.wakeups.of

            def waits(*args: Any, **more: Any) -> Any:
                began.set()
                return of(*args, **more)

            monkeypatch.setattr(caller.server.wakeups, "of", waits)
            waiting = asyncio.create_task(
                caller.session.get(f"{url}/jobs/{job}?wait=20&seen=Running", headers=header)
            )
            await began.wait()
            await revoke(caller, token_id)
            host.payloads[1].status = "Completed"
            await caller.job(job)
            seen = await stream.content.read()
            assert b"job.completed" not in seen
            answer = await waiting
            assert answer.status == 403
            assert "not good any more" in (await answer.json())["detail"]


async def test_a_stream_ends_with_its_link(tmp_path, monkeypatch):
    principals = {"admin": Principal("admin", Role.OPERATOR)}
    host = FakeOrchestrator(then="Running")
    async with driving(tmp_path, host, principals=principals) as caller:
        caller.session.headers["Authorization"] = "Bearer admin"
        job = await caller.upload()
        await caller.job(job, until="Running")
        url = f"{caller.url}/api/v1/jobs/{job}"
        async with caller.session.post(f"{url}/links", json={}) as answer:
            link = (await answer.json())["link"]
        as_stream = {"Accept": "text/event-stream"}
        stream = caller.session.get(f"{url}/events?link={link}", headers=as_stream)
        async with stream as events:
            seen = b""
            while b"job.running" not in seen:
                seen += await events.content.readany()
            permits = caller.server.context.permits
            read, day = permits.read, 86_400 * SECOND
            monkeypatch.setattr(
                permits, "read", lambda kind, text, now: read(kind, text, now + 2 * day)
            )
            host.payloads[1].status = "Completed"
            await caller.job(job)
            assert b"job.completed" not in await events.content.read()


async def test_two_users_who_listen_at_once_share_no_read(tmp_path, monkeypatch):
    users = {name: Principal(name, Role.USER, name) for name in ("ann", "7")}
    async with driving(tmp_path, FakeOrchestrator(), principals=users) as caller:
        caller.session.headers["Authorization"] = "Bearer 7"
        job = await caller.upload()
        await caller.job(job)
        context, asked = caller.server.context, list[Any]()
        read = context.event_reads.read

        async def noted(version: int, key: Any, own: Any) -> Any:
            asked.append(key)
            return await read(version, key, own)

        monkeypatch.setattr(context.event_reads, "read", noted)
        for name in users:
            path = f"{caller.url}/api/v1/events?after=0"
            headers = {"Authorization": f"Bearer {name}", "Accept": "text/event-stream"}
            async with caller.session.get(path, headers=headers) as stream:
                found = b""
                while b"job.completed" not in found and name == "7":
                    found += await stream.content.readany()
        assert len({visible for visible, *_ in asked}) == 2
