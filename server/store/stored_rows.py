"""The rows about stored files, read in slices, and what becomes of them when a file is lost."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Final

from server.domain.jobs import FileKind
from server.domain.live import NewEvent
from server.store import bundles as store_bundles
from server.store import jobs
from server.store.events import append, values_of
from shared.clock import Micros
from shared.sql import Tx

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
        return f"job {self.job_id}" if self.job_id > 0 else f"schedule {-self.job_id}"


def stored_files(tx: Tx) -> Iterator[StoredFile]:
    """Every file that a job or a schedule refers to; once for each that shares it."""
    of = (StoredFile(number, FileKind.BUNDLE, *file) for number, *file in tx.each(_BUNDLES_OF))
    return chain(of, results(tx))


def bundles(tx: Tx) -> Iterator[StoredFile]:
    """Each bundle, once."""
    after = ""
    while rows := tx.rows(_BUNDLES, {"after": after, "most": _SLICE}):
        for name, size, digest in rows:
            yield StoredFile(0, FileKind.BUNDLE, name, size, digest)
        after = rows[-1][0]


def results(tx: Tx, since: Micros | None = None) -> Iterator[StoredFile]:
    """The result of each attempt that has one."""
    values = {"job": 0, "number": 0, "most": _SLICE, "since": since}
    while rows := tx.rows(_RESULTS, values):
        for job, _, name, size, digest in rows:
            yield StoredFile(job, FileKind.RESULT, name, size, digest)
        values |= {"job": rows[-1][0], "number": rows[-1][1]}


def stray_rows(tx: Tx, *, delete: bool) -> list[str]:
    """Names of contents that nothing refers to, which may be deleted."""
    what = "DELETE" if delete else "SELECT name"
    sql = f"""
        {what} FROM contents WHERE name NOT IN (
            SELECT file FROM bundles
            UNION ALL
            SELECT result_file FROM attempts WHERE result_file IS NOT NULL
        ) {"RETURNING name" if delete else ""}
    """  # noqa: S608 - no user input
    return [row["name"] for row in tx.rows(sql)]


def give_up(connection: sqlite3.Connection, file: StoredFile, why: str, at: Micros) -> str:
    """A file is lost: no row promises it any more. One transaction; no server may run.

    Returns:
        What was done; empty: nothing can be.
    """
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        if file.kind is FileKind.RESULT:
            return _without_result(Tx(connection), file, why, at)
        # Jobs that have it cannot be sent: that is their failure. No other upload gets it.
        store_bundles.stop_sharing(Tx(connection), file.name)
        return ""


def _without_result(tx: Tx, file: StoredFile, why: str, at: Micros) -> str:
    message = f"its result is lost, and was given up by ferryman admin verify: {why}"
    values = {"job": file.job_id, "file": file.name, "size": file.size, "message": message}
    tx.rows(
        "UPDATE attempts SET result_file = NULL WHERE job_id = :job AND result_file = :file", values
    )
    tx.rows("DELETE FROM contents WHERE name = :file", values)
    rows = tx.rows(
        """
        UPDATE jobs SET result_file = NULL, message = :message
        WHERE id = :job AND result_file = :file RETURNING id
        """,
        values,
    )
    tx.rows("UPDATE jobs SET results_size = results_size - :size WHERE id = :job", values)
    job = jobs.get(tx, file.job_id)
    new = NewEvent("job.result_lost", message, "error", {"why": why})
    append(tx, [values_of(job.key, job.state, job.agent, at, new)])
    return "the job has no result any more" if rows else "the attempt has no result any more"
