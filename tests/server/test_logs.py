"""The logs of a job and of each of its attempts: while it runs, and afterwards."""

import asyncio
import io
import json
import zipfile
from unittest.mock import patch

import pytest
from aiohttp import ClientPayloadError, web

from server.http import logs
from shared.files.archives.zip_reader import ZipIndex
from shared.wire import AttemptDoc
from tests.kit.each import each
from tests.kit.fake_agent import FakeAgent, Served, left, page, serving
from tests.kit.raw_archives import zipped
from tests.server.held_jobs import Setting, ended, followed, log_events, running

pytestmark = pytest.mark.asyncio(loop_scope="module")
BYTES = bytes(range(256)) * 4


async def test_the_log_of_a_running_job_is_what_it_has_written(served: Served) -> None:
    async with running(served) as here:
        await here.agent.write(here.held(), BYTES)
        await here.agent.write(here.held(), b"oops", "stderr")
        status, headers, body = await here.get("logs")
        assert (status, body) == (200, BYTES)
        assert headers["content-type"] == "text/plain; charset=utf-8"
        assert headers["x-content-type-options"] == "nosniff"
        assert (headers["ferryman-log-offset"], headers["ferryman-log-next"]) == ("0", "1024")
        assert (headers["ferryman-log-attempt"], headers["ferryman-log-ended"]) == ("1", "false")
        for query, part in {
            "stream=stderr": b"oops",
            "offset=1000": BYTES[1000:],
            "tail=9999": BYTES,
            "tail=10": BYTES[-10:],
        }.items():
            _, headers, body = await here.get(f"logs?{query}")
            assert body == part, query
        assert headers["ferryman-log-offset"] == "1014"
        tag = (await here.get("logs"))[1]["etag"]
        assert (await here.get("logs", If_None_Match=tag))[0] == 304
        status, headers, body = await here.get("logs", Range="bytes=8-15", If_Range=tag)
        assert (status, headers["content-range"], body) == (206, "bytes 8-15/1024", BYTES[8:16])
        assert (headers["ferryman-log-offset"], headers["ferryman-log-next"]) == ("8", "16")
        assert await here.refused("logs", Range="bytes=-0") == (416, "invalid_range")
        assert await here.refused("logs", If_Match='"another"') == (412, "precondition_failed")
        status, _, body = await here.get("logs", Range="bytes=8-", If_Range='"another"')
        assert (status, body) == (200, BYTES)
        document = await here.caller.job(here.job_id, until="Running")
        assert document["links"]["logs"] == f"{here.path}/logs"


async def test_the_log_of_a_job_that_has_ended_is_in_its_result(served: Served) -> None:
    whole = b"0123456789" * 100_000
    async with ended(served, whole.decode()) as here:
        status, headers, body = await here.get("logs")
        assert (status, body) == (200, whole)
        assert (headers["ferryman-log-next"], headers["ferryman-log-ended"]) == ("1000000", "true")
        for query, part in {
            "offset=999997": b"789",
            "offset=1000000": b"",
            "tail=3": b"789",
            "follow=1": whole,
            "stream=stderr": b"",
        }.items():
            assert (await here.get(f"logs?{query}"))[2] == part, query


async def test_what_each_attempt_left_is_kept_and_read_apart(served: Served) -> None:
    one_left, two_left = left("line\n" * 200_000, "no luck\n"), left("fine\n", "")
    async with running(served) as here:
        assert await here.refused("result?attempt=1") == (409, "not_ended")
        await here.agent.write(here.held(), b"line\n")
        tag = (await here.get("logs"))[1]["etag"]
        await here.fail(one_left)
        await here.agent.write(here.held(2), b"fine\n")
        status, _, body = await here.get("logs", Range="bytes=3-", If_Range=tag)
        assert (status, body) == (200, b"fine\n"), "what was begun in one does not go on in another"
        assert (await here.get("logs?attempt=2"))[2] == b"fine\n"
        assert (await here.get("logs?attempt=1", Range="bytes=-3"))[::2] == (206, b"ne\n")
        assert (await here.get("logs?attempt=1", Range="bytes=-0"))[0] == 416
        first = (await here.get("logs?attempt=1"))[1]["etag"]
        assert (await here.get("logs?attempt=1", If_None_Match=first))[0] == 304
        await here.end(two_left, attempt=2, exit_code=0)
        job = await here.caller.job(here.job_id)
        assert (job["status"], job["exit_code"], job["attempt"]) == ("Completed", 0, 2)
        one, two = (AttemptDoc.model_validate(item) for item in job["attempts"])
        assert (one.number, one.status, one.exit_code, one.reason) == (1, "Failed", 3, "exit_code")
        assert (one.agent, one.result_size) == ("fake", len(one_left))
        assert one.ended_at is not None
        assert (two.number, two.status, two.exit_code) == (2, "Completed", 0)
        for link, kind, content in (
            (one.links.result, "application/zip", one_left),
            (two.links.result, "application/zip", two_left),
            (one.links.stdout, "text/plain", b"line\n" * 200_000),
            (one.links.stderr, "text/plain", b"no luck\n"),
            (two.links.stdout, "text/plain", b"fine\n"),
        ):
            assert await here.caller.get(link or "") == (200, kind, content)
        _, of_one, body = await here.get("files/stdout.log?attempt=1")
        assert body == b"line\n" * 200_000
        _, of_two, body = await here.get("files/stdout.log")
        assert (body, of_one["etag"] != of_two["etag"]) == (b"fine\n", True)
        files = await here.document("files?attempt=1&limit=1")
        assert (await here.document(f"files?cursor={files['next']}"))["attempt"] == 1
        for what in ("result?attempt=3", "logs?attempt=3", "files?attempt=3"):
            assert await here.refused(what) == (404, "attempt_not_found")
        here.job_id = 99_999
        for what in ("result?attempt=1", "logs", "logs?follow=1"):
            assert await here.refused(what) == (404, "job_not_found")


