"""Submitted → Running → Completed / Failed: follow what agents report, and fetch results.

A result is stored once and whole: downloaded to a temporary file, digest checked, stored, the job
moved, and only then acknowledged; before the acknowledgement the agent may not delete. A crash at
any point repeats the rest.
"""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import functools
from collections import defaultdict
from collections.abc import AsyncIterable
from contextlib import suppress
from typing import Final, Literal

import structlog

from server.agents.agent import Agent
from server.domain import batch, ending, outcome, states
from server.domain.agents import AgentError, NoSuchPayload
from server.domain.errors import NoSuchAttempt, NoSuchJob
from server.domain.jobs import ROW_BYTES, Attempt, Bundle, FileKind, Job, Move, Result
from server.stages.deferral import Left, LeftChildren
from server.stages.inbox import Inbox, Report, Which
from server.stages.progress import Progress
from server.stages.results import LOOK_AGAIN_S, UNCHECKED, NoRoom, Results
from server.stages.stage import AgentTasks, Core, Stage
from server.store import batches, jobs
from shared.ids import AttemptKey
from shared.sql import Tx
from shared.units.durations import say_duration
from shared.wire import JobState, PayloadDoc, PayloadList, PayloadState, Reason

log = structlog.get_logger()
_RETRY_DELAYS_S: Final = (0.5, 2.0, 10.0, 60.0)
UNKNOWN_AFTER: Final = 3  # failed tries, until the job is shown as Unknown
_DISK_FULL: Final = (errno.ENOSPC, errno.EDQUOT)  # of the server
_MAX_KILLS: Final = 8  # of one agent at once


@dataclasses.dataclass(frozen=True, slots=True)
class Followed:
    """What became of a report.

    Attributes:
        then: what is to be done for its payload: killed, because no job waits for it; its result
            fetched first, and nothing was changed; acknowledged; empty: nothing.
        payload: as it is believed.
        job: that is where its payload is, or whose result is to be fetched; None: no job was
            changed.
        expected: the job waits for it; else its attempt is past, and only lacks the result.
        children: the stored bundle of the children that it has left.
    """

    then: Literal["", "kill", "fetch", "acknowledge"]
    payload: PayloadDoc
    job: Job | None = None
    expected: bool = True
    children: Bundle | None = None


def _job(tx: Tx, key: AttemptKey) -> Job | None:
    try:
        return jobs.get(tx, key.job_id)
    except NoSuchJob:
        return None


