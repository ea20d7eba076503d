"""The life of a job: what follows from each event in each state, and what it says.

Each row of a table is a job that runs, but for the given fields, and what its agent says or what
becomes of it. A property holds over all of them.
"""

import dataclasses
import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.domain import batch, ending, outcome, states
from server.domain.agents import RefusedByAgent
from server.domain.errors import IllegalTransition, RetryRefused
from server.domain.jobs import Job, Move
from server.domain.retry import RetryPolicy
from server.domain.service import Service
from shared.clock import RANDOM, SECOND, iso
from shared.wire import JobState as S
from shared.wire import Limits, PayloadDoc, ResultInfo, RetryLater, Usage
from shared.wire import PayloadState as P
from shared.wire import Reason as R
from tests.kit.each import each
from tests.kit.store import job

NOW = 1_000_000 * SECOND
HOUR = 3_600 * SECOND
RETRIED = frozenset({"timeout", "heartbeat_timeout", "exit:3", "shutdown"})
POLICY = RetryPolicy(2, (10.0, 60.0), retry_on=RETRIED)
LIMITS: dict[str, Any] = {"infra_retries": 1, "timeout_s": 60.0, "retry_later_limit": 2}
LIMITS |= {"expires_after_s": 100.0, "on_shutdown": "continue"}
SERVICE = Service("s", retry=POLICY, **LIMITS)


def said(found: Job, service: Service = SERVICE, **payload: Any) -> Move | None:
    doc = PayloadDoc(id=4, key="7.1", **({"status": P.FAILED} | payload))
    return outcome.advance(found, doc, service, NOW, "node", RANDOM.uniform)


def after(found: Job, service: Service = SERVICE, **payload: Any) -> Move:
    move = said(found, service, **payload)
    assert move is not None
    return move


@each(
    "state, used, to",
    [(S.SUBMITTED, 0, S.QUEUED), (S.SUBMITTED, 1, S.FAILED), (S.RUNNING, 0, S.FAILED)],
)
def test_without_infra_retries_a_bundle_is_not_started_twice(state, used, to) -> None:
    assert after(job(state=state, infra_used=used), STOP, **LOST).to is to


def test_every_state_has_a_row_and_is_reached_and_other_moves_are_refused_when_made() -> None:
    assert set(states.NEXT) == set(S)
    assert {states.FIRST} | {to for after in states.NEXT.values() for to in after} == set(S)
    assert states.NEXT[S.COMPLETED] == {S.CLEANED}
    assert not states.NEXT[S.CLEANED]
    with pytest.raises(IllegalTransition, match="job 17 is Completed, so it cannot become Running"):
        Move(17, 1, S.COMPLETED, S.RUNNING, 0, "")
    with pytest.raises(IllegalTransition):
        ending.move(job(state=S.RUNNING), S.SUBMITTED, NOW, "node has it")


# -- what an agent says of the attempt: job, payload, where to and why, event, what changes

KEPT = {"cancel_requested_at": 1}
DONE, TIMED = {"status": P.COMPLETED}, {"reason": R.TIMEOUT}
EXIT_3, EXIT_4 = ({"reason": R.EXIT_CODE, "exit_code": code} for code in (3, 4))
LOST = {"reason": R.AGENT_ERROR, "interrupted": True}
STOPPED = {"reason": R.SHUTDOWN, "interrupted": True}
BUSY = {"exit_code": 75, "retry_later": RetryLater(message="GPU busy", after_s=30.0)}
LATER_ON = {"exit_code": 75, "retry_later": RetryLater()}
RETRY, LATER, AGAIN = "job.retry", "job.retry_later", "job.interrupted"
ENDED, EXPIRES = {"ended_at": NOW}, {"expires_at": NOW + 100 * SECOND}
USED_UP = {"infra_used": 5, "retries_used": 5, "later_used": 5}
RESUBMIT, STOP = (
    dataclasses.replace(SERVICE, on_shutdown=how, infra_retries=0) for how in ("resubmit", "stop")
)
STOP_ONLY = dataclasses.replace(STOP, infra_retries=1)
OWN = {"retry": RetryPolicy(1, retry_on=frozenset({"exit:4"}))}
BUT = RetryPolicy(1, retry_on=frozenset({"exit_code"}), no_retry_on=frozenset({"exit:3"}))
BUT_3 = dataclasses.replace(SERVICE, retry=BUT)
MEMORY_3, MEMORY_4 = ({"reason": R.MEMORY_LIMIT, "exit_code": code} for code in (3, 4))


