"""Waiting for jobs, following their history, listing, cancelling, and many jobs at once."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from functools import partial
from typing import Any

import pytest
from aiohttp import web

from ferryman import Client, JobDoc, JobState, SyncClient, errors
from ferryman.follow import buffered, in_order
from ferryman.transport import AT_ONCE
from shared.wire import EventPage
from tests.client import fake_server
from tests.client.fake_server import HERE, doc, event, hang_up, job, jobs
from tests.kit.raw_archives import zipped
from tests.kit.waiting import turns, until

R, C = JobState.RUNNING, JobState.COMPLETED
LATE = fake_server.problem(409, "already_ended", "job 17 has already ended as Completed")


async def test_waiting_survives_a_restart_has_a_limit_and_says_how_the_job_is(fake):
    async def slow(request: web.Request) -> web.StreamResponse:
        await fake.clock.sleep(float(request.query["wait"]))
        return doc(job(R)).response()

    async with fake.client() as client:
        fake.on(f"GET {HERE}", hang_up, hang_up, hang_up, doc(job(C)))
        assert (await client.wait(17)).status is C
        fake.on(f"GET {HERE}", doc({**job().model_dump(mode="json"), "status": "Levitating"}))
        with pytest.raises(errors.NotUnderstood, match="status"):
            await client.status(17)
        fake.on(f"GET {HERE}", slow)
        fake.clock.slept.clear()
        with pytest.raises(errors.WaitedTooLong, match="17 is still Running after 70s") as caught:
            await client.wait(17, timeout=70)
    assert caught.value.job.status is R
    assert fake.clock.slept == [30, 30, 10]


async def test_a_server_that_stops_and_holds_nothing_back_is_not_asked_without_pause(fake):
    async def status(_: web.Request) -> web.StreamResponse:
        return doc(job(C if len(fake.asked[f"GET {HERE}/events"]) >= 5 else R)).response()

    fake.on(f"GET {HERE}", status)
    nothing, last = (doc(EventPage(items=items)) for items in ([], [event(9, C)]))
    fake.on(f"GET {HERE}/events", *[nothing] * 4, last, nothing)
    async with fake.client() as client:
        with pytest.raises(errors.WaitedTooLong):
            await client.wait(17, timeout=10)
        assert fake.clock.slept == [0.5] * 20
        assert [one.seq async for one in client.events(17)] == [9]
        assert fake.clock.slept == [0.5] * 24


async def test_lists_are_fetched_page_by_page_and_no_more_than_asked_for(fake):
    async def answer(request: web.Request) -> web.StreamResponse:
        start, limit = int(request.query.get("cursor", "0")), int(request.query["limit"])
        stop = min(start + limit, 250)
        items = [job(id=number + 1) for number in range(start, stop)]
        return jobs(*items, following=str(stop) if stop < 250 else None).response()

    fake.on("GET /api/v1/jobs", answer)
    asked = fake.asked["GET /api/v1/jobs"]
    async with fake.client() as client:
        ids = [one.id async for one in client.jobs(user="ada", state=JobState.FAILED, tag="x")]
        assert ids == list(range(1, 251))
        assert [one.query.get("cursor") for one in asked] == [None, "100", "200"]
        given = {"user": "ada", "state": "Failed", "tag": "x", "limit": "100"}
        assert asked[0].query == given
        assert len([one async for one in client.jobs(limit=120)]) == 120
    assert [one.query["limit"] for one in asked[3:]] == ["100", "20"]


@pytest.mark.parametrize(("after", "begins"), [(None, "now"), (0, "0")])
async def test_all_events_begin_now_or_behind_a_number(fake, after, begins):
    fake.on("GET /api/v1/events", doc(EventPage(items=[event(9, C)], reached=9)))
    async with fake.client() as client:
        live = client.all_events(after, service="s")
        assert [(await anext(live)).seq for _ in range(2)] == [9, 9]
        await live.aclose()
    asked = fake.asked["GET /api/v1/events"]
    assert [one.query["after"] for one in asked] == [begins, "9"]


async def test_a_cancel_is_waited_for_and_one_that_comes_too_late_is_an_error(fake):
    fake.on(f"POST {HERE}/cancel", doc(job(R), 202))
    async with fake.client() as client:
        fake.on(f"GET {HERE}", doc(job(R)), doc(job(R)), doc(job(JobState.CANCELLED)))
        assert (await client.cancel(17)).status is JobState.CANCELLED
        fake.on(f"GET {HERE}", doc(job(R)), doc(job(C)))
        with pytest.raises(errors.AlreadyEnded, match="Completed before"):
            await client.cancel(17)
        fake.on(f"POST {HERE}/cancel", LATE)
        with pytest.raises(errors.AlreadyEnded, match="as Completed"):
            await client.cancel(17)


async def test_a_client_that_is_not_open_says_how_to_open_it_and_callbacks_do_not_call_it(fake):
    with pytest.raises(RuntimeError, match="async with"):
        await Client().status(1)
    with pytest.raises(RuntimeError, match="with SyncClient"):
        SyncClient().status(1)

    def use() -> None:
        wrong = pytest.raises(errors.BadArgument, match="callback of this client")
        with SyncClient(fake.url, user="ada") as client, wrong:
            given: Any = {"progress": lambda *_: client.status(17)}
            client.submit(fake_server.SCRIPT, service="example", **given)

    fake.on("POST /upload", fake_server.accepted())
    await asyncio.wait_for(asyncio.to_thread(use), 30)


async def test_an_iterator_that_is_collected_in_the_loops_thread_does_not_stop_it(fake):
    def use() -> list[int]:
        with SyncClient(fake.url) as client:
            found: Iterator[JobDoc] | None = client.jobs()
            assert found is not None
            seen = [next(found).id]
            kept = [found]
            found = None
            assert client._loop is not None
            client._loop.call_soon_threadsafe(kept.clear)  # the last that knows it
            return [*seen, client.status(17).id]

    fake.on("GET /api/v1/jobs", jobs(job(C, id=9))).on(f"GET {HERE}", doc(job(C)))
    assert await asyncio.wait_for(asyncio.to_thread(use), 30) == [9, 17]


async def test_waiting_for_many_jobs_keeps_nobody_else_waiting(fake):
    gate, full = asyncio.Event(), asyncio.Event()
    asked: list[float] = []

    async def status(request: web.Request) -> web.StreamResponse:
        if "wait" in request.query:
            asked.append(float(request.query["wait"]))
            if len(asked) == AT_ONCE:
                full.set()
            await gate.wait()
        return doc(job(C, id=int(request.path.rpartition("/")[2]))).response()

    fake.on("GET /api/v1/jobs/{id}", status)
    async with Client(fake.url) as client:
        waits = [asyncio.create_task(client.wait(number)) for number in range(1, 2 * AT_ONCE + 1)]
        await full.wait()
        assert (await client.status(7)).id == 7
        assert len(asked) == AT_ONCE
        gate.set()
        assert [(await wait).id for wait in waits] == list(range(1, 2 * AT_ONCE + 1))
    assert asked[0] == 30
    assert 14 < min(asked) < 16  # each has its turn within half a minute


async def test_a_bundle_runs_with_each_input_side_by_side_until_one_that_fails(fake, tmp_path):
    now = most = 0

    async def take(request: web.Request) -> web.StreamResponse:
        nonlocal now, most
        number = int({name: data for _, name, data in fake.uploads[-1].files}["in.txt"])
        now += 1
        most = max(most, now)
        await request.read()
        await until(lambda: most == 3)  # the others begin meanwhile
        now -= 1
        return fake_server.accepted(number).response()

    async def status(request: web.Request) -> web.StreamResponse:
        return doc(job(C, id=int(request.path.rpartition("/")[2]))).response()

    fake.on("POST /upload", take).on("GET /api/v1/jobs/{id}", status)
    for name in ("run.sh", "in.txt"):
        (tmp_path / name).write_bytes(b"0")
    numbers = [3, 1, 2, *range(4, 21)]
    inputs = ({"in.txt": b"%d" % number} for number in numbers)
    given: Any = {"service": "s", "tags": iter(["a"]), "idempotency_key": "k", "at_once": 3}
    async with Client(fake.url, user="ada") as client:
        results = [one async for one in client.map(tmp_path, inputs, **given)]
        assert [(one.id, one.status) for one in results] == [(number, C) for number in numbers]
        assert most == 3
        keys = {one.headers["Idempotency-Key"] for one in fake.uploads}
        assert keys == {f"k.{number}" for number in range(20)}
        for upload in fake.uploads:
            assert upload.fields["tags"] == "a"
            assert [name for _, name, _ in upload.files] == ["in.txt", "run.sh"]
        wrong = [{"in.txt": b"1"}, {"../in.txt": b"2"}, {"in.txt": b"3"}]
        made = client.map(fake_server.SCRIPT, wrong, service="s", at_once=1)
        assert (await anext(made)).id == 1
        with pytest.raises(errors.BadBundle, match=r"in\.txt"):
            await anext(made)
        (tmp_path / "a.zip").write_bytes(zipped({"run.sh": b"true"}))
        with pytest.raises(errors.BadBundle, match="cannot be sent with each job"):
            await anext(client.map(tmp_path / "a.zip", [{}], service="s"))
    assert len(fake.uploads) == 21


async def test_who_stops_early_ends_what_still_runs():
    started: list[int] = []
    gate = asyncio.Event()
    gate.set()

    async def work(number: int) -> int:
        started.append(number)
        await gate.wait()
        return number

    results = in_order((partial(work, number) for number in range(1_000)), 4)
    assert [await anext(results), await anext(results)] == [0, 1]
    gate.clear()
    await results.aclose()
    assert len(started) <= 6
    assert len(asyncio.all_tasks()) == 1


async def test_so_many_are_taken_before_they_are_asked_for_and_an_error_comes_in_its_turn():
    taken: list[int] = []

    async def numbers() -> AsyncGenerator[int, None]:
        for number in range(100):
            taken.append(number)
            yield number
        raise KeyError("no more")

    items = buffered(numbers(), 5)
    assert await anext(items) == 0
    await turns(50)
    assert len(taken) <= 7
    assert [await anext(items) for _ in range(99)] == list(range(1, 100))
    with pytest.raises(KeyError, match="no more"):
        await anext(items)