class Get(Stage):
    """The Getter. What is reported is taken up by ``round.Round``; agents without events are polled
    by ``poll.Poll``.

    Args:
        report_delay_s: so long a report waits for a newer one, which may make it needless.
    """

    def __init__(self, core: Core, report_delay_s: float) -> None:
        super().__init__(core)
        self._left_children = LeftChildren(core)
        self.inbox = Inbox(report_delay_s, core.clock, core.wakeups.sender.set)
        self.results = Results(core)
        self.progress = Progress(core)
        self._tasks = AgentTasks[Which]("payload.failed")
        self._kills = defaultdict[str, asyncio.Semaphore](lambda: asyncio.Semaphore(_MAX_KILLS))
        """agent -> its share of kills of payloads that no job waits for"""

    async def receive(
        self, agent: Agent, payload: PayloadDoc, result: bytes | None = None, size: int = 0
    ) -> None:
        """Follow what an agent reports by itself; waits while there is too much of it.

        Args:
            result: that came with it; still to be checked.
            size: bytes of the document.
        """
        if not self.progress.take(agent.name, payload):
            await self.inbox.receive(agent, payload, result, size)

    async def reconcile(self, agent: Agent, pages: AsyncIterable[PayloadList]) -> None:
        """After (re)connecting: compare all that the agent holds with all that it should hold.
        Raises AgentError.
        """
        self.progress.forget_agent(agent.name)
        listed = set[str | None]()
        async for page in pages:
            for payload in page.payloads:
                await self.receive(agent, payload, size=len(payload.model_dump_json()))
                listed.add(payload.key)
        for job in await self.core.database.read(jobs.in_states, states.AT_AGENT, agent.name):
            if str(job.key) not in listed:
                # The job may be younger than the list: ask for this very key.
                kept = await agent.settle(job)
                if kept is not None:
                    self.inbox.put(agent, kept)
                else:
                    await self.lost(job.key, f"agent {agent.name} does not know the job any more")

    async def stop(self, agent: str | None = None) -> None:
        """Cancel what is in flight from the agent (None: from all): it reports everything again to
        the server that uses it next.
        """
        self.progress.forget_agent(agent)
        for which in self.inbox.forget_agent(agent):  # first: a round starts no more of them
            self.results.done(which)
        await self._tasks.stop(agent)

    async def lost(self, key: AttemptKey, message: str, report: Report | None = None) -> None:
        """The attempt is gone without a trace, or its end cannot be followed, which the report
        says.
        """
        self.progress.forget(key)

        def rule(job: Job) -> Move | None:
            if job.key != key or job.state not in states.HOLDS_SLOT or job.deferred:
                return None
            if report and not outcome.is_of(job, report.payload, report.agent.name):
                return None
            return self._lost(job, message)

        with suppress(NoSuchJob):
            await self.core.database.write(jobs.change, key.job_id, rule)

    def _lost(self, job: Job, message: str) -> Move:
        return self._decide(ending.interrupted, job, Reason.AGENT_LOST, message)

    # -- in a round

    def follow(self, report: Report) -> asyncio.Future[Followed]:
        """Hand in the change by which the report is followed, with the result that came with it if
        it is small; :meth:`followed` goes on.
        """
        result, announced = None, report.payload.result
        if announced is not None and announced.size <= ROW_BYTES:
            has_room = self.core.scratch.has_room(announced.size)  # else it waits for some
            if has_room and (content := report.result) is not None:
                name = self.core.storage.new_name()
                result = Result(name, announced.size, announced.sha256, announced.inputs, content)
        return self.core.database.write(self._follow, report, report.payload, result)

    def _follow(
        self,
        tx: Tx,
        report: Report,
        payload: PayloadDoc,
        result: Result | None,
        left: Left | None = None,
    ) -> Followed:
        """Move the job to where its payload is, as it is now, with its result if it has ended.

        Args:
            payload: the report's, or what of it is believed.
            result: as it is stored; None: it is not, or there is none.
            left: the children in it; None: nobody looked for them.
        """
        agent, key = report.agent, report.key
        job, attempt, believed = _job(tx, key), None, False
        if (
            job is not None
            and job.key == key
            and job.state in states.HOLDS_SLOT
            and not job.deferred
        ):
            if job.agent != agent.name:
                # Its own agent says what becomes of it. Nothing here is killed or deleted: this may
                # be that agent, and the job as it was before the agent was renamed.
                log.warning("payload.refused", agent=agent.name, key=payload.key, of=job.agent)
                return Followed("", payload)
            believed = outcome.is_of(job, payload, agent.name)
            if not believed and job.bundle is not None:
                # The agent has another bundle under the job's key, so it has no payload of the job.
                at = {"agent": agent.name, "job_id": job.id, "attempt": job.attempt}
                log.error("payload.other_bundle", **at)
                if job.state in states.AT_AGENT:
                    what = f"agent {agent.name} has another bundle under the job's key"
                    jobs.move(tx, self._lost(job, what))
        elif job is not None:
            with suppress(NoSuchAttempt):
                attempt = jobs.attempt(tx, key)
                believed = outcome.is_of(job, payload, agent.name, agent.agent_id, attempt)
        if job is None or not believed or job.key != key or not outcome.expects(job, payload):
            of = job if believed else None
            return self._follow_unexpected(tx, report, payload, result, of, attempt)
        if agent.supports_events:  # a job-orchestrator client knows no limits
            payload = outcome.bounded(job, payload)
        ended = payload.status in outcome.ENDED
        move = self._advance(job, report, payload)
        if move is None:
            return Followed("acknowledge" if ended else "", payload, job)
        if not ended:
            return Followed("", payload, jobs.move(tx, move))
        not_stored = payload.result is not None and result is None
        if not_stored or (outcome.leaves_children(payload) and left is None):
            return Followed("fetch", payload, job)
        if result is not None:
            move = dataclasses.replace(move, facts={**move.facts, "result": result})
        if left is not None:
            move = self._decide(batch.left_children, job, move, left.count, left.problem)
            if move.changes.get("deferred"):
                if left.bundle is None:  # it was to be cancelled when they were looked for
                    return Followed("fetch", payload, job)
                parent, shared = batches.defer(tx, move, left.count, left.bundle)
                return Followed("acknowledge", payload, parent, children=shared)
        return Followed("acknowledge", payload, jobs.move(tx, move))

    def _follow_unexpected(
        self,
        tx: Tx,
        report: Report,
        payload: PayloadDoc,
        result: Result | None,
        job: Job | None,
        attempt: Attempt | None,
    ) -> Followed:
        """End a payload that no job waits for, keep what it left, and let the agent delete it.

        Args:
            job: whose it is; None: nobody's.
            attempt: as it was recorded, if it is past.
        """
        agent = report.agent.name
        if not report.agent.supports_events:
            return Followed("", payload)  # it was asked just before, and deletes by age
        if payload.status not in outcome.ENDED:
            log.warning("payload.unknown", agent=agent, key=payload.key, status=payload.status)
            return Followed("kill", payload)  # the agent reports its end
        if job is not None and attempt is not None and attempt.ended_at and not attempt.result:
            payload = outcome.bounded(job, payload)
            if payload.result is not None:
                if result is None:
                    return Followed("fetch", payload, job, expected=False)
                if jobs.attach_result(tx, report.key, result):
                    return Followed("acknowledge", payload, job, expected=False)
        if job is None or job.state not in states.ENDED:
            why = "no job waits for it" if job is None else f"its job is {job.state} by now"
            log.warning("payload.dropped", agent=agent, key=payload.key, why=why)
        return Followed("acknowledge", payload)

    def _advance(self, job: Job, report: Report, payload: PayloadDoc) -> Move | None:
        service, now, agent = self._service(job.service), self.core.clock.now(), report.agent.name
        return outcome.advance(
            job, payload, service, now, agent, self.core.uniform, report.taken_at
        )

    def followed(self, report: Report, answer: Followed | BaseException) -> None:
        """Go on once the change was made: acknowledge what has ended, fetch what did not come."""
        if not self.inbox.is_busy(report):
            return  # its agent is called in another way by now, and reports it again
        if isinstance(answer, Exception):
            work = functools.partial(self._failed, report, answer)
        elif isinstance(answer, BaseException):
            raise answer
        elif answer.then:
            work = functools.partial(self._go_on, report, answer)
        else:
            if answer.job is not None and report.agent.supports_events:
                self.progress.follow(report.agent.name, report.key, answer.payload)
            self._done(report)
            return
        self._tasks.start(report.agent.name, report.which, work)

    def _done(self, report: Report) -> None:
        self.results.done(report.which)
        self.inbox.done(report)

    # -- one payload, in a task of its own

    async def _go_on(self, report: Report, followed: Followed) -> None:
        agent, payload = report.agent, report.payload
        self.progress.forget(report.key)
        try:
            if followed.then == "kill":
                with suppress(NoSuchPayload):
                    async with self._kills[agent.name]:
                        await agent.kill(payload.id, payload.key)
            else:
                if followed.then == "fetch":
                    followed = await self._fetch(report, followed)
                if followed.then != "acknowledge":
                    self.inbox.again(report, 0.0)  # somebody else moved the job meanwhile
                    return
                await agent.acknowledge(payload.id, payload.key)
        except Exception as problem:  # noqa: BLE001 - it is logged there
            await self._failed(report, problem)
        else:
            self._done(report)

    async def _fetch(self, report: Report, followed: Followed) -> Followed:
        """Fetch the result of an attempt, and follow its report with it."""
        payload, job = followed.payload, followed.job
        assert job is not None, "its result is wanted"
        payload = await self._fitting(report, payload, job)
        if followed.expected:
            report.fetching = True
            self.core.wakeups.send()
        async with (
            self.core.storage.pending(FileKind.RESULT) as pending,
            self.core.storage.pending(FileKind.BUNDLE) as bundles,
        ):
            result = left = None
            if payload.result is not None:
                result = await self.results.fetch(
                    *(report.agent, payload.id, payload.result, report.result, pending)
                )
            if followed.expected and result is not None and outcome.leaves_children(payload):
                left = await self._left_children.of(job, result, bundles)
            followed = await self.core.database.write(self._follow, report, payload, result, left)
            if followed.then == "acknowledge" and followed.job is not None:
                pending.commit()
            stored, shared = left and left.bundle, followed.children
            if stored and shared and stored.file == shared.file:
                bundles.commit()
        return followed

    async def _failed(self, report: Report, problem: Exception) -> None:
        """Whatever fails, the report is kept and looked at again: an end is reported once, and its
        job would never end else.
        """
        agent, payload = report.agent, report.payload
        report.tries += 1
        is_gone = isinstance(problem, NoSuchPayload) and not agent.supports_events
        if is_gone or not agent.reachable:
            self._done(report)  # it is asked again, or reports everything again once it is back
            return
        if isinstance(problem, AgentError | OSError):
            error = str(problem)
            log.warning("payload.not_fetched", agent=agent.name, key=payload.key, error=error)
        else:
            log.error("payload.failed", agent=agent.name, key=payload.key, exc_info=problem)
        delay_s = _RETRY_DELAYS_S[min(report.tries, len(_RETRY_DELAYS_S)) - 1]
        try:
            if isinstance(problem, OSError) and problem.errno in _DISK_FULL:
                await self._wait_for_room(report, problem)
                delay_s = LOOK_AGAIN_S
            else:
                await self._show_failing(report, problem)
        finally:  # trying again does not depend on what can be shown
            self.inbox.again(report, delay_s)

    async def _show_failing(self, report: Report, problem: Exception) -> None:
        """Let the job of a report that fails again and again be Unknown, and at last be lost: an
        agent that fails for ever must not hold the slot for ever.
        """
        if report.tries == UNKNOWN_AFTER:
            why = f"the result cannot be fetched: {problem}"
            if isinstance(problem, OSError):
                # For its user, so without names of folders.
                why = f"the server cannot store the result: {problem.strerror or 'its disk failed'}"
            await self.core.database.write(self._be_unknown, report, why)
        now = self.core.clock.monotonic()
        if report.failing_since is None:
            report.failing_since = now
        failing_s, most_s = now - report.failing_since, self.core.settings.server.agent_lost_after
        if failing_s > most_s and isinstance(problem, AgentError):
            what = f"its result could not be fetched for {say_duration(failing_s)}: {problem}"
            await self.lost(report.key, what, report)

    async def _wait_for_room(self, report: Report, problem: OSError) -> None:
        """The result waits. Its job says so, unless it is only for a moment."""
        size = report.payload.result.size if report.payload.result else 0
        why = await self.results.add(report.which, problem, size)
        if report.tries > 1 or not why.is_brief:
            message = f"the result waits for room on {why}"
            await self.core.database.write(self._be_unknown, report, message)

    def _be_unknown(self, tx: Tx, report: Report, message: str) -> None:
        """One whose end was reported before its start was written down is moved there first."""
        job, payload = _job(tx, report.key), report.payload
        if job is None or not outcome.is_of(job, payload, report.agent.name) or job.deferred:
            return
        if job.state is JobState.PROCESSING:
            status = PayloadState.PREPARED if payload.started_at is None else PayloadState.RUNNING
            started = payload.model_copy(update={"status": status, "result": None})
            move = self._advance(job, report, started)
            job = (jobs.move(tx, move) if move is not None else None) or job
        if JobState.UNKNOWN in states.NEXT[job.state]:
            jobs.move(tx, outcome.unknown(job, self.core.clock.now(), message))

    async def _fitting(self, report: Report, payload: PayloadDoc, job: Job) -> PayloadDoc:
        """The payload; without its result if there is no room, and its job was cancelled: then
        nobody waits for it. Raises NoRoom: it has to wait.
        """
        if payload.result is not None and payload.result.size > UNCHECKED:
            payload = outcome.fitting(payload, await self.results.most())
        if payload.result is not None:
            try:
                await self.results.check(report.which, payload.result.size)
            except NoRoom as full:
                if full.is_brief or job.state is not JobState.CANCELLED:
                    raise
                name = report.agent.name
                log.warning("payload.dropped", agent=name, key=payload.key, why=str(full))
                payload = payload.model_copy(update={"result": None})
        return payload
