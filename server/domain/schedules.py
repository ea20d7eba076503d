"""Schedules: a stored upload that becomes a job at each time of a cron line.

A line is read as Debian's cron reads it, in a time zone: where clocks are set forward, a time that
does not exist is due as soon as the clock goes on; where they are set back, the first time only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError

from server.domain.errors import BadField, invalid
from server.domain.jobs import Bundle
from server.domain.service import Service
from server.domain.upload_fields import HEADER, check_field, given
from shared.clock import SECOND, Micros
from shared.principals import Principal

NOT_REPEATED: Final = ("after", "inputs_from", "not_before", "array_file")
"""What an upload may say of its one job."""
_TIMES: Final = ("cron", "time_zone")
_LONGEST: Final = 200
_LATEST: Final = datetime(9000, 1, 1, tzinfo=UTC).timestamp() * SECOND


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A row of the store.

    Attributes:
        fields: those of the upload, for each of its jobs.
        has_gather: the bundle has a gather.sh.
        last_at: when it made a job last.
        message: why the latest time made no job; empty: it did.
    """

    id: int
    name: str
    user_id: str
    service: str
    submitted_by: str | None
    cron: str
    time_zone: str
    fields: Mapping[str, str]
    bundle: Bundle
    has_gather: bool
    created_at: Micros
    next_at: Micros
    last_at: Micros | None
    last_job_id: int | None
    message: str


def check_schedule_field(
    name: str, value: str, services: Mapping[str, Service], principal: Principal
) -> None:
    """Refuse a field as soon as it is known to be wrong, or not the principal's to give. Raises
    BadField, NotAllowed.
    """
    if name in NOT_REPEATED and value:
        raise invalid(name, "a job that comes again and again cannot have it")
    if name == "cron":
        next_time(value, "UTC", 0)
    elif name != "time_zone":
        check_field(name, value, services, principal)
    elif value:
        next_time("0 0 1 1 *", value, 0)


def job_fields(fields: Mapping[str, str]) -> dict[str, str]:
    """Those of a form that each of the schedule's jobs has. Raises BadField: it has no name, or no
    cron line.
    """
    for name, why in (("name", ": a schedule has a name"), ("cron", "")):
        if not fields.get(name):
            raise BadField(name, f"missing_{name}", f"Missing {name} field{why}")
    return given({name: value for name, value in fields.items() if name not in (*_TIMES, HEADER)})


def next_time(line: str, time_zone: str, after: Micros) -> Micros:
    """The first time behind ``after`` that fits a cron line. Raises BadField: it is none, or no
    time of the next fifty years fits it; or there is no such zone.
    """
    if len(line.split()) != 5 or len(line) > _LONGEST:
        raise invalid("cron", f"{line[:64]!r} has not the five fields {_SUCH_AS}")
    try:
        zone = ZoneInfo(time_zone)
    except (ZoneInfoNotFoundError, OSError, ValueError):
        why = f"{time_zone[:64]!r} is no time zone known here, such as Europe/Berlin or UTC"
        raise invalid("time_zone", why) from None
    try:
        for time in CronSim(line, datetime.fromtimestamp(min(after, _LATEST) / SECOND, zone)):
            at = round(time.timestamp() * SECOND)
            if at > after:  # in an hour that comes twice, it may have been the first time
                return at
    except CronSimError as problem:
        why = f"{line!r} is no cron line ({str(problem).lower()}); its fields are {_SUCH_AS}"
        raise invalid("cron", why) from None
    raise invalid("cron", f"no time fits {line!r}")


_SUCH_AS: Final = (
    "minute, hour, day of the month, month and day of the week, such as 30 2 * * 1-5 "
    "for half past two from Monday to Friday"
)
