"""The schedules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from server.domain.files import FileKind
from server.domain.jobs import NewJob
from server.domain.leases import Lease
from server.domain.schedules import Fired, NewSchedule, Schedule
from shared.clock import Micros


@dataclass(frozen=True, slots=True, kw_only=True)
class Firing:
    """A time of a schedule, and the job that it makes.

    Attributes:
        by_hand: it is none of the schedule's times, and leaves them as they are.
        refusal: why there can be no job; the time is over with that.
        most_queued, most_stored: as :meth:`server.ports.Jobs.insert` has them.
    """

    schedule: Schedule
    at: Micros
    next_at: Micros
    new: NewJob | None = None
    refusal: str = ""
    by_hand: bool = False
    most_queued: int = 0
    most_stored: int = 0


class Schedules(Protocol):
    """The schedules; every change is durable when the call returns."""

    async def insert(
        self,
        new: NewSchedule,
        most: int,
        most_stored: int,
        lease: Lease | None,
        most_uploaded: int = 0,
    ) -> Schedule:
        """Add a schedule, which refers to its bundle.

        Args:
            most: schedules that the user may have, this one included; 0: any number.
            most_stored, lease, most_uploaded: as :meth:`server.ports.Jobs.insert` has them.

        Raises:
            ScheduleRefusal: the user has one of this name.
            TooManySchedules, StorageFull, DayUsed, OverDay, ServerPaused, BundleGone
        """
        ...

    async def get(self, number: int) -> Schedule:
        """Raises NoSuchSchedule."""
        ...

    async def page(
        self, user_id: str | None, submitted_by: str | None, before_id: int | None, limit: int
    ) -> tuple[list[Schedule], int | None]:
        """Newest first; and the next page's ``before_id``."""
        ...

    async def delete(self, number: int) -> list[tuple[FileKind, str]]:
        """Delete a schedule. Its jobs stay.

        Returns:
            Kind and name of the files that nothing refers to any more.
        """
        ...

    async def set_paused(self, number: int, next_at: Micros | None) -> Schedule:
        """Pause a schedule (None), or let it be due at ``next_at`` again.

        Raises:
            NoSuchSchedule
        """
        ...

    async def due(self, now: Micros, limit: int) -> list[Schedule]:
        """Those whose time has come, and those whose former job has been cancelled meanwhile."""
        ...

    async def next_at(self) -> Micros | None:
        """When one is due next; None: never."""
        ...

    async def due_behind(self, at: Micros, after_id: int, limit: int) -> list[Schedule]:
        """Those that are due later than ``at``, by their numbers from behind ``after_id``."""
        ...

    async def correct(self, schedule: Schedule, next_at: Micros) -> None:
        """Let it be due at another time, if it is as it was seen."""
        ...

    async def fire(self, firing: Firing) -> Fired:
        """Move the schedule on to its next time and make the job, in one transaction.

        A job is made once for each time, however many servers try. With ``replace``, jobs of it
        that have not ended are cancelled first, and it is pending until they have.
        """
        ...
