"""What the end of an attempt means for its job."""

from __future__ import annotations

from typing import Any

import pytest

from server.domain import ending, outcome
from server.domain.agents import RefusedByAgent
from server.domain.errors import IllegalTransition
from server.domain.jobs import Job, Move
from server.domain.retry_policy import RetryPolicy
from server.domain.service import Service
from shared.clock import RANDOM, SECOND, iso
from shared.wire import JobState, PayloadDoc, PayloadState, Reason, ResultInfo, Usage
from tests.kit.jobs import job

NOW = 1_000 * SECOND
UNIFORM = RANDOM.uniform
SERVICE = Service(
    "s",
    retry=RetryPolicy(2, (10.0, 60.0), retry_on=frozenset({"timeout", "exit:3"})),
    infra_retries=1,
    expires_after_s=100.0,
)


def after(found: Job, **payload) -> Move:
    move = outcome.advance(
        found, PayloadDoc(id=4, key="7.1", **payload), SERVICE, NOW, "node", UNIFORM
    )
    assert move is not None
    return move


def test_success_says_when_it_ended_and_when_it_expires() -> None:
    move = after(job(), status=PayloadState.COMPLETED, exit_code=0)
    assert (move.before, move.to, move.at, move.reason) == (
        JobState.RUNNING,
        JobState.COMPLETED,
        NOW,
        None,
    )
    assert move.changes["ended_at"] == NOW
    assert move.changes["expires_at"] == NOW + 100 * SECOND


NOT_AGAIN = "; it has 2 retries left, but retry_on has only exit:3, timeout"


def test_a_failure_of_the_bundle_is_final_unless_the_service_says_otherwise() -> None:
    move = after(
        job(), status=PayloadState.FAILED, reason=Reason.EXIT_CODE, exit_code=4, message="no"
    )
    assert (move.to, move.reason) == (JobState.FAILED, Reason.EXIT_CODE)
    assert move.message == f"no{NOT_AGAIN}"


@pytest.mark.parametrize(("reason", "exit_code"), [(Reason.TIMEOUT, None), (Reason.EXIT_CODE, 3)])
def test_what_the_service_retries_is_queued_again_with_its_delay(
    reason: Reason, exit_code: int | None
) -> None:
    move = after(
        job(retries_used=1),
        status=PayloadState.FAILED,
        reason=reason,
        exit_code=exit_code,
        message="x",
    )
    assert move.to is JobState.QUEUED
    assert move.changes["not_before"] == NOW + 60 * SECOND
    assert move.changes["retries_used"] == 2


def test_retries_run_out() -> None:
    move = after(
        job(retries_used=2), status=PayloadState.FAILED, reason=Reason.TIMEOUT, message="x"
    )
    assert move.to is JobState.FAILED


def test_an_interruption_pays_from_its_own_budget() -> None:
    lost = {
        "status": PayloadState.FAILED,
        "reason": Reason.AGENT_ERROR,
        "interrupted": True,
        "message": "x",
    }
    again = after(job(), **lost)
    assert again.to is JobState.QUEUED
    assert (again.changes["infra_used"], again.changes.get("retries_used")) == (1, None)
    final = after(job(infra_used=1), **lost)
    assert (final.to, final.reason) == (JobState.FAILED, Reason.AGENT_ERROR)


def test_a_job_that_is_to_be_cancelled_is_not_queued_again() -> None:
    wanted = job(cancel_requested_at=1)
    move = after(
        wanted, status=PayloadState.FAILED, reason=Reason.AGENT_ERROR, interrupted=True, message="x"
    )
    assert move.to is JobState.CANCELLED
    assert (move.message, move.reason) == ("cancelled; x", None)
    assert move.changes["expires_at"] == NOW + 100 * SECOND
    for used in (0, 9):
        found = job(cancel_requested_at=1, infra_used=used)
        assert (
            ending.interrupted(found, SERVICE, NOW, Reason.AGENT_LOST, "x").to is JobState.CANCELLED
        )


