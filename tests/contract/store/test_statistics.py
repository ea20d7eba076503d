"""The numbers of charts are those of the events, whatever happens while they are counted."""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from server.domain.jobs import Bundle, Event, Job, Move, Step
from server.domain.statistics import ALL, BOUNDS_S, OTHERS, RESOLUTIONS, add
from server.store.jobs import SqlJobs
from server.store.migrations import MIGRATIONS
from server.store.statistics import SqlStatistics
from shared.clock import SECOND
from shared.ids import AttemptKey
from shared.sql import Params, Row
from shared.sqlite.database import Database
from shared.wire import JobState, Reason
from tests.contract.store.conftest import added, claim, new
from tests.support.inline_database import CrashPoint, InlineDatabase, SimulatedCrash
from tests.support.sim_clock import SimClock

S = JobState
START = 1_000_800 * SECOND
BACK: dict[str, Any] = {"agent": None, "payload_id": None, "submitted_at": None, "started_at": None}
EVER = (0, 2**62)


@pytest.fixture
def statistics(database: Database) -> SqlStatistics:
    return SqlStatistics(database)


async def everything(statistics: SqlStatistics, service: str = ALL) -> list[dict[str, Any]]:
    """What was counted in all time, by each resolution."""
    found = []
    for resolution in RESOLUTIONS:
        total: dict[str, Any] = {}
        for bucket in await statistics.buckets(resolution, *EVER, service):
            add(total, bucket.numbers)
        found.append(total)
    return found


class History:
    """Jobs that live through random moves, and what is to be counted of them."""

    def __init__(self, jobs: SqlJobs) -> None:
        self.jobs, self.now = jobs, START
        self.events: dict[int, Event] = {}
        self.services: dict[int, str] = {}
        self.waited_since: dict[AttemptKey, int] = {}

    async def remember(self, job_id: int) -> None:
        self.events |= {event.seq: event for event in await self.jobs.events(job_id)}

    async def act(self, job: Job, what: str) -> None:
        now, after = self.now, None
        if what == "claim" and job.state is S.QUEUED:
            since = job.queued_at if job.waits_since is None else job.waits_since
            self.waited_since[AttemptKey(job.id, job.attempt + 1)] = since
            changes: dict[str, Any] = {"agent": "node"}
            after = Move(job.id, job.attempt, job.state, S.PROCESSING, now, "", changes=changes)
        elif what == "refuse" and job.state is S.PROCESSING:
            back = BACK | {"queued_at": now, "waits_since": job.queued_at}
            after = Move(job.id, job.attempt, job.state, S.QUEUED, now, "no", changes=back)
        elif what == "start" and job.state in (S.PROCESSING, S.SUBMITTED, S.UNKNOWN):
            steps = (Step(S.SUBMITTED, now, ""),) if job.state is S.PROCESSING else ()
            after = Move(job.id, job.attempt, job.state, S.RUNNING, now, "", through=steps)
        elif what == "lose" and job.state in (S.SUBMITTED, S.RUNNING):
            after = Move(job.id, job.attempt, job.state, S.UNKNOWN, now, "")
        elif what == "again" and job.state in (S.SUBMITTED, S.RUNNING, S.UNKNOWN):
            back = BACK | {"queued_at": now, "waits_since": now + 7 * SECOND}
            reason = Reason.EXIT_CODE
            after = Move(job.id, job.attempt, job.state, S.QUEUED, now, "", reason, changes=back)
        elif what == "by hand" and job.state in (S.FAILED, S.CANCELLED):
            back = BACK | {"queued_at": now, "waits_since": None, "ended_at": None}
            after = Move(job.id, job.attempt, job.state, S.QUEUED, now, "", changes=back)
        elif what in ("Completed", "Failed", "Cancelled") and not job.ended:
            to = S(what)
            if to is S.COMPLETED and job.state not in (S.RUNNING, S.UNKNOWN):
                return
            why = Reason.TIMEOUT if to is S.FAILED else None
            ended = {"ended_at": now}
            after = Move(job.id, job.attempt, job.state, to, now, "", why, changes=ended)
        elif what == "delete" and job.ended:
            await self.remember(job.id)
            await self.jobs.delete(job.id)
            return
        if after is not None:
            await self.jobs.move(after)

    def naive(self, service: str | None = None) -> dict[str, Any]:
        """Counted from a list of all events, one after another."""
        found: Counter[str] = Counter()
        started: dict[AttemptKey, int] = {}
        held = {S.PROCESSING, S.SUBMITTED, S.RUNNING, S.UNKNOWN}
        for seq in sorted(self.events):
            event = self.events[seq]
            if service not in (None, self.services[event.job_id]):
                continue
            key = AttemptKey(event.job_id, event.attempt)
            if event.event == "job.queued" and event.before is None:
                found["uploaded"] += 1
            elif event.state is S.RUNNING and key not in started:
                started[key] = event.at
                found["started"] += 1
                self.time(found, "waiting", event.at - self.waited_since[key])
            elif event.state in (S.COMPLETED, S.FAILED, S.CANCELLED):
                found[f"{event.state} {event.reason}"] += 1
                if event.before in held and key in started:
                    self.time(found, "run", event.at - started[key])
            elif event.state is S.QUEUED and event.reason and event.before in held:
                found[f"retried {event.reason}"] += 1
                if key in started:
                    self.time(found, "run", event.at - started[key])
        return dict(found)

    @staticmethod
    def time(found: Counter[str], name: str, took: int) -> None:
        took = max(0, took)
        found[f"{name} sum"] += took
        found[f"{name} {bisect.bisect_left(BOUNDS_S, took / SECOND)}"] += 1


