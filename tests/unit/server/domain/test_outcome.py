"""What the end of an attempt means for its job."""

from __future__ import annotations

from typing import Any

import pytest

from server.domain import endings, outcome
from server.domain.jobs import Job
from server.domain.service import Service
from shared.clock import SECOND, iso
from shared.wire import JobState, PayloadDoc, PayloadState, Reason, Usage
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


FACTS: dict[str, Any] = {
    "exit_code": 4,
    "stderr_tail": "the last lines",
    "usage": Usage(wall_s=61.0, cpu_s=2.5, peak_memory_bytes=7),
    "warnings": ["one"],
    "enforcement": {"memory": "hard"},
}


@pytest.mark.parametrize(
    "payload",
    [
        {"status": P.COMPLETED},
        {"status": P.KILLED},
        {"status": P.FAILED, "reason": Reason.MEMORY_LIMIT},
        {"status": P.FAILED, "reason": Reason.AGENT_ERROR, "interrupted": True},
    ],
    ids=["completed", "killed", "failed", "interrupted"],
)
def test_what_an_attempt_used_and_said_is_kept_with_the_end_of_its_job(payload) -> None:
    verdict = judged(job(infra_used=9), **payload, **FACTS)
    assert {name: verdict.move.changes[name] for name in FACTS} == FACTS
    assert verdict.keep_result


def test_a_success_says_how_long_it_took() -> None:
    verdict = judged(job(), status=P.COMPLETED, usage=FACTS["usage"])
    assert verdict.move.message == "run.sh ended well after 1m 1s"


def test_a_job_that_is_cancelled_instead_of_retried_keeps_what_it_left() -> None:
    verdict = judged(job(cancel_requested_at=1), status=P.FAILED, reason=Reason.TIMEOUT)
    assert (verdict.move.to, verdict.keep_result) == (S.CANCELLED, True)


def test_who_killed_a_job_is_told() -> None:
    assert judged(job(), status=P.KILLED).move.message == "killed on the agent"
    assert judged(job(cancel_requested_at=1), status=P.KILLED).move.message == "cancelled"


@pytest.mark.parametrize(
    ("state", "to", "way"),
    [
        (S.PROCESSING, S.SUBMITTED, [S.SUBMITTED]),
        (S.PROCESSING, S.RUNNING, [S.SUBMITTED, S.RUNNING]),
        (S.SUBMITTED, S.RUNNING, [S.RUNNING]),
        (S.RUNNING, S.RUNNING, []),
    ],
)
def test_every_step_on_the_way_is_made_with_its_time(state, to, way) -> None:
    payload = PayloadDoc(id=4, key="7.1", status=P.RUNNING, started_at=iso(NOW - SECOND))
    moves = outcome.steps(job(state=state, agent="node"), payload, to, NOW)
    assert [move.to for move in moves] == way
    assert [move.before for move in moves] == [state, *way][: len(way)]
    at = {S.SUBMITTED: ("submitted_at", NOW), S.RUNNING: ("started_at", NOW - SECOND)}
    for move in moves:
        field, when = at[move.to]
        assert move.changes == {field: when, "payload_id": 4}
        assert move.at == when


@pytest.mark.parametrize(
    ("timeout_s", "who"),
    [(60.0, " (the upload asked for it; service s allows 1h)"), (3_600.0, "")],
)
def test_a_wall_time_limit_is_told_with_who_set_it(timeout_s: float, who: str) -> None:
    found = job(timeout_s=timeout_s, retries_used=2)
    verdict = judged(found, status=P.FAILED, reason=Reason.TIMEOUT, message="stopped after 1m")
    assert verdict.move.message == f"stopped after 1m{who}"