@pytest.mark.parametrize(
    ("status", "to", "reason"),
    [
        (PayloadState.INVALID, JobState.FAILED, Reason.INVALID_BUNDLE),
        (PayloadState.KILLED, JobState.CANCELLED, None),
        (PayloadState.CLEANED, JobState.FAILED, Reason.AGENT_LOST),
    ],
)
def test_other_ends(status: PayloadState, to: JobState, reason: Reason | None) -> None:
    move = after(job(), status=status)
    assert (move.to, move.reason) == (to, reason)
    assert move.message


def test_a_failure_always_has_a_reason_and_a_sentence() -> None:
    for status in outcome.ENDED - {PayloadState.COMPLETED, PayloadState.KILLED}:
        move = after(job(), status=status)
        assert move.reason is not None
        assert move.message


FACTS: dict[str, Any] = {
    "exit_code": 4,
    "stderr_tail": "the last lines",
    "usage": Usage(wall_s=61.0, cpu_s=2.5, peak_memory_bytes=7),
    "warnings": ["one"],
    "enforcement": {"memory": "hard"},
}
NO_LOGS = {"stdout_bytes": None, "stderr_bytes": None}


@pytest.mark.parametrize(
    "payload",
    [
        {"status": PayloadState.COMPLETED},
        {"status": PayloadState.KILLED},
        {"status": PayloadState.FAILED, "reason": Reason.MEMORY_LIMIT},
        {"status": PayloadState.FAILED, "reason": Reason.TIMEOUT},
        {"status": PayloadState.FAILED, "reason": Reason.AGENT_ERROR, "interrupted": True},
    ],
    ids=["completed", "killed", "failed", "retried", "interrupted"],
)
def test_what_an_attempt_used_and_said_is_kept_with_it(payload) -> None:
    assert after(job(infra_used=0), **payload, **FACTS).facts == FACTS | NO_LOGS


def test_how_much_an_attempt_logged_is_kept_with_it() -> None:
    left = ResultInfo(size=9, sha256="ab", stdout_bytes=7, stderr_bytes=0)
    facts = after(job(), status=PayloadState.COMPLETED, result=left).facts
    assert (facts["stdout_bytes"], facts["stderr_bytes"]) == (7, 0)


def test_a_success_says_how_long_it_took() -> None:
    move = after(job(), status=PayloadState.COMPLETED, usage=FACTS["usage"])
    assert move.message == "run.sh ended well after 1m 1s"


def test_who_killed_a_job_is_reported() -> None:
    assert after(job(), status=PayloadState.KILLED).message == "killed on the agent"
    assert after(job(cancel_requested_at=1), status=PayloadState.KILLED).message == "cancelled"


STARTED = {"started_at": iso(NOW - SECOND)}
TIMES = {JobState.SUBMITTED: ("submitted_at", NOW), JobState.RUNNING: ("started_at", NOW - SECOND)}


