"""Attempts: which words of agents count, whether another one follows, when and from which budget,
what is counted; and the times that hold and are shown.
"""

import itertools
from typing import Any

import pytest

from server.domain import ending, outcome, retry, statistics
from server.domain.jobs import Attempt, Event, Move, Result, Step, history
from server.domain.live import live_of, progress_event_due
from server.domain.retry import (
    NEVER,
    Backoff,
    BackoffKind,
    RetryPolicy,
    check_retry_reasons,
    left_out,
)
from server.domain.service import Service
from server.domain.statistics import Over, Tree, begin_of, of_move
from shared.clock import SECOND, iso, utc
from shared.wire import JobState as S
from shared.wire import Limits, LiveDoc, PayloadDoc, Progress, ResultInfo, RetryLater
from shared.wire import PayloadState as P
from shared.wire import Reason as R
from tests.kit.each import each
from tests.kit.store import job


@each(
    "agent, key, digest, is_of",
    [
        ("a", "7.1", "d", True),
        ("b", "7.1", "d", False),
        ("a", "7.2", "d", False),
        ("a", "8.1", "d", False),
        ("a", "7.1", "x", False),
        ("a", "7.1", None, False),
        ("a", None, None, True),  # a job-orchestrator client says neither key nor bundle
        ("b", None, None, False),
    ],
)
def test_a_payload_is_a_jobs_by_its_agent_its_key_and_its_bundle(agent, key, digest, is_of):
    payload = PayloadDoc(id=1, key=key, status=P.RUNNING, bundle_digest=digest)
    assert outcome.is_of(job(agent="a"), payload, agent) is is_of
    assert not outcome.is_of(job(agent="a", bundle=None), payload, "a") or key is None


@each(
    "name, agent_id, sent_to_id, is_of",
    [
        ("a", "id", "id", True),
        ("new", "id", "id", True),
        ("a", "other", "id", False),
        ("a", "id", None, True),
        ("b", "other", None, False),
        ("a", "id", "name:a", True),
        ("b", "id", "name:a", False),
        ("a", None, "id", True),
    ],
)
def test_a_past_attempt_is_known_by_its_agents_id_or_name(name, agent_id, sent_to_id, is_of):
    queued = job(agent=None, state=S.QUEUED)
    sent: dict[str, Any] = {"agent": "a", "agent_id": sent_to_id, "claimed_at": 0}
    past = Attempt(job_id=7, number=1, state=S.FAILED, **sent)
    for key, counts in (("7.1", is_of), ("7.2", False)):
        payload = PayloadDoc(id=1, key=key, status=P.RUNNING, bundle_digest="d")
        assert outcome.is_of(queued, payload, name, agent_id, past) is counts


@each(
    "fields, status, expected",
    [
        ({"state": S.RUNNING}, P.RUNNING, True),
        ({"state": S.PROCESSING}, P.PREPARED, True),
        ({"state": S.UNKNOWN}, P.FAILED, True),
        # It was queued again: what was given up counts if it has completed after all.
        ({"state": S.QUEUED}, P.COMPLETED, True),
        ({"state": S.QUEUED}, P.FAILED, False),
        ({"state": S.QUEUED, "cancel_requested_at": 1}, P.COMPLETED, False),
        ({"state": S.QUEUED, "gather": True}, P.COMPLETED, False),
        # Its attempt has ended, and has left children.
        ({"state": S.RUNNING, "deferred": True}, P.COMPLETED, False),
        ({"state": S.CANCELLED}, P.COMPLETED, False),
        ({"state": S.COMPLETED}, P.FAILED, False),
    ],
)
def test_a_word_counts_where_the_job_waits_for_it(fields: Any, status: P, expected: bool) -> None:
    payload = PayloadDoc(id=1, key="7.1", status=status)
    assert outcome.expects(job(**fields), payload) is expected


def test_what_has_ended_does_not_run_again_and_what_runs_is_not_prepared_again() -> None:
    docs = {status: PayloadDoc(id=1, status=status) for status in P}
    for known, newer in itertools.product(docs, docs):
        goes_on = known is P.PREPARED or (known is P.RUNNING and newer is not P.PREPARED)
        assert outcome.goes_on(docs[known], docs[newer]) is goes_on, (known, newer)


