"""Submitted → Running → Completed / Failed: follow what agents tell, and bring results home.

A result is stored once and whole: downloaded to a temporary file, digest checked, sealed, the job
moved, and only then acknowledged; before the acknowledgement the agent may not delete. A crash at
any point repeats the rest.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import structlog

from server.domain import outcome, states
from server.domain.errors import NoSuchAttempt, NoSuchJob
from server.domain.jobs import Job, Result
from server.domain.service import Service
from server.ports import (
    Agent,
    AgentError,
    Fetched,
    Files,
    Jobs,
    NoSuchPayload,
    Sealing,
    Unreachable,
)
from shared.clock import Clock
from shared.ids import AttemptKey
from shared.wire import JobState, PayloadDoc, PayloadList, PayloadState, Reason

log = structlog.get_logger()
S = JobState
_AT_ONCE: Final = 8  # downloads from one agent
_OUTSTANDING: Final = (
    1_000  # payloads of one agent that are looked at, before more are read from it
)
_AGAIN_S: Final = (0.5, 2.0, 10.0, 60.0)
_UNKNOWN_AFTER: Final = 3  # failed tries, until the job is shown as Unknown


class Get:
    """The Getter. Agents without events are polled by ``poll.Poll``, which hands what it hears to
    :meth:`follow`.

    Args:
        on_slot: called when a slot of an agent has become free.
    """

    def __init__(
        self,
        jobs: Jobs,
        files: Files,
        services: Mapping[str, Service],
        clock: Clock,
        on_slot: Callable[[], None] = lambda: None,
    ) -> None:
        self._jobs, self._files, self._services, self._clock = jobs, files, services, clock
        self._on_slot = on_slot
        self._latest: dict[tuple[str, int], PayloadDoc] = {}
        """(agent, payload id) -> what is still to be looked at; one task each."""
        self._tasks: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._downloads: dict[str, asyncio.Semaphore] = {}
        """agent -> room for downloads from it"""
        self._forgetting: dict[str, asyncio.Semaphore] = {}
        """agent -> room for ends and acknowledgements of payloads that no job waits for"""
        self._outstanding: dict[str, asyncio.Semaphore] = {}
        """agent -> room for payloads that it tells of by itself"""
        self._freed = Counter[str]()
        """agent -> attempts that have ended there, whose jobs have not yet"""

    def collecting(self, agent: str) -> int:
        """How many jobs that the agent has need no slot of it any more."""
        return self._freed[agent]

    def told(self, agent: Agent, payload: PayloadDoc) -> None:
        """An agent told of a payload: look at it soon; a newer word replaces an older one."""
        which = (agent.name, payload.id)
        self._latest[which] = payload
        if which not in self._tasks:
            self._tasks[which] = asyncio.create_task(self._look_at_latest(agent, which))

    async def receive(self, agent: Agent, payload: PayloadDoc) -> None:
        """As :meth:`told`, for what an agent says by itself: waits while too much of it is still to
        be looked at, so that an agent that names payloads without end fills only its connection.
        """
        which = (agent.name, payload.id)
        if which in self._tasks:
            self.told(agent, payload)
            return
        room = self._outstanding.setdefault(agent.name, asyncio.Semaphore(_OUTSTANDING))
        await room.acquire()
        self.told(agent, payload)
        self._tasks[which].add_done_callback(lambda _: room.release())

    async def reconcile(self, agent: Agent, listing: PayloadList) -> None:
        """After (re)connecting: compare all that the agent holds with all that it should hold.

        Raises:
            AgentError
        """
        for payload in listing.payloads:
            await self.receive(agent, payload)
        listed = {payload.key for payload in listing.payloads}
        for job in await self._jobs.in_states(states.AT_AGENT, agent.name):
            if str(job.key) not in listed:
                # The job may be younger than the list: ask for this very key.
                kept = await agent.settle(job)
                if kept is not None:
                    self.told(agent, kept)
                else:
                    await self.lost(job, f"agent {agent.name} does not know the job any more")

    async def stop(self) -> None:
        """Break off; everything is told again after the next start."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)

    async def _look_at_latest(self, agent: Agent, which: tuple[str, int]) -> None:
        tries = 0
        try:
            while (payload := self._latest.pop(which, None)) is not None:
                try:
                    await self._look_at(agent, payload)
                    tries = 0
                    continue
                except (AgentError, OSError) as problem:
                    why = str(problem)
                    log.warning("payload.not_fetched", agent=agent.name, key=payload.key, error=why)
                except Exception as problem:
                    # An end is told once: whatever goes wrong here (the database may be full), the
                    # word is kept, or the job would never end.
                    why = str(problem)
                    log.exception("payload.failed", agent=agent.name, key=payload.key)
                tries += 1
                if not agent.reachable:
                    return  # it tells everything again once it is back
                if tries == _UNKNOWN_AFTER:
                    await self._unknown(payload, f"the result cannot be fetched: {why}")
                self._latest.setdefault(which, payload)
                await self._clock.sleep(_AGAIN_S[min(tries, len(_AGAIN_S)) - 1])
        finally:
            del self._tasks[which]

    async def _look_at(self, agent: Agent, payload: PayloadDoc) -> None:
        key = AttemptKey.parse(payload.key or "")
        while True:
            try:
                job: Job | None = await self._jobs.get(key.job_id)
            except NoSuchJob:
                job = None
            ours = job is not None and outcome.is_of(job, payload, agent.name)
            if job is None or not ours or job.key != key or not _is_current(job, payload):
                if job is not None and not ours and job.key == key and job.bundle is not None:
                    await self._another_bundle(agent, job)
                await self._stale(agent, payload, job if ours else None)
                return
            if await self.follow(agent, job, payload):
                if payload.status in outcome.ENDED:
                    await agent.acknowledge(payload.id, payload.key)
                return
            # Somebody moved the job meanwhile: decide again by what it is now.

    async def follow(
        self, agent: Agent, job: Job, payload: PayloadDoc, have: Result | None = None
    ) -> bool:
        """Move the job to where its payload is, with its result if the attempt has ended.

        Args:
            have: the sealed result, where it came with the payload.

        Returns:
            False: the job was no longer as given; nothing was changed.

        Raises:
            AgentError, OSError: the result could not be fetched or stored.
        """
        service = self._services.get(job.service, Service(job.service))
        move = outcome.follow(job, payload, service, self._clock.now(), agent.name)
        if move is None:
            return True
        if payload.status not in outcome.ENDED:
            return await self._jobs.move(move) is not None
        counted = job.state is not JobState.QUEUED
        with self._files.sealing("results") as sealing, self._slot_free(agent.name, counted):
            result = have
            if result is None and payload.result is not None:
                result = await self._fetch(agent, payload, sealing)
            if result is not None:
                move = dataclasses.replace(move, facts={**move.facts, "result": result})
            moved = await self._jobs.move(move)
            if moved is not None:
                sealing.keep()
        if moved is not None:
            log.info(
                "job.ended" if moved.ended else "job.requeued",
                job_id=job.id,
                attempt=job.attempt,
                state=moved.state,
                reason=moved.reason,
            )
        return moved is not None

    async def lost(self, job: Job, message: str) -> None:
        """The attempt is gone without a trace."""
        service = self._services.get(job.service, Service(job.service))
        now = self._clock.now()
        await self._jobs.move(outcome.interrupted(job, service, now, Reason.AGENT_LOST, message))

    @contextmanager
    def _slot_free(self, agent: str, counted: bool) -> Iterator[None]:
        """While the result of an attempt is fetched, its slot at the agent is free already."""
        self._freed[agent] += counted
        if counted:
            self._on_slot()
        try:
            yield
        finally:
            self._freed[agent] -= counted

    async def _another_bundle(self, agent: Agent, job: Job) -> None:
        """The agent has something else under the job's key, so it has no payload of the job."""
        log.error("payload.other_bundle", agent=agent.name, job_id=job.id, attempt=job.attempt)
        if job.agent == agent.name and job.state in states.AT_AGENT:
            await self.lost(job, f"agent {agent.name} has another bundle under the job's key")

    async def _stale(self, agent: Agent, payload: PayloadDoc, job: Job | None) -> None:
        """A payload that no job waits for: end it, and let the agent forget it.

        Args:
            job: whose attempt it was, if that is known.
        """
        key = AttemptKey.parse(payload.key or "")
        if payload.status not in outcome.ENDED:
            log.warning("payload.stale", agent=agent.name, key=payload.key, status=payload.status)
            with suppress(NoSuchPayload):
                async with self._one_of_few(agent):
                    await agent.kill(payload.id, payload.key)
            return  # its end will be told
        kept = False
        if job is not None and payload.result is not None and await self._lacks_result(key):
            with self._files.sealing("results") as sealing:
                result = await self._fetch(agent, payload, sealing)
                kept = await self._jobs.attach_result(key, result)
                if kept:
                    sealing.keep()
        if not kept and (job is None or job.state not in states.ENDED):
            why = "no job waits for it" if job is None else f"its job is {job.state} by now"
            log.warning("payload.dropped", agent=agent.name, key=payload.key, why=why)
        async with self._one_of_few(agent):
            await agent.acknowledge(payload.id, payload.key)

    async def _lacks_result(self, key: AttemptKey) -> bool:
        try:
            attempt = await self._jobs.attempt(key)
        except NoSuchAttempt:
            return False
        return attempt.ended_at is not None and attempt.result is None

    def _one_of_few(self, agent: Agent) -> asyncio.Semaphore:
        """Each call takes a connection: those that no job waits for must not take them all."""
        return self._forgetting.setdefault(agent.name, asyncio.Semaphore(_AT_ONCE))

    async def _fetch(self, agent: Agent, payload: PayloadDoc, sealing: Sealing) -> Result:
        with self._files.staging() as staged:
            most = payload.result.size if payload.result is not None else None
            try:
                async with self._downloads.setdefault(agent.name, asyncio.Semaphore(_AT_ONCE)):
                    fetched = await agent.fetch(payload.id, staged, most)
            except NoSuchPayload as problem:
                raise Unreachable(str(problem), sent=True) from problem
            if payload.result is not None and payload.result.sha256 != fetched.sha256:
                raise Unreachable(
                    f"the result arrived damaged: {fetched.size} of {payload.result.size} bytes, "
                    "and not the digest that was announced",
                    sent=True,
                )
            return await sealed(sealing, staged, fetched)

    async def _unknown(self, payload: PayloadDoc, message: str) -> None:
        """Show it, if that can be done: trying again does not depend on it."""
        try:
            key = AttemptKey.parse(payload.key or "")
            job = await self._jobs.get(key.job_id)
            if job.key == key and S.UNKNOWN in states.NEXT[job.state]:
                await self._jobs.move(outcome.unknown(job, self._clock.now(), message))
        except Exception:
            log.exception("payload.not_shown_as_unknown", key=payload.key)


def _is_current(job: Job, payload: PayloadDoc) -> bool:
    """Whether the job waits for what the payload says.

    A job that was queued again has given its attempt up; only a result that is there all the same
    saves another one.
    """
    if job.state is S.QUEUED:
        return payload.status is PayloadState.COMPLETED and job.cancel_requested_at is None
    return job.state in states.HOLDS_SLOT


async def sealed(sealing: Sealing, staged: Path, fetched: Fetched) -> Result:
    """The result that was downloaded to ``staged``, made durable."""
    return Result(await sealing.seal(staged), fetched.size, fetched.sha256)
