"""Sweeps one after another, who is woken, how all is stopped, and what some of them write."""

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import pytest
from structlog.testing import capture_logs

from server.domain.choose import Recent
from server.domain.errors import AlreadyEnded
from server.domain.jobs import Move
from server.domain.service import Service
from server.domain.statistics import ALL, Tree
from server.loops import Loop, Supervisor
from server.measures import Measures
from server.stages.stage import AgentTasks
from server.stages.statistics import Statistics
from server.stages.wakeups import JobWakeups
from server.store import jobs as store_jobs
from server.store import users
from server.store.changes import TOTALS, Totals
from shared.clock import SECOND, Micros
from shared.principals import LOCAL
from shared.sqlite.files import DatabaseUnavailable
from shared.wire import JobState, LiveDoc, Progress, Reason
from tests.kit.clock import SimClock
from tests.kit.each import each
from tests.kit.fake_agent import FakeAgent, serving
from tests.kit.store import core, job
from tests.kit.waiting import until
from tests.model.simulation import World


class Sweep:
    """Notes when it ran; fails, or waits for ``go``, where the test says so."""

    def __init__(self, clock: SimClock, first: float = math.inf) -> None:
        """``first``: seconds after its first run in which it has something to do."""
        self._clock, self._first = clock, first
        self.at: list[float] = []
        self.ended = 0
        self.problem: Exception | None = None
        self.go = asyncio.Event()
        self.go.set()

    def until_next_s(self) -> float:
        return self._first if len(self.at) == 1 else math.inf

    async def run_once(self) -> int:
        self.at.append(self._clock.monotonic())
        await self.go.wait()
        if self.problem is not None:
            raise self.problem
        self.ended += 1
        return 1


@asynccontextmanager
async def running(loop: Loop, wakeup: asyncio.Event) -> AsyncIterator[None]:
    stop = asyncio.Event()
    task = asyncio.create_task(loop.run(stop))
    yield
    stop.set()
    wakeup.set()
    await task


async def test_the_sender_is_woken_when_there_is_a_job_and_when_a_slot_is_free(tmp_path):
    agent = FakeAgent(slots=1, ends="Running")
    async with serving(tmp_path, agent, sender_interval=3_600.0) as caller:
        await agent.until(lambda: agent.streams == 1)
        for number in range(1, 4):
            await caller.posted({"run.sh": b"true"}, user_id="1", service="my_service")
            await until(partial(agent.starts.__contains__, f"{number}.1"))
            await agent.end(agent.payloads[number])


@each("first, at", [(math.inf, [0, 5, 7, 12]), (1.0, [0, 1, 6, 7, 12])])
async def test_a_sweep_comes_at_its_interval_or_when_it_has_something_to_do_or_is_woken(
    first: float, at: list[float]
) -> None:
    clock, wakeup = SimClock(), asyncio.Event()
    sweep = Sweep(clock, first)
    async with running(Loop("x", sweep, 5.0, wakeup, clock), wakeup):
        await clock.advance(7)
        wakeup.set()
        await clock.advance(6)
    assert sweep.at == at


async def test_a_wake_up_during_a_sweep_is_not_lost() -> None:
    clock, wakeup = SimClock(), asyncio.Event()
    sweep = Sweep(clock)
    sweep.go.clear()
    async with running(Loop("x", sweep, 5.0, wakeup, clock), wakeup):
        await clock.settle()
        wakeup.set()
        sweep.go.set()
        await clock.settle()
    assert sweep.at == [0, 0]


async def test_a_sweep_that_fails_is_followed_by_the_next() -> None:
    clock, wakeup, healthy = SimClock(), asyncio.Event(), []
    sweep = Sweep(clock)
    sweep.problem = RuntimeError("bad")
    loop = Loop("x", sweep, 5.0, wakeup, clock)
    with capture_logs() as logs:
        async with running(loop, wakeup):
            for seconds in (109, 2, 5):  # ten intervals and a minute without a good one: too long
                await clock.advance(seconds)
                healthy.append(loop.healthy)
                if not loop.healthy:
                    sweep.problem = None
    assert healthy == [True, False, True]
    failed = [line for line in logs if line["event"] == "sweep.failed"]
    assert len(sweep.at) == len(failed) + sweep.ended == 24
    assert {line["sweep"] for line in failed} == {"x"}


