"""Sends the load: open loop at a rate, or closed loop with so many jobs at a time."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from ferryman.bench.bundles import Bundles
from ferryman.bench.plan import Order, Plan
from ferryman.bench.records import Record
from ferryman.client import Client
from ferryman.clock import Clock
from ferryman.errors import FerrymanError, Refused, TryLater, Unreachable

GIVE_UP_S: Final = 30.0
"""The load ends when the server could not be reached for so long."""
HOPELESS: Final = 3
"""Uploads that are refused for good, before any was accepted, after which the load ends."""
MOST_IN_FLIGHT: Final = 2_000
"""Uploads under way at once; what is due beyond is not sent, and counted."""
NOT_SENT: Final = "not_sent"
_AGAIN_S: Final = 1.0


class Load:
    """The load while it is put on a server.

    Args:
        client: for uploads; it must not try again by itself.
        watcher: for all else; it may.
        tag: of each job.
    """

    def __init__(self, client: Client, watcher: Client, plan: Plan, tag: str, clock: Clock) -> None:
        self._client, self._watcher, self._plan, self._tag = client, watcher, plan, tag
        self._clock = clock
        self._bundles = Bundles(plan.seed)
        self._start = clock.monotonic()
        self._numbers = 0
        self._away_since: float | None = None
        self.records: list[Record] = []
        self.in_flight = 0
        self.server_away = False
        self._refused_for_good: FerrymanError | None = None
        self._task: asyncio.Task[None] | None = None
        self._under_way: set[asyncio.Task[tuple[Record, float | None]]] = set()

    def now(self) -> float:
        """Seconds since the start."""
        return self._clock.monotonic() - self._start

    async def run(self) -> None:
        """Send it all; return when the last upload was answered. Cancelled, it sends no more, and
        waits for the uploads that are under way: the server may make jobs of them, which are to be
        deleted, too.

        Raises:
            Refused: the server takes none of the jobs.
        """
        self._start = self._clock.monotonic()
        work = self._open() if self._plan.rate is not None else self._closed()
        self._task = asyncio.create_task(work)
        try:
            await self._task
        except asyncio.CancelledError:
            if not self._stopped:
                self._task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await self._task
                await asyncio.gather(*self._under_way)
                raise
        finally:
            for upload in self._under_way:
                upload.cancel()
            await asyncio.gather(*self._under_way, return_exceptions=True)
        if self._refused_for_good is not None:
            raise self._refused_for_good

    @property
    def _stopped(self) -> bool:
        return self.server_away or self._refused_for_good is not None

    async def _open(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number, at in enumerate(self._plan.arrivals()):
                await self._clock.sleep(max(0.0, at - self.now()))
                order = self._plan.order(number)
                if self.in_flight >= MOST_IN_FLIGHT:
                    self.records.append(Record(order, at, self.now(), error=NOT_SENT))
                else:
                    group.create_task(self._send(order, at))

    async def _closed(self) -> None:
        assert self._plan.concurrency is not None
        async with asyncio.TaskGroup() as group:
            for number in range(self._plan.concurrency):
                group.create_task(self._one_after_the_other(number))

    async def _one_after_the_other(self, worker: int) -> None:
        assert self._plan.concurrency is not None
        await self._clock.sleep(self._plan.ramp_s * worker / self._plan.concurrency)
        while self._has_time() and (self._plan.jobs is None or self._numbers < self._plan.jobs):
            order = self._plan.order(self._numbers)
            self._numbers += 1
            record, pause = await self._send(order, self.now())
            while record.job_id is None and self._has_time() and pause is not None:
                await self._clock.sleep(pause)
                record, pause = await self._send(order, self.now())
            if record.job_id is not None:
                with contextlib.suppress(FerrymanError):  # asked again at the end
                    record.learn(await self._watcher.wait(record.job_id))

    def _has_time(self) -> bool:
        return self._plan.duration_s is None or self.now() < self._plan.duration_s

    async def _send(self, order: Order, intended_s: float) -> tuple[Record, float | None]:
        """Upload it once; with the seconds after which it may be tried again, None: never. Goes on
        when it is cancelled.
        """
        upload = asyncio.create_task(self._upload(order, intended_s))
        self._under_way.add(upload)
        upload.add_done_callback(self._under_way.discard)
        return await asyncio.shield(upload)

    async def _upload(self, order: Order, intended_s: float) -> tuple[Record, float | None]:
        record = Record(order, intended_s, self.now())
        self.records.append(record)
        self.in_flight += 1
        try:
            accepted = await self._client.submit(
                self._bundles.files(order, self._tag),
                service=order.service,
                user=order.user,
                tags=self._tag,
            )
        except FerrymanError as problem:
            record.answered_s = self.now()
            record.fail(problem)
            return record, self._pause_after(problem)
        finally:
            self.in_flight -= 1
        self._away_since = None
        record.answered_s, record.job_id = self.now(), accepted.id
        return record, None

    def _pause_after(self, problem: FerrymanError) -> float | None:
        if isinstance(problem, TryLater):
            self._away_since = None
            return _AGAIN_S if problem.retry_after is None else problem.retry_after
        if isinstance(problem, Unreachable):
            now = self.now()
            self._away_since = now if self._away_since is None else self._away_since
            if now - self._away_since >= GIVE_UP_S:
                self.server_away = True
                self._end()
            return _AGAIN_S
        self._away_since = None
        if isinstance(problem, Refused) and self._is_hopeless():
            self._refused_for_good = problem
            self._end()
        return None

    def _is_hopeless(self) -> bool:
        wrong = sum(bool(one.error) for one in self.records[: HOPELESS + 1])
        least = HOPELESS if self._plan.jobs is None else min(HOPELESS, self._plan.jobs)
        return wrong >= least and not any(one.job_id for one in self.records)

    def _end(self) -> None:
        if self._task is not None:
            self._task.cancel()