@each("status, reason", [(P.COMPLETED, R.AGENT_ERROR), (P.KILLED, None)])
def test_a_result_larger_than_the_limits_allow_is_not_taken(status, reason):
    found = job(limits=Limits(results=1000, log=10))
    for over, taken in ((0, True), (1, False)):
        size = outcome.most_result(found.limits) + over
        payload = PayloadDoc(id=1, status=status, result=ResultInfo(size=size, sha256=""))
        for kept in (outcome.bounded(found, payload), outcome.fitting(payload, size - over)):
            assert (kept.result is not None) is taken
            assert (kept.status is status) is (taken or status is P.KILLED)
            assert len(kept.warnings) == (not taken)
        assert outcome.bounded(found, payload).reason == (None if taken else reason)


# -- times that hold, and those that are shown


@each(
    "own, most, holds, expires",
    [
        (None, 60.0, 60.0, 160),
        (5.0, 60.0, 5.0, 105),
        (90.0, 60.0, 60.0, 190),
        (5.0, 0.0, 5.0, 105),
        (0.0, 60.0, 60.0, None),
        (None, 0.0, 0.0, None),
    ],
)
def test_own_times_are_as_long_as_the_service_allows_and_files_are_kept(own, most, holds, expires):
    service = Service("s", queue_timeout_s=most, heartbeat_timeout_s=most, expires_after_s=most)
    found = job(queue_timeout_s=own, heartbeat_timeout_s=own, expires_after_s=own)
    assert ending.queue_timeout_s(found, service) == holds
    assert ending.heartbeat_timeout_s(found, service) == holds
    end = ending.end(found, service, 100 * SECOND, S.FAILED, "it failed")
    assert end.changes["expires_at"] == (expires and expires * SECOND)


def moved_to(at_s: float, state: S, attempt: int = 0, agent: str | None = None) -> Event:
    at, why = round(at_s * SECOND), R.TIMEOUT if agent else None
    return Event(1, 1, at, attempt, S.QUEUED, state, why, "", agent=agent)


def test_each_state_lasts_until_the_next_and_the_last_one_until_now() -> None:
    moves = [moved_to(10, S.QUEUED), moved_to(12.5, S.RUNNING, 1, "node")]
    one, two = history(moves, 20 * SECOND)
    assert (one.status, one.at, one.seconds) == (S.QUEUED, utc(10 * SECOND), 2.5)
    assert (two.status, two.seconds, two.attempt, two.agent) == (S.RUNNING, 7.5, 1, "node")
    assert (one.reason, two.reason) == (None, R.TIMEOUT)
    assert history([], 20) == []
    back = [moved_to(10, S.QUEUED), moved_to(5, S.PROCESSING), moved_to(7, S.SUBMITTED)]
    assert [one.seconds for one in history(back, 6 * SECOND)] == [0, 2, 0], "a clock set back"


# -- what the bundle of a running attempt says: an agent may report anything

NOW = 1_000_000 * SECOND


def test_a_report_is_taken_within_bounds_and_names_no_event_of_the_servers() -> None:
    line = {"level": "warning", "text": "a\0b" * 9_999, "at": "never"}
    said = {
        "progress": {"current": float("nan"), "total": 1},
        "message": "x\n" * 9_999,
        "output": {f"{number}": "v" * 9_999 for number in range(999)},
        "heartbeat_at": "9999-12-31T23:59:59Z",
        "notices": [line] * 999,
    }
    live = live_of(LiveDoc.model_validate(said), NOW)
    assert (live.progress, len(live.message), len(live.output)) == (None, 1_023, 100)
    assert live.heartbeat_at == NOW
    assert len(live.notices) == 200
    assert {len(value) for value in live.output.values()} == {4_096}
    assert all(len(one.message) == 4_096 and "\0" not in one.message for one in live.notices)
    names = ("pages.done", "job.completed", "", "no event")  # the second is one of the server's
    lines = [{"level": "notice", "text": "x", "at": "", "event": name} for name in names]
    live = live_of(LiveDoc.model_validate({"notices": lines}), NOW)
    assert [one.event for one in live.notices] == ["pages.done", *["job.notice"] * 3]


@each(
    "said, progress, heartbeat_at",
    [
        ({"progress": {"current": 3, "total": 3}}, Progress(current=3, total=3), None),
        ({"progress": {"current": 3, "total": float("inf")}}, None, None),
        ({"heartbeat_at": "soon"}, None, None),
        ({"heartbeat_at": iso(NOW - 5)}, None, NOW - 5),
    ],
)
def test_numbers_are_numbers_and_times_are_past(said, progress, heartbeat_at):
    live = live_of(LiveDoc.model_validate(said), NOW)
    assert (live.progress, live.heartbeat_at) == (progress, heartbeat_at)


