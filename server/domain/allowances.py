"""How much one user may have of everything, with exceptions for some."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from server.domain.errors import FerrymanError
from server.domain.service import ByUser, Service
from shared.clock import SECOND, Micros, say_time
from shared.units.rates import UNLIMITED, Rate
from shared.units.sizes import say_count, say_size

DAY: Final = 86_400 * SECOND
EVERY_SERVICE: Final = ""


@dataclass(frozen=True, slots=True)
class Allowance:
    """What one user may have. In ``runs`` and ``queued`` a service has what stands under its name,
    or else under EVERY_SERVICE, or else what the service itself allows.
    """

    stored: int = 0
    """Bytes that bundles and results take; 0: any number."""
    uploaded: int = 0
    """Bytes of bundles that are uploaded on one day, UTC; 0: any number."""
    uploads: int = 64
    """At once."""
    rate: Rate = UNLIMITED
    """Of requests."""
    runs: Mapping[str, int] = field(default_factory=dict)
    queued: Mapping[str, int] = field(default_factory=dict)
    group: str = ""
    """The table of the settings that the user is a member of with others."""


class Quota(NamedTuple):
    """The most that a user may have when a job is queued; 0: any number."""

    queued: int = 0
    """Jobs of its service that wait."""
    stored: int = 0
    """Bytes of bundles and results."""
    uploaded: int = 0
    """Bytes of bundles that are uploaded on one day, UTC."""


class Allowances:
    """What each user may have.

    Args:
        usual: for everybody who is no exception.
        exceptions: user, or portal, or the beginning of the names of some, -> what holds instead.
    """

    def __init__(
        self, usual: Allowance | None = None, exceptions: Mapping[str, Allowance] | None = None
    ) -> None:
        self._usual, self._exceptions = usual or Allowance(), ByUser(exceptions or {})

    def of(self, user: str) -> Allowance:
        return self._exceptions.get(user) or self._usual

    def quota(self, service: Service, user: str) -> Quota:
        """Of the user, when a job of the service is queued."""
        allowed = self.of(user)
        return Quota(service.queued_of(user), allowed.stored, allowed.uploaded)

    def has(self, user: str) -> bool:
        """Whether the settings say something about this user."""
        return self._exceptions.get(user) is not None

    def applied(self, service: Service) -> Service:
        """The service, with its exceptions for users."""
        runs: dict[str, int] = {}
        queued: dict[str, int] = {}
        for user, allowed in self._exceptions.values.items():
            for found, numbers in ((runs, allowed.runs), (queued, allowed.queued)):
                number = numbers.get(service.name, numbers.get(EVERY_SERVICE))
                if number is not None:
                    found[user] = number
        return replace(service, runs_by_user=ByUser(runs), queued_by_user=ByUser(queued))


class OverQuota(FerrymanError):
    """It is more than one user may have.

    Attributes:
        retry_after_s: until there may be room; None: when some is made.
    """

    def __init__(self, code: str, message: str, retry_after_s: int | None = None) -> None:
        super().__init__(code, message)
        self.retry_after_s = retry_after_s


def check_queue(user_id: str, service: str, waiting: int, new: int, most: int) -> None:
    """Refuse so many new jobs beside those that wait. Raises OverQuota."""
    if waiting + new <= most:
        return
    message = (
        f"this queues {say_count(new, 'job')}: with what user {user_id} has waiting "
        f"these are more than the {most} that service {service} allows"
    )
    if new == 1:
        message = (
            f"user {user_id} has {say_count(most, 'job')} of service {service} waiting, "
            "which is the most the service allows; try again when some have started"
        )
    raise OverQuota("queue_full", message, 30)


def check_stored(user_id: str, used: int, size: int, most: int) -> None:
    """Refuse so many bytes beside those of the user's bundles and results. Raises OverQuota."""
    if used + size > most:
        left = say_size(max(0, most - used))
        raise OverQuota(
            "storage_full",
            f"bundles and results of user {user_id} take {say_size(used)} of the {say_size(most)} "
            f"that one user has here (stored_per_user), so {left} is left, too little for this "
            "one: delete jobs that have ended, or wait until they expire",
        )


def check_day(user_id: str, used: int, size: int, most: int, now: Micros) -> None:
    """Refuse an upload beside what was uploaded on the same day before. Raises OverQuota."""
    if size > most:
        raise OverQuota(
            "upload_over_quota",
            f"this upload has {say_size(size)}, and user {user_id} may upload {say_size(most)} a "
            "day (upload_per_user_per_day): make it smaller, or ask the operator for more",
        )
    if used + size > most:
        renewed, left = end_of_day(now), say_size(max(0, most - used))
        raise OverQuota(
            "upload_quota",
            f"user {user_id} has uploaded {say_size(used)} of the {say_size(most)} that one user "
            f"may upload a day (upload_per_user_per_day), so {left} is left and this upload has "
            f"{say_size(size)}: try again after {say_time(renewed)}",
            max(1, -((now - renewed) // SECOND)),
        )


def day_of(at: Micros) -> int:
    """Days since 1970-01-01, UTC."""
    return at // DAY


def end_of_day(at: Micros) -> Micros:
    """When the day ends, UTC."""
    return (day_of(at) + 1) * DAY
