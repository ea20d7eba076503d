"""Once an hour: look at how much arrives, to predict how large everything becomes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from server.domain.growth import LOOKED_AT_S, Arrived, Growth, Stored, forecast, kept
from server.domain.service import Service
from server.ports.growth import GrowthRecords
from shared.clock import SECOND, Clock

_EVERY_S: Final = 3_600.0


class Forecast:
    """Remembers what it saw last, so that asking costs nothing."""

    def __init__(
        self, records: GrowthRecords, services: Mapping[str, Service], clock: Clock
    ) -> None:
        self._records, self._services, self._clock = records, services, clock
        self._due = clock.monotonic()
        self._seen: tuple[float, Mapping[str, Arrived], Stored] | None = None

    async def run_if_due(self) -> None:
        """Look again after an hour."""
        if self._clock.monotonic() >= self._due:
            await self.run_once()
            self._due = self._clock.monotonic() + _EVERY_S

    async def run_once(self) -> None:
        """Look now."""
        now = self._clock.now()
        since = now - LOOKED_AT_S * SECOND
        first, arrived = await self._records.arrived(since)
        looked_at_s = 0.0 if first is None else (now - first) / SECOND
        self._seen = looked_at_s, arrived, await self._records.stored(now)

    def read(self, room: int) -> Growth | None:
        """What is to be expected; None: the history is too short.

        Args:
            room: bytes of the disk that may still be taken.
        """
        if self._seen is None:
            return None
        looked_at_s, arrived, stored = self._seen
        keeping = {name: kept(self._services.get(name, Service(name))) for name in arrived}
        return forecast(arrived, keeping, looked_at_s, stored, room)
