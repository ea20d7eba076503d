"""What must hold of every batch in a database."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

from shared.sql import Row

_COUNTED: Final = """
    SELECT batches.*, parent.state AS parent_state,
        (SELECT count(*) FROM jobs WHERE parent_id = batches.parent_id) AS there,
        (SELECT count(*) FROM jobs WHERE parent_id = batches.parent_id
            AND state = 'Completed') AS of_completed,
        (SELECT count(*) FROM jobs WHERE parent_id = batches.parent_id
            AND state = 'Failed') AS of_failed,
        (SELECT count(*) FROM jobs WHERE parent_id = batches.parent_id
            AND state = 'Cancelled') AS of_cancelled,
        (SELECT count(*) FROM jobs WHERE parent_id = batches.parent_id
            AND ended_at IS NULL) AS unended,
        (SELECT count(*) FROM jobs WHERE parent_id = batches.parent_id
            AND ended_at IS NULL AND hold IS NULL) AS may_run
    FROM batches JOIN jobs AS parent ON parent.id = batches.parent_id
"""


class Readable(Protocol):
    async def rows(self, sql: str, params: Any = None) -> Sequence[Row]: ...


async def check_batches(database: Readable) -> None:
    """Raise AssertionError where a counter is not what counting says."""
    for row in await database.rows(_COUNTED):
        seen = {name: row[name] for name in ("made", "completed", "failed", "cancelled")}
        if row["parent_state"] != "Cleaned":  # else its children go, some at a time
            counted = {
                "made": row["there"],
                "completed": row["of_completed"],
                "failed": row["of_failed"],
                "cancelled": row["of_cancelled"],
            }
            assert seen == counted, f"batch {row['parent_id']}: {seen} is not {counted}"
        most = row["max_parallel"]
        expected = min(most, row["unended"]) if most else row["unended"]
        assert row["may_run"] == expected, f"batch {row['parent_id']}: {row['may_run']} may run"
        if row["parent_state"] in ("Completed", "Failed", "Cancelled"):
            assert row["unended"] == 0, f"children of the ended batch {row['parent_id']} are left"
    for row in await database.rows(
        """
        SELECT file, refs, (SELECT count(*) FROM jobs WHERE bundle_file = file)
            + (SELECT count(*) FROM batches WHERE bundle_file = file) AS counted FROM bundles
        """
    ):
        assert row["refs"] == row["counted"], f"bundle {row['file']} counts {row['refs']}"
