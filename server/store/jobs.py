"""The jobs and their attempts: moves, each with its events and with what it means for its attempt
and for the counts of its batch, in the same transaction; and reading them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar

from server.domain import states
from server.domain.errors import NoSuchAttempt, NoSuchJob
from server.domain.jobs import Attempt, Hold, Job, Move, Result, Step
from server.domain.live import NewEvent
from server.domain.webhooks import announced
from server.store import bundles, changes, dependencies, events, records, statistics
from shared.clock import Micros
from shared.ids import AttemptKey
from shared.sql import Tx
from shared.wire import JobState, Level

Found = TypeVar("Found")
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

_LEVELS: Final[Mapping[JobState, Level]] = {JobState.FAILED: "error", JobState.UNKNOWN: "warning"}
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
_FROM_THE_JOB: Final = ("agent", "payload_id", "submitted_at", "started_at")
"""Fields that a move sets in both rows."""
COUNTED: Final[Mapping[JobState, str]] = {
    JobState.COMPLETED: "completed",
    JobState.FAILED: "failed",
    JobState.CANCELLED: "cancelled",
}
"""State of a child -> the column that counts it. Children that were cleaned stay counted."""
_PARENT_GOES_ON: Final = """
    NOT EXISTS (
        SELECT 1 FROM jobs AS parent WHERE parent.id = jobs.parent_id
        AND parent.cancel_requested_at IS NOT NULL
    )
"""
"""Of a job that is claimed: if it is a child, its parent is not to be cancelled."""
_PARENT_WAITS: Final = """
    (parent_id IS NULL OR EXISTS (
        SELECT 1 FROM jobs AS parent WHERE parent.id = jobs.parent_id AND parent.state = 'Running'
        AND parent.deferred = 1 AND parent.cancel_requested_at IS NULL
    ))
"""
"""Of a job that is retried: if it is a child, its parent has not ended and is not cancelled."""


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
        only_if += f" AND cancel_requested_at IS NULL AND {_PARENT_GOES_ON}"
    if move.before in states.ENDED and move.to is JobState.QUEUED:
        only_if += " AND delete_requested_at IS NULL"  # its children may be gone already
        only_if += f" AND {_PARENT_WAITS}"
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
    _record_attempt(tx, job, move)
    if job.parent_id is not None:
        job = _count_child(tx, job, job.parent_id, move)
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
    if (delivery := announced(job, move)) is not None:
        records.insert(tx, "deliveries", delivery)
    changes.moved(tx, move, job)
    return job


def _record_attempt(tx: Tx, job: Job, move: Move) -> None:
    """Write what a move that was just made says about the job's current attempt."""
    key = {"job_id": job.id, "number": job.attempt}
    if not states.HOLDS_SLOT & {move.before, move.to, *(step.to for step in move.through)}:
        return  # it waited, or had ended
    deferred = move.changes.get("deferred")
    if deferred is False or (job.deferred and not deferred):
        return  # a parent without an attempt under way
    if move.before is JobState.QUEUED:  # a claim, or an attempt that was given up and is back
        tx.rows(
            """
            INSERT INTO attempts (job_id, number, state, agent, agent_id, claimed_at, message)
            VALUES (:job_id, :number, :state, :agent, (
                SELECT id FROM agents WHERE name = :agent AND state != 'retired'
            ), :at, :message)
            ON CONFLICT (job_id, number) DO NOTHING
            """,
            key
            | {
                "state": job.state,
                "agent": job.agent or "",
                "at": move.at,
                "message": move.message,
            },
        )
    if job.attempt != move.attempt:
        return
    if move.before is JobState.PROCESSING and job.state is JobState.QUEUED and not move.reason:
        # No agent took it. Nothing happened that its history does not say.
        tx.rows("DELETE FROM attempts WHERE job_id = :job_id AND number = :number", key)
        return
    known = {name: move.changes[name] for name in _FROM_THE_JOB if move.changes.get(name)}
    values: dict[str, Any] = {"state": job.state, "message": move.message, "reason": move.reason}
    values |= records.columns(known | dict(move.facts))
    if job.state not in states.HOLDS_SLOT:
        values["ended_at"] = move.at
    if job.state is JobState.QUEUED:
        values["state"] = JobState.FAILED
    elif deferred:
        values |= {"state": JobState.COMPLETED, "ended_at": move.at}
    setting = ", ".join(f"{name} = :{name}" for name in values)
    tx.rows(
        f"UPDATE attempts SET {setting} WHERE job_id = :job_id AND number = :number",  # noqa: S608 - names come from Move
        values | key,
    )
    if (result := move.facts.get("result")) is not None:
        bundles.keep(tx, result)


