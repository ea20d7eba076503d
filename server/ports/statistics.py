"""What happened when, kept for the charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from server.domain.statistics import Resolution, Tree
from shared.clock import Micros
from shared.wire import JobState


@dataclass(frozen=True, slots=True)
class Bucket:
    """What was counted and sampled in a time."""

    at: Micros
    samples: int
    """Looks at the gauges; 0: the server did not look, or did not run for all of it."""
    numbers: Tree
    """Of the service that was asked for."""


@dataclass(frozen=True, slots=True)
class UnderWay:
    """Jobs of a service in a state in which they need a slot."""

    service: str
    state: JobState
    jobs: int


class StatisticsRecords(Protocol):
    """Buckets. What is counted comes from the events, which become visible in the order of their
    numbers.
    """

    async def count(self) -> int:
        """Count the events that were not counted yet, each once, whatever dies meanwhile.

        Returns:
            How many events were looked at.
        """
        ...

    async def queued(self) -> Mapping[str, int]:
        """Service -> its queued jobs."""
        ...

    async def totals(self) -> Mapping[str, Tree]:
        """Service (``ALL``: all together) -> what was counted since there are statistics."""
        ...

    async def under_way(self) -> Sequence[UnderWay]:
        """How many jobs are at agents, or on their way."""
        ...

    async def waiting_since(self) -> Mapping[str, Micros]:
        """Service -> since when the job waits that waits longest, children that are held back
        left out.
        """
        ...

    async def database_bytes(self) -> int:
        """What the database takes on disk."""
        ...

    async def sample(self, at: Micros, gauges: Mapping[str, Mapping[str, int]]) -> None:
        """Add how things are, see :func:`server.domain.statistics.sampled`, and delete the buckets
        that are older than they are kept.
        """
        ...

    async def counted_until(self) -> Micros | None:
        """The time of the latest sample; None: there was none."""
        ...

    async def services(self, resolution: Resolution, since: Micros) -> Sequence[str]:
        """Services that buckets since then know, in order."""
        ...

    async def buckets(
        self, resolution: Resolution, since: Micros, until: Micros, service: str
    ) -> Sequence[Bucket]:
        """Those that begin since ``since`` and before ``until``, oldest first. A time in which the
        server did not run has none.
        """
        ...