async def test_an_attempt_that_left_nothing_says_why(served: Served) -> None:
    async with ended(served, b"", status="Invalid", message="run.sh is no script") as here:
        (attempt,) = (await here.caller.job(here.job_id))["attempts"]
        assert attempt["links"] == {"result": None, "stdout": None, "stderr": None}
        status, _, body = await here.get("result?attempt=1")
        problem = json.loads(body)
        assert (status, problem["code"]) == (409, "no_result")
        assert "run.sh is no script" in problem["detail"]


def damaged(flaw: str) -> bytes:
    """A result whose directory is well, and whose log is not."""
    long = 99_999 if flaw == "late" else 9_999
    made = bytearray(left("".join(map(str, range(long))), ""))
    directory = made.index(b"PK\x01\x02")
    if flaw == "late":
        made[directory - 10_000 : directory - 9_000] = bytes(1_000)
    elif flaw == "bytes":
        made[60:200] = bytes(140)
    elif flaw == "shorter":
        made[directory + 24 : directory + 28] = (10**6).to_bytes(4, "little")
    else:
        made[made.rindex(b"PK\x01\x02") + 8] = 1
    return bytes(made)


@each(
    "result, code",
    [
        (b"no zip at all", "no_log"),
        (zipped({"output.txt": b"x"}), "no_log"),
        (zipped({"ferryman.json": b"{"}), "no_log"),
        (damaged("encrypted"), "no_log"),
        (damaged("bytes"), "unreadable_result"),
        (damaged("late"), None),
        (damaged("shorter"), None),
    ],
)
async def test_a_log_that_cannot_be_read_says_so_or_ends_its_connection(
    served: Served, result: bytes, code: str | None
) -> None:
    """Whoever reads must not wait for the rest, or take another answer for it."""
    async with ended(served, result) as here:
        if code is not None:
            assert await here.refused("logs?attempt=1") == (409, code)
        else:
            with pytest.raises(ClientPayloadError):
                await here.get("logs?attempt=1")


async def test_a_log_costs_the_same_however_many_files_the_result_has(served: Served) -> None:
    packed = io.BytesIO(left("", ""))
    with zipfile.ZipFile(packed, "a") as archive:
        for number in range(3_000):
            archive.writestr(f"{number}", b"")
    listed, init = ZipIndex._read, zipfile.ZipInfo.__init__
    async with ended(served, packed.getvalue()) as here:
        with (
            patch.object(ZipIndex, "_read", autospec=True, side_effect=listed) as one,
            patch.object(zipfile.ZipInfo, "__init__", autospec=True, side_effect=init) as other,
        ):
            for query in ("", "follow=1", "attempt=1&stream=stderr"):
                assert (await here.get(f"logs?{query}"))[2] == b""
        assert 0 < one.call_count + other.call_count < 50


async def test_a_followed_log_is_text_for_browsers(served: Served) -> None:
    async with running(served) as here:
        async with followed(here.caller, f"{here.path}/logs?offset=0") as (answer, messages):
            assert answer.content_type == "text/event-stream"
            await here.agent.write(here.held(), b"a\n\xc3")
            one = await anext(messages)
            assert (one.id, one.event, one.data) == (2, "log", {"attempt": 1, "text": "a\n"})
            await here.agent.write(here.held(), b"\xa9\xff")
            one = await anext(messages)
            assert (one.id, one.data["text"]) in ((4, "é"), (5, "é\ufffd"))
            await here.end("a\né\n" + "x")
            rest = await log_events(messages)
            assert rest[-1] == (6, "end", {"attempt": 1, "offset": 6})
        again = {"Last-Event-ID": "2"}
        async with followed(here.caller, f"{here.path}/logs", again) as (_, messages):
            assert await log_events(messages) == [
                (6, "log", {"attempt": 1, "text": "é\nx"}),
                (6, "end", {"attempt": 1, "offset": 6}),
            ]
        assert (await here.get("logs", Accept="text/event-stream", Last_Event_ID="6"))[0] == 204


