"""Waiting for jobs, following their history, listing, cancelling."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from aiohttp import web

from ferryman import (
    AlreadyEnded,
    BadArgument,
    Client,
    JobDoc,
    JobState,
    NotFound,
    NotUnderstood,
    SyncClient,
    WaitedTooLong,
)
from ferryman.transport import AT_ONCE
from shared.wire import EventDoc, EventPage, JobPage
from tests.unit.ferryman.fake_server import (
    InstantClock,
    RecordingServer,
    answer,
    hang_up,
    job,
    problem,
    serving,
)


def event(seq: int, status: JobState, before: JobState | None) -> EventDoc:
    return EventDoc(
        seq=seq, at=datetime(2026, 11, 20, 10, tzinfo=UTC), attempt=1, before=before, status=status
    )


class ScriptedJob:
    """A job that goes one step on with each request that waits."""

    def __init__(self, *states: JobState) -> None:
        self.states, self.at, self.asked = states, 0, list[str]()

    async def status(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request.query_string)
        if "wait" in request.query:
            self.at = min(self.at + 1, len(self.states) - 1)
        return answer(job(self.states[self.at]))

    async def events(self, request: web.Request) -> web.StreamResponse:
        after = int(request.query["after"])
        if int(request.query["wait"]):
            self.at = min(self.at + 1, len(self.states) - 1)
        line = [
            event(n + 1, state, self.states[n - 1] if n else None)
            for n, state in enumerate(self.states[: self.at + 1])
        ]
        return answer(EventPage(items=[one for one in line if one.seq > after]))

    def routes(self):
        return (
            ("GET", "/api/v1/jobs/17", self.status),
            ("GET", "/api/v1/jobs/17/events", self.events),
        )


async def test_waiting_ends_when_the_job_has_ended():
    life = ScriptedJob(JobState.QUEUED, JobState.RUNNING, JobState.FAILED)
    async with serving(*life.routes()) as url, Client(url, clock=InstantClock()) as client:
        assert (await client.wait(17)).status is JobState.FAILED
    assert len(life.asked) == 2


async def test_waiting_has_a_limit_and_says_how_the_job_is():
    clock = InstantClock()

    async def slow(request: web.Request) -> web.StreamResponse:
        await clock.sleep(float(request.query["wait"]))
        return answer(job(JobState.RUNNING))

    async with (
        serving(("GET", "/api/v1/jobs/17", slow)) as url,
        Client(url, clock=clock) as client,
    ):
        with pytest.raises(WaitedTooLong, match="job 17 is still Running after 70s") as caught:
            await client.wait(17, timeout=70)
    assert caught.value.job.status is JobState.RUNNING
    assert clock.slept == [30, 30, 10]


async def test_a_server_that_stops_and_holds_nothing_back_is_not_asked_without_pause():
    clock = InstantClock()
    requests = 0

    async def status(request: web.Request) -> web.StreamResponse:
        return answer(job(JobState.RUNNING if requests < 5 else JobState.COMPLETED))

    async def events(request: web.Request) -> web.StreamResponse:
        nonlocal requests
        requests += 1
        return answer(
            EventPage(
                items=[event(9, JobState.COMPLETED, JobState.RUNNING)] if requests == 5 else []
            )
        )

    async with (
        serving(
            ("GET", "/api/v1/jobs/17", status), ("GET", "/api/v1/jobs/17/events", events)
        ) as url,
        Client(url, clock=clock) as client,
    ):
        with pytest.raises(WaitedTooLong):
            await client.wait(17, timeout=10)
        assert clock.slept == [0.5] * 20
        assert [one.seq async for one in client.events(17)] == [9]
        assert clock.slept == [0.5] * 24


async def test_waiting_survives_a_restart_of_the_server():
    tries = 0

    async def restarting(request: web.Request) -> web.StreamResponse:
        nonlocal tries
        tries += 1
        if tries < 4:
            hang_up(request)
        return answer(job(JobState.COMPLETED))

    async with (
        serving(("GET", "/api/v1/jobs/17", restarting)) as url,
        Client(url, clock=InstantClock()) as client,
    ):
        assert (await client.wait(17)).status is JobState.COMPLETED


async def test_the_history_comes_in_order_and_once_until_the_end():
    states = (
        JobState.QUEUED,
        JobState.PROCESSING,
        JobState.SUBMITTED,
        JobState.RUNNING,
        JobState.COMPLETED,
    )
    life = ScriptedJob(*states)
    async with serving(*life.routes()) as url, Client(url) as client:
        events = [one async for one in client.events(17)]
    assert [one.status for one in events] == list(states)
    assert [one.seq for one in events] == [1, 2, 3, 4, 5]


async def test_the_history_can_be_taken_up_after_a_number():
    life = ScriptedJob(JobState.QUEUED, JobState.RUNNING, JobState.COMPLETED)
    async with serving(*life.routes()) as url, Client(url, clock=InstantClock()) as client:
        assert [one.seq async for one in client.events(17, after=2)] == [3]


async def test_an_unknown_job_is_not_found():
    async def nothing(request: web.Request) -> web.StreamResponse:
        return problem(404, "job_not_found", "Job 17 not found in the database")

    async with serving(("GET", "/api/v1/jobs/17", nothing)) as url, Client(url) as client:
        with pytest.raises(NotFound, match="Job 17 not found"):
            await client.status(17)


async def test_an_unknown_state_is_an_error_not_a_guess():
    async def odd(request: web.Request) -> web.StreamResponse:
        return web.json_response({**job().model_dump(mode="json"), "status": "Levitating"})

    async with serving(("GET", "/api/v1/jobs/17", odd)) as url, Client(url) as client:
        with pytest.raises(NotUnderstood, match="status"):
            await client.status(17)


def pages(asked: list[dict[str, str]], count: int = 250):
    async def page(request: web.Request) -> web.StreamResponse:
        asked.append(dict(request.query))
        start, limit = int(request.query.get("cursor", "0")), int(request.query["limit"])
        items = [job(id=number + 1) for number in range(start, min(start + limit, count))]
        stop = start + len(items)
        return answer(JobPage(items=items, next=str(stop) if stop < count else None))

    return page


async def test_lists_are_fetched_page_by_page():
    asked: list[dict[str, str]] = []
    async with serving(("GET", "/api/v1/jobs", pages(asked))) as url, Client(url) as client:
        ids = [one.id async for one in client.jobs(user="ada", state=JobState.FAILED, tag="x")]
    assert ids == list(range(1, 251))
    assert [query.get("cursor") for query in asked] == [None, "100", "200"]
    assert asked[0] == {"user": "ada", "state": "Failed", "tag": "x", "limit": "100"}


async def test_a_limited_list_asks_for_no_more():
    asked: list[dict[str, str]] = []
    async with serving(("GET", "/api/v1/jobs", pages(asked))) as url, Client(url) as client:
        assert len([one async for one in client.jobs(limit=120)]) == 120
    assert [query["limit"] for query in asked] == ["100", "20"]


async def test_a_cancel_that_takes_longer_is_waited_for():
    life = ScriptedJob(JobState.RUNNING, JobState.RUNNING, JobState.CANCELLED)

    async def cancel(request: web.Request) -> web.StreamResponse:
        return answer(job(JobState.RUNNING), 202)

    async with (
        serving(*life.routes(), ("POST", "/api/v1/jobs/17/cancel", cancel)) as url,
        Client(url, clock=InstantClock()) as client,
    ):
        assert (await client.cancel(17)).status is JobState.CANCELLED


async def test_a_cancel_that_comes_too_late_is_an_error():
    async def late(request: web.Request) -> web.StreamResponse:
        return problem(409, "already_ended", "job 17 has already ended as Completed")

    async with (
        serving(("POST", "/api/v1/jobs/17/cancel", late)) as url,
        Client(url) as client,
    ):
        with pytest.raises(AlreadyEnded, match="as Completed"):
            await client.cancel(17)


async def test_a_cancel_that_loses_the_race_is_an_error():
    life = ScriptedJob(JobState.RUNNING, JobState.COMPLETED)

    async def cancel(request: web.Request) -> web.StreamResponse:
        return answer(job(JobState.RUNNING), 202)

    async with (
        serving(*life.routes(), ("POST", "/api/v1/jobs/17/cancel", cancel)) as url,
        Client(url) as client,
    ):
        with pytest.raises(AlreadyEnded, match="Completed before"):
            await client.cancel(17)


async def test_a_client_that_is_not_open_says_how_to_open_it():
    with pytest.raises(RuntimeError, match="async with"):
        await Client().status(1)


def test_the_synchronous_client_has_every_method_of_the_other():
    def public(kind: type) -> set[str]:
        return {name for name in dir(kind) if name[0] != "_" and callable(getattr(kind, name))}

    assert public(SyncClient) == public(Client)
    for name in public(Client) - {"close"}:
        theirs, ours = getattr(Client, name), getattr(SyncClient, name)
        assert ours.__doc__ == theirs.__doc__
        assert inspect.signature(ours).parameters == inspect.signature(theirs).parameters


async def test_the_synchronous_client_works_from_a_thread_without_a_loop():
    """The server needs this thread's loop, so the client is used in another."""
    life = ScriptedJob(JobState.QUEUED, JobState.RUNNING, JobState.COMPLETED)
    asked: list[dict[str, str]] = []
    seen: list[object] = []

    def use(url: str) -> None:
        with SyncClient(url) as client:
            seen.append([one.status for one in client.events(17)])
            seen.append(client.wait(17, timeout=5).status)
            seen.append(len(list(client.jobs(limit=150))))
            first = client.jobs()
            seen.append(next(first).id)
            first.close()
            try:
                client.status(18)
            except NotFound as problem:
                seen.append(problem.status)
        client.close()

    import asyncio

    async def missing(_: web.Request) -> web.StreamResponse:
        return problem(404, "job_not_found", "no such job")

    routes = (*life.routes(), ("GET", "/api/v1/jobs/18", missing))
    async with serving(*routes, ("GET", "/api/v1/jobs", pages(asked))) as url:
        await asyncio.to_thread(use, url)
    assert seen == [
        [JobState.QUEUED, JobState.RUNNING, JobState.COMPLETED],
        JobState.COMPLETED,
        150,
        1,
        404,
    ]
    assert not [one for one in threading.enumerate() if one.name == "ferryman-sync"]