@pytest.mark.parametrize(
    ("state", "payload", "steps"),
    [
        (JobState.PROCESSING, {"status": PayloadState.PREPARED}, [JobState.SUBMITTED]),
        (
            JobState.PROCESSING,
            {"status": PayloadState.RUNNING, **STARTED},
            [JobState.SUBMITTED, JobState.RUNNING],
        ),
        (JobState.SUBMITTED, {"status": PayloadState.RUNNING, **STARTED}, [JobState.RUNNING]),
        (JobState.UNKNOWN, {"status": PayloadState.RUNNING, **STARTED}, [JobState.RUNNING]),
        (
            JobState.PROCESSING,
            {"status": PayloadState.INVALID},
            [JobState.SUBMITTED, JobState.FAILED],
        ),
        (
            JobState.SUBMITTED,
            {"status": PayloadState.COMPLETED, **STARTED},
            [JobState.RUNNING, JobState.COMPLETED],
        ),
        (
            JobState.QUEUED,
            {"status": PayloadState.COMPLETED, **STARTED},
            [JobState.PROCESSING, JobState.SUBMITTED, JobState.RUNNING, JobState.COMPLETED],
        ),
    ],
)
def test_every_step_on_the_way_is_made_with_its_time(state, payload, steps) -> None:
    move = after(job(state=state, agent=None), **payload)
    assert [step.to for step in move.steps] == steps
    for step in move.steps:
        if step.to in TIMES:
            field, at = TIMES[step.to]
            if JobState.RUNNING in steps:
                at = NOW - SECOND  # the agent had it when it started it
            assert (step.at, move.changes[field]) == (at, at)
            assert move.changes["payload_id"] == 4
    assert move.changes.get("agent") == ("node" if state is JobState.QUEUED else None)


@pytest.mark.parametrize(
    ("state", "status"),
    [
        (JobState.RUNNING, PayloadState.RUNNING),
        (JobState.SUBMITTED, PayloadState.PREPARED),
        (JobState.RUNNING, PayloadState.PREPARED),
    ],
)
def test_what_is_known_already_moves_nothing(state, status) -> None:
    doc = PayloadDoc(id=4, key="7.1", status=status)
    assert outcome.advance(job(state=state), doc, SERVICE, NOW, "node", UNIFORM) is None


def test_there_is_no_move_that_the_table_does_not_know() -> None:
    with pytest.raises(IllegalTransition):
        Move(7, 1, JobState.QUEUED, JobState.COMPLETED, NOW, "")
    with pytest.raises(IllegalTransition):
        outcome.submitted(job(state=JobState.RUNNING), "node", 4, NOW)


HELD = {"agent": "node", "payload_id": 5, "submitted_at": 1, "started_at": 2}


def test_a_job_that_is_queued_again_belongs_to_no_agent_and_counts_what_it_used() -> None:
    move = after(job(**HELD), status=PayloadState.FAILED, reason=Reason.TIMEOUT)
    assert (move.before, move.to, move.reason) == (
        JobState.RUNNING,
        JobState.QUEUED,
        Reason.TIMEOUT,
    )
    assert move.changes == {
        "queued_at": NOW,
        "waits_since": NOW + 10 * SECOND,
        "not_before": NOW + 10 * SECOND,
        "retries_used": 1,
        "agent": None,
        "payload_id": None,
        "submitted_at": None,
        "heartbeat_at": None,
        "progress": None,
        "output": {},
    }


def test_without_a_delay_it_may_be_sent_whatever_the_clock_says() -> None:
    move = outcome.not_sent(job(**HELD, retries_used=1, infra_used=1), SERVICE, NOW, "why", 0.0)
    assert (move.to, move.message, move.reason) == (JobState.QUEUED, "why", None)
    assert move.changes["not_before"] == 0
    assert not {"infra_used", "retries_used"} & set(move.changes)
    assert move.changes["waits_since"] == 0, "its queue timeout goes on"


def test_an_interrupted_attempt_is_tried_again_while_there_is_budget() -> None:
    move = ending.interrupted(job(), SERVICE, NOW, Reason.AGENT_LOST, "it died")
    assert (move.to, move.reason) == (JobState.QUEUED, Reason.AGENT_LOST)
    assert move.message == "it died; it will be tried again"
    final = ending.interrupted(job(infra_used=1), SERVICE, NOW, Reason.AGENT_LOST, "it died")
    assert (final.to, final.reason, final.message) == (
        JobState.FAILED,
        Reason.AGENT_LOST,
        f"it died{NOT_AGAIN}",
    )


PROCESSING = job(state=JobState.PROCESSING, agent="node")


