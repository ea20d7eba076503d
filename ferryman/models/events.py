"""What is said of jobs as it happens, webhooks, and what browsers get: tickets, links."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from pydantic import AwareDatetime, Field

from ferryman.models.jobs import WebhookEvent, Wire
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


class TicketDoc(Wire):
    """An upload ticket."""

    ticket: str
    upload_url: str
    """Where a form is posted to, ticket included; good for one upload."""
    expires_at: AwareDatetime


class LinkDoc(Wire):
    """A signed link."""

    url: str
    link: str
    """What the address ends in: as far as it is for them, other routes of the job take it, too."""
    expires_at: AwareDatetime


class LoginLinkDoc(Wire):
    """A link that logs a browser in."""

    url: str
    """Good for one login; the dashboard's address, where no login is needed."""
    expires_at: AwareDatetime | None
    """None: no login is needed."""


class WebhookJob(Wire):
    """The job as it was at the event; the fields are those of the job document."""

    id: int
    status: JobState
    message: str
    user_id: str
    service: str
    name: str | None = None
    tags: list[str] = Field(default_factory=list)
    meta: dict[str, Any] | None = None
    attempt: int
    run: int = 1
    reason: Reason | None = None
    exit_code: int | None = None
    created_at: AwareDatetime
    started_at: AwareDatetime | None = None
    ended_at: AwareDatetime | None = None


class WebhookBody(Wire):
    """The body of a webhook."""

    type: WebhookEvent
    timestamp: AwareDatetime
    """When it happened; the header ``webhook-timestamp`` says when it was sent."""
    data: WebhookJob


class WebhookSecret(Wire):
    """What the signatures of webhooks are made with."""

    principal: str
    """Whose uploads."""
    secrets: list[str]
    """``whsec_…``, the one in use first; each of them signs: for a day so does the one before."""