def waits(seconds: int, **changes: Any) -> dict[str, Any]:
    return {"not_before": NOW + seconds * SECOND, **changes}


Row = tuple[Service, dict[str, Any], dict[str, Any], S, R | None, str, dict[str, Any]]
ENDS: tuple[Row, ...] = (
    (SERVICE, {}, DONE, S.COMPLETED, None, "", ENDED | EXPIRES),
    (SERVICE, {"expires_after_s": 0.0}, DONE, S.COMPLETED, None, "", {"expires_at": None}),
    (SERVICE, {}, {"status": P.KILLED}, S.CANCELLED, None, "", {}),
    (SERVICE, {}, {"status": P.CLEANED}, S.FAILED, R.AGENT_LOST, "", {}),
    (SERVICE, {}, {"status": P.INVALID}, S.FAILED, R.INVALID_BUNDLE, "", {}),
    (SERVICE, {}, EXIT_4, S.FAILED, R.EXIT_CODE, "", ENDED),
    (SERVICE, {}, EXIT_3, S.QUEUED, R.EXIT_CODE, RETRY, {"retries_used": 1}),
    (SERVICE, {}, MEMORY_3, S.QUEUED, R.MEMORY_LIMIT, RETRY, {"retries_used": 1}),
    (SERVICE, {}, MEMORY_4, S.FAILED, R.MEMORY_LIMIT, "", ENDED),
    (BUT_3, {}, EXIT_4, S.QUEUED, R.EXIT_CODE, RETRY, {"retries_used": 1}),
    (BUT_3, {}, EXIT_3, S.FAILED, R.EXIT_CODE, "", ENDED),
    (SERVICE, OWN, EXIT_4, S.QUEUED, R.EXIT_CODE, RETRY, {"retries_used": 1}),
    (SERVICE, OWN, TIMED, S.FAILED, R.TIMEOUT, "", ENDED),
    (
        *(SERVICE, {"retries_used": 1}, TIMED, S.QUEUED, R.TIMEOUT, RETRY),
        waits(60, retries_used=2, waits_since=NOW + 60 * SECOND),
    ),
    (SERVICE, {"retries_used": 2}, TIMED, S.FAILED, R.TIMEOUT, "", {}),
    (SERVICE, KEPT, TIMED, S.CANCELLED, None, "", EXPIRES),
    # Interrupted through no fault of the bundle: from a budget of its own.
    (SERVICE, {}, LOST, S.QUEUED, R.AGENT_ERROR, AGAIN, {"infra_used": 1}),
    (SERVICE, {"infra_used": 1}, LOST, S.FAILED, R.AGENT_ERROR, "", {}),
    (SERVICE, KEPT, LOST, S.CANCELLED, None, "", {}),
    (SERVICE, KEPT | {"infra_used": 9}, LOST, S.CANCELLED, None, "", {}),
    # It asks to be tried later: not counted as a retry, and its queue timeout goes on.
    (
        *(SERVICE, {"queued_at": 5, "later_used": 1}, BUSY, S.QUEUED, R.EXIT_CODE, LATER),
        waits(30, later_used=2, waits_since=5),
    ),
    (SERVICE, {}, LATER_ON, S.QUEUED, R.EXIT_CODE, LATER, waits(60, later_used=1)),
    (SERVICE, {"later_used": 2}, BUSY, S.FAILED, R.EXIT_CODE, "", {}),
    (SERVICE, KEPT, BUSY, S.CANCELLED, None, "", {}),
    # Its agent shuts down, with on_shutdown = "continue", or another, which is of a shutdown only.
    (SERVICE, {}, STOPPED, S.QUEUED, R.SHUTDOWN, AGAIN, {"infra_used": 1}),
    (SERVICE, {"infra_used": 1}, STOPPED, S.QUEUED, R.SHUTDOWN, RETRY, {"retries_used": 1}),
    (SERVICE, {"infra_used": 1, "retries_used": 2}, STOPPED, S.FAILED, R.SHUTDOWN, "", {}),
    (RESUBMIT, USED_UP, STOPPED, S.QUEUED, R.SHUTDOWN, "job.resubmitted", {}),
    (RESUBMIT, USED_UP, LOST, S.FAILED, R.AGENT_ERROR, "", {}),
    (STOP, {}, STOPPED, S.FAILED, R.SHUTDOWN, "", {}),
    (STOP, KEPT, STOPPED, S.CANCELLED, None, "", {}),
    (STOP_ONLY, {}, LOST, S.QUEUED, R.AGENT_ERROR, AGAIN, {"infra_used": 1}),
)
COUNTERS = {"retries_used", "infra_used", "later_used"}


