"""What is written when an attempt is over."""

from __future__ import annotations

import pytest

from server.domain import endings
from server.domain.errors import IllegalTransition
from server.domain.retry import Retry
from server.domain.service import Service
from shared.clock import SECOND
from shared.wire import JobState, Reason
from tests.support.jobs import job

S = JobState
NOW = 1_000 * SECOND
SERVICE = Service("s", expires_after_s=100.0, infra_retries=1)
HELD = {"agent": "node", "payload_id": 5, "submitted_at": 1, "started_at": 2}


def test_an_end_says_when_it_came_and_when_it_expires() -> None:
    move = endings.end(job(), S.FAILED, SERVICE, NOW, "no", Reason.EXIT_CODE, exit_code=4)
    assert (move.job_id, move.attempt, move.before, move.to) == (7, 1, S.RUNNING, S.FAILED)
    assert (move.at, move.message, move.reason) == (NOW, "no", Reason.EXIT_CODE)
    assert move.changes == {"ended_at": NOW, "expires_at": NOW + 100 * SECOND, "exit_code": 4}


def test_an_end_may_follow_moves_of_the_same_write() -> None:
    found = job(state=S.SUBMITTED)
    assert endings.end(found, S.COMPLETED, SERVICE, NOW, "", before=S.RUNNING).before is S.RUNNING


def test_there_is_no_end_that_the_table_does_not_know() -> None:
    with pytest.raises(IllegalTransition):
        endings.end(job(state=S.QUEUED), S.COMPLETED, SERVICE, NOW, "")


def test_a_job_that_is_queued_again_belongs_to_no_agent_and_counts_what_it_used() -> None:
    how = Retry(2.5, infra_used=3, retries_used=4)
    move = endings.again(job(**HELD), SERVICE, NOW, "again", Reason.TIMEOUT, how)
    assert (move.before, move.to, move.reason) == (S.RUNNING, S.QUEUED, Reason.TIMEOUT)
    assert move.changes == {
        "queued_at": NOW,
        "not_before": NOW + round(2.5 * SECOND),
        "infra_used": 3,
        "retries_used": 4,
        "agent": None,
        "payload_id": None,
        "submitted_at": None,
        "started_at": None,
    }


def test_without_a_delay_it_may_be_sent_whatever_the_clock_says() -> None:
    move = endings.again(job(), SERVICE, NOW, "again", None, Retry(0.0, 1, 0))
    assert move.changes["not_before"] == 0


def test_a_job_that_is_to_be_cancelled_is_not_queued_again() -> None:
    found = job(cancel_requested_at=NOW)
    move = endings.again(found, SERVICE, NOW, "why", Reason.TIMEOUT, Retry(1.0, 0, 1))
    assert (move.to, move.message, move.reason) == (S.CANCELLED, "cancelled; why", None)
    assert move.changes["expires_at"] == NOW + 100 * SECOND


def test_an_interrupted_attempt_is_tried_again_while_there_is_budget() -> None:
    move = endings.interrupted(job(), SERVICE, NOW, "the agent died", Reason.AGENT_LOST)
    assert (move.to, move.reason) == (S.QUEUED, Reason.AGENT_LOST)
    assert move.message == "the agent died; it will be tried again"
    assert (move.changes["infra_used"], move.changes["retries_used"]) == (1, 0)


def test_and_fails_when_there_is_none_left() -> None:
    found = job(infra_used=1)
    move = endings.interrupted(found, SERVICE, NOW, "it died", Reason.AGENT_LOST, stderr_tail="x")
    assert (move.to, move.reason, move.message) == (S.FAILED, Reason.AGENT_LOST, "it died")
    assert move.changes["stderr_tail"] == "x"


def test_an_interrupted_attempt_that_was_to_be_cancelled_is_cancelled_with_or_without_budget() -> (
    None
):
    for used in (0, 1):
        found = job(infra_used=used, cancel_requested_at=5)
        move = endings.interrupted(found, SERVICE, NOW, "it died", Reason.AGENT_LOST)
        assert move.to is S.CANCELLED
