"""What agents have reported is followed, and the next jobs are claimed, in one transaction.

Then what has ended is acknowledged by ``get.Get``, and what was claimed is sent by
``deliver.Deliver``. Under load one commit serves many jobs; alone a job waits for nobody.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from functools import partial
from typing import Final

from server.domain import ending, outcome
from server.domain.jobs import Job, Move
from server.domain.service import Service
from server.stages.deliver import Deliver
from server.stages.get import Followed, Get
from server.stages.stage import Core, Stage
from server.store import changes, queue
from server.store.queue import Claimed, Offer
from shared.clock import SECOND, Micros
from shared.units.durations import say_duration
from shared.wire import JobState, Reason

_RESUME_EVERY_S: Final = 2.0
_MAX_GIVEN_UP: Final = 100
_MAX_CLAIMED: Final = 100
_MAX_FOLLOWED: Final = 200


class Round(Stage):
    """The Sender, and what of the Getter is done for many jobs at once. Once in an interval those
    jobs are given up that have waited for too long.
    """

    def __init__(self, core: Core, deliver: Deliver, get: Get) -> None:
        super().__init__(core)
        self._deliver, self._get = deliver, get
        self._look_due = self._resume_due = self.core.clock.monotonic()
        self._calls_seen = -1
        """Of the wake-ups, when jobs were claimed last; -1: they are to be claimed in any case."""
        self._next_due: Micros | None = None
        """When the first of the delayed jobs may be sent."""
        self._missing: dict[str, float] = {}
        """Services that are not there, but have queued jobs -> since when (monotonic)."""

    async def run_once(self) -> int:
        """Follow what is reported, claim what quotas and slots allow; resume interrupted
        deliveries.

        Returns:
            How many reports were followed, and jobs moved.
        """
        now = self.core.clock.monotonic()
        if now >= self._resume_due:
            await self._deliver.resume_interrupted()
            self._resume_due = now + _RESUME_EVERY_S
        moved = 0
        if now >= self._look_due or self.core.wakeups.settings_changed:
            self._look_due = now + self.core.settings.server.sender_interval
            self.core.wakeups.settings_changed = False
            moved = await self._look(now)
        return moved + await self.follow()

    async def follow(self) -> int:
        """Follow what is reported, and claim where there may be a slot for a job."""
        if self._next_due is not None and self._next_due <= self.core.clock.now():
            self._next_due, self._calls_seen = None, -1
        queued = set((await changes.totals_of(self.core.database)).services)
        reports = self._get.inbox.take(_MAX_FOLLOWED)  # from here on nothing fails but for them
        slot_is_free = any(one.payload.status in outcome.ENDED for one in reports)
        calls = self.core.wakeups.calls
        claims_some = bool(queued) and (calls != self._calls_seen or slot_is_free)
        offers = self._offers(queued) if claims_some else []
        self._calls_seen = calls
        claiming: asyncio.Future[Claimed] | None = None
        following = [self._get.follow(one) for one in reports]
        if claims_some:  # behind the ends, whose slots are free by then
            claiming = self.core.database.write(
                queue.claim,
                offers,
                _MAX_CLAIMED,
                self.core.clock.now(),
                self._get.inbox.ended(),
                self.core.services,
            )
        answers = await asyncio.gather(*following, return_exceptions=True)
        for one, answer in zip(reports, answers, strict=True):
            self._get.followed(one, answer)
            if claims_some:
                self._calls_seen += _ends(answer)  # the claim has seen the slots of these
        claimed = 0 if claiming is None else self._claimed(await claiming)
        if not self._get.inbox.until_next_s():
            self.core.wakeups.sender.set()  # more than were taken
        return len(reports) + claimed

    def until_next_s(self) -> float:
        """Seconds until a report or a delayed job is due, as far as is known."""
        until_s = self._get.inbox.until_next_s()
        if self._next_due is not None:
            until_s = min(until_s, (self._next_due - self.core.clock.now()) / SECOND)
        return max(0.01, until_s)

    def _offers(self, queued: Collection[str]) -> list[Offer]:
        """The services with the agents that take jobs of them now."""
        hold = self._get.results.hold
        offers = []
        for name in queued:
            service = self.core.services.get(name)
            if service is not None:
                able = [one for one in self.core.registry.candidates(name) if not hold([one.name])]
                if able:
                    offers.append(Offer(service, able))
        return offers

    def _claimed(self, claimed: Claimed) -> int:
        self._next_due = claimed.next_due
        for job in claimed.jobs:
            self.core.registry.claimed(job.agent or "", job.service)
            self._deliver.start(job)
        if len(claimed.jobs) >= _MAX_CLAIMED:
            self.core.wakeups.send()
        return len(claimed.jobs)

    # -- what has waited for too long

    async def _look(self, now: float) -> int:
        queued = set((await changes.totals_of(self.core.database)).services)
        missing = [name for name in queued if name not in self.core.services]
        self._missing = {name: self._missing.get(name, now) for name in missing}
        if not queued:
            return 0
        self._calls_seen = -1
        moved = await self._give_up_missing()
        for name in queued:
            if (service := self.core.services.get(name)) is not None:
                moved += await self._give_up_overdue(service)
        return moved

    async def _give_up_missing(self) -> int:
        """Jobs of services that the server has not had for long."""
        given_up = 0
        for name, since in self._missing.items():
            if self.core.clock.monotonic() - since < self.core.settings.server.agent_lost_after:
                continue
            waited = say_duration(self.core.settings.server.agent_lost_after)
            message = f"the server has had no service {name} in its settings for {waited}"
            find = partial(queue.of_service, service=name, limit=_MAX_GIVEN_UP)
            rule = partial(self._fail, message=message, reason=Reason.NOT_OFFERED)
            given_up += await self._move_some(find, rule)
        return given_up

    async def _give_up_overdue(self, service: Service) -> int:
        if service.paused:
            return 0
        now = self.core.clock.now()
        most_s = service.queue_timeout_s
        before = now - round(most_s * SECOND) if most_s else None

        def overdue(job: Job) -> Move:
            waits_s = ending.queue_timeout_s(job, service)
            allowed = "the service allows" if waits_s == most_s else "its upload allows"
            message = (
                f"waited {say_duration(waits_s)} in the queue without a start, "
                f"which is the most {allowed}"
            )
            return self._fail(job, message, Reason.QUEUE_TIMEOUT)

        find = partial(
            queue.overdue, service=service.name, waiting_since=before, now=now, limit=_MAX_GIVEN_UP
        )
        return await self._move_some(find, overdue)

    def _fail(self, job: Job, message: str, reason: Reason) -> Move:
        return self._decide(ending.end, job, JobState.FAILED, message, reason)


def _ends(answer: Followed | BaseException) -> bool:
    """Whether a job has ended by it."""
    if isinstance(answer, BaseException) or answer.then != "acknowledge":
        return False
    return answer.expected and answer.job is not None and answer.job.ended
