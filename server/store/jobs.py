"""The jobs: their moves, each with its events in the same transaction, and reading them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from server.domain import states
from server.domain.errors import NoSuchJob
from server.domain.jobs import Job, Move, Step
from server.domain.live import NewEvent
from server.store import children, dependencies, events, records, statements, webhooks
from server.store.attempts import record_attempt
from shared.ids import AttemptKey
from shared.sql import Tx
from shared.wire import JobState, Level

_FOLD: Final = """
    WITH same AS (
        SELECT max(seq) AS seq FROM events WHERE job_id = :job_id AND state = :state
        AND before = :before AND reason IS NULL AND message = :message
    )
    DELETE FROM events WHERE job_id = :job_id AND seq IN (
        SELECT seq FROM same
        UNION ALL
        SELECT min(events.seq) FROM events, same
        WHERE events.job_id = :job_id AND events.seq > same.seq AND before IS NOT NULL
    )
"""
"""Before a send that failed in the same way as an earlier one is written down, the two events of
the earlier one are deleted. So the history of a job that no agent takes does not grow for ever, and
has no gap."""

_LEVELS: Final[Mapping[JobState, Level]] = {
    JobState.FAILED: "error",
    JobState.UNKNOWN: "warning",
}
_SHOWN: Final = (
    "exit_code",
    "stderr_tail",
    "usage",
    "warnings",
    "enforcement",
    "result",
    "progress",
    "output",
)
"""Facts of the last attempt that the row of a job that has ended shows, too."""


def move(tx: Tx, move: Move) -> Job | None:
    """The conditional write of one move, its attempt's, an event for each of its steps, and the
    webhooks that announce them.
    """
    values: dict[str, Any] = {"state": move.to, "message": move.message, "reason": move.reason}
    values |= records.columns(move.changes)
    setting = [f"{name} = :{name}" for name in values]
    ends = move.to in states.ENDED and move.to is not JobState.CLEANED
    if ends or move.changes.get("deferred"):
        shown = {name: value for name, value in move.facts.items() if name in _SHOWN}
        values |= (facts := records.columns(shown))
        setting += [f"{name} = :{name}" for name in facts]
    result = move.facts.get("result")
    if result is not None:
        values["_kept"] = result.size
        setting.append("results_size = results_size + :_kept")
    only_if = "id = :_id AND state = :_before AND attempt = :_attempt"
    if move.to is JobState.PROCESSING:  # a claim
        setting.append("attempt = attempt + 1")
        only_if += f" AND cancel_requested_at IS NULL AND {children.PARENT_GOES_ON}"
    if move.before in states.ENDED and move.to is JobState.QUEUED:
        only_if += " AND delete_requested_at IS NULL"  # its children may be gone already
        only_if += f" AND {children.PARENT_WAITS}"
    if move.to is JobState.CLEANED:
        only_if += f" AND NOT {dependencies.RESULT_NEEDED}"
    rows = tx.rows(
        f"""
        UPDATE jobs SET {", ".join(setting)} WHERE {only_if}
        RETURNING *, {dependencies.AWAITED if ends else "0"} AS awaited
        """,  # noqa: S608 - names come from Move, values are parameters
        values | {"_id": move.job_id, "_before": move.before, "_attempt": move.attempt},
    )
    if not rows:
        return None
    job, awaited = records.job(rows[0]), bool(rows[0]["awaited"])
    job = dependencies.follow_move(tx, job, move, awaited=awaited)
    record_attempt(tx, job, move)
    if job.parent_id is not None:
        job = children.count_child(tx, job, job.parent_id, move)
    before = move.before
    steps, written = move.steps, list[dict[str, Any]]()
    for step in steps:
        if step is steps[-1] and move.live is not None and move.live.said:
            events.append(tx, written)
            written.clear()
            key = AttemptKey(job.id, move.attempt)
            events.append_live(tx, key, before, job.agent, move.at, move.live)
        written.append(event_of(tx, job, before, step))
        before = step.to
    events.append(tx, written)
    webhooks.announce(tx, job, move)
    statements.moved(tx, move, job)
    return job


def event_of(tx: Tx, job: Job, before: JobState | None, step: Step) -> dict[str, Any]:
    event = step.event or f"job.{step.to.lower()}"
    new = NewEvent(event, step.message, _LEVELS.get(step.to, "info"), step.fields)
    values = events.values_of(job.key, step.to, job.agent, step.at, new, before, step.reason)
    if before is JobState.PROCESSING and step.to is JobState.QUEUED and step.reason is None:
        tx.rows(_FOLD, values)
    return values


def get(tx: Tx, job_id: int) -> Job:
    rows = tx.rows("SELECT * FROM jobs WHERE id = :id", {"id": job_id})
    if not rows:
        raise NoSuchJob(job_id)
    return records.job(rows[0])


def change(tx: Tx, job_id: int, rule: Callable[[Job], Move | None]) -> Job | None:
    """Make the move that a rule decides on by what the job is now.

    Returns:
        The job after it; None: nothing was changed.

    Raises:
        NoSuchJob; what the rule raises.
    """
    wanted = rule(get(tx, job_id))
    return None if wanted is None else move(tx, wanted)


def move_all(tx: Tx, moves: Iterable[Move]) -> list[Job | None]:
    """As :func:`move`, for some moves in one transaction."""
    return [move(tx, one) for one in moves]


def in_states(tx: Tx, states: Iterable[JobState], agent: str | None = None) -> list[Job]:
    """Jobs now in one of the states, all of which hold a slot; oldest first."""
    words = ", ".join(f"'{state.value}'" for state in states)
    of_agent = "AND agent = :agent" if agent is not None else ""
    return records.jobs(
        tx,
        # The first condition is the partial index's own, or it is not used.
        f"SELECT * FROM jobs WHERE {statements.HELD} AND state IN ({words}) {of_agent} ORDER BY id",  # noqa: S608 - no user input
        {"agent": agent},
    )


def to_cancel(tx: Tx) -> list[Job]:
    """Jobs that are to be cancelled and have not ended."""
    return records.jobs(
        tx,
        """
        SELECT * FROM jobs WHERE cancel_requested_at IS NOT NULL AND ended_at IS NULL
        ORDER BY id
        """,
    )
