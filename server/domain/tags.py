"""The tags of a job that is there already."""

from __future__ import annotations

from collections.abc import Collection

from server.domain.errors import FerrymanError
from server.domain.field_values import MAX_TAGS
from server.domain.jobs import Job


class TooManyTags(FerrymanError):
    code = "too_many_tags"

    def __init__(self, job_id: int, count: int) -> None:
        super().__init__(f"job {job_id} would have {count} tags, it may have {MAX_TAGS}")


def with_tags(
    job: Job, add: Collection[str], remove: Collection[str]
) -> tuple[str, ...] | TooManyTags:
    """The job's tags after a change: those that it keeps, in their order, then new ones."""
    kept = dict.fromkeys(tag for tag in job.tags if tag not in remove)
    tags = (*kept, *(tag for tag in dict.fromkeys(add) if tag not in kept))
    return tags if len(tags) <= MAX_TAGS else TooManyTags(job.id, len(tags))
