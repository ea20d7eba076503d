"""The logs of a job over HTTP: while it runs, and afterwards."""

from __future__ import annotations

import asyncio
import io
import json
import zipfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from server.http import logs
from shared.files.archives.zip_directory import read_listed
from tests.kit.fake_agent import (
    FakeAgent,
    HeldPayload,
    Served,
    left,
    page,
    running_at,
    served,
    serving,
)
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.server_http import ServerClient, driving
from tests.server.test_events import SSE, Message, followed

BYTES = bytes(range(256)) * 4


__all__ = ["served"]
pytestmark = pytest.mark.asyncio(loop_scope="module")


class Setting:
    """A job that runs, and everybody around it."""

    def __init__(self, caller: ServerClient, agent: FakeAgent, job_id: int) -> None:
        self.caller, self.agent, self.job_id = caller, agent, job_id
        self.path = f"/api/v1/jobs/{job_id}/logs"

    def held(self, attempt: int = 1) -> HeldPayload:
        return self.agent.held(f"{self.job_id}.{attempt}")

    async def get(self, query: str = "", **headers: str) -> tuple[int, dict[str, str], bytes]:
        url = f"{self.caller.url}{self.path}?{query}"
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.caller.session.get(url, headers=named) as answer:
            return (
                answer.status,
                {k.lower(): v for k, v in answer.headers.items()},
                (await answer.read()),
            )

    async def refused(self, query: str = "", **headers: str) -> tuple[int, str]:
        status, _, body = await self.get(query, **headers)
        return status, json.loads(body)["code"]

    async def end(self, stdout: str, status: str = "Completed", attempt: int = 1) -> None:
        held = self.held(attempt)
        held.status, held.result = status, left(stdout, "")
        if status == "Failed":
            held.more = {"exit_code": 3, "reason": "exit_code"}
        await self.agent.say(held)


@asynccontextmanager
async def running(where: Path | Served, extra: str = "", **fields: str) -> AsyncIterator[Setting]:
    async with running_at(where, extra, **fields) as found:
        yield Setting(*found)


async def log_events(messages: AsyncIterator[Message]) -> list[tuple[int, str, Any]]:
    return [(one.id, one.event, one.data) async for one in messages if one.event]


async def test_the_log_of_a_running_job_is_what_it_has_written(served: Served) -> None:
    async with running(served) as here:
        await here.agent.write(here.held(), BYTES)
        await here.agent.write(here.held(), b"oops", "stderr")
        status, headers, body = await here.get()
        assert (status, body) == (200, BYTES)
        assert headers["content-type"] == "text/plain; charset=utf-8"
        assert headers["x-content-type-options"] == "nosniff"
        assert (headers["ferryman-log-offset"], headers["ferryman-log-next"]) == ("0", "1024")
        assert (headers["ferryman-log-attempt"], headers["ferryman-log-ended"]) == ("1", "false")
        assert (await here.get("stream=stderr"))[2] == b"oops"
        assert (await here.get("offset=1000"))[2] == BYTES[1000:]
        _, headers, body = await here.get("tail=10")
        assert (headers["ferryman-log-offset"], body) == ("1014", BYTES[-10:])
        assert (await here.get("tail=9999"))[2] == BYTES
        status, headers, body = await here.get(Range="bytes=250-259")
        assert (status, headers["content-range"], body) == (
            206,
            "bytes 250-259/1024",
            BYTES[250:260],
        )
        document = await here.caller.job(here.job_id, until="Running")
        assert document["links"]["logs"] == here.path


async def test_the_log_of_a_job_that_has_ended_is_in_its_result(served: Served) -> None:
    async with running(served) as here:
        await here.end("0123456789" * 100_000)
        await here.caller.job(here.job_id)
        whole = b"0123456789" * 100_000
        status, headers, body = await here.get()
        assert (status, body) == (200, whole)
        assert (headers["ferryman-log-next"], headers["ferryman-log-ended"]) == ("1000000", "true")
        assert (await here.get("offset=999997"))[2] == b"789"
        assert (await here.get("offset=1000000"))[2] == b""
        assert (await here.get("tail=3"))[2] == b"789"
        status, headers, body = await here.get(Range="bytes=-4")
        assert (status, headers["content-range"], body) == (
            206,
            "bytes 999996-999999/1000000",
            b"6789",
        )
        assert (await here.get("follow=1"))[2] == whole
        assert (await here.get("stream=stderr"))[2] == b""
        async with here.caller.session.head(f"{here.caller.url}{here.path}") as answer:
            assert (answer.status, answer.content_length) == (200, 1_000_000)


