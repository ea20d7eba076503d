"""What happened when: whole numbers of ten minutes each, which can be added."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class Over:
    """What an attempt took that is over, or a job that ended without one.

    Attributes:
        wait_s: until it started, or ended in the queue. Of a parent none: its children waited.
        run_s: None: it did not run.
        cpu_s: None: it did not run, or nobody can tell.
        result_bytes: None: it has no result.
    """

    wait_s: float
    run_s: float | None
    cpu_s: float | None
    result_bytes: int | None


def over(move: Move, job: Job) -> Over | None:
    """What is over by a move that ends a job, or an attempt that another one or children follow;
    None: nothing is.
    """
    was = move.seen
    if was is None or was.ended:
        return None
    ran = not AT_AGENT.isdisjoint({move.before, *(step.to for step in move.through)})
    again = ran and job.state is JobState.QUEUED and not was.deferred
    if not (job.ended or again or move.changes.get("deferred")):
        return None
    usage, result = move.facts.get("usage"), move.facts.get("result")
    queued, started = max(was.queued_at, was.waits_since or 0), move.started_at if ran else None
    return Over(
        0 if was.deferred else max(0, (started or move.at) - queued) / SECOND,
        move.run_s if ran else None,
        None if usage is None else usage.cpu_s,
        None if result is None else result.size,
    )


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
    took = over(move, job)
    if took is not None and took.run_s is not None:
        counts |= {"runs": 1, "ran_us": round(took.run_s * SECOND)}
    if took is not None and took.result_bytes is not None:
        counts["result_bytes"] = took.result_bytes
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
