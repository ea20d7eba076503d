"""How large the database and the stored files become, if the next days are as the last were."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from server.domain.service import Service
from shared.wire import GrowthDoc

LOOKED_AT_S: Final = 7 * 86_400
LEAST_S: Final = 86_400
"""Of history; before, nothing is predicted."""
EMPTY_BYTES: Final = 372_736
"""A database without jobs."""
JOB_BYTES: Final = 3_000
"""That a job takes in the database, until there are enough to know."""
_ENOUGH_JOBS: Final = 1_000
_FAR_DAYS: Final = 3_650.0
"""A disk that is not full by then is taken not to fill."""
DAY_S: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class Arrived:
    """What a service got in the time that is looked at."""

    jobs: int
    file_bytes: int
    """Bundles and results."""


@dataclass(frozen=True, slots=True)
class Stored:
    """What is there now."""

    database_bytes: int
    free_bytes: int
    """Of the database: pages that are not in use."""
    jobs: int
    age_s: float
    """Of the oldest job."""


@dataclass(frozen=True, slots=True)
class Kept:
    """For how many seconds after their end jobs are kept; 0: for ever."""

    files_s: float
    rows_s: float


@dataclass(frozen=True, slots=True)
class Growth:
    """Attributes:
    days: of history, that it follows from.
    database_bytes: what the database settles at; None: it grows for ever.
    file_bytes: likewise of bundles and results.
    full_in_days: until the disk is full; None: it does not fill within ten years.
    for_ever: services with new jobs that are never removed, or whose files never are.
    """

    days: float
    jobs_a_day: float
    database_bytes: int | None
    file_bytes: int | None
    full_in_days: float | None
    for_ever: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Flow:
    """Bytes that arrive each day, and for how many days more than leave; None: for ever."""

    bytes_a_day: float
    days: float | None


def kept(service: Service) -> Kept:
    """A job is forgotten only after its files were removed."""
    files_s, rows_s = service.expires_after_s, service.forget_after_s
    return Kept(files_s, max(files_s, rows_s) if files_s and rows_s else 0.0)


def forecast(
    arrived: Mapping[str, Arrived],
    kept_by: Mapping[str, Kept],
    looked_at_s: float,
    stored: Stored,
    room: int,
) -> Growth | None:
    """What follows from the last days.

    Args:
        arrived, kept_by: by service.
        looked_at_s: seconds in which it arrived.
        room: bytes of the disk that may still be taken.

    Returns:
        None: the history is too short.
    """
    if looked_at_s < LEAST_S:
        return None
    days = looked_at_s / DAY_S
    each = bytes_of_job(stored)
    flows, rows, files = [], 0.0, 0.0
    rows_stay = files_stay = False
    for name, one in arrived.items():
        per_day = one.jobs * each / days
        flows.append(_flow(per_day, kept_by[name].rows_s, stored.age_s))
        rows_stay |= bool(per_day) and not kept_by[name].rows_s
        rows += per_day * kept_by[name].rows_s / DAY_S
        per_day = one.file_bytes / days
        flows.append(_flow(per_day, kept_by[name].files_s, stored.age_s))
        files_stay |= bool(per_day) and not kept_by[name].files_s
        files += per_day * kept_by[name].files_s / DAY_S
    return Growth(
        days=days,
        jobs_a_day=sum(one.jobs for one in arrived.values()) / days,
        database_bytes=None if rows_stay else round(EMPTY_BYTES + rows),
        file_bytes=None if files_stay else round(files),
        full_in_days=full_in(flows, room + stored.free_bytes),
        for_ever=tuple(
            sorted(name for name, one in arrived.items() if one.jobs and not kept_by[name].rows_s)
        ),
    )


def bytes_of_job(stored: Stored) -> float:
    """That a job takes in the database, with its history and indexes."""
    used = stored.database_bytes - stored.free_bytes - EMPTY_BYTES
    return used / stored.jobs if stored.jobs >= _ENOUGH_JOBS and used > 0 else JOB_BYTES


def full_in(flows: Sequence[Flow], room: float) -> float | None:
    """Days until that much has arrived; None: it does not within ten years."""
    at, rate = 0.0, sum(one.bytes_a_day for one in flows)
    for one in sorted(flows, key=_end):
        end = min(_end(one), _FAR_DAYS)
        if rate * (end - at) >= room:
            return at + room / rate if rate else at
        room -= rate * (end - at)
        rate -= one.bytes_a_day
        at = end
    return None if room > 0 else at


def _end(one: Flow) -> float:
    return _FAR_DAYS if one.days is None else one.days


def _flow(bytes_a_day: float, kept_s: float, age_s: float) -> Flow:
    """What is older than it is kept has been removed: from then on as much leaves as arrives."""
    return Flow(bytes_a_day, max(0.0, kept_s - age_s) / DAY_S if kept_s else None)


def document(growth: Growth) -> GrowthDoc:
    """As it is answered."""
    full = growth.full_in_days
    return GrowthDoc(
        days=round(growth.days, 1),
        jobs_a_day=round(growth.jobs_a_day, 1),
        database_bytes=growth.database_bytes,
        file_bytes=growth.file_bytes,
        for_ever=list(growth.for_ever),
        disk_full_in_days=None if full is None else round(full, 1),
    )