def flat(numbers: dict[str, Any]) -> dict[str, Any]:
    """What was counted, in the words of the naive count."""
    found = {name: numbers.get(name, 0) for name in ("uploaded", "started")}
    found |= {f"Failed {reason}": count for reason, count in numbers.get("failed", {}).items()}
    found |= {f"retried {reason}": count for reason, count in numbers.get("retried", {}).items()}
    found |= {
        f"{state} None": numbers.get(state.lower(), 0) for state in (S.COMPLETED, S.CANCELLED)
    }
    for name in ("waiting", "run"):
        if name in numbers:
            found[f"{name} sum"] = numbers[name]["sum_us"]
            found |= {f"{name} {at}": count for at, count in numbers[name]["buckets"].items()}
            assert numbers[name]["count"] == sum(numbers[name]["buckets"].values())
    return {name: count for name, count in found.items() if count}


def known(naive: dict[str, Any]) -> dict[str, Any]:
    return {name: count for name, count in naive.items() if count}


HOW = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
WHAT = (
    *("claim", "claim", "start", "start", "refuse", "lose", "again", "by hand", "delete"),
    *("Completed", "Completed", "Failed", "Cancelled", "count", "new", "new", "tick", "back"),
)


@HOW
@given(steps=st.lists(st.tuples(st.integers(0, 5), st.sampled_from(WHAT)), max_size=60))
async def test_what_is_counted_is_what_the_events_say(
    database: Database,
    jobs: SqlJobs,
    statistics: SqlStatistics,
    request: pytest.FixtureRequest,
    steps: list[tuple[int, str]],
) -> None:
    # The database is the same in all examples: their histories follow one another.
    history = request.node.__dict__.setdefault("history", History(jobs))
    ids: list[int] = []
    for number, what in steps:
        if what == "count":
            await statistics.count()
        elif what == "tick":
            history.now += 10**number * 37_000
        elif what == "back":
            history.now -= 90 * SECOND  # nothing but a time is shorter
        elif what == "new" or not ids:
            service = "ab"[number % 2]
            (job,) = await added(jobs, "ann", service=service)
            history.services[job.id] = service
            ids.append(job.id)
        else:
            job_id = ids[number % len(ids)]
            job = await jobs.get(job_id)
            await history.act(job, what)
            if what == "delete" and job.ended:
                ids.remove(job_id)
    for job_id in ids:
        await history.remember(job_id)
    await statistics.count()
    for service, which in ((ALL, None), ("a", "a"), ("b", "b")):
        wanted = known(history.naive(which))
        for numbers in await everything(statistics, service):
            assert flat(numbers) == wanted


