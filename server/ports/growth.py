"""What the prediction of the database's size follows from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from server.domain.growth import Arrived, Stored
from shared.clock import Micros


class GrowthRecords(Protocol):
    """Reads that each are short, however many jobs there are."""

    async def arrived(self, since: Micros) -> tuple[Micros | None, Mapping[str, Arrived]]:
        """When the statistics since then begin (None: there are none), and what each service
        got since.
        """
        ...

    async def stored(self, now: Micros) -> Stored:
        """What is there; each job is counted."""
        ...
