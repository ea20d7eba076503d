"""The document about what happened when, exactly as it is on the wire."""

from __future__ import annotations

from typing import Literal, TypeAlias

from pydantic import AwareDatetime

from ferryman.models import Wire

StatisticsPeriod: TypeAlias = Literal["hour", "day", "week"]


class Times(Wire):
    """How long something took, of all the times that it was done."""

    count: int
    """How often."""
    mean_s: float | None = None
    """None: it was not done. So are the next two."""
    p50_s: float | None = None
    """Half of them took no longer. Estimated: true within 60 %, mostly within 20 %."""
    p95_s: float | None = None
    """95 % of them took no longer, estimated likewise."""


class StatisticsCounts(Wire):
    """What happened in a time."""

    uploaded: int
    """New jobs; children of batches and jobs of schedules, too."""
    uploaded_bytes: int
    """Of their bundles."""
    started: int
    """Attempts."""
    completed: int
    """Jobs that ended well."""
    failed: dict[str, int]
    """Reason -> jobs that failed for it."""
    cancelled: int
    """Before they ended otherwise."""
    retried: dict[str, int]
    """Reason -> attempts that ended with it and are tried again."""
    result_bytes: int
    """Of the results of attempts that ended."""
    waiting: Times
    """Of the attempts that started: from when each could have been sent until ``run.sh`` ran."""
    run: Times
    """Of the attempts that ended: since they started, until the server had the result."""


class StatisticsPoint(StatisticsCounts):
    """What happened in a minute, ten minutes or an hour, and how things were, on average."""

    at: AwareDatetime
    """When it begins."""
    queued: float | None = None
    """Jobs that waited; None: the server did not look. So are the next two."""
    under_way: float | None = None
    """Those that hold a slot: being sent, at an agent, or running."""
    running: float | None = None
    """Those whose ``run.sh`` runs."""
    agents_up: float | None = None
    """That may get new jobs. This and what follows is about the server, not about a service."""
    slots: float | None = None
    """Of those agents."""
    disk_free_bytes: float | None = None
    """Where bundles and results are stored."""
    database_bytes: float | None = None
    """What the database takes."""


class StatisticsDoc(Wire):
    """``GET /api/v1/statistics``: what happened when."""

    period: StatisticsPeriod
    """How far back it goes."""
    service: str | None = None
    """None: all of them."""
    services: list[str]
    """Those that can be asked for; ``*`` is all that are beyond the hundred of a time."""
    resolution_s: int
    """Length of the time of a point."""
    since: AwareDatetime
    """When the first point could begin."""
    until: AwareDatetime
    """When it was asked for."""
    counted_until: AwareDatetime | None = None
    """When was counted last; None: not yet."""
    total: StatisticsCounts
    """Of all points."""
    ever: StatisticsCounts
    """Since there are statistics: of jobs that were deleted or forgotten, too."""
    points: list[StatisticsPoint]
    """Oldest first. A time in which the server did not run has none."""
