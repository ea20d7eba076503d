"""The documents about what happened to jobs."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from pydantic import AwareDatetime, Field

from ferryman.models import Wire
from ferryman.states import JobState, Reason

Level: TypeAlias = Literal["debug", "info", "notice", "warning", "error"]


class EventDoc(Wire):
    """One line of a job's history."""

    seq: int
    at: AwareDatetime
    attempt: int
    before: JobState | None
    status: JobState
    reason: Reason | None = None
    message: str = ""
    event: str = ""
    """What happened, as a dotted name: ``job.running``, ``job.progress``, ``job.retry_later``."""
    level: Level = "info"
    agent: str | None = None
    fields: dict[str, Any] = Field(default_factory=dict)
    source: Literal["run.sh"] | None = None
    """``run.sh``: it chose the name and the fields, with ``::event``."""
    job_id: int | None = None


class EventPage(Wire):
    items: list[EventDoc]
    next: str | None = None
    """Cursor (``after``) of what follows; None: there is no more now."""
    reached: int = 0
    """Every event up to this seq was looked at: ``after`` for who asks again later."""
