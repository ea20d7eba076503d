"""The document about what happened when, exactly as it is on the wire."""

from __future__ import annotations

from typing import Literal, TypeAlias

from pydantic import AwareDatetime

from ferryman.models import Wire
from ferryman.units import say_about, say_size

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


class GrowthDoc(Wire):
    """How large everything becomes, if the next days are as the last ones were. Sizes in bytes,
    roughly.
    """

    days: float
    """That were looked at: at least 1, at most 7."""
    jobs_a_day: float
    """New ones."""
    database_bytes: int | None
    """What the database settles at; None: it grows for ever."""
    file_bytes: int | None
    """What bundles and results settle at; None: they grow for ever."""
    for_ever: list[str]
    """Services with new jobs that are never forgotten: ``forget_after`` or ``expires_after`` is
    0."""
    disk_full_in_days: float | None
    """None: the disk does not fill within ten years."""


def say_growth(growth: GrowthDoc | None) -> str:
    """For people."""
    if growth is None:
        return "nothing is predicted before a day of history"
    days = round(growth.days)
    parts = [f"at {growth.jobs_a_day:,.0f} jobs a day (the last {days} day{'s' * (days != 1)})"]
    for what, size in (("database", growth.database_bytes), ("files", growth.file_bytes)):
        grows = "grow for ever" if what == "files" else "grows for ever"
        settles = "settle" if what == "files" else "settles"
        parts.append(f"{what} {grows if size is None else f'{settles} at about {say_size(size)}'}")
    full = growth.disk_full_in_days
    parts.append(
        "the disk does not fill"
        if full is None
        else "the disk is full"
        if full <= 0
        else f"the disk is full in {say_about(full * 86_400)}"
    )
    return ", ".join(parts)


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
    growth: GrowthDoc | None = None
    """How large everything becomes; None: the history is too short."""
    points: list[StatisticsPoint]
    """Oldest first. A time in which the server did not run has none."""
