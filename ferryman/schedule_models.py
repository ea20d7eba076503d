"""The documents about schedules."""

from __future__ import annotations

from typing import Literal, TypeAlias

from pydantic import AwareDatetime, Field

from ferryman.models import Wire

Overlap: TypeAlias = Literal["skip_if_running", "queue", "replace"]
"""What a schedule does at a time when a job of it has not ended."""
Missed: TypeAlias = Literal["skip", "run_once"]
"""What it does with times at which no server was running."""


class ScheduleLinks(Wire):
    self: str
    jobs: str


class ScheduleDoc(Wire):
    """A schedule: an upload that becomes a job again and again."""

    id: int
    name: str
    user_id: str
    service: str
    cron: str
    """Minute, hour, day of the month, month, day of the week."""
    time_zone: str
    overlap: Overlap
    missed: Missed
    fields: dict[str, str] = Field(default_factory=dict)
    """The fields of the upload, which each of its jobs gets."""
    bundle_size: int
    """Bytes of the stored ZIP."""
    paused: bool
    pending: bool = False
    """It was due, and its job is made as soon as the one before is cancelled."""
    next_at: AwareDatetime | None = None
    """When it is due next; None: it is paused."""
    last_at: AwareDatetime | None = None
    """When it made a job last."""
    last_job_id: int | None = None
    message: str = ""
    """Why the latest time made no job; empty: it did."""
    created_at: AwareDatetime
    links: ScheduleLinks


class SchedulePage(Wire):
    items: list[ScheduleDoc]
    next: str | None
    """Cursor of the next page; None on the last."""
