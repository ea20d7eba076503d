"""Lists: the newest jobs that fit a filter, at a bounded cost whatever has ended."""

from __future__ import annotations

from typing import Any, Final

from server.domain.jobs import Job
from server.ports import Filter
from server.store import rows
from server.store.placeholders import batches
from shared.sqlite.database import Database
from shared.wire import JobState

_SLICE: Final = 500
"""Jobs that one page looks at, where a tag and another choice have to be compared."""
_NO_END: Final = 2**63 - 1


class Pages:
    """The part of ``ports.Jobs`` that people look at, apart from what the loops read."""

    def __init__(self, database: Database) -> None:
        self._lists = database

    async def page(
        self, where: Filter, before_id: int | None, limit: int
    ) -> tuple[list[Job], int | None]:
        before = _NO_END if before_id is None else before_id
        if where.tag is None:
            ids, following = await self._ids(where, before, limit + 1), None
        elif where == Filter(tag=where.tag):
            ids, following = await self._tagged(where.tag, before, limit + 1), None
        else:
            ids, following = await self._both(where, where.tag, before)
        if len(ids) > limit:
            ids, following = ids[:limit], ids[limit - 1]
        return await self._jobs(ids), following

    async def _ids(self, where: Filter, before: int, limit: int) -> list[int]:
        """Newest first, by the filter without its tag."""
        given = _given(where)
        params = given | {"before": before, "limit": limit}
        if not given:
            sql = "SELECT id FROM jobs WHERE id < :before ORDER BY id DESC LIMIT :limit"
        else:
            # The indexes hold the newest of each state together: without a state, merge them all.
            states = [where.state] if where.state is not None else list(JobState)
            fits = " AND ".join(f"{name} = :{name}" for name in given if name != "state")
            parts = [
                f"SELECT id FROM (SELECT id FROM jobs WHERE {fits + ' AND ' if fits else ''}"  # noqa: S608 - our own words
                f"state = '{state.value}' AND id < :before ORDER BY id DESC LIMIT :limit)"
                for state in states
            ]
            sql = f"{' UNION ALL '.join(parts)} ORDER BY id DESC LIMIT :limit"
        return [row["id"] for row in await self._lists.list_rows(sql, params)]

    async def _tagged(self, tag: str, before: int, limit: int) -> list[int]:
        found = await self._lists.list_rows(
            """
            SELECT job_id FROM job_tags WHERE tag = :tag AND job_id < :before
            ORDER BY job_id DESC LIMIT :limit
            """,
            {"tag": tag, "before": before, "limit": limit},
        )
        return [row["job_id"] for row in found]

    async def _both(self, where: Filter, tag: str, before: int) -> tuple[list[int], int | None]:
        """Those of the next slice that have the tag and fit the rest; where the slice ended.

        Of the two lists, the one whose slice reaches further back is looked through.
        """
        fitting = await self._ids(where, before, _SLICE)
        tagged = await self._tagged(tag, before, _SLICE)
        given, found = _given(where), set[int]()
        if _reach(tagged) <= _reach(fitting):
            chosen, params = tagged, {}
            sql = "SELECT id, user_id, service, state FROM jobs WHERE id IN ({names})"
        else:
            chosen, params = fitting, {"tag": tag}
            sql = "SELECT job_id AS id FROM job_tags WHERE tag = :tag AND job_id IN ({names})"
        for names, ids in batches(chosen):
            for row in await self._lists.list_rows(sql.format(names=names), params | ids):
                if chosen is fitting or all(row[name] == given[name] for name in given):
                    found.add(row["id"])
        following = chosen[-1] if len(chosen) == _SLICE else None
        return [one for one in chosen if one in found], following

    async def _jobs(self, ids: list[int]) -> list[Job]:
        found: dict[int, Job] = {}
        for names, params in batches(ids):
            sql = f"SELECT * FROM jobs WHERE id IN ({names})"  # noqa: S608 - placeholders
            for row in await self._lists.list_rows(sql, params):
                found[row["id"]] = rows.job(row)
        return [found[one] for one in ids if one in found]


def _given(where: Filter) -> dict[str, Any]:
    """The columns that the filter asks for, without its tag."""
    chosen = {"user_id": where.user_id, "service": where.service, "state": where.state}
    return {name: value for name, value in chosen.items() if value is not None}


def _reach(ids: list[int]) -> int:
    """The oldest job that a slice leaves no doubt about."""
    return ids[-1] if len(ids) == _SLICE else 0
