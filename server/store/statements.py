"""What the parts of ``ports.Jobs`` have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from server.domain.jobs import Job
from server.domain.service import Service
from server.store import records
from shared.sql import Database, Params

NO_SERVICES: Final[Mapping[str, Service]] = MappingProxyType({})

HELD: Final = "deferred = 0 AND state IN ('Processing', 'Submitted', 'Running', 'Unknown')"
"""HOLDS_SLOT, in the words of the index ``jobs_held``."""

WAITS_SINCE: Final = "coalesce(waits_since, queued_at)"
HOLDS: Final = ("hold IS NULL", "hold = 'dependency'", "hold = 'parallel'")
"""Each is a place of its own in the index ``jobs_by_wait``, which has queued jobs in the order of
:data:`WAITS_SINCE`."""


class Part:
    """Some methods of ``ports.Jobs`` over a database.

    Args:
        changed: called with the job after each commit that moved it.
        noted: called with its id after each commit that wrote other events of it.
        services: as they are now; some of them have a webhook.
    """

    def __init__(
        self,
        database: Database,
        changed: Callable[[Job], None],
        noted: Callable[[int], None] = lambda _: None,
        services: Mapping[str, Service] = NO_SERVICES,
    ) -> None:
        self._database, self._changed, self._noted = database, changed, noted
        self._services = services

    async def _jobs(self, sql: str, params: Params | None = None) -> list[Job]:
        return [records.job(row) for row in await self._database.rows(sql, params)]


def batches(values: Sequence[Any], size: int = 500) -> Iterator[tuple[str, dict[str, Any]]]:
    """Placeholders and parameters for ``IN (…)``, some hundreds at a time: SQLite's limit is
    32,766.
    """
    for start in range(0, len(values), size):
        params = {f"v{n}": value for n, value in enumerate(values[start : start + size])}
        yield ", ".join(f":{name}" for name in params), params