@each("service, fields, payload, to, reason, event, changes", ENDS)
def test_what_follows_from_an_end(service, fields, payload, to, reason, event, changes):
    move = after(job(**fields), service, **payload)
    assert (move.before, move.to, move.at) == (S.RUNNING, to, NOW)
    assert (move.reason, move.event) == (reason, event)
    assert changes.items() <= move.changes.items()
    assert COUNTERS & set(move.changes) == COUNTERS & set(changes), "what else is counted"
    assert move.message


HELD: dict[str, Any] = {"agent": "node", "payload_id": 5, "submitted_at": 1, "started_at": 2}


def test_a_job_that_is_queued_again_belongs_to_no_agent_and_tells_programs_why() -> None:
    move = after(job(**HELD), SERVICE, reason=R.TIMEOUT, exit_code=None)
    none = dict.fromkeys(("agent", "payload_id", "submitted_at", "heartbeat_at", "progress"))
    later = dict.fromkeys(("waits_since", "not_before"), NOW + 10 * SECOND)
    assert move.changes == none | later | {"queued_at": NOW, "retries_used": 1, "output": {}}
    of_retry = {"delay_s": 10.0, "reason": R.TIMEOUT, "retry": 1, "retries": 2}
    assert move.fields == of_retry | {"exit_code": None}
    asked = after(job(), SERVICE, **BUSY).fields
    assert (asked["delay_s"], asked["reason"]) == (30.0, "GPU busy")


@each("keep_s, at", [(0.0, None), (50.0, NOW + 50 * SECOND)])
def test_a_failure_for_good_is_a_dead_letter_with_a_time_of_its_own(keep_s, at):
    service = Service("s", dead_letter=True, dead_letter_expires_after_s=keep_s, retry=POLICY)
    move = after(job(), service, reason=R.EXIT_CODE, exit_code=4)
    assert (move.changes["dead_letter"], move.changes["expires_at"]) == (True, at)
    for found, payload in (
        *((job(), payload) for payload in (TIMED, DONE, {"status": P.KILLED})),
        (job(parent_id=3), EXIT_4),
    ):
        assert "dead_letter" not in after(found, service, **payload).changes


# -- steps and their times

