"""What a move adds to the counts of its time."""

from __future__ import annotations

from typing import Any

import pytest

from server.domain.jobs import Job, Move, Result, Step
from server.domain.statistics import Tree, begin_of, of_move
from shared.clock import SECOND
from shared.wire import JobState, Reason
from tests.kit.jobs import job

S = JobState
WAITED: Tree = {"started": 1, "waited_us": 5 * SECOND, "longest_wait_us": 5 * SECOND}
RAN: Tree = {"runs": 1, "ran_us": 20 * SECOND}
SENT = {"queued_at": 10 * SECOND, "submitted_at": 12 * SECOND}
RUNS = SENT | {"started_at": 15 * SECOND}
STARTED: dict[str, Any] = {"facts": {"started_at": 15 * SECOND}}


def counts(
    before: JobState,
    to: JobState,
    reason: Reason | None = None,
    seen: dict[str, Any] | None = None,
    **how: Any,
) -> Tree:
    was: Job = job(state=before, **(seen or {}))
    move = Move(7, 1, before, to, 35 * SECOND, "", reason, seen=was, **how)
    return of_move(move, job(state=to, deferred=bool(how.get("changes", {}).get("deferred"))))


def test_a_start_is_counted_with_the_time_since_the_attempt_could_be_sent() -> None:
    assert counts(S.SUBMITTED, S.RUNNING, seen=SENT, **STARTED) == WAITED
    late = SENT | {"waits_since": 13 * SECOND}
    assert counts(S.SUBMITTED, S.RUNNING, seen=late, **STARTED)["waited_us"] == 2 * SECOND


def test_an_attempt_whose_agent_was_away_does_not_start_twice() -> None:
    assert counts(S.UNKNOWN, S.RUNNING, seen=RUNS, **STARTED) == {}
    assert counts(S.UNKNOWN, S.RUNNING, seen=SENT, **STARTED) == WAITED


def test_a_clock_that_was_set_back_makes_no_time_negative() -> None:
    later = SENT | {"queued_at": 99 * SECOND}
    assert counts(S.SUBMITTED, S.RUNNING, seen=later, **STARTED)["waited_us"] == 0


@pytest.mark.parametrize(
    ("to", "reason", "more"),
    [
        (S.COMPLETED, None, {"completed": 1}),
        (S.CANCELLED, None, {"cancelled": 1}),
        (S.FAILED, Reason.TIMEOUT, {"failed": {"timeout": 1}}),
        (S.QUEUED, Reason.EXIT_CODE, {"retried": {"exit_code": 1}}),
    ],
)
def test_an_attempt_that_ends_is_counted_with_its_time(to, reason, more) -> None:
    facts = {"result": Result("r", 40, "d")}
    found = counts(S.RUNNING, to, reason, seen=RUNS, facts=facts)
    assert found == RAN | {"result_bytes": 40} | more


def test_a_start_and_an_end_in_one_move_are_both_counted() -> None:
    through = (Step(S.RUNNING, 15 * SECOND, ""),)
    found = counts(S.SUBMITTED, S.COMPLETED, seen=SENT, through=through, **STARTED)
    assert found == WAITED | RAN | {"completed": 1}


def test_a_job_that_waited_and_is_cancelled_ran_no_second_time() -> None:
    assert counts(S.QUEUED, S.CANCELLED, seen=RUNS) == {"cancelled": 1}


def test_an_attempt_that_left_children_has_ended_and_its_job_has_not() -> None:
    assert counts(S.RUNNING, S.RUNNING, seen=RUNS, changes={"deferred": True}) == RAN


@pytest.mark.parametrize(
    ("before", "to"),
    [
        (S.FAILED, S.QUEUED),
        (S.COMPLETED, S.CLEANED),
        (S.PROCESSING, S.QUEUED),
        (S.RUNNING, S.UNKNOWN),
    ],
)
def test_nothing_else_is_counted(before, to) -> None:
    assert counts(before, to, seen=RUNS) == {}


def test_a_time_is_in_the_bucket_that_began_last() -> None:
    assert begin_of(1_799 * SECOND) == 1_200 * SECOND
    assert begin_of(7_200 * SECOND, 3_600) == 7_200 * SECOND
