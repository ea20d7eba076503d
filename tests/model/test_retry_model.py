"""The model of jobs, with retries by exit code and by hand, dead letters, shutdowns, deletes."""

from contextlib import suppress
from dataclasses import replace
from typing import ClassVar

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from server.domain.errors import NoSuchJob
from server.domain.retry import BackoffKind, RetryPolicy
from shared.principals import LOCAL
from shared.wire import JobState, PayloadState, RetryLater
from tests.model.test_job_model import (
    AGENT,
    HOW,
    LONG,
    NUMBER,
    SERVICES,
    TROUBLE,
    RetriedModel,
    Trouble,
)

_RETRY_ON = frozenset({"exit:4", "timeout"})
_EXITS = RetryPolicy(2, backoff=BackoffKind.EXPONENTIAL_JITTER, delay_s=5.0, retry_on=_RETRY_ON)
_LATER = RetryLater(after_s=40.0, message="busy")


class RetryModel(RetriedModel):
    """What ends an attempt, and what users do with a job that has ended."""

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

    @rule(which=AGENT, code=st.sampled_from([0, 3, 4, 75]), asks=st.booleans(), trouble=TROUBLE)
    def exit(self, which: int, code: int, asks: bool, trouble: Trouble) -> None:
        self.expect(trouble)
        for agent, payload in self.at(which, PayloadState.RUNNING):
            self.happens(agent.exit, payload, code, _LATER if asks else None)

    @rule(which=AGENT, trouble=TROUBLE)
    def an_agent_is_stopped(self, which: int, trouble: Trouble) -> None:
        self.expect(trouble)
        self.happens(self.world.agents[which].shut_down)

    @rule(number=NUMBER, forget=st.booleans(), trouble=TROUBLE)
    def delete(self, number: int, forget: bool, trouble: Trouble) -> None:
        job_id = self.some_job(number)
        self.world.deleted.add(job_id)

        async def delete() -> None:
            ask = self.world.delete
            with suppress(NoSuchJob):
                done = ask.forget(LOCAL, job_id) if forget else ask(LOCAL, job_id, 0.0)
                if await done is None:
                    with pytest.raises(NoSuchJob):
                        await self.world.jobs.get(job_id)

        if job_id:
            self.expect(trouble)
            self.run(delete())

    async def promises(self) -> None:
        await super().promises()
        for job_id in self.world.acknowledged:
            job = await self.world.jobs.get(job_id)
            service = self.services[job.service]
            assert job.later_used <= service.retry_later_limit
            assert job.retries_used <= service.retry.retries
            assert job.infra_used <= service.infra_retries
            if job.dead_letter:
                assert (job.state, service.dead_letter) == (JobState.FAILED, True)
            if job.state is JobState.QUEUED:
                assert job.ended_at is None


@pytest.mark.parametrize("how", [HOW, pytest.param(LONG, marks=pytest.mark.slow)])
def test_retries_and_deletes_keep_every_promise_whatever_goes_wrong(how: settings) -> None:
    run_state_machine_as_test(RetryModel, settings=how)
