"""What a look at everything compares: the rows about stored files, read in slices, and values that
are counted as rows come and go. What becomes of rows when a file is lost, and of a wrong count.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Final, NamedTuple

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


@dataclass(frozen=True, slots=True)
class Counted:
    """A kind of value that is counted.

    Attributes:
        find: key, stored and true value of each that is wrong.
        mend: gives the row ``:key`` the value ``:value``.
    """

    name: str
    what: str
    find: str
    mend: tuple[str, ...]


COUNTED: Final = (
    Counted(
        "bundle_refs",
        "jobs, batches and schedules that use bundle {key}",
        f"""
        SELECT bundles.file AS key, refs AS stored, coalesce(uses, 0) AS counted FROM bundles
        LEFT JOIN (
            SELECT bundle_file, count(*) AS uses FROM ({_BUNDLES_OF}) AS one GROUP BY bundle_file
        ) AS used ON bundle_file = bundles.file
        WHERE refs <> coalesce(uses, 0)
        """,  # noqa: S608 - no user input
        (
            "UPDATE bundles SET refs = :value WHERE file = :key",
            "DELETE FROM bundles WHERE file = :key AND refs <= 0",
        ),
    ),
    Counted(
        "results_size",
        "bytes of the results of job {key}",
        """
        SELECT jobs.id AS key, results_size AS stored, coalesce((
            SELECT sum(result_size) FROM attempts
            WHERE attempts.job_id = jobs.id AND result_file IS NOT NULL
        ), 0) AS counted FROM jobs
        WHERE bundle_file IS NOT NULL AND stored <> counted
        """,
        ("UPDATE jobs SET results_size = :value WHERE id = :key",),
    ),
    *(
        Counted(
            f"batch_{column}",
            f"children of batch {{key}} that are {state}",
            f"""
            SELECT parent_id AS key, {column} AS stored, (
                SELECT count(*) FROM jobs WHERE jobs.parent_id = batches.parent_id
                AND state = '{state}'
            ) AS counted FROM batches WHERE made > 0 AND stored <> counted
            -- Children that were cleaned stay counted.
            AND made = (
                SELECT count(*) FROM jobs WHERE jobs.parent_id = batches.parent_id
                AND state <> 'Cleaned'
            )
            """,  # noqa: S608 - no user input
            (f"UPDATE batches SET {column} = :value WHERE parent_id = :key",),  # noqa: S608
        )
        for state, column in jobs.COUNTED.items()
    ),
    Counted(
        "tags",
        "tags of job {key}",
        """
        SELECT id AS key, (SELECT count(*) FROM job_tags WHERE job_id = jobs.id) AS stored,
            (SELECT count(DISTINCT value) FROM json_each(jobs.tags)) AS counted
        FROM jobs WHERE (tags <> '[]' OR stored > 0) AND parent_id IS NULL AND stored <> counted
        """,
        (
            "DELETE FROM job_tags WHERE job_id = :key",
            """
            INSERT INTO job_tags (tag, job_id)
            SELECT DISTINCT value, jobs.id FROM jobs, json_each(jobs.tags) WHERE jobs.id = :key
            """,
        ),
    ),
)


class Miscount(NamedTuple):
    counted: Counted
    key: str | int
    stored: int
    true: int

    @property
    def text(self) -> str:
        what = self.counted.what.format(key=self.key)
        return f"{what}: {self.stored} are stored, {self.true} are there"


def miscounts(tx: Tx) -> Iterator[Miscount]:
    """Everything that is counted wrongly."""
    for counted in COUNTED:
        for key, stored, true in tx.rows(counted.find):
            yield Miscount(counted, key, stored, true)


def mend(tx: Tx, found: Miscount) -> None:
    """Store what is true; no server may run."""
    for statement in found.counted.mend:
        tx.rows(statement, {"key": found.key, "value": found.true})