STARTED: dict[str, Any] = {"started_at": iso(NOW - SECOND)}
RUNS, PREPARED = {"status": P.RUNNING, **STARTED}, {"status": P.PREPARED}
STEPS: tuple[tuple[S, dict[str, Any], list[S]], ...] = (
    (S.PROCESSING, PREPARED, [S.SUBMITTED]),
    (S.PROCESSING, RUNS, [S.SUBMITTED, S.RUNNING]),
    (S.SUBMITTED, RUNS, [S.RUNNING]),
    (S.UNKNOWN, RUNS, [S.RUNNING]),
    (S.UNKNOWN, PREPARED, [S.SUBMITTED]),
    (S.PROCESSING, {"status": P.INVALID}, [S.SUBMITTED, S.FAILED]),
    (S.SUBMITTED, DONE | STARTED, [S.RUNNING, S.COMPLETED]),
    (S.QUEUED, DONE | STARTED, [S.PROCESSING, S.SUBMITTED, S.RUNNING, S.COMPLETED]),
    (S.RUNNING, {"status": P.RUNNING}, []),
    (S.SUBMITTED, PREPARED, []),
    (S.RUNNING, PREPARED, []),
)


@each("state, payload, steps", STEPS)
def test_every_step_on_the_way_is_made_with_its_time(state, payload, steps):
    move = said(job(state=state, agent=None), **payload)
    if move is None:
        assert steps == []
        return
    assert [step.to for step in move.steps] == steps
    started = S.RUNNING in steps
    for step in move.steps:
        if step.to in (S.SUBMITTED, S.RUNNING):
            field = "submitted_at" if step.to is S.SUBMITTED else "started_at"
            at = NOW - SECOND if started else NOW  # the agent had it when it started it
            assert (step.at, move.changes[field]) == (at, at)
            assert move.changes["payload_id"] == 4
    assert move.changes.get("agent") == ("node" if state is S.QUEUED else None)


def test_the_first_start_of_a_run_stays_its_own() -> None:
    move = after(job(state=S.SUBMITTED, started_at=7), **RUNS)
    assert (move.changes["started_at"], move.facts["started_at"]) == (7, NOW - SECOND)


@each("skew", [-HOUR, 0, HOUR])
def test_an_agents_clock_does_not_matter(skew: int) -> None:
    """It took the attempt 100 s ago, and started it 30 s later."""
    taken = NOW - 100 * SECOND
    started, ended = iso(taken + 30 * SECOND + skew), iso(NOW + skew)
    times: dict[str, Any] = {"started_at": started, "ended_at": ended}
    times["created_at"] = iso(taken + skew)
    found = job(state=S.SUBMITTED, queued_at=taken - SECOND, submitted_at=taken)
    move = after(found, status=P.COMPLETED, **times)
    assert [step.at for step in move.steps] == [taken + 30 * SECOND, NOW]
    assert move.changes["started_at"] == taken + 30 * SECOND
    assert (move.changes["ended_at"], move.changes["expires_at"]) == (NOW, NOW + 100 * SECOND)


JOBS = st.builds(
    job,
    state=st.sampled_from([S.QUEUED, S.PROCESSING, S.SUBMITTED, S.RUNNING, S.UNKNOWN]),
    agent=st.just("node"),
    queued_at=st.just(NOW - 99),
    submitted_at=st.sampled_from([None, NOW - 9]),
    retries_used=st.integers(0, 3),
    infra_used=st.integers(0, 2),
    later_used=st.integers(0, 3),
    cancel_requested_at=st.sampled_from([None, 1]),
    gather=st.booleans(),
)
PAYLOADS = st.builds(
    PayloadDoc,
    id=st.just(4),
    key=st.just("7.1"),
    status=st.sampled_from(P),
    reason=st.sampled_from([None, *R]),
    exit_code=st.sampled_from([None, 0, 3, 4, 75]),
    interrupted=st.booleans(),
    retry_later=st.sampled_from([None, RetryLater(), RetryLater(after_s=5.0)]),
    started_at=st.sampled_from([None, iso(NOW - HOUR), iso(NOW - 3), iso(NOW + HOUR)]),
)