async def test_stopping_lets_sweeps_end_and_stops_the_stages_last() -> None:
    wakeups, clock, order = JobWakeups(), SimClock(), list[str]()
    sweep = Sweep(clock)
    sweep.go.clear()

    async def follows(stop: asyncio.Event) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            order.append(f"follower, stop requested: {stop.is_set()}")

    async def fails(_: asyncio.Event) -> None:
        raise RuntimeError("follower")

    async def stage() -> None:
        order.append(f"stage, sweeps ended: {sweep.ended}")

    sender = Loop("sender", sweep, 60.0, wakeups.sender, clock)
    getter = Loop("getter", Sweep(clock), 60.0, wakeups.cleaner, clock)
    supervisor = Supervisor()
    with capture_logs() as logs:
        supervisor.start([sender, getter], [follows, fails])
        for seconds, stuck in ((659, []), (2, ["sender"])):
            await clock.advance(seconds)
            assert [one.name for one in supervisor.loops if not one.healthy] == stuck
        stopping = asyncio.create_task(supervisor.stop([stage, stage]))
        await clock.settle()
        assert not stopping.done()  # a sweep is under way
        sweep.go.set()
        await stopping
    assert order == ["follower, stop requested: True", *["stage, sweeps ended: 1"] * 2]
    problems = [line["error"] for line in logs if line["event"] == "loop.failed"]
    assert problems == ["RuntimeError('follower')"]


def test_who_waits_for_the_end_sleeps_through_the_way_and_the_sender_without_work() -> None:
    wakeups, over = JobWakeups(), job(id=1, state=JobState.COMPLETED, ended_at=1)
    with wakeups.of(1) as each, wakeups.of(1, end_only=True) as end, wakeups.of(2) as other:
        wakeups.changed(job(id=1))
        assert (each.is_set(), end.is_set(), other.is_set()) == (True, False, False)
        wakeups.changed(over)
        assert (end.is_set(), other.is_set()) == (True, False)
    wakeups.sender.clear()
    wakeups.changed(job(id=1))
    assert not wakeups.sender.is_set(), "neither a job nor a slot"
    wakeups.changed(job(id=2, state=JobState.QUEUED))
    assert wakeups.sender.is_set()
    wakeups.sender.clear()
    wakeups.changed(over)
    assert wakeups.sender.is_set(), "a slot is free"


HOUR = 3_600 * SECOND


class Numbers:
    """What was written, and the jobs of now."""

    def __init__(self) -> None:
        self.clock, self.measures = SimClock(), Measures()
        self.lately: dict[Micros, Tree] = {}
        self.waiting: dict[str, int] = {}
        counts = Totals()
        for number, state in enumerate([JobState.RUNNING, JobState.RUNNING, JobState.SUBMITTED]):
            counts.put(job(id=number, agent="node", state=state))
        counts.queue("s", "bob", 4)
        database = AsyncMock(read_list=self._read, memory={TOTALS: counts})
        self.add, how = database.write, {"clock": self.clock, "measures": self.measures}
        self.statistics = Statistics(core(database=database, **how))

    async def _read(self, work: object, *how: Any) -> Any:
        if work is users.waiting:
            return dict([*self.waiting.items()][: how[1]])
        since, services = how
        found = self.lately if services == ("s",) else {}
        return [(at, "s", counts) for at, counts in found.items() if at >= since]


async def test_what_was_counted_is_written_once_or_later_where_it_cannot_be() -> None:
    numbers = Numbers()
    statistics, now = numbers.statistics, numbers.clock.now()
    numbers.measures.jobs.uploaded(now, "s", 2, size=9)
    await statistics.run_once()
    counted = {"uploaded": 2, "uploaded_bytes": 9, "queued": 4, "running": 2}
    at = now - now % (600 * SECOND)
    written = {(at, ALL): {"samples": 1, **counted}, (at, "s"): counted}
    await statistics.write()
    assert [one.args[1] for one in numbers.add.await_args_list] == [written, {}]
    numbers.measures.jobs.uploaded(now, "s")
    numbers.add.side_effect = OSError
    with pytest.raises(OSError):  # noqa: PT011 - the fake's
        await statistics.write()
    numbers.add.side_effect = None
    numbers.measures.jobs.uploaded(now, "s")
    await statistics.write()
    assert {one["uploaded"] for one in numbers.add.await_args.args[1].values()} == {2}
    await numbers.clock.advance(60 - now / SECOND % 60 + 5)
    assert statistics.until_next_s() == 55, "when a minute begins"


