"""Submitted → Running → Completed / Failed: follow what agents report, and fetch results.

A result is stored once and whole: downloaded to a temporary file, digest checked, stored, the job
moved, and only then acknowledged; before the acknowledgement the agent may not delete. A crash at
any point repeats the rest.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections import Counter
from collections.abc import AsyncIterable
from typing import Final

import structlog

from server.domain import ending, outcome, states
from server.domain.errors import NoSuchAttempt, NoSuchJob
from server.domain.jobs import Attempt, FileKind, Job, Move, Result
from server.ports import Agent, AgentError
from server.stages.agent_tasks import AgentTasks
from server.stages.deferral import Deferral
from server.stages.delayed_reports import DelayedReports
from server.stages.progress import Progress
from server.stages.results import UNCHECKED, WAITS_FOR_ROOM, Results, is_disk_full, not_stored
from server.stages.small_results import SmallResults
from server.stages.stage import Core, Stage
from server.stages.unexpected_payloads import UnexpectedPayloads
from server.store import attempts, jobs
from shared.clock import Micros, wait_for
from shared.ids import AttemptKey
from shared.wire import JobState, PayloadDoc, PayloadList, PayloadState, Reason

log = structlog.get_logger()
_MAX_IN_FLIGHT: Final = 1_000  # payloads of one agent; then no more are read from it
_LARGE: Final = 16 << 10  # bytes of a payload's document that count as one more payload
_RETRY_DELAYS_S: Final = (0.5, 2.0, 10.0, 60.0)
_UNKNOWN_AFTER: Final = 3  # failed tries, until the job is shown as Unknown


class Get(Stage):
    """The Getter. Agents without events are polled by ``poll.Poll``, which uses :meth:`advance`.

    Args:
        deferral: what becomes of a job that left children.
    """

    def __init__(
        self,
        core: Core,
        deferral: Deferral | None = None,
        report_delay_s: float = 0.0,
    ) -> None:
        super().__init__(core)
        self._deferral = deferral or Deferral(core)
        self.results = Results(core.scratch, core.clock, core.wakeups.send)
        self.progress = Progress(core)
        self._small_results = SmallResults(core, self.results)
        self._unexpected = UnexpectedPayloads(core, self.results)
        self._latest: dict[tuple[str, int], PayloadDoc] = {}
        """(agent, payload id) -> its latest document that was not processed yet; one task each."""
        self._tasks = AgentTasks[tuple[str, int]]("payload.failed")
        self._retries: dict[tuple[str, int], asyncio.Event] = {}
        """Of those that wait to be tried again, what ends the wait."""
        self._in_flight: dict[str, asyncio.Semaphore] = {}
        """agent -> how many more payloads it may report"""
        self._counted = Counter[tuple[str, int]]()
        """Of those that have no task yet, their places in that number."""
        self._delayed = DelayedReports[tuple[str, int], Agent](
            report_delay_s, core.clock, self._start
        )
        self._taken: dict[AttemptKey, tuple[str, Micros]] = {}
        """Attempts that an agent has taken, when, and no row says so yet."""

    def on_payload(self, agent: Agent, payload: PayloadDoc) -> None:
        """Process a payload soon; a newer document replaces one that was not processed. Those of
        an agent that is polled have no key: what polls it sees what becomes of them."""
        if not agent.supports_events:
            return
        which = (agent.name, payload.id)
        known = self._latest.get(which)
        if known is None or known.key != payload.key or outcome.goes_on(known, payload):
            self._latest[which] = payload
            if which in self._retries:
                self._retries[which].set()
        if which in self._tasks:
            return
        if self._latest[which].status in outcome.ENDED or not self._delayed.seconds:
            self._delayed.drop(which)
            self._start(which, agent)
        else:
            self._delayed.add(which, agent)

    def taken(self, agent: Agent, job: Job, payload: PayloadDoc, at: Micros) -> None:
        """Process the payload of a job that the agent has just taken."""
        self._taken[job.key] = agent.name, at
        self.on_payload(agent, payload)

    def has_taken(self, key: AttemptKey) -> bool:
        """Whether an agent has taken the attempt, and that is about to be written."""
        return key in self._taken

    def _start(self, which: tuple[str, int], agent: Agent) -> None:
        work = functools.partial(self._process_latest, agent, which)
        self._tasks.start(agent.name, which, work)
        self._release_at_end(which)

    def _release_at_end(self, which: tuple[str, int]) -> None:
        places = self._counted.pop(which, 0)
        if places:
            self._tasks[which].add_done_callback(lambda _: self._release(which[0], places))

    def _release(self, agent: str, places: int) -> None:
        for _ in range(places):
            self._in_flight[agent].release()

    async def receive(
        self, agent: Agent, payload: PayloadDoc, result: bytes | None = None, size: int = 0
    ) -> None:
        """As :meth:`on_payload`, for what an agent reports by itself.

        Args:
            result: that came with it; still to be checked.
            size: bytes of the document.

        Waits while too many of its payloads, or too large ones, are in flight. So an agent that
        reports payloads without end fills its connection only.
        """
        if self.progress.take(agent.name, payload):
            return
        which = (agent.name, payload.id)
        if result is not None:
            self.results.reported.put(*which, result)
        in_flight = self._in_flight.setdefault(agent.name, asyncio.Semaphore(_MAX_IN_FLIGHT))
        is_new = which not in self._tasks and which not in self._delayed
        places = 0
        try:
            while places < size // _LARGE + is_new:
                await in_flight.acquire()
                places += 1
        except asyncio.CancelledError:
            self._release(agent.name, places)
            raise
        self._counted[which] += places
        self.on_payload(agent, payload)
        if which in self._tasks:
            self._release_at_end(which)

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
        for job in await self._database.read(jobs.in_states, states.AT_AGENT, agent.name):
            if str(job.key) not in listed:
                # The job may be younger than the list: ask for this very key.
                kept = await agent.settle(job)
                if kept is not None:
                    self.on_payload(agent, kept)
                else:
                    await self.lost(
                        agent, job, f"agent {agent.name} does not know the job any more"
                    )

    async def stop(self, agent: str | None = None) -> None:
        """Cancel what is in flight from the agent (None: from all): it reports everything again to
        the server that uses it next.
        """
        await self._tasks.stop(agent)
        self._small_results.forget_agent(agent)
        self.progress.forget_agent(agent)
        self.results.reported.forget_agent(agent)
        for which in [one for one in self._latest if agent in (None, one[0])]:
            del self._latest[which]
            self._delayed.drop(which)
        for which in [one for one in self._counted if agent in (None, one[0])]:
            self._release(which[0], self._counted.pop(which))
        for key in [one for one, (name, _) in self._taken.items() if agent in (None, name)]:
            del self._taken[key]
        if agent is None:
            await self._delayed.stop()

    async def advance(
        self, agent: Agent, job: Job, payload: PayloadDoc, have: Result | None = None
    ) -> bool:
        """Move the job to where its payload is, with its result if the attempt has ended.

        Args:
            have: the stored result, where it came with the payload.

        Returns:
            False: the job was no longer as given; nothing was changed.

        Raises:
            AgentError, OSError: the result could not be fetched or stored.
        """
        service = self._service(job.service)
        now, taken = self._clock.now(), self._taken.get(job.key)
        taken_at = None if taken is None else taken[1]
        move = outcome.advance(job, payload, service, now, agent.name, self._uniform, taken_at)
        if move is None:
            return True
        if payload.status not in outcome.ENDED:
            return await self._database.write(jobs.move, move) is not None
        self.progress.forget(job.key)
        if have is None and payload.result is not None:
            await self.results.waiting.check((agent.name, payload.id), payload.result.size)
        with self.results.slot_released(job.key):
            moved: Job | bool | None
            if have is None and not outcome.left_children(payload):
                moved = await self._small_results.end(agent, payload, move)
            else:
                moved = await self._end_or_defer(agent, job, payload, move, have)
                if isinstance(moved, bool):
                    return moved
        return moved is not None

    async def _end_or_defer(
        self, agent: Agent, job: Job, payload: PayloadDoc, move: Move, have: Result | None
    ) -> Job | bool | None:
        """Make the move with the result, or let a job wait for the children that it left: then
        whether it was changed."""
        async with self._storage.pending(FileKind.RESULT) as pending:
            result = have
            if result is None:
                result = await self.results.fetch(agent, payload, pending)
            move = dataclasses.replace(move, facts={**move.facts, "result": result})
            if outcome.left_children(payload):
                deferred = await self._deferral(job, move, result)
                if isinstance(deferred, bool):
                    if deferred:
                        pending.commit()
                    return deferred
                move = deferred
            moved = await self._database.write(jobs.move, move)
            if moved is not None:
                pending.commit()
        return moved

    async def lost(self, agent: Agent, job: Job, message: str) -> None:
        """The attempt is gone without a trace."""
        move = self._decide(ending.interrupted, job, Reason.AGENT_LOST, message)
        await self._database.write(jobs.move, move)

    # -- one payload

    async def _process_latest(self, agent: Agent, which: tuple[str, int]) -> None:
        try:
            await self._process_until_done(agent, which)
        finally:
            self.results.waiting.done(which)
        self.results.reported.drop(*which)  # where nobody needed it

    async def _process_until_done(self, agent: Agent, which: tuple[str, int]) -> None:
        tries, waiting = 0, self.results.waiting
        while (payload := self._latest.pop(which, None)) is not None:
            no_room: OSError | None = None
            try:
                await self._process(agent, payload)
                tries = 0
                waiting.done(which)
                continue
            except (AgentError, OSError) as problem:
                why = f"the result cannot be fetched: {problem}"
                if isinstance(problem, OSError):
                    why, no_room = not_stored(problem), problem if is_disk_full(problem) else None
                if no_room is None or not tries:
                    error = str(problem)
                    log.warning(
                        "payload.not_fetched", agent=agent.name, key=payload.key, error=error
                    )
            except Exception as problem:
                # An end is reported once. Whatever fails here (the database may be full), the
                # document is kept and tried again, or the job would never end.
                why = f"the result cannot be fetched: {problem}"
                log.exception("payload.failed", agent=agent.name, key=payload.key)
            tries += 1
            if not agent.reachable:
                # It reports everything again once it is back, or is asked for what no row says.
                self._forget_taken(agent, AttemptKey.parse(payload.key or ""))
                break
            self._latest.setdefault(which, payload)
            if no_room is not None:
                await self._wait_for_room(agent, payload, no_room, tries)
                continue
            if tries == _UNKNOWN_AFTER:
                await self._show_as_unknown(agent, payload, why)
            if self._latest[which] is payload:
                await self._wait_for_newer(which, tries)

    async def _wait_for_newer(self, which: tuple[str, int], tries: int) -> None:
        """Until the document may be tried again, or a newer one has come."""
        newer = self._retries[which] = asyncio.Event()
        try:
            delay_s = _RETRY_DELAYS_S[min(tries, len(_RETRY_DELAYS_S)) - 1]
            await wait_for(newer, delay_s, self._clock)
        finally:
            del self._retries[which]

    async def _wait_for_room(
        self, agent: Agent, payload: PayloadDoc, problem: OSError, tries: int
    ) -> None:
        """Until the result may be tried again. Its job says so, unless it is only for a moment."""
        which, size = (agent.name, payload.id), payload.result.size if payload.result else 0
        why = await self.results.waiting.add(which, problem, size)
        if tries > 1 or not why.is_brief:
            await self._show_as_unknown(agent, payload, f"{WAITS_FOR_ROOM} {why}")
        await self.results.waiting.turn(which)

    async def _process(self, agent: Agent, payload: PayloadDoc) -> None:
        key = AttemptKey.parse(payload.key or "")
        await self._follow(agent, payload, key)
        self._forget_taken(agent, key)

    def _forget_taken(self, agent: Agent, key: AttemptKey) -> None:
        if self._taken.get(key, ("",))[0] == agent.name:
            del self._taken[key]

    async def _follow(self, agent: Agent, payload: PayloadDoc, key: AttemptKey) -> None:
        job = self._wakeups.hints.held(key.job_id)
        if job is None or not outcome.is_of(job, payload, agent.name):
            job = await self._read(key)
        while True:
            attempt = None
            if job is not None and job.key == key and _is_at_agent(job):
                if job.agent != agent.name:
                    # Its own agent says what becomes of it. Nothing here is killed or deleted:
                    # this may be that agent, and the job as it was before the agent was renamed.
                    log.warning("payload.refused", agent=agent.name, key=payload.key, of=job.agent)
                    return
                believed = outcome.is_of(job, payload, agent.name)
                if not believed and job.bundle is not None:
                    await self._other_bundle(agent, job)
            else:
                attempt = await self._attempt(key) if job is not None else None
                believed = (
                    job is not None
                    and attempt is not None
                    and outcome.is_of(job, payload, agent.name, agent.agent_id, attempt)
                )
            if job is None or not believed or job.key != key or not outcome.expects(job, payload):
                of = (job, attempt) if believed else (None, None)
                await self._unexpected.end(agent, key, payload, *of)
                return
            payload = outcome.bounded(job, payload)
            if payload.result is not None and payload.result.size > UNCHECKED:
                payload = outcome.fitting(payload, await self.results.waiting.most())
            if await self.advance(agent, job, payload):
                if payload.status in outcome.ENDED:
                    await agent.acknowledge(payload.id, payload.key)
                else:
                    self.progress.follow(agent.name, key, payload)
                return
            # Somebody else moved the job meanwhile: decide again by what it is now.
            job = await self._read(key)

    async def _read(self, key: AttemptKey) -> Job | None:
        try:
            return await self._database.read(jobs.get, key.job_id)
        except NoSuchJob:
            return None

    async def _attempt(self, key: AttemptKey) -> Attempt | None:
        try:
            return await self._database.read(attempts.get, key)
        except NoSuchAttempt:
            return None

    async def _other_bundle(self, agent: Agent, job: Job) -> None:
        """The agent has another bundle under the job's key, so it has no payload of the job."""
        log.error("payload.other_bundle", agent=agent.name, job_id=job.id, attempt=job.attempt)
        if job.state in states.AT_AGENT:
            await self.lost(
                agent, job, f"agent {agent.name} has another bundle under the job's key"
            )

    async def _show_as_unknown(self, agent: Agent, payload: PayloadDoc, message: str) -> None:
        """If that can be done: trying again does not depend on it."""
        try:
            key = AttemptKey.parse(payload.key or "")
            job = await self._database.read(jobs.get, key.job_id)
            is_current = outcome.is_of(job, payload, agent.name) and not job.deferred
            if is_current and job.state is JobState.PROCESSING:
                job = await self._started(agent, job, payload)
            if is_current and JobState.UNKNOWN in states.NEXT[job.state]:
                await self._database.write(
                    jobs.move, outcome.unknown(job, self._clock.now(), message)
                )
        except Exception:
            log.exception("payload.not_shown_as_unknown", key=payload.key)

    async def _started(self, agent: Agent, job: Job, payload: PayloadDoc) -> Job:
        """Its end was reported before its start was written down: do that first."""
        status = PayloadState.PREPARED if payload.started_at is None else PayloadState.RUNNING
        before = payload.model_copy(update={"status": status, "result": None})
        await self.advance(agent, job, before)
        return await self._database.read(jobs.get, job.id)


def _is_at_agent(job: Job) -> bool:
    """Whether its current attempt was sent to an agent, and is not known to have ended."""
    return job.state in states.HOLDS_SLOT and not job.deferred