def test_events_about_progress_stay_few_however_long_an_attempt_runs() -> None:
    at: list[int] = []
    for second in range(20_000):
        if progress_event_due(second, second - at[-1] if at else None):
            at.append(second)
    assert at[:3] == [0, 5, 10]
    assert 200 < len(at) < 500


# -- whether another one follows

POLICY = RetryPolicy(3, (10.0, 60.0), retry_on=frozenset({"timeout", "exit:3"}))


def highest(_low: float, high: float) -> float:
    return high


def paid(found: retry.Retry | None) -> Any:
    return found and (found.delay_s, found.used)


def test_retries_and_interruptions_have_budgets_of_their_own_and_wait_longer_each_time() -> None:
    def retries(rules: RetryPolicy) -> list[Any]:
        return [
            paid(retry.after_failure(rules, used, R.TIMEOUT, None, highest)) for used in range(4)
        ]

    delays = [10.0, 60.0, 60.0]
    assert retries(POLICY) == [*((s, {"retries_used": n}) for n, s in enumerate(delays, 1)), None]
    at_once = RetryPolicy(1, (), retry_on=frozenset({"timeout"}))
    assert retries(at_once) == [(0.0, {"retries_used": 1}), None, None, None]
    found = [paid(retry.after_interruption(used, 7)) for used in range(8)]
    delays = [0.0, 1.0, 5.0, 15.0, 60.0, 60.0, 60.0]
    assert found == [*((s, {"infra_used": n}) for n, s in enumerate(delays, 1)), None]
    assert retry.after_interruption(0, 0) is None


BACKOFFS = {
    BackoffKind.CONSTANT: [30.0, 30.0, 30.0, 30.0],
    BackoffKind.LINEAR: [30.0, 60.0, 90.0, 100.0],
    BackoffKind.EXPONENTIAL: [30.0, 60.0, 100.0, 100.0],
    BackoffKind.EXPONENTIAL_JITTER: [15.0, 30.0, 50.0, 50.0],  # with the middle of what is drawn
}


@each("backoff", BackoffKind)
def test_a_backoff_grows_by_its_formula_up_to_its_cap(backoff):
    rules = RetryPolicy(9, backoff=backoff, delay_s=30.0, max_delay_s=100.0)
    half = [retry.delay_s(rules, used, lambda low, high: (low + high) / 2) for used in range(4)]
    assert half == BACKOFFS[backoff]


@each("after_s, delay", [(None, 60.0), (5.0, 5.0), (0.0, 0.0), (float("inf"), 86_400.0)])
def test_who_asks_to_be_tried_later_says_when_or_the_service_does_and_not_for_ever(after_s, delay):
    asked = RetryLater(after_s=after_s)
    found = [retry.later(used, 2, 60.0, asked) for used in range(3)]
    assert [*map(paid, found)] == [(delay, {"later_used": 1}), (delay, {"later_used": 2}), None]


def test_what_would_be_the_same_next_time_cannot_be_asked_for() -> None:
    check_retry_reasons(["timeout", "memory_limit", "exit:1", "exit:255"], retried=True)
    check_retry_reasons([*NEVER], retried=False)
    for reason in map(str, NEVER):
        with pytest.raises(ValueError, match=f"'{reason}' is never tried again"):
            check_retry_reasons(["timeout", reason], retried=True)
    for unknown in ("exit:0", "exit:256", "exit:x", "bored", ""):
        with pytest.raises(ValueError, match="is neither an exit code"):
            check_retry_reasons([unknown], retried=False)


def test_what_a_list_leaves_out_that_is_usually_tried_again_is_named() -> None:
    usual, most = RetryPolicy().retry_on, {"exit_code", "timeout"}
    every = most | {"heartbeat_timeout", "memory_limit"}
    missing = [", ".join(left_out(usual, frozenset(one))) for one in ({"exit:7"}, most, every)]
    assert missing == ["heartbeat_timeout, other exit codes, timeout", "heartbeat_timeout", ""]


def test_delays_of_failing_calls_double_up_to_the_longest_and_begin_anew_after_a_success() -> None:
    backoff = Backoff[str](1.0, 10.0, free=1)
    assert [backoff.failed("a") for _ in range(7)] == [0, 1, 2, 4, 8, 10, 10]
    assert backoff.failed("b") == 0
    backoff.succeeded("a")
    assert backoff.failed("a") == 0
    for _ in range(10_000):
        backoff.failed("c")
    assert backoff.failed("c") == 10.0