@given(JOBS, PAYLOADS, st.sampled_from(["stop", "resubmit", "continue"]))
def test_whatever_an_agent_says_the_job_follows_the_table(found, payload, on_shutdown):
    if not outcome.expects(found, payload):
        assert found.state is S.QUEUED, "only that of an attempt that was given up"
        return
    service = dataclasses.replace(SERVICE, on_shutdown=on_shutdown)
    move = outcome.advance(found, payload, service, NOW, "node", RANDOM.uniform)
    if move is None:
        assert payload.status not in outcome.ENDED
        return
    way = [found.state, *(step.to for step in move.steps)]
    assert all(to in states.NEXT[one] for one, to in itertools.pairwise(way))
    since = [NOW - 99, *(step.at for step in move.steps), NOW]
    assert since == sorted(since), "no step is before another, or in the future"
    assert (move.to is S.FAILED) <= bool(move.reason and move.message)
    assert (payload.status in outcome.ENDED) == (move.to in {*states.ENDED, S.QUEUED})
    if found.cancel_requested_at is not None:
        assert move.to is not S.QUEUED
    grown = {name: move.changes[name] for name in COUNTERS & set(move.changes)}
    assert len(grown) <= 1
    assert all(value == getattr(found, name) + 1 for name, value in grown.items())
    most = {"retries_used": 2, "infra_used": 1, "later_used": 2}
    assert all(value <= most[name] for name, value in grown.items())
    assert len(grown) == (move.to is S.QUEUED and move.event != "job.resubmitted")


# -- what becomes of an attempt without a word of its agent


@each(
    "code, final, offered, to, reason, message",
    [
        ("stale_attempt", True, True, S.QUEUED, None, ""),
        ("key_refused", False, True, S.QUEUED, None, ""),
        ("busy", False, True, S.QUEUED, None, "agent node does not take it now: no"),
        ("not_offered", True, True, S.QUEUED, None, ""),
        ("not_offered", True, False, S.FAILED, R.NOT_OFFERED, ""),
        ("bad", True, True, S.FAILED, R.AGENT_ERROR, "retry_on has only exit:3, heartbeat_timeout"),
        ("invalid_bundle", True, True, S.FAILED, R.INVALID_BUNDLE, "would be the same next time"),
        ("internal", False, True, S.QUEUED, R.AGENT_ERROR, "it will be tried again"),
    ],
)
def test_what_a_refusal_means_and_what_follows(code, final, offered, to, reason, message):
    asks = 1.0 if code in {"busy", "key_refused"} else None
    refusal = RefusedByAgent(code, "no", final=final, retry_after_s=asks)
    found = job(state=S.PROCESSING, agent="node")
    move = outcome.refused(found, SERVICE, NOW, refusal, delay_s=3.0, offered=offered)
    assert (move.to, move.reason) == (to, reason)
    assert message in move.message
    assert move.message.startswith("agent node refused it: no") or not final or to is S.QUEUED
    if to is S.QUEUED:
        pays = reason is R.AGENT_ERROR
        assert move.changes.get("infra_used", 0) == pays
        assert move.changes["not_before"] == (0 if pays else NOW + 3 * SECOND)


def test_what_no_agent_took_is_not_counted_and_may_be_sent_whatever_the_clock_says() -> None:
    move = outcome.not_sent(job(**HELD, retries_used=1, infra_used=1), SERVICE, NOW, "why", 0.0)
    assert (move.to, move.message, move.reason) == (S.QUEUED, "why", None)
    assert not COUNTERS & set(move.changes)
    assert (move.changes["not_before"], move.changes["waits_since"]) == (0, 0)


@each(
    "state, lost, cancelled, to",
    [
        (S.RUNNING, False, False, S.UNKNOWN),
        (S.UNKNOWN, True, False, S.QUEUED),
        (S.SUBMITTED, True, False, S.QUEUED),
        (S.RUNNING, True, True, S.CANCELLED),
    ],
)
def test_an_unreachable_agents_jobs_are_unknown_and_later_lost(state, lost, cancelled, to):
    found = job(state=state, cancel_requested_at=1 if cancelled else None)
    move = outcome.unreached(found, SERVICE, NOW, "agent n is away", lost=lost)
    assert move.to == to
    assert move.message.startswith("cancelled; " * cancelled + "agent n is away")
    assert ("whether its processes are dead is not known" in move.message) is cancelled


