"""How much one user may have of everything, with exceptions for some."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

from server.domain.errors import FerrymanError
from server.domain.service import ByUser, Service
from shared.clock import SECOND, Micros, say_time
from shared.units.rates import UNLIMITED, Rate
from shared.units.sizes import say_size

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


class DayUsed(FerrymanError):
    """The user has uploaded as much as one user may in a day."""

    def __init__(self, user_id: str, used: int, size: int, most: int, now: Micros) -> None:
        renewed = end_of_day(now)
        left = say_size(max(0, most - used))
        super().__init__(
            "upload_quota",
            f"user {user_id} has uploaded {say_size(used)} of the {say_size(most)} that one user "
            f"may upload a day (upload_per_user_per_day), so {left} is left and this upload has "
            f"{say_size(size)}: try again after {say_time(renewed)}",
        )
        self.retry_after_s = max(1, -((now - renewed) // SECOND))


class OverDay(FerrymanError):
    """The upload is larger than all that one user may upload in a day."""

    def __init__(self, user_id: str, size: int, most: int) -> None:
        super().__init__(
            "upload_over_quota",
            f"this upload has {say_size(size)}, and user {user_id} may upload {say_size(most)} a "
            "day (upload_per_user_per_day): make it smaller, or ask the operator for more",
        )


def check_day(user_id: str, used: int, size: int, most: int, now: Micros) -> None:
    """Refuse an upload. Raises DayUsed, OverDay.

    Args:
        used: bytes that were uploaded on that day before.
        most: of a day.
    """
    if size > most:
        raise OverDay(user_id, size, most)
    if used + size > most:
        raise DayUsed(user_id, used, size, most, now)


def day_of(at: Micros) -> int:
    """Days since 1970-01-01, UTC."""
    return at // DAY


def end_of_day(at: Micros) -> Micros:
    """When the day ends, UTC."""
    return (day_of(at) + 1) * DAY