def runs(count: int, seconds: int) -> Tree:
    return {"runs": count, "ran_us": count * seconds * SECOND}


@each(
    "lately, crowd, run_time_s",
    [
        ({0: runs(4, 10), HOUR // 2: runs(1, 60), 5 * HOUR: runs(90, 30)}, 100, 20.0),
        ({0: runs(4, 10), 5 * HOUR: runs(4, 30)}, 101, 20.0),
        ({0: runs(4, 10), 25 * HOUR: runs(9, 10)}, 1, None),
    ],
)
async def test_starts_are_estimated_by_the_hour_or_the_day_and_not_for_too_many_users(
    lately: dict[int, Tree], crowd: int, run_time_s: float | None
) -> None:
    numbers = Numbers()
    now = numbers.clock.now()
    numbers.lately = {now - ago: tree for ago, tree in lately.items()}
    numbers.waiting = {f"user-{number}": 3 for number in range(crowd)}
    for seconds in (0.0, 59.0):
        await numbers.clock.advance(seconds)
        found = await numbers.statistics.recent("s")
        assert found.run_time_s == run_time_s
        if run_time_s is not None:
            assert found.waiting == (numbers.waiting if crowd <= 100 else None)
            numbers.lately = {now: runs(5, 7)}  # it is read once a minute
    await numbers.clock.advance(2.0)
    assert (await numbers.statistics.recent("s")).run_time_s == (run_time_s and 7.0)
    assert await numbers.statistics.recent("other") == Recent()


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    world = World(tmp_path, {"s": Service("s")})
    with world.inline():
        await world.start()
        yield world
        await world.die()


async def test_of_many_reports_the_latest_is_written_once_and_until_it_is(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = await world.upload("ann", "s")
    await world.send.run_once()
    await world.settle()
    ((agent, payload),) = [(one, it) for one in world.agents for it in one.payloads.values()]
    agent.start(payload)
    for current in range(1, 50):
        payload.live = LiveDoc(progress=Progress(current=current), message=f"at {current}")
        await world.get.receive(agent, payload.doc(world.clock.now()))
        await world.settle()
    assert (await world.jobs.get(job_id)).progress is None

    async def full(*_: object) -> None:
        raise DatabaseUnavailable(Exception("full"))  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(world.database, "write", full)
        with pytest.raises(DatabaseUnavailable):
            await world.get.progress.run_once()
    assert await world.get.progress.run_once() == 1
    job = await world.jobs.get(job_id)
    assert (job.progress, job.message) == (Progress(current=49), "at 49")
    assert await world.get.progress.run_once() == 0


async def test_a_job_that_ends_just_after_it_was_read_is_cancelled_no_more_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = await world.upload("ann", "s")
    read, now = world.database.read, world.steady.now()

    async def ends_after_the_read(work: Any, *args: Any) -> Any:
        job = await read(work, *args)
        if work is store_jobs.get and number in world.cancel._tasks and not job.ended:
            failed = Move(
                *(number, job.attempt, JobState.QUEUED, JobState.FAILED, now),
                *("waited too long", Reason.QUEUE_TIMEOUT),
                changes={"ended_at": now},
            )
            assert await world.jobs.move(failed) is not None
        return job

    monkeypatch.setattr(world.database, "read", ends_after_the_read)
    cancel = asyncio.create_task(world.cancel(LOCAL, number, 60.0))
    await world.clock.settle()
    done = cancel.done()  # no time has passed
    await world.clock.advance(60.0)
    with pytest.raises(AlreadyEnded):
        await cancel
    assert done


async def test_a_task_that_begins_while_former_ones_of_its_key_stop_is_kept() -> None:
    tasks, go_on, begun = AgentTasks[int]("tasks.failed"), asyncio.Event(), asyncio.Event()

    async def forever() -> None:
        begun.set()
        await asyncio.Event().wait()

    async def lasts() -> None:
        try:
            await forever()
        finally:
            await go_on.wait()

    tasks.start("node", 1, lasts)
    ends = tasks.start("node", 2, forever)
    await begun.wait()
    stopping = asyncio.create_task(tasks.stop("node"))
    await asyncio.wait([ends])
    tasks.start("other", 2, forever)
    go_on.set()
    await stopping
    assert list(tasks) == [2], "it can be stopped, too"
    await tasks.stop()