@each(
    "fields, service, code",
    [
        ({"state": S.FAILED}, SERVICE, ""),
        ({"state": S.CANCELLED}, SERVICE, ""),
        ({"state": S.COMPLETED}, SERVICE, "not_retryable"),
        ({"state": S.RUNNING}, SERVICE, "not_retryable"),
        ({"state": S.QUEUED}, SERVICE, "not_retryable"),
        ({"state": S.CLEANED}, SERVICE, "bundle_gone"),
        ({"state": S.FAILED, "bundle": None}, SERVICE, "bundle_gone"),
        ({"state": S.FAILED, "delete_requested_at": 1}, SERVICE, "being_deleted"),
        ({"state": S.FAILED}, None, "unknown_service"),
    ],
)
def test_what_can_be_retried_begins_a_new_run_with_nothing_of_the_former_one(fields, service, code):
    ended = {"ended_at": 2, "run": 3} if fields["state"] in states.ENDED else {}
    found = job(**fields, **ended)
    if code:
        with pytest.raises(RetryRefused) as refused:
            ending.retried(found, service, NOW, "ann")
        assert refused.value.code == code
        return
    move = ending.retried(found, service, NOW, "ann")
    assert (move.to, move.event, move.fields) == (S.QUEUED, "job.retried", {"by": "ann", "run": 4})
    assert move.changes == NEW_RUN


NEW_RUN: dict[str, Any] = {
    **dict.fromkeys(("retries_used", "infra_used", "later_used", "not_before"), 0),
    **dict.fromkeys(("exit_code", "usage", "result", "progress", "heartbeat_at", "waits_since")),
    **dict.fromkeys(("ended_at", "expires_at", "cancel_requested_at", "agent", "payload_id")),
    **dict.fromkeys(("submitted_at", "started_at")),
    "stderr_tail": "",
    "warnings": (),
    "enforcement": {},
    "output": {},
    "dead_letter": False,
    "run": 4,
    "queued_at": NOW,
}


@each("fields, may", [({}, True), ({"parent_id": 3}, False), ({"gather": True}, False)])
def test_what_a_child_or_a_gather_leaves_is_not_run(fields: Any, may: bool) -> None:
    assert batch.may_fan_out(job(**fields)) is may


# -- what is kept of an attempt, and what is said

FACTS: dict[str, Any] = {
    "exit_code": 4,
    "stderr_tail": "the last lines",
    "usage": Usage(wall_s=61.0, cpu_s=2.5, peak_memory_bytes=7),
    "warnings": ["one"],
    "enforcement": {"memory": "hard"},
}


@each("payload", [DONE, {"status": P.KILLED}, {"reason": R.MEMORY_LIMIT}, TIMED, LOST])
def test_what_an_attempt_used_and_said_is_kept_with_it(payload: Any) -> None:
    no_logs = {"stdout_bytes": None, "stderr_bytes": None}
    assert after(job(), **payload, **FACTS).facts == FACTS | no_logs
    left = ResultInfo(size=9, sha256="ab", stdout_bytes=7, stderr_bytes=0)
    facts = after(job(), **payload, result=left).facts
    assert (facts["stdout_bytes"], facts["stderr_bytes"]) == (7, 0)


LOWERED = {"memory": 64 << 20, "disk": 64 << 20, "pids": 8, "cpus": 0.5}
OWN_LIMITS = job(limits=Limits().model_copy(update=LOWERED), timeout_s=60.0)
CRLF = job(upload_warnings=("run.sh has Windows line endings (CRLF): …",))
ALLOWS = Service("s", timeout_s=3_600.0, heartbeat_timeout_s=600.0)
NOT_NAMED = f"; it has 2 retries left, but retry_on has only {', '.join(sorted(RETRIED))}"
CRLF_SAID = "run.sh failed; run.sh has Windows line endings (CRLF), which a shell takes as part of "
ONLY_75 = Service("s", retry=RetryPolicy(3, retry_on=frozenset({"exit:75"})), retry_later_limit=2)
ASKED, AGAIN_IN_30_S = "it asked to be tried later: GPU busy", "; it will be tried again in 30s"
SILENT, X = {"reason": R.HEARTBEAT_TIMEOUT, "message": "silent"}, {"message": "x"}
OWN_SAID, OF_SERVICE = "x (set at its upload; service s allows {})", "(service s sets this limit)"


