"""Whether a payload is a job's."""

from __future__ import annotations

import pytest

from server.domain import outcome
from shared.wire import PayloadDoc, PayloadState
from tests.support.jobs import job


@pytest.mark.parametrize(
    ("digest", "agent", "is_of"),
    [("d", "a", True), ("d", "b", True), ("x", "a", False), (None, "a", True), (None, "b", False)],
)
def test_a_payload_is_a_jobs_by_its_bundle_and_without_it_by_its_agent(
    digest: str | None, agent: str, is_of: bool
) -> None:
    payload = PayloadDoc(id=1, key="7.1", status=PayloadState.RUNNING, bundle_digest=digest)
    assert outcome.is_of(job(agent="a"), payload, agent) is is_of


def test_a_job_without_a_bundle_has_no_payload() -> None:
    payload = PayloadDoc(id=1, key="7.1", status=PayloadState.RUNNING, bundle_digest="d")
    assert not outcome.is_of(job(agent="a", bundle=None), payload, "a")
