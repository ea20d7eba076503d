"""What agents say: which of their words count for a job, which times hold and are shown."""

from __future__ import annotations

import itertools
from typing import Any

from server.domain import ending, outcome
from server.domain.jobs import Attempt, Event, history
from server.domain.live import live_of, progress_event_due
from server.domain.service import Service
from shared.clock import SECOND, iso, utc
from shared.wire import JobState as S
from shared.wire import Limits, LiveDoc, PayloadDoc, Progress, ResultInfo
from shared.wire import PayloadState as P
from shared.wire import Reason as R
from tests.kit.each import each
from tests.kit.jobs import job


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
def test_a_payload_is_a_jobs_by_its_agent_its_key_and_its_bundle(
    agent: str, key: str | None, digest: str | None, is_of: bool
) -> None:
    payload = PayloadDoc(id=1, key=key, status=P.RUNNING, bundle_digest=digest)
    assert outcome.is_of(job(agent="a"), payload, agent) is is_of
    assert not outcome.is_of(job(agent="a", bundle=None), payload, "a") or key is None


@each(
    "agent, agent_id, is_of",
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
)
def test_a_past_attempt_is_known_by_the_id_of_its_agent_or_else_by_its_name(
    agent: tuple[str, str | None], agent_id: str | None, is_of: bool
) -> None:
    queued = job(agent=None, state=S.QUEUED)
    sent: dict[str, Any] = {"agent": "a", "agent_id": agent_id, "claimed_at": 0}
    past = Attempt(job_id=7, number=1, state=S.FAILED, limits=Limits(), timeout_s=1.0, **sent)
    for key, counts in (("7.1", is_of), ("7.2", False)):
        payload = PayloadDoc(id=1, key=key, status=P.RUNNING, bundle_digest="d")
        assert outcome.is_of(queued, payload, *agent, past) is counts


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
def test_a_result_that_is_larger_than_the_limits_allow_is_not_taken(
    status: P, reason: R | None
) -> None:
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
    "own, most, holds",
    [(None, 60.0, 60.0), (5.0, 60.0, 5.0), (90.0, 60.0, 60.0), (5.0, 0.0, 5.0), (0.0, 60.0, 60.0)],
)
def test_a_job_has_its_own_time_and_never_more_than_its_service_allows_now(
    own: float | None, most: float, holds: float
) -> None:
    service = Service("s", queue_timeout_s=most, heartbeat_timeout_s=most)
    found = job(queue_timeout_s=own, heartbeat_timeout_s=own)
    assert ending.queue_timeout_s(found, service) == holds
    assert ending.heartbeat_timeout_s(found, service) == holds


@each(
    "own, service_s, at",
    [(None, 60.0, 160), (5.0, 60.0, 105), (None, 0.0, None), (0.0, 60.0, None)],
)
def test_files_are_kept_for_a_while_or_for_ever(
    own: float | None, service_s: float, at: int | None
) -> None:
    service = Service("s", expires_after_s=service_s)
    found = ending.expires_at(job(expires_after_s=own), service, 100 * SECOND)
    assert found == (None if at is None else at * SECOND)


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


def test_a_report_is_taken_within_bounds() -> None:
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


@each(
    "said, progress, heartbeat_at",
    [
        ({"progress": {"current": 3, "total": 3}}, Progress(current=3, total=3), None),
        ({"progress": {"current": 3, "total": float("inf")}}, None, None),
        ({"heartbeat_at": "soon"}, None, None),
        ({"heartbeat_at": iso(NOW - 5)}, None, NOW - 5),
    ],
)
def test_numbers_are_numbers_and_times_are_past(
    said: dict[str, object], progress: Progress | None, heartbeat_at: int | None
) -> None:
    live = live_of(LiveDoc.model_validate(said), NOW)
    assert (live.progress, live.heartbeat_at) == (progress, heartbeat_at)


def test_no_event_of_a_bundle_has_the_name_of_one_of_the_servers() -> None:
    names = ("pages.done", "job.completed", "", "no event")
    lines = [{"level": "notice", "text": "x", "at": "", "event": name} for name in names]
    live = live_of(LiveDoc.model_validate({"notices": lines}), NOW)
    assert [one.event for one in live.notices] == ["pages.done", *["job.notice"] * 3]


def test_events_about_progress_stay_few_however_long_an_attempt_runs() -> None:
    at: list[int] = []
    for second in range(20_000):
        if progress_event_due(second, second - at[-1] if at else None):
            at.append(second)
    assert at[:3] == [0, 5, 10]
    assert 200 < len(at) < 500
