"""Values that are counted as rows come and go, compared with the rows, and mended."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from shared.sql import Tx

_USES: Final = """
    SELECT bundle_file AS file FROM jobs WHERE bundle_file IS NOT NULL
    UNION ALL
    SELECT bundle_file FROM batches WHERE bundle_file IS NOT NULL
    UNION ALL
    SELECT bundle_file FROM schedules
"""


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
            SELECT file, count(*) AS uses FROM ({_USES}) AS used GROUP BY file
        ) AS used ON used.file = bundles.file
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
        for column, state in (
            ("completed", "Completed"),
            ("failed", "Failed"),
            ("cancelled", "Cancelled"),
        )
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
