"""What has to be read to predict how large everything becomes, in reads that each are short."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from server.domain.growth import Arrived, Stored
from server.domain.statistics import ALL, RESOLUTIONS
from shared.clock import SECOND, Micros
from shared.sql import Database, Row

_AT_ONCE: Final = 10_000
ARRIVED: Final = f"""
    SELECT at, service, document FROM statistics
    WHERE resolution_s = {RESOLUTIONS[-1].seconds} AND at >= :since AND service <> '{ALL}'
"""  # noqa: S608 - no user input
FIRST_HOUR: Final = f"""
    SELECT min(at) AS at FROM statistics
    WHERE resolution_s = {RESOLUTIONS[-1].seconds} AND at >= :since
"""  # noqa: S608 - no user input
OLDEST_JOB: Final = "SELECT min(created_at) AS at FROM jobs"
# Both read an index only.
_LAST_OF_MANY: Final = """
    SELECT created_at, id FROM jobs WHERE (created_at, id) > (:created_at, :id)
    ORDER BY created_at, id LIMIT 1 OFFSET :more
"""
_REST: Final = "SELECT count(*) AS jobs FROM jobs WHERE (created_at, id) > (:created_at, :id)"


def arrived(rows: Iterable[Row]) -> dict[str, Arrived]:
    """By service, from rows of ARRIVED."""
    jobs, files = Counter[str](), Counter[str]()
    for row in rows:
        counts, service = json.loads(row["document"]), row["service"]
        jobs[service] += counts.get("uploaded", 0)
        files[service] += counts.get("uploaded_bytes", 0) + counts.get("result_bytes", 0)
    return {name: Arrived(jobs[name], files[name]) for name in jobs}


class SqlGrowth:
    """``ports.GrowthRecords`` over a database."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def arrived(self, since: Micros) -> tuple[Micros | None, Mapping[str, Arrived]]:
        params = {"since": since}
        (first,) = await self._database.list_rows(FIRST_HOUR, params)
        rows = await self._database.list_rows(ARRIVED, params)
        return first["at"], await asyncio.to_thread(arrived, rows)

    async def stored(self, now: Micros) -> Stored:
        (oldest,) = await self._database.list_rows(OLDEST_JOB)
        age = 0 if oldest["at"] is None else max(0, now - oldest["at"])
        return Stored(
            database_bytes=await self._database.size(),
            free_bytes=await self._database.free_bytes(),
            jobs=await self._jobs(),
            age_s=age / SECOND,
        )

    async def _jobs(self) -> int:
        """Some at a time: other lists wait for each read only."""
        behind, found = {"created_at": -1, "id": 0}, 0
        most = {"more": _AT_ONCE - 1}
        while rows := await self._database.list_rows(_LAST_OF_MANY, behind | most):
            (last,) = rows
            behind, found = {name: last[name] for name in behind}, found + _AT_ONCE
        (rest,) = await self._database.list_rows(_REST, behind)
        return found + int(rest["jobs"])
