"""Queued → Processing: pick whom to serve next, claim the job for an agent with a free slot.

A sweep claims and leaves; what it claimed is sent by ``deliver.Deliver``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from server.domain import fairshare, outcome
from server.domain.fairshare import Waiting
from server.domain.jobs import Move
from server.domain.service import Service
from server.ports import Agent, Fleet, Held, Jobs
from server.stages.deliver import Deliver
from server.stages.get import Get
from shared.clock import SECOND, Clock
from shared.units.durations import say_duration
from shared.wire import JobState, Reason

_STUCK_EVERY_S: Final = 2.0
_OVERDUE_AT_ONCE: Final = 100
_REMOVED_EVERY_S: Final = 10.0


class Send:
    """The Sender.

    Args:
        removed_after_s: how long jobs of a service that is not in the settings wait for it.
    """

    def __init__(
        self,
        jobs: Jobs,
        fleet: Fleet,
        services: Mapping[str, Service],
        clock: Clock,
        deliver: Deliver,
        get: Get,
        *,
        removed_after_s: float,
    ) -> None:
        self._jobs, self._fleet, self._services, self._clock = jobs, fleet, services, clock
        self._deliver, self._get = deliver, get
        self._removed_after_s = removed_after_s
        self._served: dict[str, str] = {}
        """service -> the user served last; the next in the ring is due."""
        self._stuck_due = clock.monotonic()
        self._removed_due = clock.monotonic() + removed_after_s

    async def run_once(self) -> int:
        """Claim what quotas and slots allow and start its delivery; take up deliveries that died.

        Returns:
            How many jobs were moved.
        """
        if self._clock.monotonic() >= self._stuck_due:
            await self._deliver.resume_interrupted()
            self._stuck_due = self._clock.monotonic() + _STUCK_EVERY_S
        if not await self._jobs.anything_queued():
            return 0
        await self._jobs.release_delayed(self._clock.now())
        given_up = 0
        if self._clock.monotonic() >= self._removed_due:
            given_up += await self._give_up_removed()
        held = await self._jobs.held()
        load = self._load(held)
        claims = []
        for service in self._services.values():
            given_up += await self._give_up_waiting(service)
            free = self._fleet.free_slots(service.name, load)
            if not free:
                continue
            mine = Counter[str]()
            for one in held:
                if one.service == service.name:
                    mine[one.user_id] += one.slots
            for waiting in await self._due(service, mine, free):
                agent = self._fleet.choose(service.name, load)
                if agent is None:
                    break  # an agent that is tried out again takes one job only
                load[agent.name] += 1
                self._fleet.claimed(agent.name, service.name)
                self._served[service.name] = waiting.user_id
                claims.append(self._claim(waiting, agent))
        claimed = await self._jobs.claim(claims) if claims else []
        for job in claimed:
            self._deliver.start(job)
        return given_up + len(claimed)

    def _load(self, held: list[Held]) -> Counter[str]:
        """agent -> jobs that need a slot of it"""
        load = Counter[str]()
        for one in held:
            load[one.agent] += one.slots
        for agent in load:
            load[agent] -= self._get.results.ended_at(agent)
        return load

    async def _give_up_removed(self) -> int:
        """Jobs of services that have not been in the settings since the server started."""
        self._removed_due = self._clock.monotonic() + _REMOVED_EVERY_S
        given_up = 0
        for name in await self._jobs.queued_services():
            if name in self._services:
                continue
            waited = say_duration(self._removed_after_s)
            message = f"the server has had no service {name} in its settings for {waited}"
            for job in await self._jobs.longest_queued(name, _OVERDUE_AT_ONCE):
                now = self._clock.now()
                move = outcome.failed(job, Service(name), now, Reason.NOT_OFFERED, message)
                given_up += await self._jobs.move(move) is not None
        return given_up

    def _claim(self, waiting: Waiting, agent: Agent) -> Move:
        return Move(
            waiting.job_id,
            waiting.attempt,
            JobState.QUEUED,
            JobState.PROCESSING,
            self._clock.now(),
            f"being sent to agent {agent.name}",
            changes={"agent": agent.name},
        )

    async def _due(self, service: Service, held: Mapping[str, int], slots: int) -> list[Waiting]:
        """Whose turn it is: goes round the users once, from the one behind whom was served last."""
        free = min(slots, fairshare.room(service, held))
        if not free:
            return []
        start = after = self._served.get(service.name, "")
        wrapped = not start
        queue: list[Waiting] = []
        while True:
            found, last = await self._jobs.waiting(
                service, after, free + len(held), min(free, service.runs_per_user)
            )
            if wrapped and start:
                found = [waiting for waiting in found if waiting.user_id <= start]
            queue += found
            chosen = fairshare.pick(queue, held, service, free)
            users = {one.user_id for one in chosen}  # nobody gets two while another waits for one
            if len(users) == free or (wrapped and (last is None or last >= start > "")):
                break
            wrapped, after = (True, "") if last is None else (wrapped, last)
        return chosen

    async def _give_up_waiting(self, service: Service) -> int:
        if not service.queue_timeout_s:
            return 0
        now = self._clock.now()
        given_up = 0
        for job in await self._jobs.longest_queued(service.name, _OVERDUE_AT_ONCE):
            if now - job.queued_at < service.queue_timeout_s * SECOND:
                break
            message = (
                f"waited {say_duration(service.queue_timeout_s)} in the queue without a start, "
                "which is the most the service allows"
            )
            move = outcome.failed(job, service, now, Reason.QUEUE_TIMEOUT, message)
            given_up += await self._jobs.move(move) is not None
        return given_up