async def test_a_callback_of_a_synchronous_client_cannot_call_it():
    def use(url: str) -> None:
        def call(_done: int, _size: int) -> None:
            client.status(17)

        wrong = pytest.raises(BadArgument, match="callback of this client")
        with SyncClient(url, user="ada") as client, wrong:
            client.submit(
                {"run.sh": b"echo hi"},
                service="example",
                progress=call,
            )

    async with serving(("POST", "/upload", RecordingServer())) as url:
        await asyncio.wait_for(asyncio.to_thread(use, url), 30)


async def test_an_iterator_that_is_collected_in_the_loops_thread_does_not_stop_it():
    seen: list[int] = []

    def use(url: str) -> None:
        with SyncClient(url) as client:
            jobs: Iterator[JobDoc] | None = client.jobs()
            assert jobs is not None
            seen.append(next(jobs).id)
            kept = [jobs]
            jobs = None
            assert client._loop is not None
            client._loop.call_soon_threadsafe(kept.clear)  # the last that knows it
            seen.append(client.status(17).id)

    async def page(_: web.Request) -> web.StreamResponse:
        return answer(JobPage(items=[job(JobState.COMPLETED, id=9)], next=None))

    async def status(_: web.Request) -> web.StreamResponse:
        return answer(job(JobState.COMPLETED, id=17))

    routes = [("GET", "/api/v1/jobs", page), ("GET", "/api/v1/jobs/17", status)]
    async with serving(*routes) as url:
        await asyncio.wait_for(asyncio.to_thread(use, url), 30)
    assert seen == [9, 17]


def test_a_closed_synchronous_client_says_how_to_open_it():
    with pytest.raises(RuntimeError, match="with SyncClient"):
        SyncClient().status(1)


async def test_waiting_for_many_jobs_keeps_nobody_else_waiting():
    gate, full = asyncio.Event(), asyncio.Event()
    asked: list[float] = []

    async def status(request: web.Request) -> web.StreamResponse:
        number = int(request.match_info["id"])
        if "wait" in request.query:
            asked.append(float(request.query["wait"]))
            if len(asked) == AT_ONCE:
                full.set()
            await gate.wait()
        return answer(job(JobState.COMPLETED, id=number))

    async with serving(("GET", "/api/v1/jobs/{id}", status)) as url, Client(url) as client:
        waits = [asyncio.create_task(client.wait(number)) for number in range(1, 2 * AT_ONCE + 1)]
        await full.wait()
        assert (await client.status(7)).id == 7
        assert len(asked) == AT_ONCE
        gate.set()
        assert [(await wait).id for wait in waits] == list(range(1, 2 * AT_ONCE + 1))
    assert asked[0] == 30
    assert 14 < min(asked) < 16  # each has its turn within half a minute