async def test_a_part_of_a_log_is_sent_as_a_part_of_any_file(served: Served) -> None:
    async with running(served) as here:
        await here.agent.write(here.held(), b"0123456789")
        _, headers, _ = await here.get()
        tag = headers["etag"]
        assert (await here.get(If_None_Match=tag))[0] == 304
        status, _, body = await here.get(Range="bytes=8-", If_Range=tag)
        assert (status, body) == (206, b"89")
        assert await here.refused(Range="bytes=-0") == (416, "invalid_range")
        assert await here.refused(If_Match='"another"') == (412, "precondition_failed")
        status, _, body = await here.get(Range="bytes=8-", If_Range='"another"')
        assert (status, body) == (200, b"0123456789")

        await here.end("0123456789", "Failed")
        await here.agent.until(lambda: here.agent.starts[f"{here.job_id}.2"] == 1)
        await here.caller.job(here.job_id, until="Running")
        await here.agent.write(here.held(2), b"ABCDEFGHIJ")
        # What was begun in the log of one attempt does not go on in that of another.
        status, _, body = await here.get(Range="bytes=8-", If_Range=tag)
        assert (status, body) == (200, b"ABCDEFGHIJ")
        there = f"{here.caller.url}/api/v1/jobs/{here.job_id}/logs?attempt=1"
        for wanted, status, text in (("bytes=-3", 206, b"789"), ("bytes=-0", 416, None)):
            async with here.caller.session.get(there, headers={"Range": wanted}) as answer:
                assert answer.status == status
                assert text is None or await answer.read() == text
        assert await here.refused("attempt=3") == (404, "attempt_not_found")
        assert (await here.get("attempt=2"))[2] == b"ABCDEFGHIJ"
        async with here.caller.session.get(there) as answer:
            again = {"If-None-Match": answer.headers["ETag"]}
        async with here.caller.session.get(there, headers=again) as answer:
            assert answer.status == 304


async def test_a_log_costs_the_same_however_many_files_the_result_has(
    served: Served, monkeypatch
) -> None:
    entries = 0

    def counted(read: Any) -> Any:
        def one(*args: Any, **kwargs: Any) -> Any:
            nonlocal entries
            entries += 1
            return read(*args, **kwargs)

        return one

    async with running(served) as here:
        packed = io.BytesIO(left("", ""))
        with zipfile.ZipFile(packed, "a") as archive:
            for number in range(3_000):
                archive.writestr(f"{number}", b"")
        held = here.held()
        held.status, held.result = "Completed", packed.getvalue()
        await here.agent.say(held)
        await here.caller.job(here.job_id)
        monkeypatch.setattr(zipfile.ZipInfo, "__init__", counted(zipfile.ZipInfo.__init__))
        listed = "shared.files.archives.zip_index.read_listed"
        monkeypatch.setattr(listed, counted(read_listed))
        assert (await here.get())[2] == b""
        assert (await here.get("follow=1"))[2] == b""
        _, _, body = await here.caller.get(
            f"/api/v1/jobs/{here.job_id}/logs?attempt=1&stream=stderr"
        )
        assert body == b""
        assert entries < 50


async def test_a_followed_log_goes_on_from_the_agent_into_the_result(served: Served) -> None:
    async with running(served) as here:
        await here.agent.write(here.held(), b"one\n")
        url = f"{here.caller.url}{here.path}?follow=1"
        async with here.caller.session.get(url) as answer:
            assert answer.headers["X-Accel-Buffering"] == "no"
            assert answer.headers["Ferryman-Log-Ended"] == "false"
            assert await answer.content.readline() == b"one\n"
            await here.agent.write(here.held(), b"two\n")
            assert await answer.content.readline() == b"two\n"
            await here.end("one\ntwo\n[8 bytes left out]\nend\n")
            assert await answer.content.read() == b"[8 bytes left out]\nend\n"


async def test_a_followed_log_is_text_for_browsers(served: Served) -> None:
    async with running(served) as here:
        async with followed(here.caller, f"{here.path}?offset=0") as (answer, messages):
            assert answer.content_type == "text/event-stream"
            await here.agent.write(here.held(), b"a\n\xc3")
            one = await anext(messages)
            assert (one.id, one.event, one.data) == (2, "log", {"attempt": 1, "text": "a\n"})
            await here.agent.write(here.held(), b"\xa9\xff")
            one = await anext(messages)
            assert (one.id, one.data["text"]) == (4, "é") or (one.id, one.data["text"]) == (
                5,
                "é\ufffd",
            )
            await here.end("a\né\n" + "x")
            rest = await log_events(messages)
            assert rest[-1] == (6, "end", {"attempt": 1, "offset": 6})
        async with followed(here.caller, here.path, {"Last-Event-ID": "2"}) as (_, messages):
            assert await log_events(messages) == [
                (6, "log", {"attempt": 1, "text": "é\nx"}),
                (6, "end", {"attempt": 1, "offset": 6}),
            ]
        async with followed(here.caller, here.path, {"Last-Event-ID": "6"}) as (answer, _):
            assert answer.status == 204


