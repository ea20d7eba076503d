"""The documents about services."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import AwareDatetime

from ferryman.models import Limits, RetryDoc, Wire
from ferryman.states import JobState
from ferryman.webhook_models import WebhookEvent


class ServiceWebhookDoc(Wire):
    """Where a service announces its jobs."""

    url: str
    events: list[WebhookEvent]


class ServiceDoc(Wire):
    """A service: what it allows, and how busy it is. Durations in seconds, None: no limit."""

    name: str
    source: Literal["file", "api", "none"]
    """Where its settings come from: the server's settings file, which wins, or an operator; none:
    they were taken out, and jobs of it are left."""
    paused: bool = False
    """Its queued jobs wait until it is resumed; those that were sent go on."""
    paused_message: str = ""
    retired: bool = False
    """It takes no new jobs; those that it has go on to their end."""
    offered: bool
    """Whether an agent of the server offers it, though perhaps not now."""
    trouble: str = ""
    """Why no agent takes its jobs now, in a sentence; empty: one does, or is only full."""
    in_work: int
    """Slots that jobs hold which the caller may see; there are ``max_runs``."""
    counts: dict[JobState, int]
    """Those of its jobs that the caller may see, by state; ``counts_up_to`` stands for that many or
    more."""
    counts_up_to: int
    oldest_queued_at: AwareDatetime | None = None
    """When the job was queued that has waited longest."""
    runs_per_user: int
    max_runs: int
    queued_per_user: int
    timeout_s: float | None = None
    queue_timeout_s: float | None = None
    heartbeat_timeout_s: float | None = None
    expires_after_s: float | None = None
    forget_after_s: float | None = None
    retry: RetryDoc
    max_retries: int
    infra_retries: int
    retry_later_delay_s: float
    retry_later_limit: int
    on_shutdown: str
    dead_letter: bool
    dead_letter_expires_after_s: float | None = None
    max_children: int
    pack: int = 0
    limits: Limits
    given: list[str] | None = None
    """Keys of the settings that were given, such as ``limits.memory``; the others have their
    defaults. For operators."""
    settings: dict[str, Any] | None = None
    """As the operator gave them who made it; None: they are in the file."""
    env: list[str] | None = None
    """Names of the variables that its jobs get; for operators. Values are never shown."""
    secrets: list[str] | None = None
    """Likewise."""
    webhook: ServiceWebhookDoc | None = None
    """Where its jobs are announced; for operators."""
    changed_at: AwareDatetime | None = None
    """When an operator changed, paused or resumed it last."""


class ServicePage(Wire):
    """``GET /api/v1/services``."""

    items: list[ServiceDoc]
