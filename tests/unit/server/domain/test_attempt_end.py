"""What follows for a job from the end of an attempt."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from server.domain import ending, outcome
from server.domain.jobs import Job, Move
from server.domain.retry_policy import RetryPolicy
from server.domain.service import Service
from shared.clock import RANDOM, SECOND, iso
from shared.wire import JobState, PayloadDoc, PayloadState, Reason, RetryLater
from tests.kit.jobs import job

NOW = 1_000_000 * SECOND
HOUR = 3_600 * SECOND
RETRIED = RetryPolicy(2, (10.0,), retry_on=frozenset({"timeout", "shutdown", "heartbeat_timeout"}))
SERVICE = Service("s", retry=RETRIED, infra_retries=1, timeout_s=60.0, expires_after_s=100.0)


def after(found: Job, service: Service = SERVICE, **payload: Any) -> Move:
    doc = PayloadDoc(id=4, key="7.1", **({"status": PayloadState.FAILED} | payload))
    move = outcome.advance(found, doc, service, NOW, "node", RANDOM.uniform)
    assert move is not None
    return move


@pytest.mark.parametrize("reason", [Reason.TIMEOUT, Reason.HEARTBEAT_TIMEOUT])
def test_a_retry_says_its_delay_what_is_left_and_why(reason) -> None:
    move = after(job(), reason=reason, message="stopped", exit_code=None)
    again = "; it will be tried again in 10s, 1 retry left after that"
    assert move.message == f"stopped (service s sets this limit){again}"
    assert (move.event, move.reason) == ("job.retry", reason)
    assert move.fields == {
        "delay_s": 10.0,
        "reason": reason,
        "retry": 1,
        "retries": 2,
        "exit_code": None,
    }


@pytest.mark.parametrize("asked", [RetryLater(message="GPU busy", after_s=30.0), None])
def test_a_job_that_asks_to_be_tried_later_keeps_its_retries_and_its_place(asked) -> None:
    found = job(queued_at=5, retries_used=1, later_used=3)
    move = after(found, reason=Reason.EXIT_CODE, exit_code=75, retry_later=asked)
    delay = 30.0 if asked else 60.0
    assert (move.to, move.event) == (JobState.QUEUED, "job.retry_later")
    assert move.changes["not_before"] == NOW + delay * SECOND
    assert (move.changes["later_used"], "retries_used" in move.changes) == (4, False)
    assert move.changes["waits_since"] == 5, "its queue timeout goes on"
    assert (move.fields["delay_s"], move.fields["reason"]) == (delay, "GPU busy" if asked else "")
    why = ": GPU busy; it will be tried again in 30s" if asked else "; it will be tried again in 1m"
    assert move.message == f"it asked to be tried later{why}"


def test_a_job_that_asks_too_often_has_failed_and_is_not_retried() -> None:
    rules = RetryPolicy(3, retry_on=frozenset({"exit_code", "exit:75"}))
    service = Service("s", retry=rules, retry_later_limit=2)
    asked = RetryLater(message="busy")
    move = after(job(later_used=2), service, exit_code=75, retry_later=asked)
    assert (move.to, move.reason) == (JobState.FAILED, Reason.EXIT_CODE)
    assert move.message == (
        "it asked to be tried later: busy; it has done so 2 times before, the most that service s "
        "allows; it has 3 retries left, but retries are not for this"
    )


def test_a_job_that_is_to_be_cancelled_is_not_tried_later() -> None:
    move = after(job(cancel_requested_at=1), exit_code=75, retry_later=RetryLater())
    assert (move.to, move.message) == (
        JobState.CANCELLED,
        "cancelled; it asked to be tried later",
    )


SHUTDOWN: dict[str, Any] = {"reason": Reason.SHUTDOWN, "interrupted": True, "message": "stopped"}


def test_a_shutdown_that_did_not_wait_is_an_interruption_and_then_a_retry_if_named() -> None:
    service = dataclasses.replace(SERVICE, on_shutdown="continue")
    used = [
        (0, 0, {"infra_used": 1}, "job.interrupted"),
        (1, 0, {"retries_used": 1}, "job.retry"),
        (1, 1, {"retries_used": 2}, "job.retry"),
    ]
    for infra, retries, counted, event in used:
        move = after(job(infra_used=infra, retries_used=retries), service, **SHUTDOWN)
        assert (move.to, move.event) == (JobState.QUEUED, event)
        assert counted.items() <= move.changes.items()
    last = after(job(infra_used=1, retries_used=2), service, **SHUTDOWN)
    assert (last.to, last.reason) == (JobState.FAILED, Reason.SHUTDOWN)


def test_a_shutdown_ends_the_job_where_its_service_says_stop() -> None:
    service = dataclasses.replace(SERVICE, on_shutdown="stop")
    move = after(job(), service, **SHUTDOWN)
    assert (move.to, move.reason) == (JobState.FAILED, Reason.SHUTDOWN)
    assert move.message == "stopped; it is not tried again, as service s says (on_shutdown)"
    assert after(job(cancel_requested_at=1), service, **SHUTDOWN).to is JobState.CANCELLED
    crashed = after(job(), service, reason=Reason.AGENT_ERROR, interrupted=True)
    assert crashed.to is JobState.QUEUED, "only what the agent stopped itself"


def test_a_resubmitted_attempt_is_counted_nowhere() -> None:
    service = Service("s", on_shutdown="resubmit", infra_retries=0)
    move = after(job(infra_used=5, retries_used=5, later_used=5), service, **SHUTDOWN)
    assert (move.to, move.event) == (JobState.QUEUED, "job.resubmitted")
    assert not {"infra_used", "retries_used", "later_used"} & set(move.changes)
    crashed = after(job(), service, reason=Reason.AGENT_ERROR, interrupted=True)
    assert crashed.to is JobState.FAILED, "only what the agent stopped itself"


@pytest.mark.parametrize(("keep_s", "at"), [(0.0, None), (50.0, NOW + 50 * SECOND)])
def test_a_failure_for_good_is_a_dead_letter_with_a_time_of_its_own(keep_s, at) -> None:
    service = Service("s", dead_letter=True, dead_letter_expires_after_s=keep_s, retry=RETRIED)
    move = after(job(), service, reason=Reason.EXIT_CODE, exit_code=3)
    assert move.to is JobState.FAILED
    assert (move.changes["dead_letter"], move.changes["expires_at"]) == (True, at)
    for other in (
        after(job(), service, reason=Reason.TIMEOUT),
        after(job(), service, status=PayloadState.COMPLETED),
        after(job(), service, status=PayloadState.KILLED),
        after(job(parent_id=3), service, reason=Reason.EXIT_CODE),
    ):
        assert "dead_letter" not in other.changes


def test_what_is_kept_for_ever_does_not_expire() -> None:
    move = ending.failed(job(expires_after_s=0.0), SERVICE, NOW, Reason.QUEUE_TIMEOUT, "x")
    assert move.changes["expires_at"] is None


def test_who_set_the_heartbeat_timeout_that_was_hit_is_said() -> None:
    service = Service("s", heartbeat_timeout_s=600.0)
    hit: dict[str, Any] = {"reason": Reason.HEARTBEAT_TIMEOUT, "message": "silent"}
    own = after(job(heartbeat_timeout_s=60.0), service, **hit).message
    assert own == "silent (set at its upload; service s allows 10m)"
    assert after(job(), service, **hit).message == "silent (service s sets this limit)"


@pytest.mark.parametrize(
    ("reason", "field", "value", "most"),
    [
        (Reason.MEMORY_LIMIT, "memory", 64 << 20, "2.0 GiB"),
        (Reason.DISK_LIMIT, "disk", 64 << 20, "2.0 GiB"),
        (Reason.PIDS_LIMIT, "pids", 8, "256"),
        (Reason.CPU_LIMIT, "cpus", 0.5, "1 CPU"),
    ],
)
def test_who_set_a_limit_that_was_hit_is_said(reason, field, value, most) -> None:
    service = Service("s")
    lowered = job(limits=service.limits.model_copy(update={field: value}))
    said = after(lowered, service, reason=reason, message="too much").message
    assert said == f"too much (set at its upload; service s allows {most})"
    said = after(job(limits=service.limits), service, reason=reason, message="too much").message
    assert said == "too much (service s sets this limit)"


@pytest.mark.parametrize(
    ("exit_code", "stderr_tail", "explained"),
    [(127, "", True), (126, "", True), (2, "", True), (1, "x\r: not found", True), (1, "", False)],
)
def test_windows_line_endings_are_named_as_the_cause(exit_code, stderr_tail, explained) -> None:
    end = {"reason": Reason.EXIT_CODE, "exit_code": exit_code, "stderr_tail": stderr_tail}
    warned = job(upload_warnings=("run.sh has Windows line endings (CRLF): …",))
    assert ("(CRLF)" in after(warned, Service("s"), **end).message) is explained
    assert "(CRLF)" not in after(job(), Service("s"), **end).message


@pytest.mark.parametrize("skew", [-HOUR, 0, HOUR])
def test_an_agents_clock_does_not_matter(skew) -> None:
    """It took the attempt 100 s ago, and started it 30 s later."""
    taken = NOW - 100 * SECOND
    times: dict[str, Any] = {
        "created_at": iso(taken + skew),
        "started_at": iso(taken + 30 * SECOND + skew),
        "ended_at": iso(NOW + skew),
    }
    found = job(state=JobState.SUBMITTED, queued_at=taken - SECOND, submitted_at=taken)
    move = after(found, status=PayloadState.COMPLETED, **times)
    assert [step.at for step in move.steps] == [taken + 30 * SECOND, NOW]
    assert move.changes["started_at"] == taken + 30 * SECOND
    assert (move.changes["ended_at"], move.changes["expires_at"]) == (NOW, NOW + 100 * SECOND)


@pytest.mark.parametrize("skew", [-HOUR, HOUR])
@pytest.mark.parametrize("known", [{"submitted_at": NOW - 9}, {"state": JobState.PROCESSING}])
def test_no_step_is_before_another_or_in_the_future(skew, known) -> None:
    start: dict[str, Any] = {"state": JobState.SUBMITTED, "queued_at": NOW - 99, **known}
    move = after(job(**start), reason=Reason.EXIT_CODE, started_at=iso(NOW + skew))
    times = [step.at for step in move.steps]
    assert [NOW - 99, *times, NOW] == sorted([NOW - 99, *times, NOW])
