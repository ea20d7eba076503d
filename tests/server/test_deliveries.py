"""Deliveries over a day of simulated time: the store is the real one, receivers are a test's."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from server.domain.jobs import Bundle, Move, NewJob
from server.domain.webhooks import Delivery, Try, WebhookTarget, secret_of, secret_text
from server.stages.wakeups import JobWakeups
from server.stages.webhooks import NOT_SENT, Webhooks
from server.store.identity import Identity
from server.store.migrations import MIGRATIONS
from server.webhooks.client import HttpWebhookClient
from shared.clock import SECOND
from shared.ids import Start
from shared.wire import JobState, Limits
from tests.kit.clock import START, SimClock
from tests.kit.store import Jobs, core
from tests.model.inline_database import CrashPoint, InlineDatabase

URL = "https://a.example.org/hook"
KEY = b"k" * 32


class Receivers(HttpWebhookClient):
    """The client of webhooks.

    Attributes:
        hold: tries do not end until it is set.
    """

    def __init__(self, clock: SimClock) -> None:
        self._clock = clock
        self.tried: list[tuple[float, int, str]] = []
        """Seconds from the start, number of the delivery, address."""
        self.signed: list[tuple[str, str, int]] = []
        self.hold = asyncio.Event()
        self.hold.set()
        self.open = Counter[str]()
        self.most = Counter[str]()

    async def post(self, delivery: Delivery, signature: str, webhook_id: str, at_s: int) -> Try:
        names = str(delivery.target), delivery.principal, "all"
        for name in names:
            self.open[name] += 1
            self.most[name] = max(self.most[name], self.open[name])
        self.tried.append(((self._clock.now() - START) / SECOND, delivery.id, delivery.url))
        self.signed.append((signature, webhook_id, at_s))
        await self.hold.wait()
        for name in names:
            self.open[name] -= 1
        return Try(delivery.tries, self._clock.now(), 0.1, 204, None)

    async def refusal(self, target: WebhookTarget) -> str | None:
        return None


class World:
    def __init__(self, database: InlineDatabase, clock: SimClock) -> None:
        self.database = database
        self.clock, self.receivers = clock, Receivers(clock)
        self.jobs = Jobs(database, lambda _: None)
        self.wakeups = JobWakeups()
        self.stage = self.new_stage()

    def new_stage(self, *, rehearsal: bool = False) -> Webhooks:
        how = {"database": self.database, "clock": self.clock, "wakeups": self.wakeups}
        parts = core(uniform=lambda low, high: (low + high) / 2, **how)
        identity = Identity("5e44e4" * 5, (), Start(1, "a"), rehearsal, b"", b"", KEY)
        return Webhooks(parts, self.receivers, identity, self.clock)

    async def ended(self, *urls: str | None, by: str = "ann-laptop") -> None:
        """Jobs that were cancelled now."""
        for url in urls:
            at = self.clock.now()
            how: dict[str, Any] = {"submitted_by": by, "callback_url": url}
            new = NewJob("ann", "s", Bundle("b", 1, "d"), Limits(), 60.0, at, **how)
            job, _ = await self.jobs.insert(new, "queued")
            # A move that is not made announces nothing.
            for attempt, made in ((5, False), (0, True)):
                to = JobState.QUEUED, JobState.CANCELLED, at, "cancelled"
                move = Move(job.id, attempt, *to, changes={"ended_at": at})
                assert (await self.jobs.move(move) is not None) is made
                assert len(await self.stage.of_job(job.id)) == (made and url is not None)

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
            self.wakeups.webhooks.clear()
            await self.stage.run_once()
            await self.clock.settle()
            if not self.wakeups.webhooks.is_set():
                await self.clock.advance(min(left, max(0.001, self.stage.until_next_s())))

    async def shown(self) -> list[Delivery]:
        rows = await self.database.rows("SELECT DISTINCT job_id FROM deliveries ORDER BY job_id")
        return [one for row in rows for one in await self.stage.of_job(row["job_id"])]


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    clock = SimClock()
    database = InlineDatabase(tmp_path / "server.sqlite", MIGRATIONS, CrashPoint())
    found = World(database, clock)
    yield found
    found.receivers.hold.set()
    await found.stage.stop()
    database.end()


async def test_a_webhook_is_added_with_the_move_and_delivered_once_but_for_a_rehearsal(world):
    world.stage = world.new_stage(rehearsal=True)
    await world.ended(URL, None)
    await world.pass_time(3_600)
    assert world.receivers.tried == []
    (left,) = await world.shown()
    assert (left.state, left.message) == ("failed", NOT_SENT)

    world.stage = world.new_stage()
    start = world.clock.now()
    await world.ended(URL)
    _, waiting = await world.shown()
    assert (waiting.job_id, waiting.state, waiting.event) == (3, "pending", "job.cancelled")
    await world.pass_time(86_400)
    assert world.receivers.tried == [((start - START) / SECOND, waiting.id, URL)]
    _, done = await world.shown()
    assert (done.state, done.tries, done.next_at) == ("delivered", 1, None)
    ((_, webhook_id, at_s),) = world.receivers.signed
    assert webhook_id == f"msg_5e44e45e44e45e44_{waiting.id}"
    assert at_s == start // SECOND


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
    # So does somebody with many hosts.
    world.receivers.tried.clear()
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