def refused(code: str, *, final: bool, retry_after_s: float | None, offered: bool = True) -> Move:
    refusal = RefusedByAgent(code, "no", final=final, retry_after_s=retry_after_s)
    return outcome.refused(PROCESSING, SERVICE, NOW, refusal, delay_s=3.0, offered=offered)


@pytest.mark.parametrize(
    ("code", "final", "retry_after_s", "to", "reason", "message"),
    [
        ("stale_attempt", True, None, JobState.QUEUED, None, "agent node refused it: no"),
        ("key_refused", False, 1.0, JobState.QUEUED, None, "agent node refused it: no"),
        ("busy", False, 1.0, JobState.QUEUED, None, "agent node does not take it now: no"),
        ("not_offered", True, None, JobState.QUEUED, None, "agent node does not take it now: no"),
        (
            "bad",
            True,
            None,
            JobState.FAILED,
            Reason.AGENT_ERROR,
            f"agent node refused it: no{NOT_AGAIN}",
        ),
        (
            "invalid_bundle",
            True,
            None,
            JobState.FAILED,
            Reason.INVALID_BUNDLE,
            "agent node refused it: no; it has 2 retries left, but invalid_bundle would be the "
            "same next time",
        ),
        (
            "internal",
            False,
            None,
            JobState.QUEUED,
            Reason.AGENT_ERROR,
            "agent node refused it: no; it will be tried again",
        ),
    ],
)
def test_what_a_refusal_means(code, final, retry_after_s, to, reason, message) -> None:
    move = refused(code, final=final, retry_after_s=retry_after_s)
    assert (move.to, move.reason, move.message) == (to, reason, message)
    if to is JobState.QUEUED:
        pays = reason is Reason.AGENT_ERROR
        assert move.changes.get("infra_used", 0) == pays
        assert move.changes["not_before"] == (0 if pays else NOW + 3 * SECOND)


def test_a_service_that_no_agent_offers_fails_its_jobs() -> None:
    move = refused("not_offered", final=True, retry_after_s=None, offered=False)
    assert (move.to, move.reason) == (JobState.FAILED, Reason.NOT_OFFERED)


@pytest.mark.parametrize(
    ("state", "unreachable_s", "to"),
    [
        (JobState.RUNNING, 10.0, None),
        (JobState.RUNNING, 11.0, JobState.UNKNOWN),
        (JobState.UNKNOWN, 11.0, None),
        (JobState.UNKNOWN, 101.0, JobState.QUEUED),
        (JobState.SUBMITTED, 101.0, JobState.QUEUED),
    ],
)
def test_an_unreachable_agents_jobs_are_unknown_and_later_lost(state, unreachable_s, to) -> None:
    patience = {"unreachable_after_s": 10.0, "lost_after_s": 100.0}
    found = job(state=state)
    move = outcome.unreached(found, SERVICE, NOW, "agent n is away", unreachable_s, **patience)
    assert (move.to if move else None) == to
    if move is not None:
        assert move.message.startswith("agent n is away for ")


def test_of_a_lost_job_that_was_to_be_cancelled_it_is_said_that_nothing_is_known() -> None:
    found = job(cancel_requested_at=1)
    move = outcome.unreached(
        found, SERVICE, NOW, "away", 9.0, unreachable_after_s=1.0, lost_after_s=2.0
    )
    assert move is not None
    assert move.to is JobState.CANCELLED
    assert "whether its processes are dead is not known" in move.message


@pytest.mark.parametrize(
    ("timeout_s", "who"),
    [
        (60.0, " (set at its upload; service s allows 1h)"),
        (3_600.0, " (service s sets this limit)"),
    ],
)
def test_a_wall_time_limit_is_reported_with_who_set_it(timeout_s: float, who: str) -> None:
    found = job(timeout_s=timeout_s, retries_used=2)
    move = after(
        found, status=PayloadState.FAILED, reason=Reason.TIMEOUT, message="stopped after 1m"
    )
    assert move.message == f"stopped after 1m{who}"