async def finished(jobs: SqlJobs, service: str = "s", at: int = START) -> Job:
    """A job that was queued, ran for two seconds and completed."""
    job, _ = await jobs.insert(new(service=service, created_at=at), "queued")
    history = History(jobs)
    for what in ("claim", "start", "Completed"):
        history.now = at + (2 * SECOND if what == "Completed" else SECOND)
        await history.act(await jobs.get(job.id), what)
    return await jobs.get(job.id)


async def test_bytes_are_those_of_bundles_that_were_uploaded(jobs, statistics) -> None:
    await jobs.insert(new(bundle=_bundle(5), created_at=START), "queued")
    await jobs.insert(new(bundle=_bundle(5), created_at=START, schedule_id=3), "queued")
    await statistics.count()
    (numbers, *_) = await everything(statistics)
    assert (numbers["uploaded"], numbers["uploaded_bytes"]) == (2, 5)


def _bundle(size: int) -> Bundle:
    return Bundle(f"b{size}", size, f"digest {size}")


async def test_another_who_counts_at_the_same_time_makes_nothing_count_twice(
    database, jobs, statistics, monkeypatch
) -> None:
    await finished(jobs)
    other = SqlStatistics(database)
    write = statistics._count

    async def late(*args: Any) -> Any:
        await other.count()
        return await write(*args)

    monkeypatch.setattr(statistics, "_count", late)
    await statistics.count()
    for numbers in await everything(statistics):
        assert (numbers["uploaded"], numbers["completed"]) == (1, 1)


async def test_a_job_deleted_between_reading_and_writing_is_counted_once(
    jobs, statistics, monkeypatch
) -> None:
    job = await finished(jobs)
    await finished(jobs)
    write = statistics._count

    async def late(*args: Any) -> Any:
        monkeypatch.setattr(statistics, "_count", write)
        await jobs.delete(job.id)
        return await write(*args)

    monkeypatch.setattr(statistics, "_count", late)
    await statistics.count()
    for numbers in await everything(statistics):
        assert (numbers["uploaded"], numbers["completed"]) == (2, 2)


async def each_crash(folder: Path, work: Callable[[SqlJobs, SqlStatistics], Awaitable[Any]]) -> int:
    """Count with a crash at each step, then again after a restart; how many steps there are."""
    at = 0
    while True:
        at += 1
        path = folder / f"{at}.sqlite"
        point, clock = CrashPoint(), SimClock()
        database = InlineDatabase(path, MIGRATIONS, point, clock)
        jobs = SqlJobs(database, lambda _: None)
        await finished(jobs)
        await finished(jobs)
        point.at = point.steps + at
        crashed = False
        try:
            await work(jobs, SqlStatistics(database))
        except SimulatedCrash:
            crashed = True
        database.close()
        after = InlineDatabase(path, MIGRATIONS, CrashPoint(), clock)
        statistics = SqlStatistics(after)
        await statistics.count()
        for numbers in await everything(statistics):
            assert (numbers["uploaded"], numbers["completed"]) == (2, 2)
            assert numbers["waiting"]["count"] == numbers["run"]["count"] == 2
        after.close()
        if not crashed:
            return at


async def test_a_server_that_dies_while_it_counts_counts_nothing_twice_and_loses_nothing(
    tmp_path,
) -> None:
    assert await each_crash(tmp_path, lambda _, statistics: statistics.count()) > 3


async def test_a_server_that_dies_while_it_deletes_jobs_loses_nothing(tmp_path) -> None:
    async def work(jobs: SqlJobs, statistics: SqlStatistics) -> None:
        await jobs.delete(1)
        await jobs.delete(2)
        await statistics.count()

    assert await each_crash(tmp_path, work) > 6


