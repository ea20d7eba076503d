"""What all users have now, some users at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from shared.clock import Micros


@dataclass(frozen=True, slots=True)
class UserLoad:
    """Attributes:
    queued: jobs that wait, counted no further than a limit.
    stored: bytes that bundles and results take.
    uploaded: bytes of bundles that were uploaded today.
    """

    queued: int = 0
    stored: int = 0
    uploaded: int = 0


class UserLoads(Protocol):
    """The part of :class:`server.ports.jobs.Jobs` that lists users."""

    async def users(self, first: str, most: int) -> list[str]:
        """Who has jobs, by name, from ``first`` on. Its cost does not depend on how many jobs
        there are.
        """
        ...

    async def waiting_users(self, service: str, most: int, most_jobs: int) -> dict[str, int]:
        """Who has jobs of the service that may be sent, by name, and how many each has; counts no
        further than ``most_jobs``.
        """
        ...

    async def user_loads(
        self, users: Sequence[str], at: Micros, most_queued: int
    ) -> Mapping[str, UserLoad]:
        """What these users have, on the day of ``at``."""
        ...
