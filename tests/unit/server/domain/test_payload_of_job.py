"""Whether an agent's word about a payload counts for a job."""

from __future__ import annotations

import pytest

from server.domain import outcome
from server.domain.jobs import Attempt
from shared.wire import JobState, Limits, PayloadDoc, PayloadState
from tests.kit.jobs import job


def payload(key: str | None = "7.1", digest: str | None = "d") -> PayloadDoc:
    return PayloadDoc(id=1, key=key, status=PayloadState.RUNNING, bundle_digest=digest)


def attempt(agent: str, agent_id: str | None) -> Attempt:
    return Attempt(
        job_id=7,
        number=1,
        state=JobState.FAILED,
        agent=agent,
        agent_id=agent_id,
        claimed_at=0,
        limits=Limits(),
        timeout_s=1.0,
    )


@pytest.mark.parametrize(
    ("agent", "key", "digest", "is_of"),
    [
        ("a", "7.1", "d", True),
        ("b", "7.1", "d", False),
        ("a", "7.2", "d", False),
        ("a", "8.1", "d", False),
        ("a", "7.1", "x", False),
        ("a", "7.1", None, False),
        ("a", None, None, True),
        ("b", None, None, False),
    ],
)
def test_a_payload_is_a_jobs_by_its_agent_its_key_and_its_bundle(
    agent: str, key: str | None, digest: str | None, is_of: bool
) -> None:
    """A job-orchestrator client says neither key nor bundle."""
    assert outcome.is_of(job(agent="a"), payload(key, digest), agent) is is_of


@pytest.mark.parametrize(
    ("agent", "agent_id", "is_of"),
    [
        (("a", "id"), "id", True),
        (("new", "id"), "id", True),
        (("a", "other"), "id", False),
        (("a", "id"), None, True),
        (("b", "other"), None, False),
        (("a", "id"), "name:a", True),
        (("b", "id"), "name:a", False),
        (("a", None), "id", True),
    ],
    ids=repr,
)
def test_a_past_attempt_is_known_by_the_id_of_its_agent(
    agent: tuple[str, str | None], agent_id: str | None, is_of: bool
) -> None:
    """The name is compared where one of them has no id of its own."""
    queued = job(agent=None, state=JobState.QUEUED)
    past = attempt("a", agent_id)
    assert outcome.is_of(queued, payload(), *agent, past) is is_of
    assert not outcome.is_of(queued, payload("7.2"), *agent, past)


def test_a_job_without_a_bundle_has_no_payload() -> None:
    assert not outcome.is_of(job(agent="a", bundle=None), payload(), "a")