async def test_samples_are_added_and_a_time_without_any_has_no_bucket(statistics) -> None:
    for second, queued in ((0, 4), (30, 2), (180, 9)):
        gauges = {ALL: {"queued": queued, "slots": 8}, "a": {"queued": 1}}
        await statistics.sample(START + second * SECOND, gauges)
    minute, ten, _ = RESOLUTIONS
    found = await statistics.buckets(minute, *EVER, ALL)
    assert [(one.samples, one.numbers["gauges"]["queued"]) for one in found] == [(2, 6), (1, 9)]
    assert found[1].at - found[0].at == 180 * SECOND
    (both,) = await statistics.buckets(ten, *EVER, "a")
    assert (both.samples, both.numbers["gauges"]) == (3, {"queued": 3})
    (idle, _) = await statistics.buckets(minute, *EVER, "b")
    assert (idle.samples, idle.numbers) == (2, {})
    assert await statistics.services(minute, START - 60 * SECOND) == ["a"]
    assert await statistics.counted_until() == START + 180 * SECOND


async def test_buckets_are_deleted_when_their_time_has_come(database, jobs, statistics) -> None:
    await finished(jobs)
    await statistics.count()
    await statistics.sample(START, {ALL: {}})
    for resolution in RESOLUTIONS:
        later = START + (resolution.kept_s + resolution.seconds) * SECOND
        await statistics.sample(later, {ALL: {}})
        found = [one.at for one in await statistics.buckets(resolution, *EVER, ALL)]
        assert found[0] > START
        assert found[-1] == resolution.start(later)


async def test_a_sample_of_a_clock_that_was_set_back_deletes_nothing(statistics) -> None:
    await statistics.sample(START + 86_400 * SECOND, {ALL: {"queued": 1}})
    await statistics.sample(START, {ALL: {"queued": 2}})
    await statistics.sample(START + 60 * SECOND, {ALL: {"queued": 3}})
    found = await statistics.buckets(
        RESOLUTIONS[0], START - SECOND * 60, START + 1_000 * SECOND, ALL
    )
    assert [one.numbers["gauges"]["queued"] for one in found] == [2, 3]


async def test_services_beyond_a_hundred_are_counted_together(jobs, statistics) -> None:
    for number in range(103):
        await added(jobs, "ann", service=f"s{number}")
    await statistics.count()
    hour = RESOLUTIONS[-1]
    names = await statistics.services(hour, 0)
    assert len(names) == 101
    assert OTHERS in names
    (others,) = await statistics.buckets(hour, *EVER, OTHERS)
    assert others.numbers["uploaded"] == 3
    for numbers in await everything(statistics):
        assert numbers["uploaded"] == 103


async def test_queued_jobs_are_counted_by_service(jobs, statistics) -> None:
    for service in ("a", "b"):
        await added(jobs, "ann", service=service)
    job, _ = await added(jobs, "ann", "bob", service="b")
    await jobs.move(claim(job))
    await finished(jobs, "c")
    assert await statistics.queued() == {"a": 1, "b": 2}
    assert await statistics.database_bytes() > 10_000


async def test_a_sample_costs_the_same_however_many_jobs_have_ended(
    database, jobs, statistics, monkeypatch
) -> None:
    read: list[int] = []

    def counting(
        rows: Callable[..., Awaitable[list[Row]]],
    ) -> Callable[..., Awaitable[list[Row]]]:
        async def counted(sql: str, params: Params | None = None) -> list[Row]:
            found = await rows(sql, params)
            read.append(len(found))
            return found

        return counted

    monkeypatch.setattr(database, "rows", counting(database.rows))
    monkeypatch.setattr(database, "list_rows", counting(database.list_rows))

    async def cost() -> list[int]:
        await statistics.count()
        read.clear()
        await finished(jobs)
        read.clear()
        await statistics.count()
        await statistics.queued()
        return list(read)

    before = await cost()
    for _ in range(30):
        await finished(jobs)
    assert await cost() == before
