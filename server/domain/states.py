"""The life of a job: one table, and every set derived from it."""

from __future__ import annotations

from typing import Final

from shared.wire import JobState

S = JobState

FIRST: Final = S.QUEUED

NEXT: Final[dict[JobState, frozenset[JobState]]] = {
    S.QUEUED: frozenset({S.PROCESSING, S.FAILED, S.CANCELLED}),
    S.PROCESSING: frozenset({S.SUBMITTED, S.QUEUED, S.FAILED, S.CANCELLED}),
    S.SUBMITTED: frozenset({S.RUNNING, S.COMPLETED, S.FAILED, S.QUEUED, S.UNKNOWN, S.CANCELLED}),
    S.RUNNING: frozenset({S.COMPLETED, S.FAILED, S.QUEUED, S.UNKNOWN, S.CANCELLED}),
    S.UNKNOWN: frozenset({S.SUBMITTED, S.RUNNING, S.COMPLETED, S.FAILED, S.QUEUED, S.CANCELLED}),
    S.COMPLETED: frozenset({S.CLEANED}),
    S.FAILED: frozenset({S.QUEUED, S.CLEANED}),
    S.CANCELLED: frozenset({S.QUEUED, S.CLEANED}),
    S.CLEANED: frozenset(),
}

ENDED: Final = frozenset(s for s, after in NEXT.items() if S.CLEANED in after) | {S.CLEANED}
HOLDS_SLOT: Final = frozenset(S) - ENDED - {S.QUEUED}
AT_AGENT: Final = frozenset(s for s in HOLDS_SLOT if S.COMPLETED in NEXT[s])
"""The server has been told which payload it is."""


_ORDER: Final = (S.PROCESSING, S.SUBMITTED, S.RUNNING)


def states_between(before: JobState, to: JobState) -> tuple[JobState, ...]:
    """The steps from ``before`` to ``to`` (Submitted or Running); empty where that is no step
    forward.

    An agent tells the latest state only: "Running" after "Processing" means that the job was
    Submitted in between, and the history shall say so.
    """
    if before is S.UNKNOWN:
        return (to,)
    if before not in _ORDER:
        return ()
    return _ORDER[_ORDER.index(before) + 1 : _ORDER.index(to) + 1]
