"""The document about what a user has used, exactly as it is on the wire."""

from __future__ import annotations

from pydantic import AwareDatetime

from ferryman.models import Wire


class Quota(Wire):
    """How much of something is used, and how much is left."""

    used: int
    limit: int | None = None
    """None: any number."""
    left: int | None = None
    """Of ``limit``; None: any number."""


class DayQuota(Quota):
    """A quota that is renewed each day."""

    renewed_at: AwareDatetime


class ServiceUsage(Wire):
    """What a user has of a service."""

    service: str
    under_way: Quota
    """Jobs that are sent or running."""
    waiting: Quota
    """Queued jobs."""


class UsageDoc(Wire):
    """``GET /api/v1/usage``: what a user has used, and what is left."""

    user_id: str
    stored: Quota
    """Bytes that bundles and results take."""
    uploaded_today: DayQuota | None = None
    """Bytes of bundles that were uploaded since midnight, UTC; None: any number, not counted."""
    uploads: Quota
    """That are under way at this server."""
    rate_limit: str | None = None
    """Requests, as in ``50/s``; None: any number."""
    services: list[ServiceUsage]
    group: str | None = None
    """The table of users in the settings that it is a member of; for operators."""
