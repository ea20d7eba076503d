"""Agents without events, and agents that cannot be reached.

A job-orchestrator client has no event stream: its payloads are asked for one by one, and its
answers are taken up like events. Its wall times are watched here. The jobs of an agent that cannot
be reached become Unknown, and after a longer time count as lost.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Set
from contextlib import suppress
from typing import Final

from server.agents.orchestrator import OrchestratorClient
from server.domain import outcome, states
from server.domain.agents import AgentError, NoSuchPayload
from server.domain.errors import NoSuchJob
from server.domain.jobs import Job, Move
from server.stages.get import Get
from server.stages.stage import MOVED_AT_ONCE, AgentTasks, Core, Stage
from server.store import changes, jobs
from shared.clock import SECOND
from shared.ids import AttemptKey
from shared.sql import Tx
from shared.units.durations import say_duration
from shared.wire import JobState, PayloadState, Reason

TIMEOUT_GRACE_S: Final = 30.0  # beyond the wall time, before an attempt is stopped from here


class Poll(Stage):
    """The part of the Getter that polls."""

    def __init__(self, core: Core, get: Get) -> None:
        super().__init__(core)
        self._get = get
        self._asking = AgentTasks[AttemptKey]("poll.failed")
        self.stop = self._asking.stop
        self._failing_since: dict[AttemptKey, float] = {}
        """Attempt -> monotonic time since when its agent has no good answer for it."""

    async def run_once(self) -> int:
        """Ask each polled agent for its jobs; move the jobs of unreachable agents. Returns how many
        were moved.
        """
        moved, polled = 0, set[AttemptKey]()
        for name in set((await changes.totals_of(self.core.database)).agents):
            agent = self.core.registry.named(name)
            unreachable_s = self.core.registry.unreachable_s(name)
            if unreachable_s is not None:
                moved += await self._move_unreachable(name, unreachable_s)
            elif isinstance(agent, OrchestratorClient):
                for job in await self.core.database.read(jobs.in_states, states.AT_AGENT, name):
                    polled.add(job.key)
                    if (name, job.payload_id or 0) not in self._get.inbox:
                        work = functools.partial(self._ask, agent, job)
                        self._asking.start(name, job.key, work)
        for key in self._failing_since.keys() - polled - set(self._asking):
            del self._failing_since[key]
        return moved

    async def _move_unreachable(self, name: str, unreachable_s: float) -> int:
        """Only jobs that are to be moved are looked for: this happens at every sweep."""
        gone, for_s = self.core.registry.named(name) is None, f" for {say_duration(unreachable_s)}"
        lost, judged = self._judge(unreachable_s, gone=gone)
        what = "has not been in the server's settings" if gone else "has not been reached"
        what = "is not in the server's settings" if gone and not lost else what + for_s
        rule, moved = self._unreached(f"agent {name} {what}", lost=lost), 0

        def find(tx: Tx) -> list[Job]:
            agent = self.core.registry.named(name)
            if agent is not None and agent.reachable:
                return []  # it is back
            return jobs.in_states(tx, judged, name, MOVED_AT_ONCE)

        while judged and (some := await self._move_some(find, rule)):
            moved += some
        return moved

    def _unreached(self, what: str, *, lost: bool) -> Callable[[Job], Move]:
        return lambda job: self._decide(outcome.unreached, job, what, lost=lost)

    def _judge(self, unreachable_s: float, *, gone: bool = False) -> tuple[bool, Set[JobState]]:
        """Whether attempts at an agent are lost that could not be reached for so long, and in which
        states their jobs are moved.
        """
        if unreachable_s > self.core.settings.server.agent_lost_after:
            return True, states.AT_AGENT
        away = gone or unreachable_s > self.core.settings.server.agent_timeout
        return False, states.AT_AGENT - {JobState.UNKNOWN} if away else frozenset()

    async def _ask(self, agent: OrchestratorClient, job: Job) -> None:
        assert job.payload_id is not None, "set by the move to Submitted"
        try:
            payload, result = await agent.poll(job.payload_id)
            runs = payload is not None and payload.status not in outcome.ENDED
            if payload is not None and runs and await self._is_overdue(job):
                # A job-orchestrator client has no wall time of its own.
                await agent.kill(payload.id)
                message = f"stopped after {say_duration(job.timeout_s)}, the wall time limit"
                how = {"status": PayloadState.FAILED, "reason": Reason.TIMEOUT, "message": message}
                payload, result = await agent.left(payload.model_copy(update=how))
        except NoSuchPayload:
            await self._get.lost(job.key, f"agent {agent.name} does not know the job any more")
        except AgentError as problem:
            # An error for ever must not hold the slot for ever: it counts as unreachable.
            now = self.core.clock.monotonic()
            unreachable_s = now - self._failing_since.setdefault(job.key, now)
            lost, judged = self._judge(unreachable_s)
            what = f"agent {agent.name} has had no good answer ({problem})"
            what = f"{what} for {say_duration(unreachable_s)}"
            unreached = self._unreached(what, lost=lost)

            def rule(now: Job) -> Move | None:
                return unreached(now) if now.key == job.key and now.state in judged else None

            if judged:
                with suppress(NoSuchJob):
                    await self.core.database.write(jobs.change, job.id, rule)
        else:
            self._failing_since.pop(job.key, None)
            if payload is not None and job.bundle is not None:
                of = {"key": str(job.key), "bundle_digest": job.bundle.digest}
                self._get.inbox.put(agent, payload.model_copy(update=of), result)

    async def _is_overdue(self, job: Job) -> bool:
        if not job.timeout_s:
            return False
        started_at = (await self.core.database.read(jobs.attempt, job.key)).started_at
        limit = (job.timeout_s + TIMEOUT_GRACE_S) * SECOND
        return started_at is not None and self.core.clock.now() - started_at >= limit
