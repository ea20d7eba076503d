"""What running attempts say, written many at a time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from server.domain.live import Report
from server.store import leases, records
from server.store.events import append_live, append_new_event
from server.store.statements import Part
from shared.ids import AttemptKey
from shared.sql import Transaction
from shared.wire import JobState

_JOB: Final = f"""
    UPDATE jobs SET progress = :progress, output = :output,
        heartbeat_at = coalesce(:heartbeat_at, heartbeat_at),
        message = CASE WHEN :message = '' THEN message ELSE :message END
    WHERE id = :id AND attempt = :attempt AND agent = :agent AND state = 'Running'
    AND deferred = 0 AND {leases.HELD} RETURNING id
"""  # noqa: S608 - no user input
_ATTEMPT: Final = """
    UPDATE attempts SET progress = :progress, output = :output
    WHERE job_id = :id AND number = :attempt
"""


class LiveValues(Part):
    """The part of :class:`SqlJobs` that stores what running attempts say."""

    async def record_live(self, reports: Sequence[Report]) -> set[AttemptKey]:
        """Store what attempts say while they run, with events about what is new.

        Returns:
            The attempts that do run at the agent that reports them, under that lease. Nothing was
            written about the others.
        """

        async def change(tx: Transaction) -> tuple[set[AttemptKey], set[int]]:
            running, noted = set[AttemptKey](), set[int]()
            for report in reports:
                if not await _record(tx, report):
                    continue
                running.add(report.key)
                of = (tx, report.key, JobState.RUNNING, report.agent, report.at)
                if report.news and await append_live(*of, report.live):
                    noted.add(report.key.job_id)
                if (progress := report.progress_event) is not None:
                    await append_new_event(*of, progress)
                    noted.add(report.key.job_id)
            return running, noted

        running, noted = await self._database.write(change)
        for job_id in noted:
            self._noted(job_id)
        return running


async def _record(tx: Transaction, report: Report) -> bool:
    """Whether the attempt runs at that agent, which is followed under that lease."""
    live = report.live
    values = records.columns({"progress": live.progress, "output": live.output})
    values |= {"id": report.key.job_id, "attempt": report.key.attempt}
    written = await tx.rows(
        _JOB,
        values
        | {"agent": report.agent, "message": live.message, "heartbeat_at": live.heartbeat_at}
        | leases.held(report.lease),
    )
    if written:
        await tx.rows(_ATTEMPT, values)
    return bool(written)
