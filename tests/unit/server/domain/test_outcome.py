"""What the end of an attempt means for its job."""

from __future__ import annotations

import pytest

from server.domain import endings, outcome
from server.domain.jobs import Job
from server.domain.quotas import Service
from shared.clock import SECOND
from shared.wire import JobState, PayloadDoc, PayloadState, Reason
from tests.support.jobs import job

S, P = JobState, PayloadState
NOW = 1_000 * SECOND
SERVICE = Service(
    "s",
    retries=2,
    retry_on=frozenset({"timeout", "exit:3"}),
    retry_delays_s=(10.0, 60.0),
    infra_retries=1,
    expires_after_s=100.0,
)


def judged(found: Job, **payload) -> outcome.Verdict:
    doc = PayloadDoc(id=1, key="7.1", **payload)
    return outcome.judge(found, doc, SERVICE, NOW, found.state)


def test_success_keeps_the_result_and_says_when_it_expires() -> None:
    verdict = judged(job(), status=P.COMPLETED, exit_code=0)
    assert (verdict.move.to, verdict.keep_result) == (S.COMPLETED, True)
    assert verdict.move.changes["expires_at"] == NOW + 100 * SECOND


def test_a_failure_of_the_bundle_is_final_unless_the_service_says_otherwise() -> None:
    verdict = judged(job(), status=P.FAILED, reason=Reason.EXIT_CODE, exit_code=4, message="no")
    assert (verdict.move.to, verdict.move.reason) == (S.FAILED, Reason.EXIT_CODE)
    assert verdict.move.message == "no"


@pytest.mark.parametrize(("reason", "exit_code"), [(Reason.TIMEOUT, None), (Reason.EXIT_CODE, 3)])
def test_what_the_service_retries_is_queued_again_with_its_delay(
    reason: Reason, exit_code: int | None
) -> None:
    verdict = judged(
        job(retries_used=1), status=P.FAILED, reason=reason, exit_code=exit_code, message="x"
    )
    assert verdict.move.to is S.QUEUED
    assert not verdict.keep_result
    assert verdict.move.changes["not_before"] == NOW + 60 * SECOND
    assert verdict.move.changes["retries_used"] == 2


def test_retries_run_out() -> None:
    verdict = judged(job(retries_used=2), status=P.FAILED, reason=Reason.TIMEOUT, message="x")
    assert verdict.move.to is S.FAILED


def test_an_interruption_pays_from_its_own_budget() -> None:
    lost = {"status": P.FAILED, "reason": Reason.AGENT_ERROR, "interrupted": True, "message": "x"}
    again = judged(job(), **lost)
    assert again.move.to is S.QUEUED
    assert (again.move.changes["infra_used"], again.move.changes["retries_used"]) == (1, 0)
    final = judged(job(infra_used=1), **lost)
    assert (final.move.to, final.move.reason) == (S.FAILED, Reason.AGENT_ERROR)


def test_a_job_that_is_to_be_cancelled_is_not_queued_again() -> None:
    wanted = job(cancel_requested_at=1)
    verdict = judged(
        wanted, status=P.FAILED, reason=Reason.AGENT_ERROR, interrupted=True, message="x"
    )
    assert verdict.move.to is S.CANCELLED
    lost = endings.interrupted(
        job(cancel_requested_at=1, infra_used=9), SERVICE, NOW, "gone", Reason.AGENT_LOST
    )
    assert lost.to is S.CANCELLED


@pytest.mark.parametrize(
    ("status", "to", "reason"),
    [
        (P.INVALID, S.FAILED, Reason.INVALID_BUNDLE),
        (P.KILLED, S.CANCELLED, None),
        (P.CLEANED, S.FAILED, Reason.AGENT_LOST),
    ],
)
def test_other_ends(status: PayloadState, to: JobState, reason: Reason | None) -> None:
    verdict = judged(job(), status=status)
    assert (verdict.move.to, verdict.move.reason) == (to, reason)
    assert verdict.move.message


def test_a_failure_always_has_a_reason_and_a_sentence() -> None:
    for status in outcome.ENDED - {P.COMPLETED, P.KILLED}:
        verdict = judged(job(), status=status)
        assert verdict.move.reason is not None
        assert verdict.move.message
