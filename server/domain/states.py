"""The life of a job: one table, and every set derived from it.

The table in ``docs/lifecycle.md`` is generated from it: ``python -m scripts.states``.
"""

from __future__ import annotations

from typing import Final

from shared.wire import JobState

FIRST: Final = JobState.QUEUED

TRANSITIONS: Final[dict[JobState, dict[JobState, str]]] = {
    JobState.QUEUED: {
        JobState.PROCESSING: "the Sender claims it for an agent",
        JobState.FAILED: "it waited longer than it may, its service is gone, or a job that it "
        "depends on did not complete",
        JobState.CANCELLED: "cancelled by its user",
        JobState.RUNNING: "a parent: its children are queued",
    },
    JobState.PROCESSING: {
        JobState.SUBMITTED: "the agent has taken it",
        JobState.QUEUED: "it was not taken, or interrupted, and may be sent again",
        JobState.FAILED: "no agent can take it, or it may not be tried again",
        JobState.CANCELLED: "cancelled by its user",
    },
    JobState.SUBMITTED: {
        JobState.RUNNING: "run.sh started",
        JobState.COMPLETED: "the attempt ended well and its result is stored",
        JobState.FAILED: "the attempt failed and is not tried again",
        JobState.QUEUED: "it is tried again: a retry, or interrupted through no fault of its own",
        JobState.UNKNOWN: "the agent cannot be reached, or the result cannot be fetched",
        JobState.CANCELLED: "cancelled by its user, and none of its processes is alive",
    },
    JobState.RUNNING: {
        JobState.RUNNING: "deferred: it waits for the children that it left",
        JobState.COMPLETED: "the attempt ended well and its result is stored; "
        "a parent: all children completed",
        JobState.FAILED: "the attempt failed and is not tried again; a parent: a child failed",
        JobState.QUEUED: "it is tried again: a retry, or interrupted through no fault of its own; "
        "a parent: its gather.sh runs next",
        JobState.UNKNOWN: "the agent cannot be reached, or the result cannot be fetched",
        JobState.CANCELLED: "cancelled by its user, and none of its processes is alive",
    },
    JobState.UNKNOWN: {
        JobState.SUBMITTED: "the agent is back and has it",
        JobState.RUNNING: "the agent is back and runs it",
        JobState.COMPLETED: "the attempt has ended well after all",
        JobState.FAILED: "the attempt has failed, or is given up as lost, with no tries left",
        JobState.QUEUED: "it is given up as lost, or failed, and is tried again",
        JobState.CANCELLED: "cancelled by its user, and its processes are dead or given up",
    },
    JobState.COMPLETED: {JobState.CLEANED: "expired: its files are removed"},
    JobState.FAILED: {
        JobState.QUEUED: "retried by hand",
        JobState.CLEANED: "expired: its files are removed",
    },
    JobState.CANCELLED: {
        JobState.QUEUED: "retried by hand",
        JobState.CLEANED: "expired: its files are removed",
    },
    JobState.CLEANED: {},
}
"""From, to, and when: there are no other moves."""

NEXT: Final = {state: frozenset(after) for state, after in TRANSITIONS.items()}
ENDED: Final = frozenset(
    state for state, after in NEXT.items() if JobState.CLEANED in after or not after
)
RETRIED_BY_HAND: Final = frozenset(state for state in ENDED if JobState.QUEUED in NEXT[state])
HOLDS_SLOT: Final = frozenset(JobState) - ENDED - {JobState.QUEUED}
AT_AGENT: Final = frozenset(state for state in HOLDS_SLOT if JobState.COMPLETED in NEXT[state])
"""The agent has taken it."""

_ORDER: Final = (JobState.PROCESSING, JobState.SUBMITTED, JobState.RUNNING)


def states_between(before: JobState, to: JobState) -> tuple[JobState, ...]:
    """The steps from ``before`` to ``to`` (Submitted or Running); empty: that is no step forward.

    An agent reports the latest state only: "Running" after "Processing" means that the job was
    Submitted in between, and the history has to say so.
    """
    if before is JobState.UNKNOWN:
        return (to,)
    if before not in _ORDER:
        return ()
    return _ORDER[_ORDER.index(before) + 1 : _ORDER.index(to) + 1]
