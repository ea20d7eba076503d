"""Processing → Submitted: give a claimed job to its agent, or find out what became of it.

Deliveries run beside each other, so that a slow agent holds up only its own. After an ambiguous
failure the agent is asked for that very key (``Agent.settle``) before another attempt is
made, so that there are never two at once.
"""

from __future__ import annotations

import errno
import functools
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import structlog

from server.agents.agent import Agent
from server.domain import ending, outcome
from server.domain.agents import RefusedByAgent, Unreachable
from server.domain.errors import NoSuchJob
from server.domain.jobs import Job, Move
from server.domain.retry import Backoff
from server.stages.get import Get
from server.stages.inputs import InputsNotMade, MakeInputs, NoInputs
from server.stages.stage import AgentTasks, Core, Stage
from server.store import bundles, jobs
from shared.ids import AttemptKey
from shared.wire import JobState, PayloadDoc, Reason

log = structlog.get_logger()
_ASK_AGAIN_S: Final = (0.2, 1.0, 5.0, 15.0)
_NOT_OFFERED_S: Final = 60.0  # until an agent that does not offer a service is asked again
_BUSY_S: Final = 5.0  # until a job is sent again that could not be
_REFUSED_S: Final = 60.0  # at most, until a job that nobody took is sent again
_RESEND_LONGEST_S: Final = 300.0
TRANSIENT_ERRNOS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""What this machine is short of, and says nothing about the bundle."""


class Deliver(Stage):
    """Sends claimed jobs."""

    def __init__(self, core: Core, get: Get) -> None:
        super().__init__(core)
        self._get = get
        self._inputs = MakeInputs(core)
        self._deliveries = AgentTasks[AttemptKey]("delivery.failed")
        self.stop = self._deliveries.stop
        """Of an agent, or of all. :meth:`resume_interrupted` asks what became of them."""
        self._resends = Backoff[int](1.0, _RESEND_LONGEST_S, free=1)
        """By job: what was sent and not taken, through no fault of its own."""

    def start(self, job: Job) -> None:
        """Begin the delivery of a job that has just been claimed."""
        self._deliveries.start(job.agent or "", job.key, functools.partial(self._deliver, job))

    async def resume_interrupted(self) -> None:
        """Take up deliveries that an earlier run of the server, or an earlier connection to the
        agent, began, or that an error broke off.
        """
        found = await self.core.database.read(jobs.in_states, [JobState.PROCESSING])
        taken = self._get.inbox.taken()  # meanwhile, too
        for job in found:
            if job.key not in self._deliveries and job.key not in taken:
                what = "the delivery was interrupted"
                work = functools.partial(self._resolve_ambiguous, job, what)
                self._deliveries.start(job.agent or "", job.key, work)

    async def _deliver(self, job: Job) -> None:
        agent = self.core.registry.named(job.agent or "")
        if agent is None:
            what = f"agent {job.agent} was taken out of the server's settings"
            await self._requeue(job, what, 0.0)
            return
        if job.needs_order and not agent.supports_events:
            await self._needs_order(job, agent)
            return
        try:
            async with self._inputs.of(job) as inputs:
                payload = await agent.submit(job, self._service(job.service), inputs)
        except NoInputs as problem:
            await self._fail(job, Reason.DEPENDENCY_FAILED, str(problem))
        except InputsNotMade as problem:
            message = f"the files of other jobs cannot be put together now: {problem}"
            await self._requeue(job, message, self._resends.failed(job.id))
        except Unreachable as problem:
            self._count(job, "unreachable")
            if problem.sent:
                await self._resolve_ambiguous(job, str(problem))
            else:
                gone = self.core.registry.named(agent.name) is not agent
                await self._requeue(job, str(problem), 0.0 if gone else _BUSY_S)
        except RefusedByAgent as no:
            await self._refused(job, no)
        except OSError as problem:
            self._count(job, "failed")
            if problem.errno in TRANSIENT_ERRNOS:
                await self._requeue(job, f"it cannot be sent now: {problem.strerror}", _BUSY_S)
                return
            assert job.bundle is not None, "only Cleaned jobs have none"
            await self.core.database.write(bundles.stop_sharing, job.bundle.file)
            message = f"the stored bundle cannot be read: {problem}"
            await self._fail(job, Reason.INVALID_BUNDLE, message)
        else:
            await self._submitted(job, agent, payload)

    async def _needs_order(self, job: Job, agent: Agent) -> None:
        """Nothing says to a job-orchestrator client which child of a batch a bundle is."""
        message = (
            f"agent {agent.name} is a job-orchestrator client, which cannot run children of a "
            "batch, nor be given the files of other jobs"
        )
        if any(other.supports_events for other in self.core.registry.all()):
            await self._requeue(job, message, _BUSY_S)
        else:
            await self._fail(job, Reason.NOT_OFFERED, message)

    async def _resolve_ambiguous(self, job: Job, what: str) -> None:
        """Ask the agent for the key until it answers: has it, or never will."""
        tries = 0
        while not self._is_lost(job.agent or ""):
            agent = self.core.registry.named(job.agent or "")
            if agent is None:
                if (current := await self._still_sending(job, _ASK_AGAIN_S[1])) is None:
                    return
                job = current  # its agent may have another name by now
                continue
            if not agent.supports_events:
                # It cannot be asked, and a second run at once is worse than a failure.
                await self._fail(
                    job,
                    Reason.AGENT_UNREACHABLE,
                    f"{what}; agent {agent.name} cannot be asked whether it has started it",
                )
                return
            try:
                payload = await agent.settle(job)
            except (Unreachable, RefusedByAgent) as problem:
                delay = _ASK_AGAIN_S[min(tries, len(_ASK_AGAIN_S) - 1)]
                if isinstance(problem, RefusedByAgent):
                    delay = max(delay, problem.retry_after_s or 0.0)
                log.info("delivery.unsettled", job_id=job.id, agent=agent.name, error=str(problem))
                if await self._still_sending(job, delay) is None:
                    return
                tries += 1
            else:
                if payload is None:
                    delay = self._resends.failed(job.id)
                    await self._requeue(job, f"{what}; agent {agent.name} does not have it", delay)
                else:
                    await self._submitted(job, agent, payload)
                return
        await self._interrupted(job, Reason.AGENT_LOST, f"{what}; agent {job.agent} is gone")

    async def _still_sending(self, job: Job, delay_s: float) -> Job | None:
        """The job after a while; None: it was cancelled, or the Getter saw it."""
        await self.core.clock.sleep(delay_s)
        current = await self.core.database.read(jobs.get, job.id)
        sending = current.state is JobState.PROCESSING and current.attempt == job.attempt
        return current if sending else None

    def _is_lost(self, agent: str) -> bool:
        unreachable_s = self.core.registry.unreachable_s(agent)
        return (
            unreachable_s is not None and unreachable_s > self.core.settings.server.agent_lost_after
        )

    async def _submitted(self, job: Job, agent: Agent, payload: PayloadDoc) -> None:
        if not outcome.is_of(job, payload, agent.name):
            what = f"agent {agent.name} has another bundle under the job's key"
            self._count(job, "failed")
            await self._interrupted(job, Reason.AGENT_ERROR, what)
            return
        self.core.registry.accepted(agent.name, job.service)
        self._count(job, "accepted")
        self._resends.succeeded(job.id)
        now = self.core.clock.now()
        if agent.supports_events:
            self._get.inbox.put(agent, payload, taken_at=now)
        else:
            to, message = JobState.SUBMITTED, f"agent {agent.name} has it"
            changes = {"payload_id": payload.id, "submitted_at": now}
            await self._change(
                job, lambda sent: ending.move(sent, to, now, message, changes=changes)
            )

    async def _refused(self, job: Job, no: RefusedByAgent) -> None:
        if no.code == "submit_in_progress":
            await self._resolve_ambiguous(job, str(no))
            return
        self._count(job, "refused")
        delay_s, offered = 0.0, True
        if no.wants_new_attempt:
            delay_s = self._resends.failed(job.id)
        elif no.declined:
            # It gets no other one for a while: an agent that refuses all would always be the one
            # with the fewest jobs, and get every job.
            rest_s = self.core.registry.refused(
                job.agent or "",
                job.service,
                f"agent {job.agent} does not take it now: {no}",
                offered=no.offered,
                at_least_s=(no.retry_after_s or 0.0) if no.offered else _NOT_OFFERED_S,
            )
            offered = self.core.registry.offered(job.service)
            if not self.core.registry.candidates(job.service):
                delay_s = min(rest_s, _REFUSED_S)
        elif no.final and job.bundle is not None:
            # Its bytes may be damaged here: who uploads the same content again must not get them.
            await self.core.database.write(bundles.stop_sharing, job.bundle.file)
        await self._move(job, outcome.refused, no, delay_s=delay_s, offered=offered)

    async def _requeue(self, job: Job, message: str, delay_s: float) -> None:
        await self._move(job, outcome.not_sent, message, delay_s)

    async def _interrupted(self, job: Job, reason: Reason, message: str) -> None:
        await self._move(job, ending.interrupted, reason, message)

    async def _fail(self, job: Job, reason: Reason, message: str) -> None:
        await self._move(job, ending.end, JobState.FAILED, message, reason)

    def _count(self, job: Job, outcome: str) -> None:
        """Count how a try to give the job to its agent went; the agents are those of settings."""
        self.core.measures.dispatches.labels(job.agent or "", outcome).inc()

    async def _move(self, job: Job, decide: Callable[..., Move], *args: Any, **how: Any) -> None:
        """Decide by what the job is now: a cancel may have been asked for since it was claimed."""

        moved = await self._change(job, lambda now: self._decide(decide, now, *args, **how))
        if moved is not None:
            log.info(
                "job.not_sent",
                job_id=job.id,
                attempt=job.attempt,
                agent=job.agent,
                state=moved.state,
                message=moved.message,
            )

    async def _change(self, job: Job, rule: Callable[[Job], Move]) -> Job | None:
        """Move the job, if it is still being sent."""

        def if_sending(now: Job) -> Move | None:
            sending = now.key == job.key and now.state is JobState.PROCESSING
            return rule(now) if sending else None

        with suppress(NoSuchJob):  # it was cancelled and deleted meanwhile
            return await self.core.database.write(jobs.change, job.id, if_sending)
        return None
