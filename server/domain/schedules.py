"""Schedules: a stored upload that becomes a job again and again."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from server.domain.cron import cron_line
from server.domain.errors import BadField, FerrymanError
from server.domain.field_values import check_length
from server.domain.jobs import Bundle
from server.domain.service import Service
from server.domain.upload_fields import HEADER, check_field, given
from shared.clock import Micros
from shared.principals import Principal
from shared.wire import Missed, Overlap

LATE_S: Final = 60.0
"""A time that is noticed later than this was missed."""
MOST_OPEN: Final = 100
"""Jobs of one schedule that have not ended, with ``queue``: then times are skipped."""
_ZONE: Final = re.compile(r"[A-Za-z0-9_+-]{1,32}(/[A-Za-z0-9_+-]{1,32}){0,3}")
NOT_REPEATED: Final = ("after", "inputs_from", "not_before")
"""What an upload may say of its one job."""


@dataclass(frozen=True, slots=True)
class Timing:
    """When a schedule is due, and what happens then."""

    cron: str
    time_zone: str = "UTC"
    """Of the IANA database."""
    overlap: Overlap = "skip_if_running"
    missed: Missed = "skip"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSchedule:
    """What is asked for."""

    name: str
    user_id: str
    service: str
    submitted_by: str | None
    timing: Timing
    fields: Mapping[str, str]
    """The fields of the upload, for each of its jobs."""
    bundle: Bundle
    next_at: Micros
    created_at: Micros
    tasks: int = 0
    """Lines of the bundle's ``array_file``; 0: it has none."""
    has_gather: bool = False
    """The bundle has a gather.sh."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule(NewSchedule):
    """A row of the store."""

    id: int
    paused: bool = False
    pending: bool = False
    """It was due, and its job is made as soon as the one before is cancelled."""
    last_at: Micros | None = None
    """When it made a job last."""
    last_job_id: int | None = None
    message: str = ""
    """Why the latest time made no job; empty: it did."""


class Outcome(StrEnum):
    """What became of a time that was due."""

    QUEUED = "queued"
    SKIPPED = "skipped"
    PENDING = "pending"
    REFUSED = "refused"
    GONE = "gone"
    """Another server was first, or the schedule was paused, changed or deleted meanwhile."""


@dataclass(frozen=True, slots=True)
class Fired:
    """How it ended, and what it led to."""

    how: Outcome
    message: str = ""
    job_id: int | None = None


class NoSuchSchedule(FerrymanError):
    code = "schedule_not_found"

    def __init__(self, number: int) -> None:
        super().__init__(f"schedule {number} not found")


class ScheduleRefusal(FerrymanError):
    """What was asked for cannot be done with the schedules as they are."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class TooManySchedules(FerrymanError):
    code = "too_many_schedules"

    def __init__(self, user_id: str, most: int) -> None:
        super().__init__(
            f"user {user_id} has {most} schedules, which is the most one user may have "
            "(schedules_per_user); delete one first"
        )


def _zone(text: str) -> str:
    if not _ZONE.fullmatch(text):
        raise ValueError(
            f"{text[:64]!r} is not the name of a time zone such as Europe/Berlin or UTC"
        )
    return text


def _one_of(*words: str) -> Any:
    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(f"{text[:32]!r} is none of {', '.join(words)}")
        return text

    return parse


_TIMING: Final[Mapping[str, Any]] = {
    "cron": cron_line,
    "time_zone": _zone,
    "overlap": _one_of("skip_if_running", "queue", "replace"),
    "missed": _one_of("skip", "run_once"),
}


def check_schedule_field(
    name: str, value: str, services: Mapping[str, Service], principal: Principal
) -> None:
    """Refuse a field as soon as it is known to be wrong, or not the principal's to give.

    Raises:
        BadField, NotAllowed
    """
    if name in NOT_REPEATED and value:
        message = f"Invalid {name}: a job that comes again and again cannot have it"
        raise BadField(name, f"invalid_{name}", message)
    if name not in _TIMING:
        check_field(name, value, services, principal)
    elif value or name == "cron":
        _timing_value(name, value)


def _timing_value(name: str, text: str) -> Any:
    try:
        check_length(name, text)
        return _TIMING[name](text)
    except ValueError as problem:
        raise BadField(name, f"invalid_{name}", f"Invalid {name}: {problem}") from None


def timing_of(fields: Mapping[str, str]) -> Timing:
    """When a form says that its schedule is due.

    Raises:
        BadField
    """
    if not fields.get("cron"):
        raise BadField("cron", "missing_cron", "Missing cron field")
    return Timing(
        **{name: _timing_value(name, fields[name]) for name in _TIMING if fields.get(name)}
    )


def job_fields(fields: Mapping[str, str]) -> dict[str, str]:
    """Those of a form that each of the schedule's jobs has.

    Raises:
        BadField: it has no name.
    """
    if not fields.get("name"):
        raise BadField("name", "missing_name", "Missing name field: a schedule has a name")
    own = {*_TIMING, HEADER}
    return given({name: value for name, value in fields.items() if name not in own})
