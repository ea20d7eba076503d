"""Tags of jobs that are there already."""

from __future__ import annotations

import json
from collections.abc import Collection

from server.domain.errors import NoSuchJob
from server.domain.jobs import Job
from server.domain.live import NewEvent
from server.domain.upload_fields import TooManyTags, with_tags
from server.store import records
from server.store.events import append_new_event
from server.store.statements import Part
from shared.clock import Micros
from shared.sql import Transaction


class Tags(Part):
    """The part of :class:`SqlJobs` that changes tags."""

    async def change_tags(
        self, job_id: int, add: Collection[str], remove: Collection[str], at: Micros, by: str
    ) -> Job:
        """Add and remove tags of a job, whatever its state, with an event.

        Raises:
            NoSuchJob, TooManyTags
        """

        async def change(tx: Transaction) -> Job | NoSuchJob | TooManyTags:
            rows = await tx.locked_rows("SELECT * FROM jobs WHERE id = :id", {"id": job_id})
            if not rows:
                return NoSuchJob(job_id)
            job = records.job(rows[0])
            tags = with_tags(job, add, remove)
            if isinstance(tags, TooManyTags):
                return tags
            if tags == job.tags:
                return job
            changed = await tx.rows(
                "UPDATE jobs SET tags = :tags WHERE id = :id RETURNING *",
                {"id": job_id, "tags": json.dumps(tags)},
            )
            for tag in set(job.tags) - set(tags):
                await tx.rows(
                    "DELETE FROM job_tags WHERE tag = :tag AND job_id = :id",
                    {"tag": tag, "id": job_id},
                )
            for tag in set(tags) - set(job.tags):
                await tx.rows(
                    "INSERT INTO job_tags (tag, job_id) VALUES (:tag, :id)",
                    {"tag": tag, "id": job_id},
                )
            message = (
                f"{by} set its tags to {', '.join(tags)}" if tags else f"{by} removed its tags"
            )
            event = NewEvent("job.tagged", message, fields={"by": by, "tags": list(tags)})
            await append_new_event(tx, job.key, job.state, job.agent, at, event)
            return records.job(changed[0])

        job = await self._database.write(change)
        if not isinstance(job, Job):
            raise job
        self._changed(job)
        return job
