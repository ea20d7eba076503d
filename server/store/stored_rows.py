"""The rows about stored files, read in slices, and what becomes of them when a file is lost."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

from server.domain.jobs import FileKind
from server.store import retention
from shared.clock import Micros
from shared.sqlite.database import Transacting

_SLICE: Final = 1_000
_BUNDLES: Final = """
    SELECT file, size, digest FROM bundles WHERE file > :after ORDER BY file LIMIT :most
"""
_RESULTS: Final = """
    SELECT job_id, number, result_file, result_size, result_sha256 FROM attempts
    WHERE (job_id, number) > (:job, :number) AND result_file IS NOT NULL
    AND (:since IS NULL OR claimed_at >= :since)
    ORDER BY job_id, number LIMIT :most
"""
_BUNDLES_OF: Final = """
    SELECT id, bundle_file, bundle_size, bundle_digest FROM jobs WHERE bundle_file IS NOT NULL
    UNION ALL
    SELECT -id, bundle_file, bundle_size, bundle_digest FROM schedules
    UNION ALL
    SELECT parent_id, bundle_file, bundle_size, bundle_digest FROM batches
    WHERE bundle_file IS NOT NULL
"""
"""What a job left for its children is only its batch's until they are made."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A stored file that a job or a schedule refers to."""

    job_id: int
    """Of a schedule: its number, below 0."""
    kind: FileKind
    name: str
    size: int
    digest: str
    """Of a bundle's content, of a result's bytes."""

    @property
    def owner(self) -> str:
        """In words."""
        return f"job {self.job_id}" if self.job_id > 0 else f"schedule {-self.job_id}"


def stored_files(connection: sqlite3.Connection) -> Iterator[StoredFile]:
    """Every file that a job or a schedule refers to; once for each that shares it."""
    of = (StoredFile(row[0], FileKind.BUNDLE, *row[1:]) for row in connection.execute(_BUNDLES_OF))
    return chain(of, results(connection))


def bundles(connection: sqlite3.Connection) -> Iterator[StoredFile]:
    """Each bundle, once."""
    after = ""
    while rows := connection.execute(_BUNDLES, {"after": after, "most": _SLICE}).fetchall():
        for name, size, digest in rows:
            yield StoredFile(0, FileKind.BUNDLE, name, size, digest)
        after = rows[-1][0]


def results(connection: sqlite3.Connection, since: int | None = None) -> Iterator[StoredFile]:
    """The result of each attempt that has one."""
    values = {"job": 0, "number": 0, "most": _SLICE, "since": since}
    while rows := connection.execute(_RESULTS, values).fetchall():
        for job, _, name, size, digest in rows:
            yield StoredFile(job, FileKind.RESULT, name, size, digest)
        values |= {"job": rows[-1][0], "number": rows[-1][1]}


def content(connection: sqlite3.Connection, file: StoredFile) -> bytes | None:
    """Its bytes, where they are a row."""
    row = connection.execute("SELECT bytes FROM contents WHERE name = ?", (file.name,)).fetchone()
    return None if row is None else row[0]


def stray_rows(connection: sqlite3.Connection, *, delete: bool) -> list[str]:
    """Names of contents that nothing refers to, which may be deleted."""
    what = "DELETE" if delete else "SELECT name"
    sql = f"""
        {what} FROM contents WHERE name NOT IN (
            SELECT file FROM bundles
            UNION ALL
            SELECT result_file FROM attempts WHERE result_file IS NOT NULL
        ) {"RETURNING name" if delete else ""}
    """  # noqa: S608 - no user input
    return [row[0] for row in connection.execute(sql).fetchall()]


def refers_to(connection: sqlite3.Connection, file: StoredFile) -> bool:
    """Whether a row still does."""
    if file.kind is FileKind.BUNDLE:
        sql, values = "SELECT 1 FROM bundles WHERE file = ?", (file.name,)
        return connection.execute(sql, values).fetchone() is not None
    sql = "SELECT 1 FROM attempts WHERE job_id = ? AND result_file = ?"
    return connection.execute(sql, (file.job_id, file.name)).fetchone() is not None


def files_in_use(connection: sqlite3.Connection, names: Sequence[str]) -> set[str]:
    """Those of the names that a bundle or an attempt refers to."""
    return retention.files_in_use(Transacting(connection), names)


def give_up(connection: sqlite3.Connection, file: StoredFile, why: str, at: Micros) -> str:
    """A file is lost: no row promises it any more. One transaction; no server may run.

    Returns:
        What was done; empty: nothing can be.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        if file.kind is FileKind.BUNDLE:
            # Jobs that have it cannot be sent: that is their failure. No other upload gets it.
            connection.execute("UPDATE bundles SET shared = 0 WHERE file = ?", (file.name,))
            done = ""
        else:
            done = _without_result(connection, file, why, at)
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
    return done


def _without_result(connection: sqlite3.Connection, file: StoredFile, why: str, at: Micros) -> str:
    key = (file.job_id, file.name)
    connection.execute(
        "UPDATE attempts SET result_file = NULL WHERE job_id = ? AND result_file = ?", key
    )
    connection.execute("DELETE FROM contents WHERE name = ?", (file.name,))
    message = f"its result is lost, and was given up by ferryman admin verify: {why}"
    row = connection.execute(
        """
        UPDATE jobs SET result_file = NULL, message = :message
        WHERE id = :job AND result_file = :file RETURNING id
        """,
        {"message": message, "job": file.job_id, "file": file.name},
    ).fetchone()
    connection.execute(
        """
        UPDATE jobs SET results_size = coalesce((
            SELECT sum(result_size) FROM attempts WHERE job_id = jobs.id AND result_file IS NOT NULL
        ), 0) WHERE id = ?
        """,
        (file.job_id,),
    )
    connection.execute(
        """
        INSERT INTO events (job_id, at, attempt, before, state, reason, message, event, level,
                            agent, fields)
        SELECT id, :at, attempt, NULL, state, NULL,
               :message, 'job.result_lost', 'error', agent, :fields
        FROM jobs WHERE id = :job
        """,
        {"message": message, "job": file.job_id, "at": at, "fields": json.dumps({"why": why})},
    )
    return "the job has no result any more" if row else "the attempt has no result any more"
