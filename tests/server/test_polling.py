"""Clients that poll, wait and follow: tags, the length of waits, tokens that end, events."""

import asyncio
import json
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest

from server.http import event_stream
from server.store import events
from shared.clock import SECOND
from shared.http import connections
from shared.http.middleware import GATE
from shared.principals import Principal, Role
from shared.wire import EventDoc
from tests.kit.clock import SimClock
from tests.kit.fake_agent import Served
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.server_http import ServerClient, driving
from tests.kit.waiting import until
from tests.server.held_jobs import SSE, followed, running

pytestmark = pytest.mark.asyncio(loop_scope="module")
HERE = "/api/v1/jobs/1"


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


async def test_the_tag_of_a_job_changes_with_it_and_says_when_to_ask_again(tmp_path) -> None:
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


INTERVAL_S = 10.0
"""Seconds between two looks at the client."""


async def test_a_wait_is_as_long_as_it_was_asked_for_unless_it_is_over_before(tmp_path) -> None:
    """Job 1 runs on a client; time passes when all wait for it."""
    clock, client = SimClock(), FakeOrchestrator(then="Running")
    seldom: dict[str, Any] = {"getter_interval": INTERVAL_S, "sender_interval": INTERVAL_S}

    async def get(path: str, seconds: float) -> tuple[int, str]:
        """The answer's status, and the job's in it; it comes after so many seconds."""
        before = clock.monotonic()
        code, kind, body = await caller.get(path)
        waited = clock.monotonic() - before
        assert seconds - 0.001 <= waited <= seconds + 3 * INTERVAL_S, (path, waited)
        return code, "Completed" if kind == "application/zip" else json.loads(body).get("status")

    async def after(seconds: float, happens: Callable[[], object]) -> None:
        await clock.sleep(seconds)
        happens()

    def end() -> None:
        client.payloads[1].status = "Completed"

    async with driving(tmp_path, client, machine=clock, **seldom) as caller:
        with clock.autojump(most_s=3_600):
            await caller.job(await caller.upload(), until="Running")
            for query, seconds in {
                "": 0.0,
                "?wait=0": 0.0,
                "?wait=90&seen=Queued": 0.0,
                "?wait=31.5&seen=Running": 31.5,
                "?wait=30s&seen=Running": 30.0,
                "?wait=1e9&seen=Running": 120.0,
            }.items():
                assert await get(f"{HERE}{query}", seconds) == (200, "Running")
            assert await get("/download/1?wait=30", 30) == (200, "Running")
            assert await get(f"{HERE}/result?wait=30", 30) == (202, "Running")
            code, _ = await get("/api/v1/jobs/8?wait=90&seen=Running", 0)
            assert code == 404, "nobody waits for a job that is not there"

            later = await caller.upload(not_before="in 20s")
            assert await get(f"/download/{later}?wait=50", 50) == (200, "Running"), "not its end"
            another = await caller.upload(user_id="8", not_before="in 20s")
            code, status = await get(f"/api/v1/jobs/{another}?wait=90&seen=Queued", 0)
            assert (code, status != "Queued") == (200, True)
            ending = asyncio.create_task(after(25, end))
            paths = (f"{HERE}?wait=90&seen=Running", "/download/1?wait=90")
            both = await asyncio.gather(*(get(path, 25) for path in paths))
            assert both == [(200, "Completed")] * 2
            stopping = asyncio.create_task(after(5, caller.server.context.core.wakeups.close))
            assert await get(f"/download/{later}?wait=90", 5) == (200, "Running")
            await asyncio.gather(ending, stopping)


async def said(stream: aiohttp.ClientResponse, until: bytes) -> None:
    seen = b""
    while until not in seen:
        seen += (more := await stream.content.readany())
        assert more, "it has ended"


