"""What callers read of jobs. All reads for callers are done here: a caller who may not see a job
gets the answer for an unknown id.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from server.domain import access
from server.domain.errors import NoSuchJob
from server.domain.jobs import Job
from server.store import events, jobs, pages, requests
from server.store.events import EventsPage
from server.store.pages import Filter
from shared.principals import Principal
from shared.sqlite.database import Database
from shared.wire import JobState

_NOBODY: Final = ""
"""No user is called so."""


async def read_job(database: Database, principal: Principal, job_id: int) -> Job:
    """The job, if the principal may see it. Raises NotAllowed, NoSuchJob."""
    visible = access.visible(principal)
    job = await database.read(jobs.get, job_id)
    if not visible.has(job):
        raise NoSuchJob(job_id)
    return job


async def read_events(
    database: Database, principal: Principal, job_id: int, after: int, limit: int
) -> EventsPage:
    """What happened to the job, from behind ``after``. Raises NotAllowed, NoSuchJob."""
    await read_job(database, principal, job_id)
    found = await database.read(events.of_job, job_id, after, limit + 1)
    items = found[:limit]
    return EventsPage(items, items[-1].seq if items else after, more=len(found) > limit)


async def list_events(
    database: Database, principal: Principal, where: Filter, after: int, limit: int
) -> EventsPage:
    """What happened to the jobs that fit and that the principal may see, from behind ``after``.
    Raises NotAllowed.
    """
    visible = _visible(principal, where)
    return await database.read_list(events.page, visible, after, limit)


async def list_jobs(
    database: Database, principal: Principal, where: Filter, before_id: int | None, limit: int
) -> tuple[list[Job], int | None]:
    """A page, as :func:`server.store.pages.page` gives it, of the jobs that fit and that the
    principal may see. Raises NotAllowed.
    """
    return await database.read_list(pages.page, _visible(principal, where), before_id, limit)


async def list_ids(
    database: Database, principal: Principal, where: Filter, before_id: int | None, limit: int
) -> tuple[list[int], int | None]:
    """The numbers of the jobs that :func:`list_jobs` gives. Raises NotAllowed."""
    return await database.read_list(pages.ids, _visible(principal, where), before_id, limit)


async def count_jobs(
    database: Database, principal: Principal, where: Filter, most: int
) -> dict[JobState, int] | None:
    """As :func:`server.store.pages.counts`, of the jobs that the principal may see. Raises
    NotAllowed.
    """
    return await database.read_list(pages.counts, _visible(principal, where), most)


def _visible(principal: Principal, where: Filter) -> Filter:
    """What the principal may see of it. Raises NotAllowed."""
    visible = access.visible(principal)
    if visible.user_id is not None and where.user_id is None:
        where = replace(where, user_id=visible.user_id)
    # One job is no list, either.
    if visible.job_id is not None or visible.user_id not in (None, where.user_id):
        where = replace(where, user_id=_NOBODY)
    return replace(where, submitted_by=visible.submitted_by)


async def job_of_key(
    database: Database, principal: Principal, user_id: str, key: str
) -> Job | None:
    """The job that the user uploaded under an idempotency key, if the principal may see it. Raises
    NotAllowed.
    """
    visible = access.visible(principal)
    job = await database.read(requests.job_of_key, user_id, key)
    return job if job is not None and visible.has(job) else None
