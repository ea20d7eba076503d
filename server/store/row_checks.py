"""Rows that contradict each other: looked for in slices, so that memory is bounded."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from itertools import groupby
from typing import Any, Final

from server.domain import states
from server.domain.jobs import FIRST_EVENT
from shared.wire import JobState

_SLICE: Final = 1_000
_JOBS: Final = """
    SELECT id, state, attempt, agent, ended_at, bundle_file, result_file, deferred, (
        SELECT max(number) FROM attempts WHERE job_id = jobs.id
    ) AS newest,
    CASE WHEN result_file IS NULL THEN 1 ELSE EXISTS (
        SELECT 1 FROM attempts
        WHERE job_id = jobs.id AND attempts.result_file = jobs.result_file
    ) END AS has_result
    FROM jobs WHERE id > :after AND (:since IS NULL OR created_at >= :since)
    ORDER BY id LIMIT :most
"""
_MOVES: Final = f"""
    SELECT job_id, seq, before, state FROM events
    WHERE job_id BETWEEN :first AND :last AND (before IS NOT NULL OR event = '{FIRST_EVENT}')
    ORDER BY job_id, seq
"""  # noqa: S608 - no user input


def damages(connection: sqlite3.Connection) -> Iterator[str]:
    """What SQLite itself finds wrong with the structure of the file."""
    for (line,) in connection.execute("PRAGMA integrity_check(100)"):
        if line != "ok":
            yield f"the database file is damaged: {line}"


def danglings(connection: sqlite3.Connection) -> Iterator[str]:
    """References to no row."""
    for table, rowid, parent, _ in connection.execute("PRAGMA foreign_key_check"):
        which = "" if rowid is None else f" {rowid}"
        yield f"row{which} of {table} refers to a row of {parent} that is not there"


def contradictions(
    connection: sqlite3.Connection, since: int | None = None
) -> Iterator[tuple[int, list[str]]]:
    """Each job, with what is wrong with its row or its history.

    One that changes meanwhile is read again.

    Args:
        since: only jobs that were made then or later, in microseconds.
    """
    after = 0
    while rows := connection.execute(
        _JOBS, {"after": after, "most": _SLICE, "since": since}
    ).fetchall():
        first, after = rows[0][0], rows[-1][0]
        moves = connection.execute(_MOVES, {"first": first, "last": after}).fetchall()
        histories = {job: list(found) for job, found in groupby(moves, key=lambda row: row[0])}
        for row in rows:
            wrong = _wrong(row, histories.get(row[0], []))
            if wrong:
                wrong = _wrong_now(connection, row[0])
            yield row[0], wrong


def _wrong_now(connection: sqlite3.Connection, job_id: int) -> list[str]:
    """Both of one moment: a server may have moved the job between the two reads."""
    connection.execute("BEGIN")
    try:
        values = {"after": job_id - 1, "most": 1, "since": None}
        row = connection.execute(_JOBS, values).fetchone()
        if row is None or row[0] != job_id:
            return []
        moves = connection.execute(_MOVES, {"first": job_id, "last": job_id}).fetchall()
        return _wrong(row, moves)
    finally:
        connection.execute("ROLLBACK")


def _wrong(row: tuple[Any, ...], moves: list[tuple[int, int, str | None, str]]) -> list[str]:
    _, state, attempt, agent, ended_at, bundle, _, deferred, newest, has_result = row
    if state not in set(JobState):
        return [f"its state is {state!r}, which there is not"]
    found = list(_history(moves, JobState(state)))
    ended = state in states.ENDED
    if ended and ended_at is None:
        found.append(f"it is {state}, and has no time of its end")
    if not ended and ended_at is not None:
        found.append(f"it is {state}, and has a time of its end")
    if state == JobState.CLEANED:
        if bundle is not None:
            found.append("it is Cleaned, and still has its bundle")
    elif bundle is None:
        found.append(f"it is {state}, and has no bundle")
    if state in states.HOLDS_SLOT and not deferred:
        if agent is None:
            found.append(f"it is {state}, and has no agent")
        if newest != attempt:
            found.append(f"it is {state} with attempt {attempt}, of which there is no row")
    elif newest is not None and newest > attempt:
        found.append(f"its row knows attempt {attempt}, there is an attempt {newest}")
    if not has_result:
        found.append("its result is none of its attempts'")
    return found


def _history(moves: list[tuple[int, int, str | None, str]], state: JobState) -> Iterator[str]:
    """Whether the events are a path through the table that ends where the job is."""
    if not moves:
        yield "it has no history"
        return
    at: str | None = None
    for _, seq, before, to in moves:
        if before is None:
            if at is not None or to != states.FIRST:
                yield f"event {seq} begins its history again, as {to}"
        elif at is None:
            yield f"its history begins with {before} to {to} (event {seq})"
        elif before != at:
            yield f"its history has a gap: {at}, then {before} to {to} (event {seq})"
        if before is not None and JobState(to) not in states.NEXT[JobState(before)]:
            yield f"its history has a move that there is not: {before} to {to} (event {seq})"
        at = to
    if at != state:
        yield f"it is {state}, its history ends with {at}"