async def test_streams_and_waits_end_with_their_token_or_link_and_each_user_sees_its_own(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two users listen at once to the end of a job of one of them."""
    host = FakeOrchestrator(then="Running")
    principals = {"admin": Principal("admin", Role.OPERATOR)}
    principals |= {name: Principal(name, Role.USER, name) for name in ("ann", "7")}
    async with driving(tmp_path, host, principals=principals) as caller, AsyncExitStack() as stack:
        caller.session.headers["Authorization"] = "Bearer admin"
        await caller.job(await caller.upload(), until="Running")
        token = await caller.api("POST", "/tokens", {"name": "other-op", "role": "operator"})
        link = (await caller.api("POST", "/jobs/1/links", {}))["link"]
        all_events = f"{caller.url}/api/v1/events?after=0"
        shown = [{"Authorization": f"Bearer {name}"} for name in (token["token"], "ann", "7")]
        asked = [(all_events, more) for more in shown]
        stream, of_ann, of_7, linked = [
            await stack.enter_async_context(caller.session.get(path, headers=SSE | more))
            for path, more in (*asked, (f"{caller.url}{HERE}/events?link={link}", {}))
        ]
        for one in (stream, linked, of_7):
            await said(one, b"job.running")
        began, of = asyncio.Event(), caller.server.context.core.wakeups.of

        def waits(*args: Any, **more: Any) -> Any:
            began.set()
            return of(*args, **more)

        monkeypatch.setattr(caller.server.context.core.wakeups, "of", waits)
        path = f"{HERE}?wait=20&seen=Running"
        waiting = asyncio.create_task(caller.ask("GET", path, headers=shown[0]))
        await began.wait()
        await caller.api("DELETE", f"/tokens/{token['id']}")
        permits = caller.server.context.access.permits
        read, two_days = permits.read, 2 * 86_400 * SECOND
        monkeypatch.setattr(
            permits, "read", lambda kind, text, now: read(kind, text, now + two_days)
        )
        host.payloads[1].status = "Completed"
        await caller.job(1)
        for one in (stream, linked):
            assert b"job.completed" not in await one.content.read()
        status, answer = await waiting
        assert (status, "not good any more" in answer["detail"]) == (403, True)
        await said(of_7, b"job.completed")
        caller.server.context.core.wakeups.close()
        assert b"job." not in await of_ann.content.read()


AT = "2026-01-01T00:00:00Z"
LIVE = {
    "progress": {"current": 45, "total": 100},
    "message": "step 45",
    "output": {"score": "0.93"},
    "heartbeat_at": AT,
    "notices": [{"level": "warning", "text": "hm", "at": AT}],
}
MOVES = ["job.queued", "job.processing", "job.submitted", "job.running"]
SAID = ["job.warning", "job.output", "job.progress"]


def names(found: dict[str, Any]) -> list[str]:
    return [one["event"] for one in found["items"]]


async def test_what_a_running_job_says_is_seen_in_its_stream_and_in_pages(served, monkeypatch):
    async with running(served, retries="0") as here:
        caller, held, path = here.caller, here.held(), f"{here.path}/events"
        waiting = asyncio.create_task(here.document("events?after=4&wait=60"))
        await until(lambda: sum(caller.server.application[GATE]._waits.values()) == 1)
        async with followed(caller, path) as (answer, messages):
            assert answer.content_type == "text/event-stream"
            assert answer.headers["X-Accel-Buffering"] == "no"
            assert answer.headers["Cache-Control"] == "no-cache"
            again = [await answer.content.readline() for _ in range(2)]
            assert again == [b"retry: 2000\n", b"\n"]
            assert [(await anext(messages)).event for _ in MOVES] == MOVES
            held.more = {"live": LIVE}
            await here.agent.say(held)
            said = [await anext(messages) for _ in SAID]
            assert [one.event for one in said] == names(await waiting) == SAID
            assert said[-1].data["fields"] == {"current": 45.0, "total": 100.0}
            assert EventDoc.model_validate(said[0].data).level == "warning"
            assert (said[0].data["agent"], said[0].data["job_id"]) == ("fake", here.job_id)
            job = await caller.job(here.job_id, until="Running")
            assert job["heartbeat_at"].startswith("2026-01-01T00:00:00")
            await here.end("", live=LIVE)
            assert [one.event async for one in messages] == ["job.completed"]

        whole = await here.document("events")
        numbers = [one["seq"] for one in whole["items"]]
        one = await here.document("events?limit=3")
        assert (names(one), one["next"]) == (MOVES[:3], str(numbers[2]))
        two = await here.document(f"events?limit=5&after={one['next']}")
        assert (names(two), two["next"]) == ([MOVES[3], *SAID, "job.completed"], None)
        assert (await here.document(f"events?after={two['reached']}"))["items"] == []
        for query in ("limit=0", "limit=1001", "after=-1", "after=x"):
            assert (await caller.get(f"{path}?{query}"))[0] == 400, query

        async with followed(caller, path, {"Last-Event-ID": str(numbers[-2])}) as (_, messages):
            assert [one.event async for one in messages] == ["job.completed"]
        async with followed(caller, path, {"Last-Event-ID": str(numbers[-1])}) as (answer, _):
            assert answer.status == 204  # a browser does not connect again
        monkeypatch.setattr("server.api.events._AT_ONCE", 1)  # so many are in memory
        async with followed(caller, f"{path}?after={numbers[-3]}") as (_, messages):
            assert [one.id async for one in messages] == numbers[-2:]

        history = (await caller.job(here.job_id))["history"]
        ran = [(state, 1, "fake") for state in ("Processing", "Submitted", "Running", "Completed")]
        shown = [(one["status"], one["attempt"], one["agent"]) for one in history]
        assert shown == [("Queued", 0, None), *ran]
        assert all(one["seconds"] >= 0 for one in history)
        listed = (await caller.api("GET", "/jobs?limit=1"))["items"][0]
        assert (listed["history"], listed["attempts"]) == (None, None)
    here.job_id = 9_999
    async with followed(caller, f"{here.path}/events") as (answer, _):
        assert (answer.status, answer.content_type) == (404, "application/problem+json")


async def test_what_run_sh_names_and_gives_as_json_is_stored_as_given(served: Served) -> None:
    table = {"rows": [3, 2.5], "done": True}
    notices: list[dict[str, Any]] = [
        {"level": "notice", "text": "x", "fields": {"page": "3"}},
        {"level": "info", "text": "y", "event": "pages.done", "fields": {"page": "4"}},
        {"level": "info", "text": "z", "event": "job.completed"},
    ]
    said = {
        "output": {"score": "0.93", "table": json.dumps(table), "bad": "[" * 99},
        "json_outputs": ["table", "bad"],
        "notices": [one | {"at": AT} for one in notices],
    }
    async with running(served) as here:
        held, caller = here.held(), here.caller
        since = f"events?after={(await here.document('events'))['reached']}"
        held.more = {"live": said}
        await here.agent.say(held)
        first = await here.document(f"{since}&wait=60")
        await here.end("", live=said)  # which repeats it
        job = await caller.job(here.job_id)
        assert job["output"] == {"score": "0.93", "table": table, "bad": "[" * 99}
        assert job["attempts"][0]["output"] == job["output"]
        items = (await here.document(since))["items"]
        assert [one["seq"] for one in items[:-1]] == [one["seq"] for one in first["items"]]
        assert [(one["event"], one["source"], one["fields"]) for one in items] == [
            ("job.notice", None, {"page": "3"}),
            ("pages.done", "run.sh", {"page": "4"}),
            ("job.info", None, {}),
            ("job.output", None, {"name": "score", "value": "0.93"}),
            ("job.output", None, {"name": "table", "value": table}),
            ("job.output", None, {"name": "bad", "value": "[" * 99}),
            ("job.completed", None, {}),
        ]
        status, _, body = await caller.get(f"/jobs/{here.job_id}")
        assert status == 200
        assert body.count(b"<code>page=3</code>") == body.count(b"<code>page=4</code>") == 2
        assert body.count(b"<code>pages.done</code>") == 2
        assert b"delay_s" not in body


async def test_all_events_are_read_from_the_first_or_from_now_on(tmp_path, monkeypatch) -> None:
    async with running(tmp_path) as here:
        caller, first = here.caller, here.job_id
        async with followed(caller, "/api/v1/events") as (_, messages):
            second = await caller.upload()
            seen = [await anext(messages) for _ in MOVES]
            assert [one.event for one in seen] == MOVES
            assert {one.data["job_id"] for one in seen} == {second}
            waiting = asyncio.create_task(caller.api("GET", "/events?after=now&wait=60"))
            await until(lambda: sum(caller.server.application[GATE]._waits.values()) == 2)
            await here.end("", live=LIVE)
            assert {(await anext(messages)).data["job_id"] for _ in range(3)} == {first}
            assert names(await waiting)[:2] == SAID[:2]
        found = await caller.api("GET", "/events?limit=500")
        assert [one["seq"] for one in found["items"]] == [*range(1, 12)]
        assert (found["next"], found["reached"]) == (None, 11)
        async with followed(caller, "/api/v1/events?after=0&user=7") as (_, messages):
            assert [(await anext(messages)).id for _ in range(11)] == [*range(1, 12)]

        monkeypatch.setattr(events, "_SLICE", 7)  # so many are looked at
        for query in ("user=nobody", "service=another"):
            one = await caller.api("GET", f"/events?{query}")
            assert (one["items"], one["next"]) == ([], "7")
            two = await caller.api("GET", f"/events?{query}&after=7")
            assert (two["items"], two["next"], two["reached"]) == ([], None, 11)
        status, _, body = await caller.get("/api/v1/events?job=1")
        assert (status, json.loads(body)["code"]) == (400, "unknown_parameter")
        async with followed(caller, "/api/v1/events", {"Last-Event-ID": "x"}) as (answer, _):
            assert (answer.status, (await answer.json())["part"]) == (400, "Last-Event-ID")


async def test_open_streams_are_waits_and_end_with_the_server(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(event_stream, "KEEPALIVE_S", 0.05)
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 8)
    async with running(tmp_path) as here:
        caller, gate = here.caller, here.caller.server.application[GATE]
        for path in ("/api/v1/events", f"{here.path}/events?after=4"):
            async with AsyncExitStack() as stack:
                for _ in range(gate._limits.waits_per_caller):
                    await stack.enter_async_context(followed(caller, path))
                async with followed(caller, path) as (answer, _):
                    assert answer.status == 429
                    assert (await answer.json())["code"] == "too_many_waits"
            await until(lambda: not gate._waits)
        async with followed(caller, path) as (answer, messages):
            assert answer.status == 200
            assert [(await anext(messages)).event for _ in range(3)] == [""] * 3
            caller.server.context.core.wakeups.close()
            assert {one.event async for one in messages} <= {""}
