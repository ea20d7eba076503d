"""The events: those of moves, what running attempts say, and what else happened to a job."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from server.domain.errors import NoSuchJob
from server.domain.jobs import FIRST_EVENT, Event
from server.domain.live import NOTICES, Live, NewEvent, Report
from server.store import changes, records
from server.store.pages import Filter
from shared.clock import Micros
from shared.ids import AttemptKey
from shared.sql import Tx
from shared.wire import JobState, Reason


@dataclass(frozen=True, slots=True)
class EventsPage:
    """Some events, oldest first."""

    items: Sequence[Event]
    reached: int
    """Every event up to this ``seq`` was looked at."""
    more: bool
    """There are later ones already."""


_JOB: Final = """
    UPDATE jobs SET progress = :progress, output = :output,
        heartbeat_at = coalesce(:heartbeat_at, heartbeat_at),
        message = CASE WHEN :message = '' THEN message ELSE :message END
    WHERE id = :id AND attempt = :attempt AND agent = :agent AND state = 'Running'
    AND deferred = 0 RETURNING id
"""
_ATTEMPT: Final = """
    UPDATE attempts SET progress = :progress, output = :output
    WHERE job_id = :id AND number = :attempt
"""

_SLICE: Final = 2_000
"""Events that one page looks at, whatever it is to show."""
_INSERT: Final = """
    INSERT INTO events
        (job_id, at, attempt, before, state, reason, message, event, level, agent, fields)
    VALUES
        (:job_id, :at, :attempt, :before, :state, :reason, :message, :event, :level, :agent,
         :fields)
"""
_OF_RUN_SH: Final = ", ".join(f"'{event}'" for event in ("job.output", *NOTICES.values()))


def append(tx: Tx, events: Sequence[Mapping[str, Any]]) -> None:
    """Write events in this order; each has the values of its columns."""
    tx.many(_INSERT, events)


def values_of(
    key: AttemptKey,
    state: JobState,
    agent: str | None,
    at: Micros,
    new: NewEvent,
    before: JobState | None = None,
    reason: Reason | None = None,
) -> dict[str, Any]:
    """The columns of an event; of a move with the state before it, and why it was made."""
    return {
        "job_id": key.job_id,
        "at": at,
        "attempt": key.attempt,
        "before": before,
        "state": state,
        "reason": reason,
        "message": new.message,
        "event": new.event,
        "level": new.level,
        "agent": agent,
        "fields": json.dumps(dict(new.fields)) if new.fields else "{}",
    }


def append_live(
    tx: Tx, key: AttemptKey, state: JobState, agent: str | None, at: Micros, live: Live
) -> bool:
    """Write the events about what an attempt said, except those that are written already.

    They are looked up here: a report may repeat everything, and come after a restart.
    """
    if not live.said:
        return False
    rows = tx.rows(
        f"SELECT event, fields FROM events WHERE job_id = :id AND attempt = :attempt AND (event IN ({_OF_RUN_SH}) OR event NOT LIKE 'job.%')",  # noqa: E501, S608 - no user input
        {"id": key.job_id, "attempt": key.attempt},
    )
    known = {json.loads(row["fields"])["name"] for row in rows if row["event"] == "job.output"}
    notices = sum(row["event"] != "job.output" for row in rows)
    outputs = [event for name, event in live.outputs.items() if name not in known]
    unwritten = (*live.notices[notices:], *outputs)
    append(tx, [values_of(key, state, agent, at, event) for event in unwritten])
    return bool(unwritten)


def of_job(tx: Tx, job_id: int, after: int, limit: int) -> list[Event]:
    """What happened to the job, oldest first, from behind ``after``. Raises NoSuchJob."""
    rows = tx.rows(
        "SELECT * FROM events WHERE job_id = :id AND seq > :after ORDER BY seq LIMIT :limit",
        {"id": job_id, "after": after, "limit": limit},
    )
    if not rows and not tx.rows("SELECT 1 FROM jobs WHERE id = :id", {"id": job_id}):
        raise NoSuchJob(job_id)
    return [records.event(row) for row in rows]


def latest(tx: Tx, job_id: int, limit: int) -> list[Event]:
    """The newest events of the job, newest first; empty: there are none, or no such job."""
    rows = tx.rows(
        "SELECT * FROM events WHERE job_id = :id ORDER BY seq DESC LIMIT :limit",
        {"id": job_id, "limit": limit},
    )
    return [records.event(row) for row in rows]


def page(tx: Tx, where: Filter, after: int, limit: int) -> EventsPage:
    """What happened to all jobs of the filter's user, service and ``submitted_by``. Its cost is
    bounded: a page may hold few, or none, and not be the last.
    """
    (slice_,) = tx.rows(
        """
        SELECT max(seq) AS reached, count(*) AS count FROM (
            SELECT seq FROM events WHERE seq > :after ORDER BY seq LIMIT :slice
        )
        """,
        {"after": after, "slice": _SLICE},
    )
    reached, full = slice_["reached"] or after, slice_["count"] == _SLICE
    chosen = {name: getattr(where, name) for name in ("user_id", "service", "submitted_by")}
    given = {name: value for name, value in chosen.items() if value is not None}
    fits = "".join(f" AND jobs.{name} = :{name}" for name in given)
    rows = tx.rows(
        # CROSS: the events of the slice are read, and the job of each looked up.
        f"""
        SELECT events.* FROM events CROSS JOIN jobs ON jobs.id = events.job_id
        WHERE seq > :after AND seq <= :reached {fits} ORDER BY seq LIMIT :limit
        """,  # noqa: S608 - no user input
        {"after": after, "reached": reached, "limit": limit + 1} | given,
    )
    items = [records.event(row) for row in rows[:limit]]
    if len(rows) > limit:
        return EventsPage(items, items[-1].seq, more=True)
    return EventsPage(items, reached, more=full)


def newest_seq(tx: Tx) -> int:
    """The highest ``seq`` so far."""
    rows = tx.rows("SELECT max(seq) AS seq FROM events")
    return int(rows[0]["seq"] or 0)


def moves(tx: Tx, job_id: int, most: int) -> list[Event]:
    """The newest ones of the job's events that are moves, oldest first; empty: no such job."""
    rows = tx.rows(
        """
        SELECT * FROM events WHERE job_id = :id AND (before IS NOT NULL OR event = :first)
        ORDER BY seq DESC LIMIT :most
        """,
        {"id": job_id, "first": FIRST_EVENT, "most": most},
    )
    return [records.event(row) for row in reversed(rows)]


def record_live(tx: Tx, reports: Sequence[Report]) -> set[AttemptKey]:
    """Store what attempts say while they run, with events about what is new. Returns the attempts
    that do run at the agent that reports them. Nothing was written about the others.
    """
    running, noted = set[AttemptKey](), set[int]()
    for report in reports:
        live = report.live
        values = records.columns({"progress": live.progress, "output": live.output})
        values |= {"id": report.key.job_id, "attempt": report.key.attempt}
        own = {"agent": report.agent, "message": live.message, "heartbeat_at": live.heartbeat_at}
        if not tx.rows(_JOB, values | own):
            continue
        tx.rows(_ATTEMPT, values)
        running.add(report.key)
        of = (report.key, JobState.RUNNING, report.agent, report.at)
        if report.news and append_live(tx, *of, report.live):
            noted.add(report.key.job_id)
        if (progress := report.progress_event) is not None:
            append(tx, [values_of(*of, progress)])
            noted.add(report.key.job_id)
    for job_id in noted:
        changes.noted(tx, job_id)
    return running
