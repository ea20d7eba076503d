"""Lists: the newest jobs that fit a filter, at a bounded cost whatever has ended."""

from __future__ import annotations

from typing import Any, Final

from server.domain.jobs import Job
from server.ports import Filter
from server.store import records
from server.store.statements import Part, batches
from shared.wire import JobState

_SLICE: Final = 500
"""Jobs that one page looks at, where choices have to be compared that no index holds together."""
_NO_END: Final = 2**63 - 1


class Pages(Part):
    """The part of ``ports.Jobs`` that lists jobs for callers; the loops do not use it."""

    async def page(
        self, where: Filter, before_id: int | None, limit: int
    ) -> tuple[list[Job], int | None]:
        before = _NO_END if before_id is None else before_id
        lists = _index_lists(where)
        if len(lists) == 1:
            ids, following = await self._ids(lists[0], before, limit + 1), None
        else:
            ids, following = await self._common(lists, before)
        if len(ids) > limit:
            ids, following = ids[:limit], ids[limit - 1]
        return await self._read(ids), following

    async def _ids(self, where: Filter, before: int, limit: int) -> list[int]:
        """Newest first; the filter is one that an index holds."""
        if where.tag is not None:
            return await self._tagged(where.tag, before, limit)
        given = _columns(where)
        params = given | {"before": before, "limit": limit}
        fits = "".join(f"{name} = :{name} AND " for name in given if name != "state")
        sql = "SELECT id FROM jobs WHERE {fits} id < :before ORDER BY id DESC LIMIT :limit"
        if not given or where.submitted_by is not None:
            sql = sql.format(fits=fits)
        else:
            # The indexes hold the newest of each state together: without a state, merge them all.
            states = [where.state] if where.state is not None else list(JobState)
            parts = [
                f"SELECT id FROM ({sql.format(fits=f'{fits} state = {state.value!r} AND')})"  # noqa: S608 - no user input
                for state in states
            ]
            sql = f"{' UNION ALL '.join(parts)} ORDER BY id DESC LIMIT :limit"
        return [row["id"] for row in await self._database.list_rows(sql, params)]

    async def _tagged(self, tag: str, before: int, limit: int) -> list[int]:
        tagged = await self._database.list_rows(
            """
            SELECT job_id FROM job_tags WHERE tag = :tag AND job_id < :before
            ORDER BY job_id DESC LIMIT :limit
            """,
            {"tag": tag, "before": before, "limit": limit},
        )
        return [row["job_id"] for row in tagged]

    async def _common(self, lists: list[Filter], before: int) -> tuple[list[int], int | None]:
        """Those of the next slice that are in all of the lists; where the slice ended.

        Of the lists, the one whose slice reaches furthest back is looked through.
        """
        slices = [(await self._ids(where, before, _SLICE), where) for where in lists]
        ids, chosen = min(slices, key=lambda one: _oldest(one[0]))
        fitting = set(ids)
        for where in lists:
            if where is not chosen:
                fitting &= await self._fitting(ids, where)
        following = ids[-1] if len(ids) == _SLICE else None
        return [one for one in ids if one in fitting], following

    async def _fitting(self, ids: list[int], where: Filter) -> set[int]:
        """Those of the jobs that fit, each looked up by its id."""
        given, fitting = _columns(where), set[int]()
        tag: dict[str, Any] = {} if where.tag is None else {"tag": where.tag}
        sql = (
            "SELECT job_id AS id FROM job_tags WHERE tag = :tag AND job_id IN ({names})"
            if tag
            else "SELECT id, user_id, service, state, submitted_by FROM jobs WHERE id IN ({names})"
        )
        for names, params in batches(ids):
            for row in await self._database.list_rows(sql.format(names=names), params | tag):
                if all(row[name] == given[name] for name in given):
                    fitting.add(row["id"])
        return fitting

    async def _read(self, ids: list[int]) -> list[Job]:
        jobs: dict[int, Job] = {}
        for names, params in batches(ids):
            sql = f"SELECT * FROM jobs WHERE id IN ({names})"  # noqa: S608 - placeholders
            for row in await self._database.list_rows(sql, params):
                jobs[row["id"]] = records.job(row)
        return [jobs[one] for one in ids if one in jobs]


def _index_lists(where: Filter) -> list[Filter]:
    """The filter, split into filters that each have an index: at least one."""
    parts = [
        Filter(where.user_id, where.service, where.state),
        Filter(tag=where.tag),
        Filter(submitted_by=where.submitted_by),
    ]
    return [part for part in parts if part != Filter()] or [Filter()]


def _columns(where: Filter) -> dict[str, Any]:
    """The columns of a job that the filter asks for."""
    chosen = {
        "user_id": where.user_id,
        "service": where.service,
        "state": where.state,
        "submitted_by": where.submitted_by,
    }
    return {name: value for name, value in chosen.items() if value is not None}


def _oldest(ids: list[int]) -> int:
    """The oldest job that a slice says everything about."""
    return ids[-1] if len(ids) == _SLICE else 0
