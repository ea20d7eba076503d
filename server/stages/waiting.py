"""Why jobs wait."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from server.agents.registry import Registry
from server.domain.batch import Batch
from server.domain.choose import Candidate, Limit, Recent, before_in_service, rounded_at, wait_s
from server.domain.jobs import Hold, Job
from server.domain.service import Service
from server.stages.results import Results
from server.stages.stage import Core, Stage
from server.stages.statistics import Statistics
from server.store import batches, changes, dependencies, queue
from shared.clock import Micros, say_time, utc
from shared.wire import JobState, QueueInfo, WaitReason

_NAMED: Final = 5
"""Jobs that a sentence names; the document has more of them."""
_COUNTED: Final = 1_000
_COUNTED_IN_LISTS: Final = 100
"""How far positions are counted in lists, where they are counted for each job."""
_FOR_A_SLOT: Final = frozenset(
    {
        WaitReason.USER_QUOTA,
        WaitReason.SERVICE_QUOTA,
        WaitReason.AGENTS_BUSY,
        WaitReason.EARLIER_JOBS,
    }
)
"""Reasons that end when jobs before it start and end."""


class Waiting(Stage):
    """Says why jobs wait.

    Args:
        statistics: what services did lately.
        results: those that do not fit on the server's disk, so that their agents get no job.
    """

    def __init__(self, core: Core, statistics: Statistics, results: Results) -> None:
        super().__init__(core)
        self._statistics, self._results = statistics, results

    async def __call__(
        self, listed: Sequence[Job], *, in_list: bool = False
    ) -> dict[int, QueueInfo]:
        """Position in the queue and reason of each of the jobs that waits; the others are left out.
        ``in_list``: positions are counted less far.
        """
        waiting = [job for job in listed if _waits(job)]
        if not waiting:
            return {}
        database, now = self.core.database, self.core.clock.now()
        held = _Held(await changes.totals_of(database), self.core.registry)
        parents = {job.id if job.deferred else job.parent_id for job in waiting} - {None}
        counted_of = await database.read(
            batches.several, [one for one in parents if one is not None]
        )
        queued = [job.id for job in waiting if job.state is JobState.QUEUED]
        counted = _COUNTED_IN_LISTS if in_list else _COUNTED
        before = await database.read_list(queue.queued_before, queued, counted)
        found = {}
        for job in waiting:
            position = 1 + before.get(job.id, 0)
            if job.state is JobState.SUBMITTED:
                why = held.at_agent(job)
            elif job.state is JobState.RUNNING:
                why = _children(counted_of.get(job.id))
            elif (service := self.core.services.get(job.service)) is None:
                reason = f"the server has no service {job.service} in its settings"
                why = _why(WaitReason.NO_SERVICE, reason)
            else:
                on = (
                    await database.read(dependencies.unmet, job.id)
                    if job.hold is Hold.DEPENDENCY and not in_list
                    else []
                )
                batch = counted_of.get(job.parent_id or 0)
                why = (
                    _on_hold(job, on, batch)
                    or _not_sent(job, service, now)
                    or self._no_room(service)
                    or held.not_sent(job, service, position)
                )
                if why["code"] in _FOR_A_SLOT and position <= counted:
                    recent = await self._statistics.recent(service.name)
                    why |= held.expected(job, service, position, recent, now)
            found[job.id] = QueueInfo(position=position, **why)
        return found

    def _no_room(self, service: Service) -> dict[str, Any] | None:
        if not self._results.hold(one.name for one in self.core.registry.candidates(service.name)):
            return None
        return _why(WaitReason.DISK_FULL, f"no job is sent now: {self._results.sentence()}")


def _waits(job: Job) -> bool:
    """Deferred parents wait for their children."""
    running = job.deferred and job.state is JobState.RUNNING
    return running or job.state in (JobState.QUEUED, JobState.SUBMITTED)


def _why(code: WaitReason, reason: str, **more: Any) -> dict[str, Any]:
    return {"code": code, "reason": reason, **more}


def _children(batch: Batch | None) -> dict[str, Any]:
    if batch is None or not batch.total:
        return _why(WaitReason.CHILDREN, "waits for its children")
    reason = f"waits for its children: {batch.ended} of {batch.total} have ended"
    return _why(WaitReason.CHILDREN, reason, used=batch.ended, limit=batch.total)


def _on_hold(job: Job, on: Sequence[int], batch: Batch | None) -> dict[str, Any] | None:
    """Why the job may not be claimed yet.

    Args:
        on: the jobs that it waits for, the first hundred; empty: not asked for.
        batch: of its parent.
    """
    if job.hold is Hold.DEPENDENCY:
        named = ", ".join(map(str, on[:_NAMED])) + (" and more" if len(on) > _NAMED else "")
        jobs = "other jobs" if not on else f"job {named}" if len(on) == 1 else f"jobs {named}"
        return _why(WaitReason.DEPENDENCY, f"waits for {jobs} to complete", waits_for=on)
    if job.hold is Hold.PARALLEL:
        most = batch.max_parallel if batch is not None else 0
        reason = (
            f"its parent, job {job.parent_id}, has {most} of {most} children under way, "
            "the most that max_parallel allows"
        )
        return _why(WaitReason.MAX_PARALLEL, reason, used=most, limit=most)
    return None


def _not_sent(job: Job, service: Service, now: Micros) -> dict[str, Any] | None:
    """Why the job may not be sent, whatever others do."""
    if job.not_before > now:
        at = say_time(job.not_before)
        reason = (
            f"to be tried again at {at}: {job.message}"
            if job.attempt
            else f"to be sent at {at}, as it was asked for"
        )
        return _why(WaitReason.NOT_BEFORE, reason, until=utc(job.not_before))
    if service.paused:
        said = f": {service.paused_message}" if service.paused_message else ""
        return _why(WaitReason.PAUSED, f"service {service.name} is paused{said}")
    return None


class _Held:
    """The slots that are held now, and what agents have no room for because of them."""

    def __init__(self, held: changes.Totals, registry: Registry) -> None:
        self._held, self._registry = held, registry
        self._no_agent: dict[str, str] = {}
        self._all_busy: dict[str, str] = {}

    def _of(self, service: str, user: str) -> tuple[int, int]:
        """Of a user in a service, and of all users."""
        users = dict(self._held.users.get(service, {}))
        return users.get(user, 0), sum(users.values())

    def _at(self, agent: str, service: str) -> int:
        return self._held.runs[agent, service]

    def at_agent(self, job: Job) -> dict[str, Any]:
        """Why the agent that has the job has not started it."""
        reason = f"agent {job.agent} has it and starts it when a slot is free"
        agent = self._registry.named(job.agent or "")
        if agent is None or agent.slots is None:
            return _why(WaitReason.AGENTS_BUSY, reason)
        used, limit = self._held.running[agent.name], agent.slots
        reason = f"{reason}: {used} of {limit} running"
        return _why(WaitReason.AGENTS_BUSY, reason, used=used, limit=limit)

    def not_sent(self, job: Job, service: Service, position: int) -> dict[str, Any]:
        """Why the job, which may be sent, is not."""
        name = service.name
        if name not in self._no_agent:
            self._no_agent[name] = self._registry.why_none(name, {})
            runs = {at: jobs for (at, of), jobs in dict(self._held.runs).items() if of == name}
            self._all_busy[name] = self._registry.why_none(name, self._held.agents, runs)
        if self._no_agent[name]:
            return _why(WaitReason.NO_AGENT, self._no_agent[name])
        mine, all_users = self._of(name, job.user_id)
        if mine >= (most := service.runs_of(job.user_id)):
            reason = (
                f"user {job.user_id} has {mine} of {most} jobs under way, "
                "the most the service allows one user"
            )
            return _why(WaitReason.USER_QUOTA, reason, used=mine, limit=most)
        if all_users >= (most := service.max_runs):
            reason = f"the service has {all_users} of {most} jobs under way, the most it may have"
            return _why(WaitReason.SERVICE_QUOTA, reason, used=all_users, limit=most)
        if self._all_busy[name]:
            return _why(WaitReason.AGENTS_BUSY, self._all_busy[name], **self._slots(name))
        if position > 1:
            return _why(WaitReason.EARLIER_JOBS, "earlier jobs of the same user come first")
        return _why(WaitReason.NEXT, "next in turn")

    def expected(
        self, job: Job, service: Service, position: int, recent: Recent, now: Micros
    ) -> dict[str, Any]:
        """About when the job starts, where that can be said. ``position``: of the job, which waits
        for a slot, among those of its user.
        """
        if recent.run_time_s is None or recent.waiting is None:
            return {}
        name, user = service.name, job.user_id
        others = [jobs for one, jobs in recent.waiting.items() if one != user]
        before = before_in_service(position, others)
        mine, all_users = self._of(name, user)
        limits = [
            Limit(service.runs_of(user), mine, position - 1),
            Limit(service.max_runs, all_users, before),
        ]
        able = self._registry.candidates(name)
        if all(one.slots is not None or one.max_runs is not None for one in able):
            # What other services have at the agents, they are taken to keep.
            slots = sum(self._slots_for(name, one) for one in able)
            limits.append(Limit(slots, sum(self._at(one.name, name) for one in able), before))
        wait = wait_s(recent.run_time_s, limits)
        return {} if wait is None else {"expected_at": utc(rounded_at(now, wait))}

    def _slots_for(self, service: str, one: Candidate) -> int:
        """Slots of the agent that the service can have, besides those that others have."""
        others = self._held.agents[one.name] - self._at(one.name, service)
        slots = [] if one.slots is None else [one.slots - others]
        return min(slots if one.max_runs is None else [*slots, one.max_runs])

    def _slots(self, service: str) -> dict[str, int]:
        """How many slots of the agents that can take it are taken, as far as they say; where an
        agent has as many jobs of the service as it may have, these.
        """
        used = limit = 0
        for one in self._registry.candidates(service):
            own = self._at(one.name, service)
            if one.max_runs is not None and own >= one.max_runs:
                used, limit = used + own, limit + one.max_runs
            elif one.slots is not None:
                used, limit = used + self._held.agents[one.name], limit + one.slots
        return {"used": used, "limit": limit} if limit else {}
