"""Deliveries over a day of simulated time: the store is the real one, receivers are a test's."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from server.domain.jobs import Bundle, Job, Move, NewJob
from server.domain.webhook_targets import WebhookTarget
from server.domain.webhooks import Delivery, Try, secret_of, secret_text
from server.stages.webhooks import NOT_SENT, Webhooks
from server.store.jobs import SqlJobs
from server.store.migrations import MIGRATIONS
from server.store.webhooks import SqlDeliveries
from shared.clock import SECOND
from shared.wire import JobState, Limits
from tests.kit.clock import START, SimClock
from tests.model.inline_database import CrashPoint, InlineDatabase

URL = "https://a.example.org/hook"
KEY = b"k" * 32


class Receivers:
    """``ports.WebhookClient``.

    Attributes:
        hold: tries do not end until it is set.
    """

    def __init__(self, clock: SimClock) -> None:
        self._clock = clock
        self.answer: Callable[[Delivery], Try] = self.arrives
        self.tried: list[tuple[float, int, str]] = []
        """Seconds from the start, number of the delivery, address."""
        self.signed: list[tuple[str, str, int]] = []
        self.hold = asyncio.Event()
        self.hold.set()
        self.open = Counter[str]()
        self.most = Counter[str]()

    def arrives(self, delivery: Delivery) -> Try:
        return Try(delivery.tries, self._clock.now(), 0.1, 204)

    def fails(self, delivery: Delivery) -> Try:
        return Try(delivery.tries, self._clock.now(), 0.1, 500, "answered 500")

    def gone(self, delivery: Delivery) -> Try:
        return Try(delivery.tries, self._clock.now(), 0.1, 410, "answered 410", is_final=True)

    async def post(self, delivery: Delivery, signature: str, webhook_id: str, at_s: int) -> Try:
        target = str(delivery.target)
        for name in (target, delivery.principal, "all"):
            self.open[name] += 1
            self.most[name] = max(self.most[name], self.open[name])
        self.tried.append(((self._clock.now() - START) / SECOND, delivery.id, delivery.url))
        self.signed.append((signature, webhook_id, at_s))
        await self.hold.wait()
        for name in (target, delivery.principal, "all"):
            self.open[name] -= 1
        return self.answer(delivery)

    async def refusal(self, target: WebhookTarget) -> str | None:
        return None


class World:
    def __init__(self, database: InlineDatabase, clock: SimClock) -> None:
        self.database = database
        self.clock, self.receivers = clock, Receivers(clock)
        self.jobs = SqlJobs(database, lambda _: None)
        self.deliveries = SqlDeliveries(database)
        self.woken = asyncio.Event()
        self.stage = self.new_stage()

    def new_stage(self, *, rehearsal: bool = False) -> Webhooks:
        return Webhooks(
            self.deliveries,
            self.receivers,
            KEY,
            self.clock,
            self.clock,
            server="5e44e4" * 5,
            on_change=self.woken.set,
            uniform=lambda low, high: (low + high) / 2,
            rehearsal=rehearsal,
        )

    async def ended(self, *urls: str | None, by: str = "ann-laptop") -> list[int]:
        """Jobs that were cancelled now."""
        ids = []
        for url in urls:
            new = NewJob(
                "ann",
                "s",
                Bundle("b", 1, "d"),
                Limits(),
                60.0,
                self.clock.now(),
                submitted_by=by,
                callback_url=url,
            )
            job, _ = await self.jobs.insert(new, "queued")
            assert await self.cancel(job) is not None
            ids.append(job.id)
        return ids

    async def cancel(self, job: Job) -> Job | None:
        at = self.clock.now()
        changes = {"ended_at": at}
        move = Move(
            job.id, 0, JobState.QUEUED, JobState.CANCELLED, at, "cancelled", changes=changes
        )
        return await self.jobs.move(move)

    async def sweep(self) -> int:
        """Sweep, and let what was begun end, as far as nothing holds it."""
        begun = await self.stage.run_once()
        await self.clock.settle()
        return begun

    async def pass_time(self, seconds: float) -> None:
        """Sweep whenever the stage wants to, as its loop does."""
        end = self.clock.monotonic() + seconds
        await self.sweep()
        while (left := end - self.clock.monotonic()) > 0:
            self.woken.clear()
            await self.stage.run_once()
            await self.clock.settle()
            if not self.woken.is_set():
                await self.clock.advance(min(left, max(0.001, self.stage.until_next_s())))

    async def shown(self) -> list[Delivery]:
        rows = await self.database.rows("SELECT DISTINCT job_id FROM deliveries ORDER BY job_id")
        return [one for row in rows for one in await self.stage.of_job(row["job_id"])]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    clock = SimClock()
    database = InlineDatabase(tmp_path / "server.sqlite", MIGRATIONS, CrashPoint(), clock)
    found = World(database, clock)
    yield found
    found.receivers.hold.set()
    await found.stage.stop()
    database.close()


async def test_a_webhook_is_added_with_the_move_and_delivered_once(world):
    (job,) = await world.ended(URL)
    (waiting,) = await world.shown()
    assert (waiting.job_id, waiting.state, waiting.event) == (job, "pending", "job.cancelled")
    await world.pass_time(86_400)
    assert world.receivers.tried == [(0.0, waiting.id, URL)]
    (done,) = await world.shown()
    assert (done.state, done.tries, done.next_at) == ("delivered", 1, None)
    ((_, webhook_id, at_s),) = world.receivers.signed
    assert webhook_id == f"msg_5e44e45e44e45e44_{waiting.id}"
    assert at_s == START // SECOND


async def test_a_move_that_was_not_made_announces_nothing(world):
    new = NewJob("ann", "s", Bundle("b", 1, "d"), Limits(), 60.0, 0, callback_url=URL)
    job, _ = await world.jobs.insert(new, "queued")
    stale = Move(job.id, 5, JobState.QUEUED, JobState.CANCELLED, 1, "cancelled")
    assert await world.jobs.move(stale) is None
    assert not await world.shown()


async def test_a_receiver_that_fails_all_day_is_tried_eleven_times(world):
    world.receivers.answer = world.receivers.fails
    await world.ended(URL)
    await world.pass_time(86_400 * 1.5)
    times = [at for at, _, _ in world.receivers.tried]
    assert len(times) == 11
    assert times[1] == pytest.approx(5, abs=1)
    assert 0.9 * 86_400 < times[-1] < 86_400
    (done,) = await world.shown()
    assert (done.state, done.message) == ("failed", "answered 500")
    ids = {webhook_id for _, webhook_id, _ in world.receivers.signed}
    assert len(ids) == 1
    assert [one.number for one in done.tried] == list(range(2, 12))


async def test_a_slow_host_keeps_neither_others_waiting_nor_more_than_its_share(world):
    world.receivers.hold.clear()
    slow = [f"https://slow.example.org/{number}" for number in range(40)]
    await world.ended(*slow)
    await world.ended("https://b.example.org/", by="bob")
    await world.sweep()
    tried = Counter(url.split("/")[2] for _, _, url in world.receivers.tried)
    assert tried == {"slow.example.org": 4, "b.example.org": 1}
    assert world.stage.until_next_s() > 0  # no busy loop while there is no room
    world.receivers.hold.set()
    await world.pass_time(1)
    assert len(world.receivers.tried) == 41
    assert world.receivers.most["slow.example.org:443"] == 4


async def test_a_principal_with_many_hosts_has_its_share_too(world):
    world.receivers.hold.clear()
    await world.ended(*(f"https://h{number}.example.org/" for number in range(40)))
    for number in range(10):
        by = f"portal-{number}"
        await world.ended(*(f"https://{by}-{n}.example.org/" for n in range(5)), by=by)
    await world.sweep()
    assert world.receivers.most["ann-laptop"] == 8
    assert world.receivers.most["all"] == 32
    world.receivers.hold.set()
    await world.pass_time(1)
    assert len(world.receivers.tried) == 90


async def test_what_a_server_that_died_was_sending_is_sent_again(world):
    world.receivers.hold.clear()
    await world.ended(URL)
    await world.sweep()
    await world.stage.stop()
    world.receivers.hold.set()
    world.stage = world.new_stage()
    assert await world.sweep() == 0  # it may still be under way
    await world.pass_time(61)
    assert len(world.receivers.tried) == 2
    (done,) = await world.shown()
    assert (done.state, done.tries) == ("delivered", 2)
    assert len({webhook_id for _, webhook_id, _ in world.receivers.signed}) == 1


async def test_two_servers_do_not_send_the_same_twice(world):
    await world.ended(*(f"https://h{number}.example.org/" for number in range(5)))
    now = world.clock.now()
    seen = [await world.deliveries.due(now, 10, targets=(), principals=()) for _ in range(2)]
    begun = [await world.deliveries.begin(one, now + 60 * SECOND) for one in seen]
    assert [len(one) for one in begun] == [5, 0]


async def test_a_secret_that_was_replaced_signs_for_a_day(world):
    old, new = (secret_text(secret_of(KEY, "ann-laptop", number)) for number in (0, 1))
    assert await world.stage.secrets("ann-laptop") == [old]
    assert await world.stage.secrets("ann-laptop", replace=True) == [new, old]
    await world.ended(URL)
    await world.pass_time(1)
    assert len(world.receivers.signed[0][0].split()) == 2
    await world.clock.advance(86_400)
    assert await world.stage.secrets("ann-laptop") == [new]
    assert await world.stage.secrets("bob") == [secret_text(secret_of(KEY, "bob", 0))]


async def test_a_rehearsal_sends_nothing_and_says_so(world: World) -> None:
    world.stage = world.new_stage(rehearsal=True)
    await world.ended(URL, None)
    await world.pass_time(3_600)
    assert world.receivers.tried == []
    (found,) = await world.shown()
    assert (found.state, found.message) == ("failed", NOT_SENT)
