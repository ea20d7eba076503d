"""What a move adds to the counts of its time."""

from __future__ import annotations

from typing import Any

from server.domain.jobs import Move, Result, Step
from server.domain.statistics import Tree, begin_of, of_move
from shared.clock import SECOND
from shared.wire import JobState as S
from shared.wire import Reason
from tests.kit.each import each
from tests.kit.jobs import job

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
        (S.RUNNING, S.FAILED, Reason.TIMEOUT, RUNS, FACTS, ENDED | {"failed": {"timeout": 1}}),
        (S.RUNNING, S.QUEUED, Reason.EXIT_CODE, RUNS, FACTS, ENDED | {"retried": {"exit_code": 1}}),
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
def test_starts_with_their_waits_and_ends_with_their_time_are_counted_once(
    before: S, to: S, reason: Reason | None, seen: Any, how: Any, expected: Tree
) -> None:
    move = Move(7, 1, before, to, 35 * SECOND, "", reason, seen=job(state=before, **seen), **how)
    left = bool(how.get("changes", {}).get("deferred"))
    assert of_move(move, job(state=to, deferred=left)) == expected


def test_a_time_is_in_the_bucket_that_began_last() -> None:
    assert begin_of(1_799 * SECOND) == 1_200 * SECOND
    assert begin_of(7_200 * SECOND, 3_600) == 7_200 * SECOND