def test_of_very_many_keys_those_that_failed_last_are_remembered(monkeypatch):
    monkeypatch.setattr(retry, "_KEYS_KEPT", 2)
    backoff = Backoff[str](1.0, 10.0)
    assert [backoff.failed(key) for key in "abacab"] == [1, 1, 2, 1, 4, 1]


# -- what a move adds to the counts of its time

WAITED: Tree = {"started": 1, "waited_us": 5 * SECOND, "longest_wait_us": 5 * SECOND}
RAN: Tree = {"runs": 1, "ran_us": 20 * SECOND}
SENT = {"queued_at": 10 * SECOND, "submitted_at": 12 * SECOND}
RUNS = SENT | {"started_at": 15 * SECOND}
STARTED: dict[str, Any] = {"facts": {"started_at": 15 * SECOND}}


FACTS = {"facts": {"result": Result("r", 40, "d")}}
ENDED: Tree = RAN | {"result_bytes": 40}
THROUGH = {"through": (Step(S.RUNNING, 15 * SECOND, ""),)}
LATE = WAITED | {"waited_us": 2 * SECOND, "longest_wait_us": 2 * SECOND}
NO_WAIT = WAITED | {"waited_us": 0, "longest_wait_us": 0}


@each(
    "before, to, reason, seen, how, expected",
    [
        (S.SUBMITTED, S.RUNNING, None, SENT, STARTED, WAITED),
        # It could not be sent before.
        (S.SUBMITTED, S.RUNNING, None, SENT | {"waits_since": 13 * SECOND}, STARTED, LATE),
        # A clock was set back.
        (S.SUBMITTED, S.RUNNING, None, SENT | {"queued_at": 99 * SECOND}, STARTED, NO_WAIT),
        # Its agent was away: what ran before does not start twice.
        (S.UNKNOWN, S.RUNNING, None, RUNS, STARTED, {}),
        (S.UNKNOWN, S.RUNNING, None, SENT, STARTED, WAITED),
        (S.RUNNING, S.COMPLETED, None, RUNS, FACTS, ENDED | {"completed": 1}),
        (S.RUNNING, S.CANCELLED, None, RUNS, FACTS, ENDED | {"cancelled": 1}),
        (S.RUNNING, S.FAILED, R.TIMEOUT, RUNS, FACTS, ENDED | {"failed": {"timeout": 1}}),
        (S.RUNNING, S.QUEUED, R.EXIT_CODE, RUNS, FACTS, ENDED | {"retried": {"exit_code": 1}}),
        # A start and an end in one move are both counted.
        (S.SUBMITTED, S.COMPLETED, None, SENT, STARTED | THROUGH, WAITED | RAN | {"completed": 1}),
        # It waited for another attempt, and its first one is counted already.
        (S.QUEUED, S.CANCELLED, None, RUNS, {}, {"cancelled": 1}),
        # An attempt that left children has ended, and its job has not.
        (S.RUNNING, S.RUNNING, None, RUNS, {"changes": {"deferred": True}}, RAN),
        # Nothing else is counted.
        (S.FAILED, S.QUEUED, None, RUNS, {}, {}),
        (S.COMPLETED, S.CLEANED, None, RUNS, {}, {}),
        (S.PROCESSING, S.QUEUED, None, RUNS, {}, {}),
        (S.RUNNING, S.UNKNOWN, None, RUNS, {}, {}),
    ],
)
def test_starts_and_ends_are_counted_once_with_their_time(before, to, reason, seen, how, expected):
    move = Move(7, 1, before, to, 35 * SECOND, "", reason, seen=job(state=before, **seen), **how)
    left = bool(how.get("changes", {}).get("deferred"))
    assert of_move(move, job(state=to, deferred=left)) == expected


def test_what_waits_again_and_is_cancelled_has_waited_since_and_not_run() -> None:
    """Its start is that of its first attempt, which is over since long."""
    for queued_s, wait_s in ((30, 5), (99, 0)):  # a clock that was set back makes nothing negative
        seen = job(state=S.QUEUED, started_at=15 * SECOND, queued_at=queued_s * SECOND)
        move = Move(7, 1, S.QUEUED, S.CANCELLED, 35 * SECOND, "", seen=seen)
        took = statistics.over(move, job(state=S.CANCELLED))
        assert took == Over(wait_s=wait_s, run_s=None, cpu_s=None, result_bytes=None)


def test_a_time_is_in_the_bucket_that_began_last() -> None:
    assert begin_of(1_799 * SECOND) == 1_200 * SECOND
    assert begin_of(7_200 * SECOND, 3_600) == 7_200 * SECOND
