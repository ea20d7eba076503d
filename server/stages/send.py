"""Queued → Processing: pick whom to serve next, claim the job for an agent with a free slot.

A sweep claims and leaves; what it claimed is sent by ``deliver.Deliver``.
"""

from __future__ import annotations

import math
from typing import Final

from server.domain import ending
from server.domain.service import Service
from server.stages.deliver import Deliver
from server.stages.get import Get
from server.stages.stage import Core, Stage
from server.store import claims, queue
from shared.clock import SECOND
from shared.units.durations import say_duration
from shared.wire import Reason

_RESUME_EVERY_S: Final = 2.0
_MAX_GIVEN_UP: Final = 100
_MAX_CLAIMED: Final = 100
_MISSING_EVERY_S: Final = 10.0


class Send(Stage):
    """The Sender. The store is asked once in an interval what is queued; in between hints say
    it.
    """

    def __init__(self, core: Core, deliver: Deliver, get: Get) -> None:
        super().__init__(core)
        self._deliver, self._get = deliver, get
        self._look_due = self._resume_due = self._clock.monotonic()
        self._missing: dict[str, float] = {}
        """Services that are not there, but have queued jobs -> since when (monotonic)."""
        self._missing_due = self._clock.monotonic()

    async def run_once(self) -> int:
        """Claim what quotas and slots allow and deliver it; resume interrupted deliveries.

        Returns:
            How many jobs were moved.
        """
        if self._clock.monotonic() >= self._resume_due:
            await self._deliver.resume_interrupted()
            self._resume_due = self._clock.monotonic() + _RESUME_EVERY_S
        now = self._clock.monotonic()
        hints = self._wakeups.hints
        due = hints.take_due(self._clock.now())
        if now < self._look_due and not hints.unsure:
            if due:
                await self._database.write(queue.release_delayed, self._clock.now())
            return sum([await self._claim(name, hurried=True) for name in hints.queued()])
        self._look_due = now + self._settings.server.sender_interval
        hints.unsure = False
        moved = await self._look(now)
        await hints.look(self._database)
        return moved

    def until_next_s(self) -> float:
        """Seconds until a delayed job comes due, as far as is known."""
        due = self._wakeups.hints.next_due()
        return math.inf if due is None else max(0.01, (due - self._clock.now()) / SECOND)

    async def _look(self, now: float) -> int:
        queued = await self._database.read(queue.queued_services)
        missing = [name for name in queued if name not in self._services]
        self._missing = {name: self._missing.get(name, now) for name in missing}
        if not queued:
            return 0
        if await self._database.read(queue.has_due, self._clock.now()):
            await self._database.write(queue.release_delayed, self._clock.now())
        moved = 0
        if now >= self._missing_due:
            moved += await self._give_up_missing()
        for service in self._services.values():
            if service.name in queued:
                moved += await self._give_up_overdue(service)
                moved += await self._claim(service.name)
        return moved

    async def _claim(self, name: str, *, hurried: bool = False) -> int:
        """Args:
        hurried: not if hints say that no agent has a free slot.
        """
        claimed = 0
        hold = self._get.results.waiting.hold
        while candidates := [one for one in self._fleet.candidates(name) if not hold([one.name])]:
            service = self._services.get(name)  # its settings may have changed meanwhile
            if service is None or service.paused:
                break
            ended = self._get.results.ended()
            if hurried and not self._wakeups.hints.has_room(candidates, ended):
                break
            now = self._clock.now()
            found = await self._database.write(
                claims.claim_fairly,
                service,
                candidates,
                _MAX_CLAIMED,
                now,
                ended,
                self._services,
            )
            for job in found:
                self._fleet.claimed(job.agent or "", name)
                self._deliver.start(job)
            claimed += len(found)
            if len(found) < _MAX_CLAIMED:
                break
        return claimed

    async def _give_up_missing(self) -> int:
        """Jobs of services that the server has not had for long."""
        self._missing_due = self._clock.monotonic() + _MISSING_EVERY_S
        given_up = 0
        for name, since in self._missing.items():
            if self._clock.monotonic() - since < self._settings.server.agent_lost_after:
                continue
            waited = say_duration(self._settings.server.agent_lost_after)
            message = f"the server has had no service {name} in its settings for {waited}"
            now = self._clock.now()
            given_up += await self._move_all(
                ending.failed(job, Service(name), now, Reason.NOT_OFFERED, message)
                for job in await self._database.read(queue.longest_queued, name, _MAX_GIVEN_UP)
            )
        return given_up

    async def _give_up_overdue(self, service: Service) -> int:
        if service.paused:
            return 0
        now = self._clock.now()
        most_s = service.queue_timeout_s
        before = now - round(most_s * SECOND) if most_s else None
        moves = []
        for job in await self._database.read(
            queue.overdue, service.name, before, now, _MAX_GIVEN_UP
        ):
            waits_s = ending.queue_timeout_s(job, service)
            allowed = "the service allows" if waits_s == most_s else "its upload allows"
            message = (
                f"waited {say_duration(waits_s)} in the queue without a start, "
                f"which is the most {allowed}"
            )
            moves.append(ending.failed(job, service, now, Reason.QUEUE_TIMEOUT, message))
        return await self._move_all(moves)