def _count_child(tx: Tx, child: Job, parent_id: int, move: Move) -> Job:
    """Count a child that has ended, or is queued again after its end.

    Of a batch with ``max_parallel``, as many of the children that have not ended are without
    ``hold`` as may be under way at once.

    Returns:
        The child, which may be held back now.
    """
    was, now = COUNTED.get(move.before), COUNTED.get(child.state)
    if was == now or child.state is JobState.CLEANED:
        return child
    changes = [f"{was} = {was} - 1"] if was else []
    changes += [f"{now} = {now} + 1"] if now else []
    rows = tx.rows(
        f"""
        UPDATE batches SET {", ".join(changes)} WHERE parent_id = :parent
        RETURNING max_parallel, made - completed - failed - cancelled AS unended
        """,  # noqa: S608 - no user input
        {"parent": parent_id},
    )
    most = rows[0]["max_parallel"]
    if not most:
        return child
    if now and child.hold is None:
        _release_child(tx, parent_id, move.at)
    elif was:
        hold = Hold.PARALLEL if rows[0]["unended"] > most else None
        held = {"hold": hold, "id": child.id}
        tx.rows("UPDATE jobs SET hold = :hold WHERE id = :id", held)
        return replace(child, hold=hold)
    return child


def _release_child(tx: Tx, parent_id: int, at: Micros) -> None:
    """Let the first of the children be claimed that are held back."""
    tx.rows(
        """
        UPDATE jobs SET hold = NULL, waits_since = :at WHERE id IN (
            SELECT id FROM jobs WHERE parent_id = :parent AND state = 'Queued'
            AND hold = 'parallel' ORDER BY id LIMIT 1
        )
        """,
        {"parent": parent_id, "at": at},
    )


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


def change_all(tx: Tx, find: Callable[[Tx], Iterable[Found]], rule: Callable[[Found], Move]) -> int:
    """Make the moves that a rule decides on for what a query finds now; how many were made."""
    return sum(move(tx, rule(one)) is not None for one in find(tx))


def in_states(
    tx: Tx, states: Iterable[JobState], agent: str | None = None, limit: int = -1
) -> list[Job]:
    """Jobs now in one of the states, all of which hold a slot; oldest first. ``limit``: -1: all."""
    words = ", ".join(f"'{state.value}'" for state in states)
    of_agent = "AND agent = :agent" if agent is not None else ""
    return records.jobs(
        tx,
        # The first condition is the partial index's own, or it is not used.
        f"""
        SELECT * FROM jobs WHERE {changes.HELD} AND state IN ({words}) {of_agent}
        ORDER BY id LIMIT :limit
        """,  # noqa: S608 - no user input
        {"agent": agent, "limit": limit},
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


def attach_result(tx: Tx, key: AttemptKey, result: Result) -> bool:
    """Add a result that came after its attempt had ended; False: it has one, or its job is gone."""
    columns = records.columns({"result": result})
    setting = ", ".join(f"{name} = :{name}" for name in columns)
    values = columns | {"job_id": key.job_id, "number": key.attempt}
    added = tx.rows(
        f"""
        UPDATE attempts SET {setting}
        WHERE job_id = :job_id AND number = :number AND result_file IS NULL
        AND ended_at IS NOT NULL
        AND EXISTS (SELECT 1 FROM jobs WHERE id = :job_id AND state != 'Cleaned')
        RETURNING ended_at
        """,  # noqa: S608 - no user input
        values,
    )
    if not added:
        return False
    bundles.keep(tx, result)
    tx.rows("UPDATE jobs SET results_size = results_size + :result_size WHERE id = :job_id", values)
    tx.rows(
        f"""
        UPDATE jobs SET {setting} WHERE id = :job_id AND attempt = :number AND ended_at IS NOT NULL
        """,  # noqa: S608 - no user input
        values,
    )
    job = get(tx, key.job_id)
    statistics.count(tx, job, added[0]["ended_at"], result_bytes=result.size)
    changes.changed(tx, job)
    return True


def joined_sha256(tx: Tx, key: AttemptKey, result: Result) -> str | None:
    """Digest of the ZIP of a result and what it refers to; None: not known yet."""
    rows = tx.rows(
        "SELECT joined_sha256 FROM attempts WHERE job_id = :job_id AND number = :number"
        " AND result_file = :file",
        {"job_id": key.job_id, "number": key.attempt, "file": result.file},
    )
    return rows[0]["joined_sha256"] if rows else None


def keep_joined(tx: Tx, key: AttemptKey, result: Result, sha256: str) -> None:
    """Remember it: the whole was sent."""
    tx.rows(
        "UPDATE attempts SET joined_sha256 = :sha256 WHERE job_id = :job_id AND number = :number"
        " AND result_file = :file",
        {"job_id": key.job_id, "number": key.attempt, "file": result.file, "sha256": sha256},
    )


def attempts(tx: Tx, job_id: int, most: int) -> list[Attempt]:
    """The newest of the attempts that an agent took, the first one first."""
    rows = tx.rows(
        """
        SELECT * FROM attempts WHERE job_id = :job_id ORDER BY number DESC LIMIT :most
        """,
        {"job_id": job_id, "most": most},
    )
    return [records.attempt(row) for row in reversed(rows)]


def attempt(tx: Tx, key: AttemptKey) -> Attempt:
    """Raises NoSuchAttempt."""
    rows = tx.rows(  # the Getter asks, too, and must not wait for lists
        "SELECT * FROM attempts WHERE job_id = :job_id AND number = :number",
        {"job_id": key.job_id, "number": key.attempt},
    )
    if not rows:
        raise NoSuchAttempt(key.job_id, key.attempt)
    return records.attempt(rows[0])
