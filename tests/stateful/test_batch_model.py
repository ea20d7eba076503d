"""The model of what can go wrong, with arrays, jobs that leave children, and retries by hand."""

from __future__ import annotations

from typing import Any, Final

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import rule, run_state_machine_as_test

from server.domain.errors import RetryRefused
from shared.principals import LOCAL
from tests.stateful.test_job_model import FAULT, HOW, KILL, NUMBER, SERVICES, JobModel

KINDS: Final[list[dict[str, Any]]] = [
    {"array": "0-2", "max_parallel": "1"},
    {"array": "0-1", "batch_policy": "fail_fast", "gather": True},
    {"fan_out": True, "gather": True},
]


class BatchModel(JobModel):
    """Counters are compared with the children after every step, see ``World.check``."""

    def stages(self) -> list[Any]:
        return [*super().stages(), self.world.batches]

    @rule(
        service=st.sampled_from(list(SERVICES)),
        kind=st.sampled_from(KINDS),
        fault=FAULT,
        kill_after=KILL,
    )
    def upload_batch(
        self, service: str, kind: dict[str, Any], fault: str, kill_after: int | None
    ) -> None:
        self.expect(fault, kill_after)
        self.run(self.world.upload("ann", service, **kind))

    @rule(number=NUMBER, fault=FAULT, kill_after=KILL)
    def retry(self, number: int, fault: str, kill_after: int | None) -> None:
        ids = sorted(self.world.acknowledged)
        if not ids:
            return
        job_id = ids[number % len(ids)]

        async def retry() -> None:
            try:
                await self.world.retry(LOCAL, job_id)
            except RetryRefused:
                return
            children = await self.world.database.rows(
                "SELECT id FROM jobs WHERE parent_id = :id", {"id": job_id}
            )
            self.world.cancelled -= {job_id, *(row["id"] for row in children)}

        self.expect(fault, kill_after)
        self.run(retry())


def test_batches_keep_every_promise_whatever_goes_wrong() -> None:
    how = settings(HOW, max_examples=10, stateful_step_count=20)
    run_state_machine_as_test(BatchModel, settings=how)
