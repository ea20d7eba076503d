"""What happened when: whole numbers of ten minutes each, which can be added."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from server.domain.jobs import Job, Move
from server.domain.states import AT_AGENT, ENDED, HOLDS_SLOT
from shared.clock import SECOND, Micros
from shared.wire import JobState

Tree: TypeAlias = dict[str, Any]
"""Names -> whole numbers, or further trees."""

ALL: Final = ""
"""All services together."""
BUCKET_S: Final = 600
"""How long a bucket is."""
KEPT_S: Final = 8 * 86_400
_LONGEST: Final = "longest"
"""How names of numbers begin of which the larger is kept; all others are added."""


def begin_of(at: Micros, seconds: int = BUCKET_S) -> Micros:
    """Of the bucket that a time is in."""
    return at - at % (seconds * SECOND)


def of_move(move: Move, job: Job) -> Tree:
    """What a move adds to the counts of its time.

    Returns:
        started, waited_us, longest_wait_us: of an attempt whose start was reported.
        runs, ran_us, result_bytes: of an attempt that ended.
        completed, cancelled, failed (by reason): of a job that ended.
        retried (by reason): of an attempt that another follows.
    """
    was = move.seen
    if was is None or move.before in ENDED:
        return {}
    counts: Tree = {}
    seen_running = was.state is JobState.UNKNOWN and was.started_at is not None
    if "started_at" in move.facts and not seen_running:
        since = max(was.queued_at, was.waits_since or 0)
        waited = max(0, move.facts["started_at"] - since)
        counts |= {"started": 1, "waited_us": waited, "longest_wait_us": waited}
    passed = {move.before, *(step.to for step in move.through)}
    is_over = job.ended or job.state is JobState.QUEUED or bool(move.changes.get("deferred"))
    if is_over and not passed.isdisjoint(AT_AGENT):
        if move.run_s is not None:
            counts |= {"runs": 1, "ran_us": round(move.run_s * SECOND)}
        if (result := move.facts.get("result")) is not None:
            counts["result_bytes"] = result.size
    why = move.reason or "unknown"
    if job.state is JobState.FAILED:
        counts["failed"] = {why: 1}
    elif job.ended:
        counts[job.state.lower()] = 1
    elif job.state is JobState.QUEUED and move.before in HOLDS_SLOT and move.reason:
        counts["retried"] = {why: 1}
    return counts


def add(into: Tree, more: Mapping[str, Any]) -> None:
    """Add each number to that of the same name."""
    for name, value in more.items():
        if isinstance(value, dict):
            add(into.setdefault(name, {}), value)
        elif name.startswith(_LONGEST):
            into[name] = max(into.get(name, 0), value)
        else:
            into[name] = into.get(name, 0) + value