async def test_who_follows_waits_for_the_start(tmp_path) -> None:
    agent = FakeAgent(ends="Running", slots=1)
    async with serving(tmp_path, agent) as caller:
        first = Setting(caller, agent, await caller.upload())
        await caller.job(first.job_id, until="Running")
        here = Setting(caller, agent, await caller.upload())
        assert await here.refused() == (409, "not_started")
        assert await here.refused("attempt=1&follow=1") == (404, "attempt_not_found")
        following = asyncio.create_task(here.get("follow=1"))
        async with followed(caller, here.path, SSE) as (_, messages):
            await first.end("")
            await agent.until(lambda: agent.starts[f"{here.job_id}.1"] == 1)
            await agent.write(here.held(), b"hello")
            assert (await anext(messages)).data == {"attempt": 1, "text": "hello"}
            await here.end("hello")
            _, headers, body = await following
            assert (body, headers["ferryman-log-ended"]) == (b"hello", "false")


async def test_what_cannot_be_shown_is_refused_with_a_reason(tmp_path) -> None:
    async with running(tmp_path) as here:
        await here.agent.write(here.held(), b"12345")
        for query, code in {
            "stream=both": "invalid_stream",
            "attempt=0": "invalid_attempt",
            "attempt=x": "invalid_attempt",
            "offset=-1": "invalid_offset",
            "tail=x": "invalid_tail",
            "tail=1&offset=1": "invalid_tail",
            "follow=yes": "invalid_follow",
            "lines=5": "unknown_parameter",
        }.items():
            assert await here.refused(query) == (400, code), query
        assert await here.refused("offset=6") == (416, "invalid_offset")
        assert await here.refused("offset=6&follow=1") == (416, "invalid_offset")
        assert await here.refused(Range="bytes=5-") == (416, "invalid_range")
        here.held().status = "Completed"  # and its result is not here yet
        assert await here.refused() == (409, "log_moves")
        here.held().status = "Running"
        here.agent.trick = page(404, '{"code": "not_found", "message": "?"}', "application/json")
        assert await here.refused() == (409, "no_live_log")
        here.agent.trick = page(502)
        assert await here.refused() == (503, "agent_unreachable")

        async def away_then(request: web.Request) -> web.StreamResponse | None:
            return web.Response(status=502) if request.query["offset"] == "0" else None

        here.agent.trick = away_then
        assert await here.refused() == (503, "agent_unreachable")


async def test_a_job_orchestrator_client_shows_no_log_of_what_runs(tmp_path) -> None:
    client = FakeOrchestrator(then="Running")
    async with driving(tmp_path, client) as caller:
        job_id = await caller.upload()
        await caller.job(job_id, until="Running")
        status, _, body = await caller.get(f"/api/v1/jobs/{job_id}/logs?follow=1")
        assert (status, json.loads(body)["code"]) == (409, "no_live_log")
        assert "job-orchestrator" in json.loads(body)["detail"]


async def test_a_followed_log_ends_when_nothing_is_written_for_a_while(
    tmp_path, monkeypatch
) -> None:
    monkeypatch.setattr(logs, "KEEPALIVE_S", 0.05)
    async with running(tmp_path) as here:
        here.agent.trick = _short_follow
        await here.agent.write(here.held(), b"one")
        assert (await here.get("follow=1"))[2] == b"one"
        async with followed(here.caller, here.path) as (_, messages):
            assert (await anext(messages)).data["text"] == "one"
            assert [(await anext(messages)).event for _ in range(2)] == ["", ""]
            here.caller.server.wakeups.close()
            assert await log_events(messages) == []


async def test_a_followed_log_ends_with_the_server(tmp_path) -> None:
    async with running(tmp_path) as here:
        await here.agent.write(here.held(), b"one\n")
        async with here.caller.session.get(f"{here.caller.url}{here.path}?follow=1") as answer:
            assert await answer.content.readline() == b"one\n"
            here.caller.server.wakeups.close()
            assert await answer.content.read() == b""


async def _short_follow(request: web.Request) -> web.StreamResponse | None:
    """An agent ends a followed log when nothing is written."""
    if request.query.get("follow") != "1":
        return None
    body = b"one"[int(request.query["offset"]) :]
    return web.Response(body=body, content_type="application/octet-stream")


async def test_a_followed_log_survives_its_agents_absence(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(logs, "_AGAIN_S", 0.02)
    async with running(tmp_path) as here:
        await here.agent.write(here.held(), b"one\n")
        cut = 0

        async def cut_off(request: web.Request) -> web.StreamResponse | None:
            nonlocal cut
            if "/logs/" not in request.path or cut == 3:
                return None
            cut += 1
            return web.Response(status=502)

        here.agent.trick = cut_off
        async with here.caller.session.get(f"{here.caller.url}{here.path}?follow=1") as answer:
            assert await answer.content.readline() == b"one\n"
            assert cut == 3
            await here.end("one\ntwo\n")
            assert await answer.content.read() == b"two\n"


async def test_the_log_of_an_unknown_job_is_not_there(served: Served) -> None:
    for path in ("logs", "logs?follow=1"):
        status, _, body = await served[0].get(f"/api/v1/jobs/99/{path}")
        assert (status, json.loads(body)["code"]) == (404, "job_not_found")