SENTENCES: tuple[tuple[Job, Service, dict[str, Any], str], ...] = (
    (job(), SERVICE, DONE | {"usage": FACTS["usage"]}, "run.sh ended well after 1m 1s"),
    (job(), SERVICE, {"status": P.KILLED}, "killed on the agent"),
    (job(**KEPT), SERVICE, {"status": P.KILLED}, "cancelled"),
    (job(**KEPT), SERVICE, {**LOST, "message": "x"}, "cancelled; x"),
    (job(**KEPT), SERVICE, LATER_ON, "cancelled; it asked to be tried later"),
    (job(), SERVICE, {"exit_code": 4, "message": "no"}, f"no{NOT_NAMED}"),
    (
        *(job(), SERVICE, SILENT),
        f"silent {OF_SERVICE}; it will be tried again in 10s, 1 retry left after that",
    ),
    (job(), SERVICE, BUSY, f"{ASKED}{AGAIN_IN_30_S}"),
    (
        *(job(later_used=2), ONLY_75, BUSY),
        f"{ASKED}; it has done so 2 times before, the most that service s allows; "
        "it has 3 retries left, but retries are not for this",
    ),
    (
        *(job(), STOP, {**STOPPED, "message": "stopped"}),
        "stopped; it is not tried again, as service s says (on_shutdown)",
    ),
    (OWN_LIMITS, ALLOWS, X | {"reason": R.TIMEOUT}, OWN_SAID.format("1h")),
    (job(timeout_s=3_600.0), ALLOWS, X | {"reason": R.TIMEOUT}, f"x {OF_SERVICE}"),
    (
        job(heartbeat_timeout_s=60.0),
        ALLOWS,
        X | {"reason": R.HEARTBEAT_TIMEOUT},
        OWN_SAID.format("10m"),
    ),
    (OWN_LIMITS, ALLOWS, X | {"reason": R.MEMORY_LIMIT}, OWN_SAID.format("2.0 GiB")),
    (OWN_LIMITS, ALLOWS, X | {"reason": R.DISK_LIMIT}, OWN_SAID.format("2.0 GiB")),
    (OWN_LIMITS, ALLOWS, X | {"reason": R.PIDS_LIMIT}, OWN_SAID.format("256")),
    (OWN_LIMITS, ALLOWS, X | {"reason": R.CPU_LIMIT}, OWN_SAID.format("1 CPU")),
    (job(), ALLOWS, X | {"reason": R.PIDS_LIMIT}, f"x {OF_SERVICE}"),
    *((CRLF, ALLOWS, {"exit_code": code}, f"{CRLF_SAID}its commands") for code in (127, 126, 2)),
    (CRLF, ALLOWS, {"exit_code": 1, "stderr_tail": "\r: not"}, f"{CRLF_SAID}its commands"),
    (CRLF, ALLOWS, {"exit_code": 1}, "run.sh failed"),
    (job(), ALLOWS, {"exit_code": 127}, "run.sh failed"),
)


@each("found, service, payload, message", SENTENCES)
def test_the_sentence_says_what_happened_and_what_follows(found, service, payload, message):
    assert after(found, service, **payload).message == message


def test_a_loss_says_whether_it_is_tried_again() -> None:
    for used, message in ((0, "it died; it will be tried again"), (1, f"it died{NOT_NAMED}")):
        move = ending.interrupted(job(infra_used=used), SERVICE, NOW, R.AGENT_LOST, "it died")
        assert move.message == message