async def test_who_follows_waits_for_the_start(tmp_path) -> None:
    agent = FakeAgent(ends="Running", slots=1)
    async with serving(tmp_path, agent) as caller:
        first = Setting(caller, agent, await caller.upload())
        await caller.job(first.job_id, until="Running")
        here = Setting(caller, agent, await caller.upload())
        assert await here.refused("logs") == (409, "not_started")
        assert await here.refused("logs?attempt=1&follow=1") == (404, "attempt_not_found")
        following = asyncio.create_task(here.get("logs?follow=1"))
        async with followed(caller, f"{here.path}/logs") as (_, messages):
            await first.end("")
            await agent.until(lambda: agent.starts[f"{here.job_id}.1"] == 1)
            await agent.write(here.held(), b"hello")
            assert (await anext(messages)).data == {"attempt": 1, "text": "hello"}
            await here.end("hello")
            _, headers, body = await following
            assert (body, headers["ferryman-log-ended"]) == (b"hello", "false")


async def test_what_cannot_be_shown_is_refused_with_a_reason(tmp_path) -> None:
    async def away_then(request: web.Request) -> web.StreamResponse | None:
        return web.Response(status=502) if request.query["offset"] == "0" else None

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
            assert await here.refused(f"logs?{query}") == (400, code), query
        for query in ("offset=6", "offset=6&follow=1"):
            assert await here.refused(f"logs?{query}") == (416, "invalid_offset")
        assert await here.refused("logs", Range="bytes=5-") == (416, "invalid_range")
        here.held().status = "Completed"  # and its result is not here yet
        assert await here.refused("logs") == (409, "log_moves")
        here.held().status = "Running"
        not_known = page(404, '{"code": "not_found", "message": "?"}', "application/json")
        for here.agent.trick, status, code in (
            (not_known, 409, "no_live_log"),
            (page(502), 503, "agent_unreachable"),
            (away_then, 503, "agent_unreachable"),
        ):
            assert await here.refused("logs") == (status, code)


async def test_a_followed_log_ends_when_nothing_is_written_for_a_while_and_with_the_server(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def short_follow(request: web.Request) -> web.StreamResponse | None:
        """An agent ends a followed log when nothing is written."""
        if request.query.get("follow") != "1":
            return None
        body = b"one\n"[int(request.query["offset"]) :]
        return web.Response(body=body, content_type="application/octet-stream")

    async with running(tmp_path) as here:
        await here.agent.write(here.held(), b"one\n")
        async with here.caller.session.get(f"{here.caller.url}{here.path}/logs?follow=1") as answer:
            assert await answer.content.readline() == b"one\n"
            monkeypatch.setattr(logs, "KEEPALIVE_S", 0.05)
            here.agent.trick = short_follow
            assert (await here.get("logs?follow=1"))[2] == b"one\n"
            async with followed(here.caller, f"{here.path}/logs") as (_, messages):
                assert (await anext(messages)).data["text"] == "one\n"
                assert [(await anext(messages)).event for _ in range(2)] == ["", ""]
                here.caller.server.context.core.wakeups.close()
                assert await log_events(messages) == []
            assert await answer.content.read() == b""


async def test_a_followed_log_survives_its_agents_absence_and_goes_on_into_the_result(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "_AGAIN_S", 0.02)
    async with running(served) as here:
        await here.agent.write(here.held(), b"one\n")
        cut = 0

        async def cut_off(request: web.Request) -> web.StreamResponse | None:
            nonlocal cut
            if "/logs/" not in request.path or cut == 3:
                return None
            cut += 1
            return web.Response(status=502)

        here.agent.trick = cut_off
        async with here.caller.session.get(f"{here.caller.url}{here.path}/logs?follow=1") as answer:
            assert answer.headers["X-Accel-Buffering"] == "no"
            assert answer.headers["Ferryman-Log-Ended"] == "false"
            assert await answer.content.readline() == b"one\n"
            assert cut == 3
            await here.agent.write(here.held(), b"two\n")
            assert await answer.content.readline() == b"two\n"
            await here.end("one\ntwo\n[8 bytes left out]\nend\n")
            assert await answer.content.read() == b"[8 bytes left out]\nend\n"
        here.agent.trick = None
