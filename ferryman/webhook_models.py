"""Webhooks: what a server posts to an address when a job ends, and the log of these deliveries."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from pydantic import AwareDatetime, Field

from ferryman.models import Wire
from ferryman.states import JobState, Reason

WebhookEvent: TypeAlias = Literal["job.running", "job.completed", "job.failed", "job.cancelled"]
DeliveryState: TypeAlias = Literal["pending", "delivered", "failed"]


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


class DeliveryTry(Wire):
    """One request to the address of a webhook."""

    number: int
    at: AwareDatetime
    seconds: float
    status: int | None = None
    """Of the answer; None: there was none."""
    problem: str | None = None
    """Why it was not delivered."""


class DeliveryDoc(Wire):
    """A webhook that is or was to be delivered."""

    id: int
    webhook_id: str
    """The header ``webhook-id``, which is the same at every try."""
    job_id: int
    service: str
    url: str
    event: WebhookEvent
    state: DeliveryState
    message: str = ""
    """How the last try went."""
    tries: int = 0
    next_at: AwareDatetime | None = None
    """When it is tried (again)."""
    created_at: AwareDatetime
    ended_at: AwareDatetime | None = None
    tried: list[DeliveryTry] = Field(default_factory=list)
    """The latest tries, the first one first."""


class DeliveryPage(Wire):
    items: list[DeliveryDoc]
    next: str | None = None
    """Cursor of the next page; None on the last."""


class WebhookSecret(Wire):
    """What the signatures of webhooks are made with."""

    of: str
    """Whose webhooks: ``principal NAME`` or ``service NAME``."""
    secrets: list[str]
    """``whsec_…``; each of them signs, so that one can be replaced by another."""
