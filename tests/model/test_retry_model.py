"""The model of jobs, with retries by exit code and by hand, dead letters, shutdowns, deletes."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from server.domain.errors import NoSuchJob, RetryRefused
from server.domain.retry_policy import BackoffKind, RetryPolicy
from shared.principals import LOCAL
from shared.wire import JobState, PayloadState, RetryLater
from tests.kit.simulation import World
from tests.model.test_job_model import AGENT, FAULT, HOW, KILL, LONG, NUMBER, SERVICES, JobModel

_EXITS = RetryPolicy(
    2,
    backoff=BackoffKind.EXPONENTIAL_JITTER,
    delay_s=5.0,
    retry_on=frozenset({"exit:4", "timeout"}),
)
_LATER = RetryLater(after_s=40.0, message="busy")


class RetryModel(JobModel):
    """What ends an attempt, and what users do with a job that has ended.

    A ``RuleBasedStateMachine`` with the rules of ``JobModel``, too.
    """

    services: ClassVar = {
        "fast": replace(
            SERVICES["fast"],
            dead_letter=True,
            dead_letter_expires_after_s=900.0,
            retry=_EXITS,
            retry_later_limit=2,
            queue_timeout_s=4_500.0,
        ),
        "slow": replace(SERVICES["slow"], on_shutdown="resubmit", retry_later_delay_s=0.0),
    }

    def some_job(self, number: int) -> int | None:
        ids = sorted(self.world.acknowledged)
        return ids[number % len(ids)] if ids else None

    @rule(
        which=AGENT,
        code=st.sampled_from([0, 3, 4, 75]),
        asks=st.booleans(),
        fault=FAULT,
        kill_after=KILL,
    )
    def exit(self, which: int, code: int, asks: bool, fault: str, kill_after: int | None) -> None:
        self.expect(fault, kill_after)
        agent = self.world.agents[which]
        for payload in list(agent.payloads.values()):
            if payload.status is PayloadState.RUNNING:
                later = _LATER if asks else None
                self.happens(functools.partial(agent.exit, payload, code, later))

    @rule(which=AGENT, fault=FAULT, kill_after=KILL)
    def an_agent_is_stopped(self, which: int, fault: str, kill_after: int | None) -> None:
        self.expect(fault, kill_after)
        self.happens(self.world.agents[which].shut_down)

    @rule(number=NUMBER, fault=FAULT, kill_after=KILL)
    def retry(self, number: int, fault: str, kill_after: int | None) -> None:
        job_id = self.some_job(number)
        if job_id is None:
            return

        async def retry() -> None:
            before = await self.world.jobs.get(job_id)
            if before.state is JobState.CANCELLED:
                self.world.cancelled.discard(job_id)  # also where the answer is not seen
            try:
                after = await self.world.retry(LOCAL, job_id)
            except RetryRefused:
                return
            assert after.run == before.run + 1
            assert (after.retries_used, after.later_used, after.infra_used) == (0, 0, 0)

        self.expect(fault, kill_after)
        self.run(retry())

    @rule(number=NUMBER, forget=st.booleans(), fault=FAULT, kill_after=KILL)
    def delete(self, number: int, forget: bool, fault: str, kill_after: int | None) -> None:
        job_id = self.some_job(number)
        if job_id is None:
            return
        self.world.deleted.add(job_id)

        async def delete() -> None:
            try:
                if forget:
                    gone = await self.world.delete.forget(LOCAL, job_id) is None
                else:
                    gone = await self.world.delete(LOCAL, job_id, 0.0) is None
            except NoSuchJob:
                return
            if gone:
                with pytest.raises(NoSuchJob):
                    await self.world.jobs.get(job_id)

        self.expect(fault, kill_after)
        self.run(delete())

    async def budgets_hold(self, world: World) -> None:
        for job_id in world.acknowledged:
            job = await world.jobs.get(job_id)
            service = self.services[job.service]
            assert job.later_used <= service.retry_later_limit
            assert job.retries_used <= service.retry.retries
            assert job.infra_used <= service.infra_retries
            if job.dead_letter:
                assert (job.state, service.dead_letter) == (JobState.FAILED, True)
            if job.state is JobState.QUEUED:
                assert job.ended_at is None

    @invariant()
    def every_promise_holds(self) -> None:
        super().every_promise_holds()
        if hasattr(self, "world"):
            self.loop.run_until_complete(self.budgets_hold(self.world))


TestRetryModel = RetryModel.TestCase
TestRetryModel.settings = HOW


class LongRetryModel(RetryModel):
    """More of the same."""


TestLongRetryModel = pytest.mark.slow(LongRetryModel.TestCase)
TestLongRetryModel.settings = LONG
